"""Short plans for objectives that no planner searches under: descents from plans that are good otherwise.

A plan's neighbours have the cuts of some boundaries in a row, or their first devices, or both of one boundary, a few
places further on or back. All of them are judged at once; the shortest is gone on from until none is shorter:

    start ──► neighbours ──► the shortest ──► … ──► local optimum ──► three moves at random ──► neighbours ──► …

From the shortest local optimum known it goes on with moves at random, as long as plans may still be judged (iterated
local search; Lourenço, Martin & Stützle 2003). Before one fits, it descends from the best of some that are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from automap_models.envs.pipeline.env import Partial, Problems, taken

Integers = NDArray[np.int64]
CUT_STEPS, DEVICE_STEPS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
"""How far cuts and first devices are moved at once, in places to cut at and devices."""
KICKS = 3
"""Moves at random between two descents."""
AT_ONCE = 128
"""Plans that are drawn at random where none is known that fits."""


class Descent:
    """The plans of one problem, judged by an objective.

    Args:
        problems: one, of two stages or more.
        objective: one of envs.pipeline.objective.OBJECTIVES.

    Attributes:
        judged: plans that were.
        best: places of its cuts and first devices, int64 [2, S-1], of the shortest plan; None before one fits.
        best_time: what it takes, in units of the problem's MAX; inf before.
    """

    def __init__(self, problems: Problems, objective: str) -> None:
        self.problems, self.objective = problems._replace(cost_to_go=None), objective
        self.places = problems.cut_mask[0].nonzero().squeeze(1).cpu().numpy()
        self.devices, self.boundaries = int(problems.devices[0]), int(problems.stages[0]) - 1
        self._moves = _moves(self.boundaries)
        self.judged = 0
        self.best: Integers | None = None
        self.best_time = float("inf")

    def times(self, plans: Integers) -> NDArray[np.float64]:
        """[n] what plans [n, 2, S-1] take; inf where one does not fit."""
        self.judged += len(plans)
        device = self.problems.arrays.device
        steps = torch.full((len(plans),), 2 * self.boundaries, device=device)
        cuts, firsts = (
            torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (self.places[plans[:, 0]], plans[:, 1])
        )
        rows = self.problems.take(torch.zeros(len(plans), dtype=torch.int64, device=device))
        time, fits = taken(rows, Partial(cuts, firsts, steps), self.objective)
        result: NDArray[np.float64] = torch.where(fits, time, torch.inf).double().cpu().numpy()
        return result

    def even(self) -> tuple[list[int], list[int]]:
        """Cuts and first devices of stages of equally many places and devices, as far as there are."""
        shares = np.arange(1, self.boundaries + 1) / (self.boundaries + 1)
        places = self.places[(shares * len(self.places)).astype(np.int64)]
        return places.tolist(), (shares * self.devices).astype(np.int64).tolist()

    def search(
        self, starts: Sequence[tuple[Sequence[int], Sequence[int]]], judged: int, rng: np.random.Generator
    ) -> None:
        """Descend from plans, cuts and first devices each, then from moves at random until so many plans are judged."""
        for cuts, firsts in starts:
            self._descend(np.array([np.searchsorted(self.places, cuts), firsts], dtype=np.int64))
        while self.judged < judged:
            if self.best is None:
                drawn = self._drawn(rng)
                self._descend(drawn[self.times(drawn).argmin()])
                continue
            plan = self.best
            for _ in range(KICKS):
                around = self._neighbours(plan)
                plan = around[rng.integers(len(around))] if len(around) else plan
            self._descend(plan)

    def _descend(self, plan: Integers) -> None:
        time = float(self.times(plan[None])[0])
        while True:
            if time < self.best_time:
                self.best, self.best_time = plan, time
            around = self._neighbours(plan)
            times = self.times(around) if len(around) else np.array([np.inf])
            if not times.min() < time:
                return
            plan, time = around[times.argmin()], float(times.min())

    def _drawn(self, rng: np.random.Generator) -> Integers:
        """[AT_ONCE, 2, S-1] plans at random."""
        plans = [
            [
                np.sort(rng.choice(count, self.boundaries, replace=False))
                for count in (len(self.places), self.devices - 1)
            ]
            for _ in range(AT_ONCE)
        ]
        result: Integers = np.array(plans, dtype=np.int64) + np.array([[0], [1]])
        return result

    def _neighbours(self, plan: Integers) -> Integers:
        """[n, 2, S-1] those of a plan that are plans."""
        around = plan + self._moves
        valid = (np.diff(around, axis=2) > 0).all(axis=(1, 2)) & (around[:, 0, 0] >= 0) & (around[:, 1, 0] >= 1)
        valid &= (around[:, 0, -1] < len(self.places)) & (around[:, 1, -1] < self.devices)
        kept: Integers = around[valid]
        return kept


def _moves(boundaries: int) -> Integers:
    """[n, 2, S-1] what is added to places of cuts and to first devices."""
    moves = []
    for first in range(boundaries):
        for last in range(first, boundaries):
            for cut in (0, *CUT_STEPS, *(-step for step in CUT_STEPS)):
                for device in (0, *DEVICE_STEPS, *(-step for step in DEVICE_STEPS)):
                    if (cut or device) and (first == last or not (cut and device)):
                        move = np.zeros((2, boundaries), dtype=np.int64)
                        move[0, first : last + 1], move[1, first : last + 1] = cut, device
                        moves.append(move)
    return np.array(moves)
