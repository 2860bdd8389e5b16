"""The loops of planners.strategies.counts, compiled by numba."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.planners.strategies.chain_bounds import sorted_by

SLACK = 1e-9
"""Relative; what does not fit by less counts as fitting."""
CHOICES = 20_000
"""Ways of laying so many blocks in the virtual stages of a rank, and of recomputing them, up to which all are tried."""
KEPT = 24
"""Of these so many that none of the others is shorter than in all chains; what comes beyond is merged into the last."""


class CountTables(NamedTuple):
    """What n blocks, all alike, take in S ranks of v virtual stages; R kinds of recomputation, c chains, m moments.

    Attributes:
        blocks: n.
        own: [S, v] the virtual stages of a rank.
        least: [V] blocks that a virtual stage has at least.
        seconds: [V, R, 3] of F, I and W of a block in a virtual stage; the first R is without recomputation.
        gradients: [S] seconds of a block once a step.
        bytes_of: [3, R] of a block: state, saved from F to I, and kept from I to W.
        moments: [S, m, 2, v] micro-batches that wait for I and for W in each virtual stage; rows of -1 are none.
        room_of: [S, m] bytes for blocks at each moment.
        chains: [S, c, 3, V] how many F, I and W of each virtual stage, of chains that end with a rank.
        constants: [S, c] seconds of a chain that are there whatever blocks a rank has; -inf is no chain.
    """

    blocks: int
    own: IntArray
    least: IntArray
    seconds: FloatArray
    gradients: FloatArray
    bytes_of: FloatArray
    moments: FloatArray
    room_of: FloatArray
    chains: FloatArray
    constants: FloatArray


class RankOptions(NamedTuple):
    """What ranks may hold, and how long their chains are then.

    Attributes:
        ranges: [S, 2] the fewest and the most blocks of a rank.
        seconds: [S, n+1, KEPT, c] of a rank's own blocks in its chains, by how many it has; those of its options that
            memory holds and none of which is longer than another one in all chains; infinite where there is none.
        weights: [S, c, S] seconds of a block in a chain of a rank, by the rank that holds it, in its shortest stage.
        needed: [S, c, S] seconds of the blocks that a rank has at least.
        least: [S] how many these are.
        order: [S, c, S] ranks by their weights.
    """

    ranges: IntArray
    seconds: FloatArray
    weights: FloatArray
    needed: FloatArray
    least: IntArray
    order: IntArray


@jit
def _others(rank: int, c: int, blocks: int, ranges: IntArray, options: RankOptions) -> float:
    """Seconds at least of a chain in the ranks that it does not end with, which have so many blocks together."""
    total, left = 0.0, float(blocks)
    for other in range(ranges.shape[0]):
        if other != rank:
            more = ranges[other, 0] - options.least[other]
            total += options.needed[rank, c, other] + more * options.weights[rank, c, other]
            left -= ranges[other, 0]
    for place in range(ranges.shape[0]):
        other = options.order[rank, c, place]
        if left <= 0.0:
            break
        if other != rank:
            piece = min(left, float(ranges[other, 1] - ranges[other, 0]))
            total += piece * options.weights[rank, c, other]
            left -= piece
    return total


@jit
def _no_longer(one: FloatArray, another: FloatArray) -> bool:
    """Whether an option is as short as another one in all chains."""
    longer = 0
    for c in range(one.size):
        longer += one[c] > another[c]
    return longer == 0


@jit
def _keep(of_chains: FloatArray, kept: FloatArray, count: int) -> int:
    """How many options there are after one more, unless another one is as short in all chains.

    Args:
        of_chains: [c] seconds.
        kept: [KEPT, c] of the options so far.
    """
    for k in range(count):
        if _no_longer(kept[k], of_chains):
            return count
    left = 0
    for k in range(count):
        if not _no_longer(of_chains, kept[k]):
            for c in range(of_chains.size):
                kept[left, c] = kept[k, c]
            left += 1
    full = left == kept.shape[0]
    left -= full
    for c in range(of_chains.size):
        kept[left, c] = min(kept[left, c], of_chains[c]) if full else of_chains[c]
    return left + 1  # type: ignore[no-any-return]


@jit
def _number_of_choices(blocks: int, least: int, stages: int, kinds: int) -> float:
    """How many ways a rank has, about."""
    splits, of_stage = 1.0, 1.0 + (kinds - 1) * blocks / stages
    for i in range(1, stages):
        splits *= (blocks - least + i) / i
    return splits * of_stage ** (stages - 1) * kinds


@jit
def _fits(rank: int, counts: IntArray, kinds: IntArray, recomputed: IntArray, tables: CountTables) -> bool:
    """Whether memory holds so many blocks of each virtual stage, so many of which are recomputed in one way."""
    for moment in range(tables.moments.shape[1]):
        if tables.moments[rank, moment, 0, 0] < 0:
            break
        held = 0.0
        for v in range(counts.size):
            for_input, for_weight = tables.moments[rank, moment, 0, v], tables.moments[rank, moment, 1, v]
            for part, j in ((counts[v] - recomputed[v], 0), (recomputed[v], kinds[v])):
                held += part * (for_input * tables.bytes_of[1, j] + for_weight * tables.bytes_of[2, j])
            held += counts[v] * tables.bytes_of[0, 0]
        room = tables.room_of[rank, moment]
        if held > room + SLACK * abs(room):
            return False
    return True


@jit
def _seconds(counts: IntArray, kinds: IntArray, recomputed: IntArray, rates: FloatArray, of_chains: FloatArray) -> None:
    """[c] seconds of a rank's blocks in its chains; rates: [c, v, R] of a block, without recomputation, or more."""
    for c in range(of_chains.size):
        of_chains[c] = 0.0
        for v in range(counts.size):
            of_chains[c] += counts[v] * rates[c, v, 0] + recomputed[v] * (rates[c, v, kinds[v]] if kinds[v] else 0.0)


