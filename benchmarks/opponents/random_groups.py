"""Groups of METIS on random devices, for benchmarks/placer.py: what any search has to beat with as many evaluations."""

from __future__ import annotations

import math

import numpy as np

from automap_models.core.placement import PlacementProblem
from automap_models.planners.placement.step_groups import StepUnits, grouped
from automap_models.planners.placement.step_search import score_of

GROUPS = 64


def shortest_drawn_s(problem: PlacementProblem, seed: int, evaluations: int) -> float:
    """The shortest step of so many random placements; infinite where none fits the memory."""
    units, random = StepUnits.of(problem), np.random.default_rng(seed)
    groups = grouped(units, GROUPS, seed)
    drawn = [units.repaired(random.integers(0, problem.devices, groups.max() + 1)[groups]) for _ in range(evaluations)]
    best = min(score_of(units, device) for device in drawn)
    return math.inf if best.excess_bytes > 0 else best.value_s
