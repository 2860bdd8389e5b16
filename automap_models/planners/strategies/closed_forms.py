"""Which strategies of equal stages are probably the best, by closed forms: for the order in which they are priced.

On hundreds of devices there are thousands of sets of degrees, and laying out the schedules of all takes longer than a
search has. These estimates lay out nothing. Nothing is proven by them.

    step     M · work of a rank · (1 + bubble) + what is left of gradients + update
    memory   state of a rank + its activations · micro-batches in flight
    work     with so much recomputation, of one kind and the next one, as the memory asks for

    schedule          bubble, of a rank's work      in flight, the mean of the fullest and the last rank
    1f1b              (S - 1) / M                   min(M, (S + 1) / 2)
    1f1b-deep         (S - 1) / M                   min(M, S)
    gpipe             (S - 1) / M                   M
    interleaved       (S - 1) / (M · vp)            min(M, (S + 1) / 2 + (1 - 1 / vp) · S)
    zb-h1             (S - 1) / (3 · M · vp)        min(M, S)
    zb-h2             0                             min(M, 2S - 1)
    zb-v, dualpipev   0, (S - 1) / (6 · M)          min(M, S), min(M, S + 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from automap_models.core.framework import Degrees
from automap_models.core.instruction_graph import FloatArray
from automap_models.planners import effort
from automap_models.planners.strategies.grid import Grid, ScheduleChoice, Subspace
from automap_models.planners.strategies.problem import UNEQUAL
from automap_models.planners.strategies.subspace_costs import RankCosts


def estimated_subspaces(
    grid: Grid, costs_of: Callable[[Degrees, int], RankCosts], degree_sets: Iterable[Degrees], recompute: list[int]
) -> list[tuple[float, Subspace]]:
    """About how long a step of a subspace's best strategy takes, and the subspace, the shortest estimates first.

    Args:
        grid: of the problem.
        costs_of: of a set of degrees with a stage of ZeRO.
        degree_sets: that there are.
        recompute: kinds of recomputation that blocks may have.
    """
    estimates: list[tuple[float, Subspace]] = []
    for degrees in degree_sets:
        effort.count(effort.ESTIMATES, len(grid.schedules(degrees)))
        zeros = grid.zeros(degrees)
        chosen = {next((zero for zero in (2, 1, 0) if zero in zeros), zeros[0]), zeros[0]}
        if degrees.pp == 1 and 3 in zeros:  # without a pipeline weights are gathered once for every pass
            chosen.add(3)
        best = [
            (step_s, Subspace(degrees, zero, choice))
            for zero in chosen
            for step_s, choice in _of_ranks(grid, costs_of(degrees, zero), degrees, recompute)
        ]
        estimates += sorted(best, key=lambda entry: entry[0])[:2]  # so that not all of them are of one
    return sorted(estimates, key=lambda entry: entry[0])


def _of_ranks(
    grid: Grid, costs: RankCosts, degrees: Degrees, recompute: list[int]
) -> Sequence[tuple[float, ScheduleChoice]]:
    """The two shortest of ranks that share everything evenly, or by their speed where their devices differ and layers
    may."""
    problem, choices = grid.problem, tuple(grid.schedules(degrees))
    by_speed = len(costs.costings) > 1 and UNEQUAL not in problem.without
    reserved = (problem.reserve_bytes, *problem.rank_reserve_bytes.items())
    key = (choices, by_speed, problem.recompute_alike, reserved, *recompute)
    if key not in costs.estimates:
        steps = _steps(grid, costs, choices, by_speed, recompute)
        shortest = np.argsort(steps, kind="stable")[:2].tolist()
        costs.estimates[key] = [(float(steps[i]), choices[i]) for i in shortest if steps[i] < np.inf]
    return costs.estimates[key]


def _steps(
    grid: Grid, costs: RankCosts, choices: tuple[ScheduleChoice, ...], by_speed: bool, recompute: list[int]
) -> FloatArray:
    """[c] seconds with each of c schedules."""
    ends, pp, micro_batches = list(costs.ends), costs.strategy.pp, costs.strategy.micro_batches
    shares = costs.speeds() if by_speed else np.full(pp, 1.0 / pp)
    alone_s = np.tensordot(costs.seconds, costs.blocks, (1, 0)) + costs.seconds[:, ends].sum(axis=1)  # [S, R]
    recompute = costs.undominated(recompute)
    work_s = (shares[:, None] * alone_s).max(axis=0)[recompute]
    saved = ((costs.blocks @ costs.saved + costs.saved[ends].sum(axis=0) / pp) / pp)[recompute]
    spare = costs.room - grid.problem.reserve(pp) - shares * (costs.blocks @ costs.state) - costs.state[ends].max()
    counts, bubbles = _of_choices(choices, pp, micro_batches)
    rank_s = least_work(work_s, saved, float((spare / (pp * shares)).min()) / counts, grid.problem.recompute_alike)
    once_s = costs.even_update_s + float(costs.gradients.max(axis=0) @ costs.blocks) / pp
    return np.asarray(micro_batches * rank_s * (1 + bubbles) + once_s)


def least_work(seconds: FloatArray, memory: FloatArray, room: FloatArray, alike: bool) -> FloatArray:
    """[c] seconds of a rank whose blocks recompute as little as there is room for; infinite where there is too little.

    Args:
        seconds, memory: [n] seconds and bytes of a rank whose blocks all recompute in one way.
        room: [c] bytes.
        alike: whether they all do; else some of them one way and the others another one, which is what fills the room.
    """
    fits = memory <= room[:, None]
    least = np.where(fits, seconds, np.inf).min(axis=1)
    if alike:
        return np.asarray(least)
    with np.errstate(divide="ignore", invalid="ignore"):  # of two that are as full
        share = (room[:, None, None] - memory) / (memory[:, None] - memory)  # [c, n, n] of the fuller one
        mixed = np.where(fits[:, None] & ~fits[..., None], share * seconds[:, None] + (1 - share) * seconds, np.inf)
    return np.asarray(np.minimum(least, mixed.min(axis=(1, 2))))


@lru_cache(maxsize=4096)
def _of_choices(choices: tuple[ScheduleChoice, ...], ranks: int, micro_batches: int) -> tuple[FloatArray, FloatArray]:
    """[c] micro-batches in flight, and shares of a rank's work that it waits."""
    counts = np.array([in_flight(choice, ranks, micro_batches) for choice in choices], np.float64)
    return counts, np.array([bubble(choice, ranks, micro_batches) for choice in choices])


