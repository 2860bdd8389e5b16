"""Why no plan fits, by the step: what the plan that comes nearest needs, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.units import rounds
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import untrained_in_words
from automap_models.planners.staged.frameworks import packed


def nothing_fits(space: PlanningSpace, problems: Sequence[StagedProblem]) -> Infeasible:
    """The error: of all numbers of stages and micro-batches the one whose fullest device lacks least.

    Args:
        space: where no plan was found.
        problems: that were looked at.
    """
    where, held = space.model.profile.model, list(_balanced_plans(problems))
    if not problems and space.constraints.target is not None:
        return Infeasible(
            f"the framework planned for trains no plan of {_numbers(space.stage_numbers)} stages in "
            f"{_numbers(space.counts)} micro-batches: it asks for whole samples, and some for a micro-batch a stage or "
            "for stages that share no weight",
            where=where,
            do="take other numbers of stages or micro-batches, or another framework",
        )
    if not held:
        return Infeasible(
            f"no plan of {_numbers(space.stage_numbers)} stages has work and a sample for each of the "
            f"{space.cluster.devices} devices of cluster {space.cluster.name}",
            where=where,
            do="take other numbers of stages or micro-batches, or `min_stage=0`, which allows stages without work",
        )
    problem, plan, cost = min(held, key=lambda entry: float((entry[2].memory_bytes - entry[2].limit_bytes).max()))
    stage = int((cost.memory_bytes - cost.limit_bytes).argmax())
    needed, limit = cost.memory_bytes[stage], cost.limit_bytes[stage]
    stages = "data parallelism" if problem.stages == 1 else f"{problem.stages} stages"
    untrained = untrained_in_words(problem, plan, stage).rstrip(", ")
    shape = f"{stages} in {rounds(problem.micro_batches)}"
    if needed <= limit:
        return _unsatisfied(problem, shape, where)
    return Infeasible(
        f"no plan was found that fits the {limit / 1e9:.1f} GB of a device of cluster {space.cluster.name}: of "
        f"{len(problems)} combinations {shape} comes nearest, whose stage {stage} needs {needed / 1e9:.1f} GB"
        f"{f', {untrained}' if untrained else ''}",
        where=where,
        do="use more nodes, devices with more memory, smaller micro-batches or a smaller `state_factor`; "
        "automap-plan MODEL knows tensor parallelism and ZeRO, which a profile cannot say",
    )


def _unsatisfied(problem: StagedProblem, shape: str, where: str) -> Infeasible:
    """The error where the memory would do: what is asked of plans does not."""
    if problem.constraints.min_stage:
        return Infeasible(
            f"no plan was found in which every stage holds work: {shape} would fit otherwise",
            where=where,
            do="take other numbers of stages, or `min_stage=0`, which allows stages without work",
        )
    words = problem.constraints.in_words
    return Infeasible(
        f"no plan was found{f' with {words}' if words else ''}: {shape} would fit the memory",
        where=where,
        do="drop restrictions, or take other numbers of stages",
    )


def _balanced_plans(problems: Sequence[StagedProblem]) -> Iterator[tuple[StagedProblem, StagedPlan, StagedCost]]:
    """For each S and M the plan whose fullest device holds least, on devices shared out evenly, and what it costs.

    It is under the schedule that holds fewest micro-batches.
    """
    fewest: dict[tuple[int, int], StagedProblem] = {}
    for problem in problems:
        other = fewest.get((problem.stages, problem.micro_batches))
        if other is None or problem.in_flight(0) < other.in_flight(0):
            fewest[problem.stages, problem.micro_batches] = problem
    for problem in fewest.values():
        plan = packed(problem, problem.grid.to_instructions(tuple(problem.grid.cut_points.tolist())))
        if plan is not None:
            yield problem, plan, plan_cost(problem, plan)


def _numbers(stages: Sequence[int]) -> str:
    return f"{stages[0]}" if len(stages) == 1 else f"{stages[0]} to {stages[-1]}"
