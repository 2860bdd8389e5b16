"""Pipelines without partitioned operators: what the default planner chooses over all stages and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator

from automap_models.core.microbatch import microbatch_size
from automap_models.core.staged import StagedPlan
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import PlannerOptions
from automap_models.planners.portfolio.auto import choose, remembering
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.candidates import Candidates
from automap_models.planners.portfolio.space import Space


def chosen_pipeline(space: Space, options: PlannerOptions) -> tuple[Candidate | None, tuple[str, ...]]:
    """The default planner's plan of two stages or more, refined, None if it finds none; and notes for people.

    That planner takes any micro-batch for evenly split over the replicas of a stage. Where its plan has more of them
    than samples, it chooses again among the problems whose micro-batches have as many.
    """
    make = remembering()
    try:
        field = space.pipelines(make("policy", options).out_of_range)
        problems = field.problems
        while problems:
            choice = choose(problems, options, make=make)
            found = as_candidate(space, choice.plan)
            if found.plan.check_valid(found.problem)[0]:
                return found, tuple(_left_out(field))
            most = max(replicas for replicas, _ in found.degrees)
            problems = tuple(p for p in problems if (microbatch_size(p.profile) or most) >= most)
    except (BadInput, Infeasible):  # too few samples for any number of stages, or nothing fits
        pass
    return None, ()


def _left_out(field: Candidates) -> Iterator[str]:
    if field.left_out:
        yield f"the policy was not asked about {field.left_out} numbers of stages and micro-batches: {field.why}"


def as_candidate(space: Space, plan: StagedPlan) -> Candidate:
    """A pipeline plan of a problem in the space."""
    problem = space.split(plan.stages, plan.micro_batches)
    return Candidate(problem, plan, plan.optimality)
