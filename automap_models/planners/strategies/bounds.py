"""A lower bound of a family's steps in closed form, for thousands of families.

Blocks are dealt out to the S ranks as if they could be cut into any pieces, each with any kind of recomputation:

    rank r   Σ t · y ≤ T - e_r     t  seconds a step of a block: M · passes + gradients that never hide
             Σ m · y ≤ B_r         m  bytes of a block: state + activations · micro-batches in flight (at least)
                                   y  blocks of each kind with each recomputation on the rank
                                   e, B  what the layers at the ends take, and what room they leave

The most work that a rank does in T is a linear program of two rows. Its dual has a vertex for each pair of columns:

    most work of rank r in T = min over vertices (α, β) of α · (T - e_r) + β · B_r

Where all blocks are alike, that is as many whole blocks. The least T in which all ranks together do the work of the
model is found by bisection. No step of the family is
shorter than this T, with the update on ranks that share it evenly and the sum over tied embeddings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import is_compiled
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.pass_orders import WARM_UPS, micro_batches_per_round
from automap_models.core.pass_tables import pass_table
from automap_models.core.schedules import SCHEDULES, ranks_of_stages, repeating_micro_batches
from automap_models.core.strategy import Strategy
from automap_models.cost.stage_costs import SENDING_ALONE
from automap_models.planners import effort
from automap_models.planners.strategies import bound_kernel as kernel
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.simulate.rounds import Chain, PassTimes, longest_chains
from automap_models.simulate.strategy import WITHOUT_WAITING

BISECTIONS = 24
MOMENTS = 12
"""Of a rank's order, whose memory is a row."""
SHORT = 0.01
"""Seconds of a message where passes take one: of chains that are as long, those of more messages."""
SLACK = kernel.SLACK
COMPILED = is_compiled(kernel.least_time)
"""Whether the loops of bound_kernel take the place of those in numpy."""


def passes_laid_out(strategy: Strategy) -> int:
    """Of each kind, of all virtual stages: those that show all of its schedule."""
    s = strategy
    shown, _ = repeating_micro_batches(s.schedule, s.pp, s.micro_batches, s.vp)
    return shown * s.stages


def division_bound(costs: RankCosts, recompute: list[int]) -> float:
    """No step of the division is shorter, whatever its schedule, ZeRO and memory: ranks that share all work evenly.

    Args:
        costs: of one of its families without ZeRO.
        recompute: kinds of recomputation that blocks may have.
    """
    strategy, seconds = costs.strategy, costs.passes.sum(axis=-1).min(axis=0)
    whole = float(seconds[:, recompute].min(axis=1) @ costs.blocks) + float(seconds[list(costs.ends), 0].sum())
    update = costs.even_update_s / (strategy.dp * strategy.cp)
    return strategy.micro_batches * whole / strategy.pp + update


@lru_cache(maxsize=4096)
def fullest_moments(name: str, ranks: int, micro_batches: int, vp: int) -> tuple[tuple[tuple[int, ...], IntArray], ...]:
    """[S] virtual stages of a rank, and [m, 2, vp] the moments of its order (Schedule.waiting) that no other has more
    of everything than, MOMENTS at most."""
    shown, _ = repeating_micro_batches(name, ranks, micro_batches, vp)
    return tuple((stages, moments[:MOMENTS]) for stages, moments in pass_table(name, ranks, shown, vp).fullest)


@lru_cache(maxsize=8192)
def least_in_flight(name: str, ranks: int, micro_batches: int, vp: int) -> FloatArray:
    """[S] micro-batches whose activations a rank holds at once at least, however its layers lie in its virtual stages.

    With one virtual stage it is what the schedule holds. Else it is the least number that any of the rank's virtual
    stages has when the warm-up ends.
    """
    after = np.arange(ranks, 0, -1)
    if name in WARM_UPS:
        return np.array([float(WARM_UPS[name](r, ranks, micro_batches)) for r in range(ranks)])
    if name == "zb-h2":
        return np.asarray(np.minimum(micro_batches, 2.0 * after - 1))
    if name in ("interleaved", "zb-h1"):
        a_round = micro_batches_per_round(ranks, micro_batches)
        extra = 2.0 * after - 1 if name == "interleaved" else 1.0 * after
        return np.asarray(np.minimum(a_round if vp > 1 else micro_batches, extra))
    return np.ones(ranks)


