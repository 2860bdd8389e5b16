"""A lower bound of a subspace's steps in closed form, for thousands of subspaces.

Blocks are dealt out to the S ranks as if they could be cut into any pieces, each with any kind of recomputation:

    rank r   Σ t · y ≤ T - e_r     t  seconds a step of a block: M · passes + gradients that never hide
             Σ m · y ≤ B_r         m  bytes of a block: state + activations · micro-batches in flight (at least)
                                   y  blocks of each kind with each recomputation on the rank
                                   e, B  what the layers at the ends take, and what room they leave

The most work that a rank does in T is a linear program of two rows. Its dual has a vertex for each pair of columns:

    most work of rank r in T = min over vertices (α, β) of α · (T - e_r) + β · B_r

    work     ╱‾‾‾ β·B, memory is short       r, S    ranks                    corners  [S, …, 2] α and β of each vertex
    in T   ╱                                 j, n    columns: a kind of block counts   [S] how many of these there are
         ╱ α·(T - e), time is short                  with a recomputation     T        bisected between low and high

Where all blocks are alike, that is as many whole blocks. The least T in which all ranks together do the work of the
model is found by bisection. No step of the subspace is shorter than this T, with the update on ranks that share it
evenly and the sum over tied embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.schedules import WARM_UPS, micro_batches_per_round
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_costs import LayerCosts
from automap_models.planners import effort
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.planners.strategies.subspace_costs import RankCosts, SubspaceCosts

SLACK = 1e-9
"""Relative; what is infeasible by less counts as feasible."""


def holds_state(problem: StrategyProblem) -> bool:
    """Whether all devices together have room for one copy of what is trained and what is frozen: no strategy holds
    less, and ZeRO-3 over all devices no more."""
    devices, fields = problem.cluster.devices, {name: getattr(problem, name) for name in ("precision", "offload")}
    strategy = Strategy(micro_batch=1, global_batch=devices, dp=devices, zero=3, **fields)
    costs = RankCosts(problem.costs.pricing, strategy)
    room = problem.cluster.device_memory - problem.reserve_bytes
    return devices * costs.updating_bytes <= float(room.sum())


def has_room(costs: RankCosts, recompute: Sequence[int], reserve: FloatArray) -> bool:
    """Whether all ranks together have room for their layers with one micro-batch, which every schedule holds.

    Args:
        costs: of the ranks, with the least of a micro-batch.
        recompute: kinds of recomputation that blocks may have.
        reserve: [S] bytes of each device that are left free.
    """
    least_bytes = costs.state + costs.saved[:, recompute].min(axis=1)
    first, last = costs.ends
    least = float(least_bytes @ costs.blocks) + float(least_bytes[first] + least_bytes[last])
    return least <= float((costs.room - reserve).sum()) * (1 + SLACK)


def degrees_bound(costs: RankCosts, recompute: list[int]) -> float:
    """No step of these degrees is shorter, whatever the schedule, ZeRO and memory: ranks that share all work by speed.

    Args:
        costs: of one of its subspaces without ZeRO.
        recompute: kinds of recomputation that blocks may have.
    """
    if (key := tuple(recompute)) in costs.bounds:
        return costs.bounds[key]
    strategy, speed = costs.strategy, float(costs.strategy.pp)
    if len(costs.costings) > 1:
        of_ranks, distinct = costs.seconds, list(dict.fromkeys(costs.work.order))
        seconds = of_ranks.min(axis=0)
        least_s = seconds[:, recompute].min(axis=1)
        speed = float((seconds / of_ranks)[:, distinct].max(axis=(1, 2)).sum())  # at most, over the fastest rank
    else:
        layers = costs.costings[0].of_layers
        seconds, least_s = layers.seconds, _least_s(layers, key)
    first, last = costs.ends
    work_s = float(least_s @ costs.blocks) + float(seconds[first, 0] + seconds[last, 0])
    update = costs.even_update_s / (strategy.dp * strategy.cp)
    costs.bounds[key] = strategy.micro_batches * work_s / speed + update
    return costs.bounds[key]


@lru_cache(maxsize=1024)
def _least_s(layers: LayerCosts, recompute: tuple[int, ...]) -> FloatArray:
    """[k] seconds of a layer for one micro-batch with that kind of recomputation with which it takes least."""
    return np.asarray(layers.seconds[:, recompute].min(axis=1))


@lru_cache(maxsize=8192)
def least_in_flight(name: str, ranks: int, micro_batches: int, vp: int) -> FloatArray:
    """[S] micro-batches whose activations a rank holds at once at least, however its layers lie in its virtual stages.

    With one virtual stage it is what the schedule holds. Else it is the least number that any of the rank's virtual
    stages has at some moment: when the warm-up ends, and under ZB-V and DualPipeV when the later stage has most.
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
    return np.asarray(np.minimum(micro_batches, np.arange(1.0, ranks + 1)))


