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
from itertools import combinations

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.schedules import WARM_UPS, micro_batches_per_round
from automap_models.core.strategy import RECOMPUTE
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts

BISECTIONS = 30
SLACK = 1e-9
"""Relative; what is infeasible by less counts as feasible."""


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


def allowed_recompute(fixed: object) -> list[int]:
    """Kinds of recomputation, as numbers, that blocks may have where this is given; all where nothing is."""
    if fixed is None:
        return list(range(len(RECOMPUTE)))
    kinds = fixed if isinstance(fixed, tuple) else (fixed,)
    return sorted({RECOMPUTE.index(kind) for kind in kinds})


def closed_bound(
    costs: RankCosts, recompute: list[int], in_flight: FloatArray, family: FamilyCosts | None = None
) -> float:
    """No step of the family, or of any family with these ranks, is shorter, seconds; infinite where nothing fits.

    Args:
        costs: of the ranks.
        recompute: kinds of recomputation that blocks may have.
        in_flight: [S] micro-batches whose activations a rank holds at least.
        family: costs of the family; None for all whose ranks hold as much.
    """
    strategy, blocks = costs.strategy, np.flatnonzero(costs.blocks)
    micro_batches = strategy.micro_batches
    seconds = micro_batches * costs.passes.sum(axis=-1) + costs.gradients[:, :, None]  # [S, k, R]
    work = costs.passes[..., 0, :].sum(axis=-1).min(axis=0)  # [k] in seconds without recomputation
    spent, room, once_s = np.zeros(strategy.pp), costs.room, costs.even_update_s
    whole = float(work @ costs.blocks)
    if family is None:
        whole += float(work[list(costs.ends)].sum())
        blocks = np.flatnonzero(costs.blocks + np.bincount(costs.ends, minlength=work.size))
    else:
        room, once_s = family.room.copy(), once_s + family.tied_s
        np.add.at(spent, family.rank_of, micro_batches * (family.sends.sum(axis=0) + family.starts))
        for rank, layer in ((family.rank_of[0], costs.ends.first), (family.rank_of[-1], costs.ends.last)):
            spent[rank] += seconds[rank, layer, 0]
            room[rank] -= costs.state[layer] + in_flight[rank] * costs.saved[layer, 0]
    if (room < 0).any():
        return float("inf")
    columns = np.ix_(np.arange(strategy.pp), blocks, np.array(recompute))
    times = seconds[columns].reshape(strategy.pp, -1)
    held = costs.state[:, None] + in_flight[:, None, None] * costs.saved[None]
    held = held[columns].reshape(strategy.pp, -1)
    unit = float(work[blocks[0]]) if blocks.size == 1 else 0.0
    return _least_time(times, held, np.repeat(work[blocks], len(recompute)), spent, room, whole, unit) + once_s


def _least_time(
    times: FloatArray,
    held: FloatArray,
    work: FloatArray,
    spent: FloatArray,
    room: FloatArray,
    whole: float,
    unit: float,
) -> float:
    """Seconds in which ranks do the whole work.

    Args:
        times, held: [S, n] seconds and bytes of each column.
        work: [n] of each column.
        spent, room: [S] seconds that are spent anyway, bytes that there are.
        whole: work of the model.
        unit: work that comes in whole pieces of so much; 0 for any.
    """
    scale_t, scale_m = times.max(), max(held.max(), 1e-30)
    t, m = times / scale_t, held / scale_m
    vertices = [*_axis_vertices(t, m, work)]
    for i, j in combinations(range(work.size), 2):
        determinant = t[:, i] * m[:, j] - t[:, j] * m[:, i]
        with np.errstate(divide="ignore", invalid="ignore"):
            alpha = (work[i] * m[:, j] - work[j] * m[:, i]) / determinant
            beta = (t[:, i] * work[j] - t[:, j] * work[i]) / determinant
        vertices.append((alpha, beta))
    alpha, beta = (np.stack(of) for of in zip(*vertices, strict=True))  # [vertices, S]
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
