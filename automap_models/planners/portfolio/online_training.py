"""A pipeline by online training (Auto-MAP §3.4), beginning with the best one known."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from automap_models.cost.staged import plan_cost
from automap_models.planners.deadline import NEVER, Deadline
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.space import PlanningSpace

MISSING = "online training left out: torch is not installed (pip install 'automap-models[train]')"


def can_train() -> bool:
    """Whether there is what an agent learns with."""
    return find_spec("torch") is not None


def trained_pipeline(space: PlanningSpace, start: Candidate, seed: int, deadline: Deadline = NEVER) -> Candidate | None:
    """The shortest plan that an agent came across in as many stages and micro-batches as `start` has, if it is shorter.

    Args:
        space: that the start is a plan of.
        start: the plan of a pipeline that fits.
        seed: of every random draw.
        deadline: when to stop.
    """
    from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, at_instructions

    planner = OnlinePlanner(OnlineConfig(seed=seed, warm_start=start.plan))
    plan = planner.solve(at_instructions(start.problem), deadline=deadline).plan
    if plan is None:
        return None
    plan = replace(plan, coarse_cuts=start.problem.grid.to_points(plan.cuts))
    problem = space.split(plan.stages, plan.micro_batches)
    trained = Candidate(problem, plan, plan_cost(problem, plan))
    return trained if trained.length_s < start.length_s else None