class UsualChains(NamedTuple):
    """Chains of passes (simulate.rounds.Chain) that make ranks end where all stages take equally long.

    Attributes:
        counts: [n, 3, V] how many F, I and W of each virtual stage; from the first pass of their rank on where ranks do
            not wait for one another.
        messages: [n, V-1] how many between neighbouring virtual stages, where ranks compute while they send.
        ranks: [n] whose last pass is the last of them.
        rank_of: [V] the rank of each virtual stage.
    """

    counts: FloatArray
    messages: FloatArray
    ranks: IntArray
    rank_of: tuple[int, ...]


@lru_cache(maxsize=4096)
def usual_chains(name: str, ranks: int, micro_batches: int, vp: int) -> UsualChains:
    """Of each rank the chain of equal stages, and its own passes after the forward passes before it."""
    stages = ranks * vp
    lies = ranks_of_stages(stages, ranks, SCHEDULES[name].placement)
    chains = []
    for rank in range(ranks):
        passes = np.zeros((3, stages))
        passes[0, :rank] = 1.0
        passes[:, [stage for stage, on in enumerate(lies) if on == rank]] = micro_batches
        chains.append(Chain(passes, np.zeros(stages - 1), rank))
    if ranks > 1:
        equal, short = np.ones(stages), np.full(stages - 1, 0.0 if name in SENDING_ALONE else SHORT)
        _, longest = longest_chains(name, micro_batches, vp, PassTimes(equal, equal, equal, short))
        chains += longest
    if name in WITHOUT_WAITING:
        chains = [chain.from_first_pass() for chain in chains]
    passes, messages = np.array([of.passes for of in chains]), np.array([of.messages for of in chains])
    return UsualChains(passes, messages, np.array([of.rank for of in chains]), lies)


class WeightedChain(NamedTuple):
    """A mean of chains with weights that add up to 1: no step is shorter than it, because none is shorter than any.

    Attributes:
        counts: [3, V] how many F, I and W of each virtual stage.
        messages: [V-1] how many between neighbouring virtual stages.
        ranks: [S] weights of the chains that end with each rank.
        rank_of: [V] the rank of each virtual stage.
    """

    counts: FloatArray
    messages: FloatArray
    ranks: FloatArray
    rank_of: IntArray


@lru_cache(maxsize=4096)
def weighted_chain(name: str, ranks: int, micro_batches: int, vp: int) -> WeightedChain:
    """The mean in which the virtual stage of fewest passes has most of them.

    It is the optimal strategy of a game in which one side chooses a chain and the other where to put a block: wherever
    blocks lie, the step has the schedule's bubble.
    """
    from scipy.optimize import linprog

    chains = usual_chains(name, ranks, micro_batches, vp)
    passes = chains.counts.sum(axis=1)
    count, stages = passes.shape
    weights = np.ones(1)
    if count > 1:
        rows = np.concatenate([-passes.T / micro_batches, np.ones((stages, 1))], axis=1)
        aim, total = np.zeros(count + 1), np.ones((1, count + 1))
        aim[-1], total[0, -1] = -1.0, 0.0
        solution = linprog(
            aim,
            A_ub=rows,
            b_ub=np.zeros(stages),
            A_eq=total,
            b_eq=[1.0],
            method="highs",
            options={"presolve": False},  # takes a sixth of the time of so small and dense a program
        )
        weights = np.maximum(solution.x[:-1], 0.0) if solution.x is not None else np.eye(count)[0]
        weights /= weights.sum()
    return WeightedChain(
        np.tensordot(weights, chains.counts, axes=1),
        weights @ chains.messages,
        np.bincount(chains.ranks, weights, minlength=ranks).astype(np.float64),
        np.array(chains.rank_of),
    )


