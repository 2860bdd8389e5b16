"""Plans of many problems at once, each with a plan or with what stands in its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import AutomapError
from automap_models.planners.base import PipelinePlanner, PlannerOptions, refuse_unless_feasible
from automap_models.planners.registry import make_planner

Combination = StagedProblem | tuple[Profile, Cluster, int, int]
"""A problem, or a profile, a cluster, S and M of which one is made."""

CHUNK = 256
"""Problems between two calls of the progress callback."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one problem: a plan and its length, or an error.

    Attributes:
        problem: what was asked, or with one stage what data parallelism solves; None where the combination is no
            problem (more stages than devices, say).
        plan: a plan that is valid and fits the memory.
        length_s: its length L in seconds.
        error: why there is none: BadInput, or Infeasible where no plan that fits was found.
        outside: a sentence on which value lies outside what the planner was made for, if one does: the plan is valid
            all the same, and may be longer than usual.
    """

    problem: StagedProblem | None
    plan: StagedPlan | None = None
    length_s: float | None = None
    error: AutomapError | None = None
    outside: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a plan."""
        return self.plan is not None


def plan_batch(
    problems: Sequence[Combination],
    planner: str = "policy",
    options: PlannerOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Plan many problems; one that fails does not fail the others.

    Args:
        problems: thousands of problems, or (profile, cluster, S, M) tuples, in any mix of sizes.
        planner: a planner's name. `policy` plans them in large batches; `auto` proves and refines every plan, each for
            as long as the options let it.
        options: for the planner.
        progress: called with the number of problems done and their number in all, after every CHUNK of them.

    Returns:
        An outcome for each problem, in the same order.

    Raises:
        BadInput: there is no such planner, or its policy file cannot be read.
    """
    made, outcomes = make_planner(planner, options), list[Outcome]()
    for start in range(0, len(problems), CHUNK):
        outcomes += _plan_chunk(made, problems[start : start + CHUNK])
        if progress is not None:
            progress(len(outcomes), len(problems))
    return outcomes


def _plan_chunk(planner: PipelinePlanner, asked: Sequence[Combination]) -> list[Outcome]:
    made = [_problem(each) for each in asked]
    problems = [each for each in made if isinstance(each, StagedProblem)]
    outside = [planner.out_of_range(problem) if problem.stages > 1 else None for problem in problems]
    outcomes = map(_outcome, problems, plan_each(planner, problems), outside)
    return [next(outcomes) if isinstance(each, StagedProblem) else Outcome(None, error=each) for each in made]


def _problem(asked: Combination) -> StagedProblem | AutomapError:
    if isinstance(asked, StagedProblem):
        return asked
    try:
        return StagedProblem(*asked)
    except AutomapError as error:
        return error


def _outcome(problem: StagedProblem, plan: StagedPlan | AutomapError, outside: str | None) -> Outcome:
    if isinstance(plan, AutomapError):
        return Outcome(problem, error=plan, outside=outside)
    solved = replace(problem, stages=plan.stages)  # data parallelism has one stage whatever is asked
    return Outcome(solved, plan, plan_cost(solved, plan).length_s, outside=outside)


def plan_each(planner: PipelinePlanner, problems: Sequence[StagedProblem]) -> list[StagedPlan | AutomapError]:
    """A plan that fits the memory for each problem, or the error that it raises; together as far as possible."""
    try:
        plans = planner.plan_batch(problems)
    except AutomapError:  # one of them is to blame: the others get their plans one by one
        return [_attempt(planner, problem) for problem in problems]
    return list(_feasible(problems, plans))


def _attempt(planner: PipelinePlanner, problem: StagedProblem) -> StagedPlan | AutomapError:
    try:
        return planner.plan(problem)
    except AutomapError as error:
        return error


def _feasible(problems: Sequence[StagedProblem], plans: Sequence[StagedPlan]) -> Iterator[StagedPlan | AutomapError]:
    for problem, plan in zip(problems, plans, strict=True):
        try:
            yield refuse_unless_feasible(problem, plan)
        except AutomapError as error:
            yield error
