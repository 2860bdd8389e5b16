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
from itertools import pairwise

import numpy as np

from automap_models.core.framework import Degrees
from automap_models.core.instruction_graph import FloatArray
from automap_models.planners import effort
from automap_models.planners.strategies.grid import Grid, ScheduleChoice, Subspace
from automap_models.planners.strategies.problem import UNEQUAL, StrategyProblem
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
    entries = list[tuple[Degrees, int, RankCosts]]()
    first_of = list[int]()  # of each set of degrees
    for degrees in degree_sets:
        effort.count(effort.ESTIMATES, len(grid.schedules(degrees)))
        zeros = grid.zeros(degrees)
        chosen = {next((zero for zero in (2, 1, 0) if zero in zeros), zeros[0]), zeros[0]}
        if degrees.pp == 1 and 3 in zeros:  # without a pipeline weights are gathered once for every pass
            chosen.add(3)
        first_of.append(len(entries))
        entries += [(degrees, zero, costs_of(degrees, zero)) for zero in chosen]
    of_ranks = _of_ranks(grid, [(costs, tuple(grid.schedules(degrees))) for degrees, _, costs in entries], recompute)
    estimates: list[tuple[float, Subspace]] = []
    for begin, stop in pairwise([*first_of, len(entries)]):
        best = [
            (step_s, Subspace(degrees, zero, choice))
            for (degrees, zero, _), shortest in zip(entries[begin:stop], of_ranks[begin:stop], strict=True)
            for step_s, choice in shortest
        ]
        estimates += sorted(best, key=lambda entry: entry[0])[:2]  # so that not all of them are of one
    return sorted(estimates, key=lambda entry: entry[0])


def _of_ranks(
    grid: Grid, entries: Sequence[tuple[RankCosts, tuple[ScheduleChoice, ...]]], recompute: list[int]
) -> list[Sequence[tuple[float, ScheduleChoice]]]:
    """The two shortest of each of some ranks with schedules, which share everything evenly, or by their speed where
    their devices differ and layers may."""
    problem = grid.problem
    reserved = (problem.reserve_bytes, *problem.rank_reserve_bytes.items())
    alike = (UNEQUAL in problem.without, problem.recompute_alike, reserved, *recompute)
    fresh = dict.fromkeys((costs, choices) for costs, choices in entries if (choices, alike) not in costs.estimates)
    roomy = [(costs, choices, room) for costs, choices in fresh if (room := _room(costs, problem)) >= 0.0]
    for costs, choices in fresh:
        costs.estimates[choices, alike] = []
    for (costs, choices, _), steps in zip(roomy, _steps(problem, roomy, recompute) if roomy else (), strict=True):
        shortest = np.argsort(steps, kind="stable")[:2].tolist()
        costs.estimates[choices, alike] = [(float(steps[i]), choices[i]) for i in shortest if steps[i] < np.inf]
    return [costs.estimates[choices, alike] for costs, choices in entries]


def _steps(
    problem: StrategyProblem,
    entries: Sequence[tuple[RankCosts, tuple[ScheduleChoice, ...], float]],
    recompute: list[int],
) -> list[FloatArray]:
    """[c] seconds of each of some ranks with each of their c schedules, in such a room."""
    strategies = [costs.strategy for costs, *_ in entries]
    amounts = (_amounts(costs, problem, costs.undominated(recompute)) for costs, *_ in entries)
    seconds, nbytes, once_s = zip(*amounts, strict=True)
    most = max(of_kinds.size for of_kinds in seconds)
    padding = [[*range(of_kinds.size), *[0] * (most - of_kinds.size)] for of_kinds in seconds]
    work_s, saved = (
        np.stack([of_kinds[same] for of_kinds, same in zip(rows, padding, strict=True)]) for rows in (seconds, nbytes)
    )
    of_choices = [
        _of_choices(choices, s.pp, s.micro_batches) for s, (_, choices, _) in zip(strategies, entries, strict=True)
    ]
    counts, bubbles = map(np.concatenate, zip(*of_choices, strict=True))
    columns = [room for *_, room in entries], once_s, [strategy.micro_batches for strategy in strategies]
    sizes = [bubble.size for _, bubble in of_choices]
    room, once_s, micro_batches = (np.repeat(column, sizes) for column in columns)
    work_s, saved = (np.repeat(amount, sizes, axis=0) for amount in (work_s, saved))
    rank_s = least_work(work_s, saved, room / counts, problem.recompute_alike)
    return np.split(micro_batches * rank_s * (1 + bubbles) + once_s, np.cumsum(sizes)[:-1])


def _shares(costs: RankCosts, problem: StrategyProblem) -> FloatArray:
    """[S] of the layers, by the speed of ranks where these differ; of ranks alike [1]."""
    by_speed = len(costs.costings) > 1 and UNEQUAL not in problem.without
    return costs.speeds() if by_speed else np.array([1.0 / costs.strategy.pp])


def _room(costs: RankCosts, problem: StrategyProblem) -> float:
    """Bytes that there are for what all ranks save of a micro-batch or several, where each has its share of it."""
    pp, shares, of_ends = costs.strategy.pp, _shares(costs, problem), costs.state[list(costs.ends)].max()
    spare = costs.room - problem.reserve(pp) - shares * (costs.blocks @ costs.state) - of_ends
    return float((spare / (pp * shares)).min())


def _amounts(costs: RankCosts, problem: StrategyProblem, recompute: list[int]) -> tuple[FloatArray, FloatArray, float]:
    """[n] seconds and bytes of a rank whose blocks all recompute in one way, and seconds once a step."""
    pp = costs.strategy.pp
    work_s = (_shares(costs, problem)[:, None] * costs.alone_s).max(axis=0)[recompute]
    saved = ((costs.blocks @ costs.saved + costs.saved[list(costs.ends)].sum(axis=0) / pp) / pp)[recompute]
    return work_s, saved, costs.even_update_s + float(costs.gradients.max(axis=0) @ costs.blocks) / pp


def least_work(seconds: FloatArray, memory: FloatArray, room: FloatArray, alike: bool) -> FloatArray:
    """[c] seconds of a rank whose blocks recompute as little as there is room for; infinite where there is too little.

    Args:
        seconds, memory: [c, n] seconds and bytes of a rank whose blocks all recompute in one way.
        room: [c] bytes.
        alike: whether they all do; else some of them one way and the others another one, which is what fills the room.
    """
    fits = memory <= room[:, None]
    least = np.where(fits, seconds, np.inf).min(axis=1)
    if alike:
        return np.asarray(least)
    with np.errstate(divide="ignore", invalid="ignore"):  # of two that are as full
        # [c, n, n] share of the fuller one
        share = (room[:, None, None] - memory[:, None]) / (memory[:, :, None] - memory[:, None])
        mixed = share * seconds[:, :, None] + (1 - share) * seconds[:, None]
        mixed = np.where(fits[:, None] & ~fits[..., None], mixed, np.inf)
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
