"""Pipelines without partitioned operators: what the default planner chooses over all stages and micro-batches."""

from __future__ import annotations

from automap_models.core.hybrid import HybridPlan
from automap_models.core.plan import PipelinePlan
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import PlannerOptions
from automap_models.planners.explorer.candidate import Candidate
from automap_models.planners.explorer.space import Space
from automap_models.planners.pipeline.auto import choose, remembering


def chosen_pipeline(space: Space, options: PlannerOptions) -> tuple[Candidate | None, tuple[str, ...]]:
    """The default planner's plan of two stages or more, refined, and how it came to be; None if it finds none."""
    make = remembering()
    try:
        field = space.pipelines(make("policy", options).out_of_range)
        if not field.problems:
            return None, ()
        choice = choose(field.problems, options, make=make)
    except (BadInput, Infeasible):  # too few samples for any number of stages, or nothing fits
        return None, ()
    notes = tuple(f"pipeline: {note}" for note in choice.notes)
    if field.left_out:
        left_out = f"{field.left_out} combination(s) of stages and micro-batches not tried: {field.why}"
        notes = (*notes, f"pipeline: the policy was not asked about {left_out}")
    return as_candidate(space, choice.plan), notes


def as_candidate(space: Space, plan: PipelinePlan) -> Candidate:
    """A pipeline plan of a problem in the space, as a hybrid plan that partitions nothing."""
    problem = space.split(plan.stages, plan.micro_batches)
    return Candidate(problem, HybridPlan(plan, (0,) * plan.stages), plan.optimality)
