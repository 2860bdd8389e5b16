"""Where a search looks for good plans before it looks everywhere: coarser grids, few devices, around a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.staged.costs import is_plain
from automap_models.planners.staged.relaxation import PrefixBounds
from automap_models.planners.staged.stage_tables import StageTables

COARSEST = 8
"""Fewest segments of a coarse search."""
STEP = 4
"""How much finer each level is than the one before it."""
FEW, MANY = 16, 32
"""Rough plans begin their stages at every second device, or so that they begin at MANY of them; but at no fewer than
FEW and two a stage."""


def coarser_strides(problem: StagedProblem) -> list[int]:
    """How many boundaries each coarser grid makes one of, the coarsest grid first.

    These are powers of STEP down to 2 or more from the power of two that leaves enough segments for the stages.
    """
    segments = problem.grid.cut_points.size
    coarsest = max(segments // max(COARSEST, problem.stages), 1)
    return [1 << j for j in range(coarsest.bit_length() - 1, 0, -STEP.bit_length() + 1)]


def few_devices(problem: StagedProblem, many: int = MANY) -> NDArray[np.bool_] | None:
    """[D+1] the devices at which rough plans may begin their stages: nodes, and every so many; None for all."""
    devices = problem.cluster.devices
    every = min(max(devices // many, 2), devices // max(FEW, 2 * problem.stages))
    if every < 2 or not is_plain(problem):
        return None
    begins: NDArray[np.bool_] = np.arange(devices + 1) % every == 0
    begins[problem.cluster.node_bounds] = True
    return begins


def around(tables: StageTables, plan: StagedPlan, reach: tuple[int, int]) -> PrefixBounds:
    """Bounds that only let stages begin near where the plan's begin.

    Args:
        tables: places where plans may cut, those of the plan among them.
        plan: to look around.
        reach: how far, in boundaries of the tables and in devices.
    """
    stages, devices = tables.stages, tables.replicas_in_all
    begin = np.full((stages, devices + 1, tables.end + 1), np.inf)
    begin[0, 0, 0] = 0.0
    by_boundary, by_device = reach
    for s, (cut, device) in enumerate(zip(plan.cuts, plan.device_cuts, strict=True), start=1):
        k, (first, last) = int(np.searchsorted(tables.boundary, cut + 1)), tables.windows[s]
        near = slice(max(s, device - by_device), min(devices - stages + s, device + by_device) + 1)
        begin[s, near, max(first, k - by_boundary) : max(0, min(last, k + by_boundary) + 1)] = 0.0
    return PrefixBounds(begin, begin, np.zeros_like(begin))