def chain_bound(costs: RankCosts, recompute: list[int], in_flight: FloatArray, family: FamilyCosts) -> float:
    """No step of the family is shorter than its weighted chain, with as little recomputation as all memory asks for.

    Blocks lie where they add least to the chain, in any pieces. Seconds of n blocks on a rank are convex in n: first
    those without recomputation until its room is full, then more that recompute instead. So blocks are dealt out by
    what the next piece adds, whatever the rank. Each kind of block has all room for itself.

        seconds  |         ╱  all of them recompute
                 |      ╱
                 |  ╱  some recompute
                 └───┴──────┴──── blocks of a rank

    Args: as of `closed_bound`.
    """
    strategy = family.strategy
    effort.count(effort.CHAINS, strategy.stages)
    shape = (strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
    chain = weighted_chain(*shape)
    constant = float((chain.counts[:2] * family.sends).sum() + chain.counts[0] @ family.starts)
    constant += float(chain.messages @ family.messages) + costs.even_update_s + family.tied_s
    room = family.room.copy()
    for stage, layer in ((0, costs.ends.first), (-1, costs.ends.last)):
        rank = chain.rank_of[stage]
        constant += float(chain.counts[:, stage] @ costs.passes[rank, layer, 0])
        constant += float(chain.ranks[rank] * costs.gradients[rank, layer])
        room[rank] -= costs.state[layer] + in_flight[rank] * costs.saved[layer, 0]
    if (room < 0).any():
        return float("inf")
    for kind in np.flatnonzero(costs.blocks).tolist():
        of_stages = np.einsum("pv,vjp->vj", chain.counts, costs.passes[chain.rank_of, kind][:, recompute])
        seconds = np.full((strategy.pp, len(recompute)), np.inf)
        np.minimum.at(seconds, chain.rank_of, of_stages)
        seconds += (chain.ranks * costs.gradients[:, kind])[:, None]
        held = costs.state[kind] + in_flight[:, None] * costs.saved[kind, recompute][None]
        most = room[:, None] / np.maximum(held, 1e-30)
        constant += (kernel.dealt_out if COMPILED else _dealt_out)(seconds, most, float(costs.blocks[kind]))
    return constant


def _dealt_out(seconds: FloatArray, most: FloatArray, blocks: float) -> float:
    """Least seconds of so many blocks on all ranks; infinite where there is no room.

    Args:
        seconds: [S, R] of a block with each kind of recomputation.
        most: [S, R] how many blocks of a kind there is room for.
    """
    ranks, here = np.arange(len(seconds)), np.zeros(len(seconds))
    spent, left = np.zeros(len(seconds)), np.ones(len(seconds), dtype=bool)
    rates, pieces = [], []
    while left.any():  # along the lower hull of (most, seconds of most), from nothing on
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (most * seconds - spent[:, None]) / (most - here[:, None])
        slopes = np.where(most > here[:, None] * (1 + SLACK), slopes, np.inf)
        chosen = slopes.argmin(axis=1)
        rate = slopes[ranks, chosen]
        left = np.isfinite(rate)
        rates.append(np.where(left, rate, np.inf))
        pieces.append(np.where(left, most[ranks, chosen] - here, 0.0))
        spent = np.where(left, most[ranks, chosen] * seconds[ranks, chosen], spent)
        here = np.where(left, most[ranks, chosen], here)
    of_pieces, sizes = np.concatenate(rates), np.concatenate(pieces)
    order = np.argsort(of_pieces, kind="stable")
    filled = np.minimum(np.cumsum(sizes[order]), blocks)
    if filled[-1] < blocks * (1 - SLACK):
        return float("inf")
    dealt = np.diff(filled, prepend=0.0)
    used = dealt > 0
    return float(dealt[used] @ of_pieces[order][used])


def closed_bound(
    costs: RankCosts,
    recompute: list[int],
    in_flight: FloatArray,
    family: FamilyCosts | None = None,
    enough_s: float = float("inf"),
) -> float:
    """No step of the family, or of any family with these ranks, is shorter, seconds; infinite where nothing fits.

    Args:
        costs: of the ranks.
        recompute: kinds of recomputation that blocks may have.
        in_flight: [S] micro-batches whose activations a rank holds at least.
        family: costs of the family; None for all whose ranks hold as much.
        enough_s: of a longer bound it is enough to know that it is as long as this.
    """
    columns = costs.columns(recompute, ends=family is None)
    effort.count(effort.CLOSED, columns.times.size)
    spent: FloatArray = np.zeros(costs.strategy.pp)
    room, once_s = costs.room, costs.even_update_s
    if family is not None:
        room, once_s = family.room.copy(), once_s + family.tied_s
        beside = costs.strategy.micro_batches * (family.sends.sum(axis=0) + family.starts)
        spent = np.asarray(np.bincount(family.rank_of, beside, minlength=spent.size), np.float64)
        for rank, layer in ((family.rank_of[0], costs.ends.first), (family.rank_of[-1], costs.ends.last)):
            spent[rank] += costs.step_seconds[rank, layer, 0]
            room[rank] -= costs.state[layer] + in_flight[rank] * costs.saved[layer, 0]
    if room.min() < 0:
        return float("inf")
    held = columns.state + in_flight[:, None] * columns.saved
    limits = (spent, room, columns.whole, columns.unit, enough_s - once_s)
    if COMPILED:
        times = np.ascontiguousarray(columns.times)  # as `held` is: another layout would be compiled again
        return float(kernel.least_time(times, held, columns.work, *limits, BISECTIONS)) + once_s
    return _least_time(columns.times, held, columns.work, *limits) + once_s


def _least_time(
    times: FloatArray,
    held: FloatArray,
    work: FloatArray,
    spent: FloatArray,
    room: FloatArray,
    whole: float,
    unit: float,
    enough_s: float = float("inf"),
) -> float:
    """Seconds in which ranks do the whole work.

    Args:
        times, held: [S, n] seconds and bytes of each column.
        work: [n] of each column.
        spent, room: [S] seconds that are spent anyway, bytes that there are.
        whole: work of the model.
        unit: work that comes in whole pieces of so much; 0 for any.
        enough_s: what is longer need not be known.
    """
    scale_t, scale_m = times.max(), max(held.max(), 1e-30)
    t, m = times / scale_t, held / scale_m
    vertices = [*_axis_vertices(t, m, work)]
    i, j = np.triu_indices(work.size, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = t[:, i] * m[:, j] - t[:, j] * m[:, i]
        alpha = (work[i] * m[:, j] - work[j] * m[:, i]) / determinant
        beta = (t[:, i] * work[j] - t[:, j] * work[i]) / determinant
    alphas, betas = ([of[axis] for of in vertices] for axis in (0, 1))
    alpha, beta = np.vstack([*alphas, alpha.T]), np.vstack([*betas, beta.T])  # [vertices, S]
    with np.errstate(invalid="ignore"):
        covered = alpha[..., None] * t + beta[..., None] * m >= work * (1 - SLACK)
        valid = covered.all(axis=-1) & (alpha >= 0) & (beta >= 0) & np.isfinite(alpha + beta)
    constant = np.where(valid, beta * (room / scale_m), np.inf)
    alpha = np.where(valid, alpha / scale_t, 0.0)

    def done(seconds: float) -> float:
        left = np.maximum(seconds - spent, 0.0)
        most = (alpha * left + constant).min(axis=0)
        return float((np.floor(most / unit + SLACK) * unit if unit else most).sum())

    low = float(spent.max())
    if enough_s < float("inf") and done(enough_s) < whole * (1 - SLACK):
        return enough_s
    high = low + float(times.max(axis=1).max()) * whole / float(work.min())
    if done(high) < whole * (1 - SLACK):
        return float("inf")
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if done(middle) >= whole * (1 - SLACK) else (middle, high)
    return low


def _axis_vertices(t: FloatArray, m: FloatArray, work: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    """Where only the time or only the room limits a rank."""
    nothing = np.zeros(len(t))
    with np.errstate(divide="ignore"):
        return [((work / t).max(axis=1), nothing), (nothing, (work / m).max(axis=1))]
