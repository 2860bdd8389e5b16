"""Which strategies of equal stages are probably the best, by closed forms: for the order in which they are priced.

On hundreds of devices there are thousands of divisions, and laying out the schedules of all of them takes longer than a
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

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from automap_models.planners import effort
from automap_models.planners.strategies.family_costs import RankCosts
from automap_models.planners.strategies.grid import Division, Family, Grid, Way

RankCostsOf = Callable[[Division, int], RankCosts]
OF_A_DIVISION = 2
"""Guesses of one division, so that not all of them are of one."""
WITH_WEIGHTS = 3
"""Stage of ZeRO that gathers weights for every pass; guessed without a pipeline, where they are gathered once."""


class Guess(NamedTuple):
    """A family, and about how long a step of its best strategy takes."""

    step_s: float
    family: Family


def guesses(grid: Grid, costs_of: RankCostsOf, divisions: Iterable[Division], recompute: list[int]) -> list[Guess]:
    """The shortest guesses of each division first.

    Args:
        grid: of the problem.
        costs_of: of a division with a stage of ZeRO.
        divisions: that there are.
        recompute: kinds of recomputation that blocks may have.
    """
    of_all: list[Guess] = []
    for division in divisions:
        effort.count(effort.GUESSES, len(grid.ways(division)))
        of_division = sorted(_of_division(grid, costs_of, division, recompute), key=lambda guess: guess.step_s)
        of_all += of_division[:OF_A_DIVISION]
    return sorted(of_all, key=lambda guess: guess.step_s)


def _of_division(grid: Grid, costs_of: RankCostsOf, division: Division, recompute: list[int]) -> Iterator[Guess]:
    zeros = grid.zeros(division)
    lighter = next((zero for zero in (2, 1, 0) if zero in zeros), zeros[0])
    chosen = dict.fromkeys([lighter, *([WITH_WEIGHTS] if division.pp == 1 and WITH_WEIGHTS in zeros else [])])
    for zero in chosen:
        costs = costs_of(division, zero)
        even, micro_batches = costs.even, costs.strategy.micro_batches
        kinds = [(even.work_s[kind], even.saved[kind]) for kind in recompute]
        for way in grid.ways(division):
            work_s = mixed_work(kinds, even.room / in_flight(way, division.pp, micro_batches))
            step_s = micro_batches * work_s * (1 + bubble(way, division.pp, micro_batches)) + even.once_s
            if step_s < float("inf"):
                yield Guess(step_s, Family(division, zero, way))


def mixed_work(kinds: Sequence[tuple[float, float]], room: float) -> float:
    """Seconds of a rank whose blocks recompute as little as there is room for; infinite where there is too little.

    Args:
        kinds: seconds and bytes of a rank whose blocks all recompute in one way, for each of them.
        room: bytes.
    """
    least = min((seconds for seconds, held in kinds if held <= room), default=float("inf"))
    for seconds, held in kinds:
        for other_s, other in kinds:
            if other <= room < held:
                share = (room - other) / (held - other)
                least = min(least, share * seconds + (1 - share) * other_s)
    return least


def bubble(way: Way, ranks: int, micro_batches: int) -> float:
    """Share of a rank's work that it waits, about; of few micro-batches at least while the first one goes through all
    ranks and back, which takes two thirds of its passes."""
    waiting = (ranks - 1) / micro_batches
    shares = {"interleaved": 1.0, "zb-h1": 1 / 3, "dualpipev": 1 / 6, "zb-h2": 0.0, "zb-v": 0.0}
    looping = way.vp if way.schedule in ("interleaved", "zb-h1") else 1
    there_and_back = 2 * (ranks - micro_batches) / (3 * micro_batches)
    return max(waiting * shares.get(way.schedule, 1.0) / looping, there_and_back)


def in_flight(way: Way, ranks: int, micro_batches: int) -> float:
    """Micro-batches whose activations a rank holds, about: the mean of the fullest one and the last one."""
    same = {"gpipe": micro_batches, "zb-v": ranks, "zb-h1": ranks, "dualpipev": ranks + 1}
    deep = {"1f1b-deep": ranks, "zb-h2": 2 * ranks - 1}
    looping = way.vp > 1 and way.schedule in ("interleaved", "zb-h1")
    extra = (1.0 - 1.0 / way.vp) * ranks if looping else 0.0
    return min(micro_batches, same.get(way.schedule, deep.get(way.schedule, 0.5 * (ranks + 1)) + extra))
