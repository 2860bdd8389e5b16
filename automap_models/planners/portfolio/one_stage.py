"""All plans of one stage, and the problems of several stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.stage_arrays import StageArrays, stage_arrays
from automap_models.simulate.plan_step import step_cost

ONE_STAGE = "explorer"
DATA_PARALLEL = "data-parallel"
"""Who makes the plans of one stage."""


def one_stage_plans(space: PlanningSpace) -> list[Candidate]:
    """The best plan of each degree of operator partitioning, 1 among them; where none fits the one of least memory.

    All plans are looked at: with one stage there is nothing to cut, so that each best one is proven.
    """
    if 1 not in space.stage_numbers or not space.allows(1):
        return []
    best: dict[str, Candidate] = {}
    for problem, index in space.one_stage():
        planner = ONE_STAGE if index else DATA_PARALLEL
        plan = StagedPlan((), (), problem.micro_batches, planner, coarse_cuts=(), shardings=(index,))
        if not plan.check_valid(problem)[0]:
            continue
        candidate = Candidate(problem, plan, step_cost(problem, plan))
        if candidate.name not in best or _better(candidate, best[candidate.name]):
            best[candidate.name] = candidate
    return [
        replace(candidate, proven=Bound(candidate.step_s, "exact") if candidate.fits else None)
        for candidate in best.values()
    ]


def _better(one: Candidate, other: Candidate) -> bool:
    """Of plans that fit the shorter one, of those that do not the smaller one; one that is as good is not better.

    Micro-batches come in ascending number, so that of equal plans the one with the largest micro-batches is kept.
    """
    if one.fits != other.fits:
        return one.fits
    ours, theirs = (one.step_s, other.step_s) if one.fits else (one.memory_bytes, other.memory_bytes)
    return ours < theirs * (1.0 - LENGTH_ROUNDING)


def staged_problems(space: PlanningSpace) -> Iterator[StagedProblem]:
    """Every problem of several stages that has plans which satisfy the space's constraints."""
    for stages in space.several:
        if space.allows(stages):
            yield from (space.problem(stages, M, space.schedule, sharded=True) for M in space.counts)


def possible_stages(problem: StagedProblem) -> StageArrays | None:
    """What its stages hold; None where they cannot share out the devices."""
    try:
        return stage_arrays(problem)[0]
    except BadInput:  # without what is forbidden, or without a sample for every replica
        return None
