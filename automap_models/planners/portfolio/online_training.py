"""A pipeline by online training (Auto-MAP §3.4), beginning with the best one known."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.pipelines import as_candidate
from automap_models.planners.portfolio.space import Space

MISSING = "online training left out: torch is not installed (pip install 'automap-models[train]')"


def can_train() -> bool:
    """Whether there is what an agent learns with."""
    return find_spec("torch") is not None


def trained_pipeline(space: Space, start: Candidate, seed: int) -> Candidate | None:
    """The shortest plan that an agent came across in as many stages and micro-batches as `start` has, if it is shorter.

    Args:
        start: the plan of a pipeline that fits.
        seed: of every random draw.
    """
    from automap_models.planners.online.planner import OnlineConfig, OnlinePlanner, at_instructions

    planner = OnlinePlanner(OnlineConfig(seed=seed, warm_start=start.plan))
    plan = planner.solve(at_instructions(start.problem)).plan
    if plan is None:
        return None
    grid = start.problem.grid
    found = as_candidate(space, replace(plan, coarse_cuts=grid.to_points(plan.cuts), optimality=None))
    return found if found.length_s < start.length_s else None
