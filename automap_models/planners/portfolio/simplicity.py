"""How simple a plan is to run, and which of nearly equal plans an engineer would take (cost-model.md)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum

import numpy as np

from automap_models.core.cluster import RESERVE
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan
from automap_models.planners.portfolio.candidate import Candidate


class Simplicity(IntEnum):
    """Kinds of plans, the simplest first. No framework has unequal stages."""

    DATA = 0
    BLOCKS = 1
    EQUAL = 2
    UNEQUAL = 3

    @property
    def in_words(self) -> str:
        """What such plans are."""
        return _IN_WORDS[self]

    @property
    def requires(self) -> str:
        """What runs them that simpler ones do without."""
        return _NEEDS[self]


_IN_WORDS = {
    Simplicity.DATA: "data parallelism",
    Simplicity.BLOCKS: "equal stages of whole blocks",
    Simplicity.EQUAL: "equal stages cut inside blocks",
    Simplicity.UNEQUAL: "stages on unequal numbers of devices",
}
_NEEDS = {
    Simplicity.DATA: "any framework",
    Simplicity.BLOCKS: "any framework with pipelines",
    Simplicity.EQUAL: "cuts inside blocks: automap-run, or torch's own pipelines",
    Simplicity.UNEQUAL: "stages on unequal numbers of devices: automap-run",
}


def simplicity(plan: StagedPlan, devices: int, ends: Collection[int]) -> Simplicity:
    """The kind of a plan.

    Args:
        plan: of the model.
        devices: of the cluster.
        ends: the last instruction of each block.
    """
    if plan.stages == 1:
        return Simplicity.DATA
    if len(set(np.diff([0, *plan.device_cuts, devices]).tolist())) > 1:
        return Simplicity.UNEQUAL
    return Simplicity.BLOCKS if set(plan.cuts) <= set(ends) else Simplicity.EQUAL


def simplest(candidates: Sequence[tuple[Simplicity, Candidate]], min_gain: float) -> Candidate:
    """The simplest of nearly equal plans.

    From the simplest kind to the hardest, in one kind those with room in the memory before those at risk, from few
    stages to many, and of these from 1F1B, which holds the fewest micro-batches, to other schedules: a later plan is
    taken where its step is more than `min_gain` shorter than that of the one taken before, relatively. So no plan is
    shorter by more than that than the one taken in the end.

    Args:
        candidates: at least one that fits.
        min_gain: 0 takes the shortest of all, of those that tie the simplest.
    """
    fitting = [(kind, c) for kind, c in candidates if c.fits]
    ordered = sorted(fitting, key=lambda entry: (entry[0], *_order(entry[1])))
    _, chosen = ordered[0]
    for _, candidate in ordered[1:]:
        if candidate.step_s < chosen.step_s * (1.0 - max(min_gain, 1e-9)):
            chosen = candidate
    return chosen


def _order(candidate: Candidate) -> tuple[bool, int, bool, float]:
    """Room in the memory, fewer stages, then 1F1B, then the shorter step."""
    at_risk = candidate.memory_bytes > (1.0 - RESERVE) * candidate.limit_bytes
    return at_risk, candidate.plan.stages, candidate.problem.schedule != DEFAULT_SCHEDULE, candidate.step_s