@jit
def _next_choice(counts: IntArray, kinds: IntArray, recomputed: IntArray, kinds_of: int) -> bool:
    """Go on to the next choice of all virtual stages but the last; after the last choice False, and none recomputes."""
    for v in range(counts.size - 1):
        recomputed[v] += 1
        if kinds[v] == 0 or recomputed[v] > counts[v]:
            kinds[v], recomputed[v] = kinds[v] + 1, 1
        if kinds[v] < kinds_of and counts[v] > 0:
            return True
        kinds[v], recomputed[v] = 0, 0
    return False


@jit
def _next_split(blocks: int, counts: IntArray, least: IntArray) -> bool:
    """Go on to the next way of laying so many blocks into all virtual stages; False after the last one."""
    last, left = counts.size - 1, blocks
    for v in range(last):
        left -= counts[v]
    for v in range(last):
        if left - 1 >= least[last]:
            counts[v] += 1
            counts[last] = left - 1
            return True
        left += counts[v] - least[v]
        counts[v] = least[v]
    return False


@jit
def _list_options(rank: int, blocks: int, rates: FloatArray, kept: FloatArray, tables: CountTables) -> None:
    """Put the options of a rank of so many blocks, which are as many as it has at least or more, into `kept`.

    Of the last virtual stage the fewest blocks that memory asks for are recomputed.
    """
    stages, kinds_of = tables.own.shape[1], tables.bytes_of.shape[1]
    least, counts = np.empty(stages, np.int64), np.empty(stages, np.int64)
    kinds, recomputed = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    left = blocks
    for v in range(stages):
        least[v] = tables.least[tables.own[rank, v]]
        counts[v] = least[v]
        left -= least[v]
    counts[stages - 1] += left
    of_chains, count, another = np.zeros(rates.shape[0]), 0, True
    while another:
        for kind in range(min(1, kinds_of - 1), kinds_of):
            last = stages - 1
            kinds[last], recomputed[last] = kind, 0
            most, fits = counts[last] if kind else 0, _fits(rank, counts, kinds, recomputed, tables)
            while recomputed[last] < most and not fits:
                recomputed[last] += 1
                fits = _fits(rank, counts, kinds, recomputed, tables)
            if fits:
                _seconds(counts, kinds, recomputed, rates, of_chains)
                count = _keep(of_chains, kept, count)
        another = _next_choice(counts, kinds, recomputed, kinds_of) or _next_split(blocks, counts, least)


@jit
def _least_rate(rates: FloatArray, c: int) -> float:
    """Seconds of a block in a chain where it takes least of a rank's virtual stages."""
    least = np.inf
    for v in range(rates.shape[1]):
        least = min(least, rates[c, v, 0])
    return least


@jit
def _at_most(
    step_s: float, rank: int, rates: FloatArray, constants: FloatArray, ranges: IntArray, options: RankOptions, n: int
) -> int:
    """So many of n blocks a rank may hold in so many seconds, whatever its memory; -1 where not even none."""
    most = n
    for c in range(constants.size):
        rate = _least_rate(rates, c)
        if rate > 0.0 and constants[c] > -np.inf:
            most = min(most, int(max((step_s - constants[c]) / rate, 0.0) * (1 + SLACK)))
    for own in range(most, -1, -1):
        fits = True
        for c in range(constants.size):
            seconds = own * _least_rate(rates, c) + _others(rank, c, n - own, ranges, options)
            fits = fits and constants[c] + seconds <= step_s
        if fits:
            return own
    return -1


@jit
def _narrowed(ranges: IntArray, blocks: int) -> bool:
    """Whether ranks can hold all blocks together; what each holds at least and at most follows from the others."""
    fewest = most = 0
    for rank in range(ranges.shape[0]):
        fewest, most = fewest + ranges[rank, 0], most + ranges[rank, 1]
    if fewest > blocks or most < blocks:
        return False
    for rank in range(ranges.shape[0]):
        low, high = ranges[rank, 0], ranges[rank, 1]
        ranges[rank, 0] = max(low, blocks - (most - high))
        ranges[rank, 1] = min(high, blocks - (fewest - low))
        if ranges[rank, 0] > ranges[rank, 1]:
            return False
    return True


