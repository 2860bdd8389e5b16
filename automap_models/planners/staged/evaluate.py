"""Everything a report says about a plan beside the plan itself: simulated lengths, baselines, a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from automap_models.core.constraints import UNCONSTRAINED
from automap_models.core.microbatch import microbatch_size, rescaled
from automap_models.core.result import PlanReport
from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.baselines import DataParallelPlanner, UniformPlanner
from automap_models.planners.staged.costs import Costs, StagedResult, is_plain, plain
from automap_models.planners.staged.search import certify
from automap_models.simulate.plan_step import step_under


def baseline_s(problem: StagedProblem, results: Sequence[StagedResult] = ()) -> float | None:
    """The step of uniform cuts, or with one stage of data parallelism; None where that does not fit the memory.

    Args:
        results: results of baselines, which are not planned again.
    """
    for result in results:
        same = result.problem.profile is problem.profile and result.problem.cluster == problem.cluster
        if same and _shape(result.problem) == _shape(problem):
            return result.cost.step_s if result.plan else None
    planner = UniformPlanner() if problem.stages > 1 else DataParallelPlanner()
    result = planner.solve(problem)
    return result.cost.step_s if result.plan else None


def _shape(problem: StagedProblem) -> tuple[object, ...]:
    """What the plan of a baseline depends on beside the profile and the cluster, and whether it is allowed."""
    return problem.stages, problem.micro_batches, problem.state_factor, problem.schedule, is_plain(problem)


def _data_parallel_s(problem: StagedProblem, results: Sequence[StagedResult]) -> float | None:
    """The shortest step of data parallelism that was tried, in whatever number of micro-batches.

    Args:
        problem: of one stage, in as many micro-batches as the plan.
        results: results of baselines, for the same global batch.
    """
    results_s = [result.cost.step_s for result in results if result.plan is not None and result.problem.stages == 1]
    own_s = baseline_s(problem, results)
    return min([*results_s, *([] if own_s is None else [own_s])], default=None)


def _tuned_data_parallel(result: StagedResult) -> tuple[float | None, int | None] | None:
    """The shortest step of data parallelism for the same global batch, and its micro-batches.

    None where the planner did not look for it, and the profile does not say how many samples it has.
    """
    tuned = result.facts.get("data_parallel")
    steps = list(_data_parallel_steps(result.problem)) if tuned is None else [(c.step_s, c.fits, c) for c in tuned]
    if not steps:
        return None
    fitting = [(step_s, plan.problem.micro_batches) for step_s, fits, plan in steps if fits]
    return min(fitting, key=lambda entry: entry[0], default=(None, None))


def _data_parallel_steps(problem: StagedProblem) -> Iterator[tuple[float, bool, StagedResult]]:
    """The step of data parallelism in every number of micro-batches that makes the batch, and whether it fits."""
    samples = microbatch_size(problem.profile)
    if problem.schedule is None or samples is None:
        return
    batch, one_stage = samples * problem.micro_batches, replace(plain(problem), stages=1)
    for micro_batches in (number for number in range(1, batch + 1) if batch % number == 0):
        profile = rescaled(problem.profile, batch // micro_batches)
        result = DataParallelPlanner().solve(replace(one_stage, profile=profile, micro_batches=micro_batches))
        yield (result.cost.step_s if result.plan else 0.0), result.plan is not None, result


def evaluate(
    result: StagedResult,
    *,
    certify_s: float = 0.0,
    uniform_stages: int | None = None,
    policy: str | None = None,
    seed: int | None = None,
    notes: Sequence[str] = (),
) -> PlanReport:
    """Simulate a planner's plan, bound it, and hold it against what one gets without planning.

    Args:
        certify_s: counted seconds that it may take to find out about the optimum where the result has no bound.
        uniform_stages: stages of the uniform baseline where they are not the plan's.

    Raises:
        Infeasible: the result has no plan.
    """
    problem, plan, cost = result.problem, result.required_plan(), result.cost
    bound = result.bound
    if bound is None:
        costs = Costs(problem)
        costs.learn(plan, cost)
        bound = certify(problem, plan, Deadline(certify_s, effort.counted_s) if certify_s else None, costs=costs)
    tuned = _tuned_data_parallel(result)
    # Baselines are plain pipelines of the same profile, whatever the plan may or has to do.
    pipeline = replace(plain(problem), constraints=UNCONSTRAINED)
    results = result.facts.get("baselines", ())
    if plan.planner in (UniformPlanner.name, DataParallelPlanner.name):
        results = (*results, result)
    fields: dict[str, Any] = {**vars(result), "bound": bound, "notes": (*result.notes, *notes)}
    return PlanReport(
        **fields,
        simulated_length_s={name: step_under(name, cost, plan.micro_batches) for name in WARM_UPS},
        single_device_s=problem.micro_batches * float(problem.profile.C.sum()),
        data_parallel_s=_data_parallel_s(replace(pipeline, stages=1), results) if tuned is None else tuned[0],
        data_parallel_micro_batches=None if tuned is None else tuned[1],
        uniform_s=baseline_s(replace(pipeline, stages=uniform_stages or problem.stages), results),
        policy=policy,
        seed=seed,
        shorter=result.facts.get("shorter", ()),
    )