def closed_bound(
    costs: RankCosts,
    recompute: list[int],
    in_flight: FloatArray,
    subspace: SubspaceCosts | None = None,
    enough_s: float = float("inf"),
    reserve: FloatArray | float = 0.0,
) -> float:
    """No step of the subspace, or of any subspace with these ranks, is shorter, seconds; infinite where nothing fits.

    Args:
        costs: of the ranks.
        recompute: kinds of recomputation that blocks may have.
        in_flight: [S] micro-batches whose activations a rank holds at least.
        subspace: costs of the subspace; None for all whose ranks hold as much.
        enough_s: of a longer bound it is enough to know that it is as long as this.
        reserve: [S] bytes of each device that are left free, which costs of a subspace have.
    """
    columns = costs.columns(recompute, ends=subspace is None)
    effort.count(effort.CLOSED, columns.times.size)
    spent: FloatArray = np.zeros(costs.strategy.pp)
    room, once_s = costs.room - reserve, costs.even_update_s
    if subspace is not None:
        room, once_s = subspace.room.copy(), once_s + subspace.tied_s
        beside = costs.strategy.micro_batches * (subspace.sends.sum(axis=0) + subspace.starts)
        spent = np.asarray(np.bincount(subspace.rank_of, beside, minlength=spent.size), np.float64)
        for rank, layer in ((subspace.rank_of[0], costs.ends.first), (subspace.rank_of[-1], costs.ends.last)):
            spent[rank] += costs.step_seconds[rank, layer, 0]
            room[rank] -= costs.state[layer] + in_flight[rank] * costs.saved[layer, recompute].min()
    elif costs.updating_bytes > float((room + costs.gathered_bytes).sum()) * (1 + SLACK):
        return float("inf")
    if room.min() < 0:
        return float("inf")
    memory = columns.state + in_flight[:, None] * columns.saved
    limits = (spent, room, columns.total, columns.unit, enough_s - once_s)
    times = np.ascontiguousarray(columns.times)  # as `memory` is: another layout would be compiled again
    return float(least_time(times, memory, columns.work, *limits)) + once_s


@jit
def _vertices(t: FloatArray, m: FloatArray, work: FloatArray, corners: FloatArray) -> int:
    """How many vertices the dual of a rank has; [count, 2] of `corners` become their alpha and beta.

    They are those corners, of one column and an axis or of two columns, at which no column does more work for its
    seconds and bytes.
    """
    size, count = 2, 0
    corners[:2] = 0.0
    for j in range(work.size):
        corners[0, 0], corners[1, 1] = max(corners[0, 0], work[j] / t[j]), max(corners[1, 1], work[j] / m[j])
    for i in range(work.size):
        for j in range(i + 1, work.size):
            determinant = t[i] * m[j] - t[j] * m[i]
            if determinant != 0.0:
                corners[size, 0] = (work[i] * m[j] - work[j] * m[i]) / determinant
                corners[size, 1] = (t[i] * work[j] - t[j] * work[i]) / determinant
                size += 1
    for corner in range(size):
        alpha, beta = corners[corner]
        uncovered = 0
        if alpha >= 0.0 and beta >= 0.0 and alpha + beta < np.inf:
            for j in range(work.size):
                uncovered += not (alpha * t[j] + beta * m[j] >= work[j] * (1 - SLACK))
            if uncovered == 0:
                corners[count, 0], corners[count, 1] = alpha, beta
                count += 1
    return count


@jit
def _done(
    seconds: float, corners: FloatArray, counts: IntArray, spent: FloatArray, room: FloatArray, unit: float
) -> float:
    """Work that all ranks do in so many seconds, at most."""
    total = 0.0
    for rank in range(spent.size):
        free_s, most = max(seconds - spent[rank], 0.0), np.inf
        for vertex in range(counts[rank]):
            most = min(most, corners[rank, vertex, 0] * free_s + corners[rank, vertex, 1] * room[rank])
        total += np.floor(most / unit + SLACK) * unit if unit > 0.0 else most
    return total


@jit
def least_time(
    times: FloatArray,
    memory: FloatArray,
    work: FloatArray,
    spent: FloatArray,
    room: FloatArray,
    total: float,
    unit: float,
    enough_s: float,
) -> float:
    """Seconds in which ranks do the whole work; infinite where there is no room for it.

    Args:
        times, memory: [S, n] seconds and bytes of each column.
        work: [n] of each column.
        spent, room: [S] seconds that are spent anyway, bytes that there are.
        total: work of the model.
        unit: work that comes in whole pieces of so much; 0 for any.
        enough_s: what is longer need not be known.
    """
    ranks, columns = times.shape
    corners, counts = np.empty((ranks, 2 + columns * (columns - 1) // 2, 2)), np.zeros(ranks, np.int64)
    low, high, needed = 0.0, 0.0, total * (1 - SLACK)
    for rank in range(ranks):
        counts[rank] = _vertices(times[rank], memory[rank], work, corners[rank])
        low = max(low, spent[rank])
        for j in range(columns):
            high = max(high, times[rank, j] * total / work[j])
    high += low
    if enough_s < np.inf and _done(enough_s, corners, counts, spent, room, unit) < needed:
        return enough_s
    if _done(high, corners, counts, spent, room, unit) < needed:
        return np.inf
    for _ in range(24):
        middle = 0.5 * (low + high)
        if _done(middle, corners, counts, spent, room, unit) >= needed:
            high = middle
        else:
            low = middle
    return float(low)
