"""Moves of a placement as the learned placer has them: pieces of a partition, each to another device.

    a level of METIS ── cut where the placement changes devices ── pieces ── the network's view ── a logit a move
                                                                                      drawn moves, simulated one by one

Levels are those of the annealing (step_search.levels). Where a level has more pieces than the
network looks at, it sees a window of the graph's order that is drawn anew each time.

    u units, m of them in P pieces, D devices            level    0 0 0 1 1 1 2 2        a group of the partition
                                                         device   a a b b b b a a        of the current placement
                                                         piece    0 0 1 2 2 2 3 3        one for each pair of the two

    share of (p, d) = (1 - uniform) · softmax(logits)[p, d] + uniform / allowed moves             (`drawn_moves`)
    drawn           = the moves of the largest log(share) + Gumbel noise: without replacement, in proportion to shares
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import BoolArray, FloatArray, IntArray
from automap_models.envs.placement.features import PlacerInputs, PlacerView
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_search import levels


@dataclass(frozen=True)
class DrawSettings:
    """How the network looks at a placement.

    Attributes:
        pieces: at most, at a time.
        moves: drawn and simulated before the network looks again; where there are fewer, a look counts as so many, too.
        uniform: share of the moves that are drawn from all alike.
    """

    pieces: int = 1024
    moves: int = 64
    uniform: float = 0.1


Scorer = Callable[[PlacerInputs], FloatArray]
"""From what the network sees to [P, D] logits."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """What can move of a placement.

    Attributes:
        of_unit: [u] piece of each unit, -1 for none.
        order: [m] units of all pieces, one piece after the other.
        start: [P + 1] where each begins.
        may: [P, D] whether each may move to a device.
    """

    of_unit: IntArray
    order: IntArray
    start: IntArray
    may: BoolArray

    def members(self, piece: int) -> IntArray:
        """[...] units of a piece."""
        return self.order[self.start[piece] : self.start[piece + 1]]


class MoveSpace:
    """The moves of a problem's placements.

    Attributes:
        levels: [u] group of each unit, from coarse partitions to single units.
    """

    def __init__(self, units: StepUnits, seed: int, schedule: DrawSettings | None = None) -> None:
        self.units, self._settings = units, DrawSettings() if schedule is None else schedule
        self.levels = levels(units, seed)
        self.view = PlacerView(units.problem, units.tables)

    def pieces(self, device: IntArray, level: int, random: np.random.Generator) -> Pieces:
        """The pieces of a level of a placement, numbered along the graph's order."""
        devices = self.units.problem.devices
        # Groups are numbered along the graph, so that neighbouring numbers are neighbouring pieces.
        keys = np.unique(self.levels[level] * devices + device, return_inverse=True)[1]
        count = int(keys.max()) + 1
        most = self._settings.pieces
        if count > most:
            first = int(random.integers(count - most + 1))
            inside = (keys >= first) & (keys < first + most)
            keys, count = np.where(inside, keys - first, -1), most
        chosen = np.flatnonzero(keys >= 0)
        order = chosen[np.argsort(keys[chosen], kind="stable")]
        start = np.concatenate([[0], np.cumsum(np.bincount(keys[chosen], minlength=count))])
        may = np.logical_and.reduceat(self.units.allowed[order], start[:-1], axis=0)
        return Pieces(keys, order, start, may)

    def inputs(self, device: IntArray, pieces: Pieces) -> PlacerInputs:
        """What the network sees of a placement."""
        of_operation = pieces.of_unit[self.units.unit_of]
        return self.view.inputs(self.units.expand(device), of_operation, pieces.may)

    def moves(
        self, scorer: Scorer, current: Callable[[], IntArray], random: np.random.Generator
    ) -> Iterator[IntArray | None]:
        """Moves that the network draws, some at a look, without end; see step_search.Moves."""
        schedule = self._settings
        while True:
            seen_by_scorer = current()
            pieces = self.pieces(seen_by_scorer, int(random.integers(len(self.levels))), random)
            inputs = self.inputs(seen_by_scorer, pieces)
            drawn = drawn_moves(scorer(inputs), inputs, schedule.moves, schedule.uniform, random)
            for piece, target in drawn.tolist():
                # A move before this one may have taken some of the piece elsewhere: only what stayed goes along.
                device, members = current(), pieces.members(piece)
                members = members[device[members] == seen_by_scorer[members[0]]]
                changed = device.copy()
                changed[members] = target
                yield changed if members.size else None
            yield from [None] * (schedule.moves - len(drawn))


def drawn_moves(
    logits: FloatArray, inputs: PlacerInputs, count: int, uniform: float, random: np.random.Generator
) -> IntArray:
    """[≤ count, 2] different pieces and devices, drawn from the softmax of the logits mixed with all moves alike.

    Args:
        logits: [P, D].
        uniform: share of all moves alike.
        random: of the draws (Gumbel's maximum: Vieira, "Gumbel-max trick and weighted reservoir sampling", 2014).
    """
    allowed = np.flatnonzero(inputs.move_mask.ravel() > 0)
    if not allowed.size:
        return np.zeros((0, 2), dtype=np.int64)
    values = logits.ravel()[allowed].astype(np.float64)
    share = np.exp(values - values.max())
    share = (1.0 - uniform) * share / share.sum() + uniform / allowed.size
    keys = np.log(share + 1e-300) + random.gumbel(size=share.size)
    best = np.argsort(-keys, kind="stable")[:count]
    return np.stack(np.divmod(allowed[best], inputs.move_mask.shape[1]), axis=1)