def bubble(choice: ScheduleChoice, ranks: int, micro_batches: int) -> float:
    """Share of a rank's work that it waits, about; of few micro-batches at least while the first one goes through all
    ranks and back, which takes two thirds of its passes."""
    waiting = (ranks - 1) / micro_batches
    shares = {"interleaved": 1.0, "zb-h1": 1 / 3, "dualpipev": 1 / 6, "zb-h2": 0.0, "zb-v": 0.0}
    looping = choice.vp if choice.schedule in ("interleaved", "zb-h1") else 1
    there_and_back = 2 * (ranks - micro_batches) / (3 * micro_batches)
    return max(waiting * shares.get(choice.schedule, 1.0) / looping, there_and_back)


def in_flight(choice: ScheduleChoice, ranks: int, micro_batches: int) -> float:
    """Micro-batches whose activations a rank holds, about: the mean of the fullest one and the last one."""
    same = {"gpipe": micro_batches, "zb-v": ranks, "zb-h1": ranks, "dualpipev": ranks + 1}
    deep = {"1f1b-deep": ranks, "zb-h2": 2 * ranks - 1}
    looping = choice.vp > 1 and choice.schedule in ("interleaved", "zb-h1")
    extra = (1.0 - 1.0 / choice.vp) * ranks if looping else 0.0
    return min(micro_batches, same.get(choice.schedule, deep.get(choice.schedule, 0.5 * (ranks + 1)) + extra))
