"""Which strategies of equal stages are probably the best, by closed forms: for the order in which they are priced.

On hundreds of devices there are thousands of divisions, and laying out the schedules of all of them takes longer than a
search has. These estimates lay out nothing. Nothing is proven by them.

    step     M · work of a rank · (1 + bubble) + what is left of gradients + update
    memory   state of a rank + its activations · micro-batches in flight

    schedule          bubble, of a rank's work      in flight on the fullest rank
    1f1b              (S - 1) / M                   min(M, S)
    1f1b-deep, zb-h2  (S - 1) / M, 0                min(M, 2S - 1)
    gpipe             (S - 1) / M                   M
    interleaved       (S - 1) / (M · vp)            min(M, S + (S - 1) / vp)
    zb-h1             (S - 1) / (3 · M · vp)        as 1f1b, with vp as interleaved
    zb-v, dualpipev   0, (S - 1) / (6 · M)          min(M, S), min(M, S + 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from automap_models.planners.strategies.family_costs import RankCosts
from automap_models.planners.strategies.grid import Division, Family, Grid, Way

RankCostsOf = Callable[[Division, int], RankCosts]
OF_A_DIVISION = 2
"""Guesses of one division, so that not all of them are of one."""
WITH_WEIGHTS = 3
"""Stage of ZeRO that gathers weights for every pass; guessed without a pipeline, where they are gathered once."""


class Guess(NamedTuple):
    """Strategies of equal stages: about how long a step takes, and the least recomputation with which they may fit."""

    step_s: float
    family: Family
    recompute: int


def guesses(grid: Grid, costs_of: RankCostsOf, divisions: Iterable[Division], recompute: list[int]) -> list[Guess]:
    """The shortest guesses of each division first.

    Args:
        grid: of the problem.
        costs_of: of a division with a stage of ZeRO.
        divisions: that there are.
        recompute: kinds of recomputation that blocks may have.
    """
    best = []
    for division in divisions:
        of_division = sorted(_of_division(grid, costs_of, division, recompute), key=lambda guess: guess.step_s)
        best += of_division[:OF_A_DIVISION]
    return sorted(best, key=lambda guess: guess.step_s)


def _of_division(grid: Grid, costs_of: RankCostsOf, division: Division, recompute: list[int]) -> Iterator[Guess]:
    zeros = grid.zeros(division)
    lighter = next((zero for zero in (2, 1, 0) if zero in zeros), zeros[0])
    chosen = dict.fromkeys([lighter, *([WITH_WEIGHTS] if division.pp == 1 and WITH_WEIGHTS in zeros else [])])
    for zero in chosen:
        costs = costs_of(division, zero)
        ends, blocks, pp = list(costs.ends), costs.blocks, division.pp
        seconds = costs.passes.sum(axis=-1).max(axis=0)
        work = (blocks @ seconds + seconds[ends, 0].sum()) / pp
        saved = (blocks @ costs.saved + costs.saved[ends, 0].sum() / pp) / pp
        state = float(blocks @ costs.state) / pp + float(costs.state[ends].max())
        once_s = costs.even_update_s + float(costs.gradients.max(axis=0) @ blocks) / pp
        room, micro_batches = float(costs.room.min()), costs.strategy.micro_batches
        held = [(kind, float(saved[kind]), float(work[kind])) for kind in recompute]
        for way in grid.ways(division):
            flight = in_flight(way, pp, micro_batches)
            fitting = next(((kind, of) for kind, own, of in held if state + own * flight <= room), None)
            if fitting is not None:
                kind, of = fitting
                step_s = micro_batches * of * (1 + bubble(way, pp, micro_batches)) + once_s
                yield Guess(step_s, Family(division, zero, way), kind)


def bubble(way: Way, ranks: int, micro_batches: int) -> float:
    """Share of a rank's work that it waits, about."""
    waiting = (ranks - 1) / micro_batches
    shares = {"interleaved": 1.0, "zb-h1": 1 / 3, "dualpipev": 1 / 6, "zb-h2": 0.0, "zb-v": 0.0}
    looping = way.vp if way.schedule in ("interleaved", "zb-h1") else 1
    return waiting * shares.get(way.schedule, 1.0) / looping


def in_flight(way: Way, ranks: int, micro_batches: int) -> float:
    """Micro-batches whose activations the fullest rank holds, about."""
    warm_ups = {"gpipe": micro_batches, "1f1b-deep": 2 * ranks - 1, "zb-h2": 2 * ranks - 1, "dualpipev": ranks + 1}
    looping = ranks + (ranks - 1) / way.vp if way.vp > 1 and way.schedule in ("interleaved", "zb-h1") else ranks
    return min(micro_batches, warm_ups.get(way.schedule, looping))