@jit
def _of_block(rank: int, c: int, stage: int, kind: int, tables: CountTables) -> float:
    """Seconds of a block of a virtual stage in a chain of a rank, with a kind of recomputation."""
    seconds = 0.0
    for p in range(3):
        seconds += tables.chains[rank, c, p, stage] * tables.seconds[stage, kind, p]
    return seconds


@jit
def _rates(rank: int, tables: CountTables) -> FloatArray:
    """[c, v, R] seconds of a block in a chain of its rank, without recomputation, and how many more with it."""
    rates = np.zeros((tables.constants.shape[1], tables.own.shape[1], tables.seconds.shape[1]))
    for c in range(rates.shape[0]):
        for v in range(rates.shape[1]):
            stage = tables.own[rank, v]
            plain = _of_block(rank, c, stage, 0, tables)
            rates[c, v, 0] = plain + tables.gradients[rank]
            for j in range(1, rates.shape[2]):
                rates[c, v, j] = max(_of_block(rank, c, stage, j, tables) - plain, 0.0)
    return rates


@jit
def _of_others(tables: CountTables) -> RankOptions:
    """What is known before any rank's own blocks are looked at."""
    ranks, chains = tables.constants.shape
    weights, needed = np.full((ranks, chains, ranks), np.inf), np.zeros((ranks, chains, ranks))
    ranges, order = np.zeros((ranks, 2), dtype=np.int64), np.zeros((ranks, chains, ranks), dtype=np.int64)
    ranges[:, 1] = tables.blocks
    for other in range(ranks):
        for place in range(tables.own.shape[1]):
            v = tables.own[other, place]
            ranges[other, 0] += tables.least[v]
            for rank in range(ranks):
                for c in range(chains):
                    seconds = _of_block(rank, c, v, 0, tables)
                    weights[rank, c, other] = min(weights[rank, c, other], seconds)
                    needed[rank, c, other] += tables.least[v] * seconds
    for rank in range(ranks):
        for c in range(chains):
            by_weight = sorted_by(weights[rank, c], ranks)
            for place in range(ranks):
                order[rank, c, place] = by_weight[place]
    seconds_of = np.full((ranks, tables.blocks + 1, KEPT, chains), np.inf)
    return RankOptions(ranges, seconds_of, weights, needed, ranges[:, 0].copy(), order)


@jit
def rank_options(step_s: float, tables: CountTables) -> RankOptions:
    """What ranks may hold in a step of so many seconds."""
    options, (stages, kinds) = _of_others(tables), (tables.own.shape[1], tables.bytes_of.shape[1])
    ranges, first = options.ranges, options.ranges.copy()
    for rank in range(ranges.shape[0]):
        constants = tables.constants[rank]
        ranges[rank, 1] = _at_most(step_s, rank, _rates(rank, tables), constants, first, options, tables.blocks)
    if not _narrowed(ranges, tables.blocks):
        for rank in range(ranges.shape[0]):
            ranges[rank, 1] = -1
        return options
    for rank in range(ranges.shape[0]):
        rates = _rates(rank, tables)
        for own in range(ranges[rank, 0], ranges[rank, 1] + 1):
            if _number_of_choices(own, options.least[rank], stages, kinds) <= CHOICES:
                _list_options(rank, own, rates, options.seconds[rank, own], tables)
            else:
                for c in range(rates.shape[0]):
                    options.seconds[rank, own, 0, c] = own * _least_rate(rates, c)
    return options


@jit
def _holds(step_s: float, rank: int, own: int, ranges: IntArray, tables: CountTables, options: RankOptions) -> bool:
    """Whether a rank may hold so many blocks in so many seconds."""
    chains = tables.constants.shape[1]
    left = np.empty(chains)
    for c in range(chains):
        left[c] = step_s - tables.constants[rank, c] - _others(rank, c, tables.blocks - own, ranges, options)
    for k in range(KEPT):
        if options.seconds[rank, own, k, 0] == np.inf:
            return False
        if _no_longer(options.seconds[rank, own, k], left):
            return True
    return False


@jit
def can_be_dealt(step_s: float, tables: CountTables, options: RankOptions) -> bool:
    """Whether ranks may hold all blocks so that each ends within so many seconds, as far as ranges of counts say."""
    ranges, changed = options.ranges.copy(), True
    while changed:
        changed = False
        for rank in range(ranges.shape[0]):
            low, high = ranges[rank, 0], ranges[rank, 1]
            while low <= high and not _holds(step_s, rank, low, ranges, tables, options):
                low += 1
            while low <= high and not _holds(step_s, rank, high, ranges, tables, options):
                high -= 1
            if low > high:
                return False
            changed = changed or low > ranges[rank, 0] or high < ranges[rank, 1]
            ranges[rank, 0], ranges[rank, 1] = low, high
        if not _narrowed(ranges, tables.blocks):
            return False
    return True
