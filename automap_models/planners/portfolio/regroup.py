"""Plans with other numbers of stages that a plan leads to: one of its stages split, or two neighbours merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem

PLANNER = "auto"
"""Who makes plans that come of other problems' plans."""


def splits(
    problem: StagedProblem, former: StagedProblem, plan: StagedPlan, *, uneven: bool = False
) -> Iterator[StagedPlan]:
    """The plans with one stage split where half of its work is done; each part gets half of the devices.

    Args:
        problem: of one stage more.
        former: that the plan is of.
        plan: to be split.
        uneven: whether there are also plans in which a part gets one device, and the other part the rest.
    """
    grid, devices = problem.grid, problem.cluster.devices
    places = np.array(grid.to_instructions(tuple(grid.cut_points.tolist())))
    work = np.cumsum(problem.profile.C)
    bounds = plan.stage_devices(devices)
    for (first, last), (begin, end) in zip(plan.stage_instructions(len(problem.profile)), bounds, strict=True):
        inside = places[(places >= first) & (places < last)]
        if end == begin or not inside.size:
            continue
        half = (work[last] + (work[first - 1] if first else 0.0)) / 2
        cut = int(inside[np.argmin(np.abs(work[inside] - half))])
        cuts = tuple(sorted((*plan.cuts, cut)))
        middle = (begin + end + 1) // 2
        for boundary in sorted({middle, begin + 1, end} if uneven else {middle}):
            device_cuts = tuple(sorted((*plan.device_cuts, boundary)))
            yield StagedPlan(cuts, device_cuts, problem.micro_batches, PLANNER, grid.to_points(cuts))


def merges(problem: StagedProblem, former: StagedProblem, plan: StagedPlan) -> Iterator[StagedPlan]:
    """The plans with two neighbouring stages as one, which gets the devices of both.

    Args:
        problem: of one stage fewer.
        former: that the plan is of.
        plan: with stages to be merged.
    """
    for s in range(former.stages - 1):
        cuts, device_cuts = (tuple(np.delete(of_plan, s).tolist()) for of_plan in (plan.cuts, plan.device_cuts))
        yield StagedPlan(cuts, device_cuts, problem.micro_batches, PLANNER, problem.grid.to_points(cuts))


def merges_and_splits(problem: StagedProblem, former: StagedProblem, plan: StagedPlan) -> Iterator[StagedPlan]:
    """The plans of as many stages with two of them merged and one split; none of stages of equally many devices.

    Args:
        problem, former: that the plan is of.
        plan: of two stages or more.
    """
    if problem.constraints.equal_replicas:
        return
    fewer = replace(problem, stages=problem.stages - 1)
    for merged in merges(fewer, former, plan):
        yield from splits(problem, fewer, merged, uneven=True)
