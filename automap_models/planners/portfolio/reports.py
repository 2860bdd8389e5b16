"""The best plan with everything that is said about it, ready to be written."""

from __future__ import annotations

from dataclasses import replace

from automap_models.core.result import Bound
from automap_models.formats.plan_json import PlanReport
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import Exploration
from automap_models.planners.staged.evaluate import baseline_s
from automap_models.simulate.engine import simulate
from automap_models.simulate.schedules import SCHEDULES


def best_report(exploration: Exploration, seed: int | None = None) -> PlanReport:
    """What plan.json says about the best plan.

    Baselines have as many micro-batches as the plan.
    """
    best = exploration.best
    return _report(exploration, best, seed)


def _report(exploration: Exploration, best: Candidate, seed: int | None) -> PlanReport:
    pipeline, cost = best.problem, best.cost
    plan = replace(best.plan, optimality=_about_the_grid(exploration.proven, best))
    return PlanReport(
        problem=pipeline,
        plan=plan,
        cost=cost,
        simulated_length_s={name: simulate(*cost.as_tuple(), plan.micro_batches, name).length_s for name in SCHEDULES},
        single_device_s=pipeline.micro_batches * float(pipeline.profile.C.sum()),
        data_parallel_s=baseline_s("data-parallel", replace(pipeline, stages=1)),
        uniform_s=baseline_s("uniform", pipeline),
        planning_s=exploration.exploring_s,
        seed=seed,
        notes=exploration.notes,
    )


def _about_the_grid(proven: Bound, best: Candidate) -> Bound:
    """What is proven about all plans, none of which on the grid is shorter than the plan if that is on it."""
    if best.plan.coarse_cuts is None:
        return proven
    return replace(proven, value=min(proven.value, best.length_s))
