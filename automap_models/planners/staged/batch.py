"""Plans of many problems at once, each with a result or with what stands in its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import AutomapError, Infeasible
from automap_models.planners.base import Planner, solve_all
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.costs import StagedResult

Combination = StagedProblem | tuple[Profile, Cluster, int, int]
"""A problem, or a profile, a cluster, S and M of which one is made."""

CHUNK = 256
"""Problems between two calls of the progress callback."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one problem: a result, or an error.

    Attributes:
        problem: what was asked; None where the combination is no problem (more stages than devices, say).
        result: of the planner, None where it raised an error.
        error: why there is no plan: BadInput, or Infeasible where no plan that fits was found.
        outside: a sentence on which value lies outside what the planner was made for, if one does: the plan is valid
            all the same, and may be longer than usual.
    """

    problem: StagedProblem | None
    result: StagedResult | None = None
    error: AutomapError | None = None
    outside: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a plan."""
        return self.plan is not None

    @property
    def plan(self) -> StagedPlan | None:
        """A plan that is valid and fits the memory."""
        return self.result.plan if self.result else None

    @property
    def step_s(self) -> float | None:
        """What its step takes in seconds: simulated under the problem's schedule, or without one the length L."""
        return self.result.cost.step_s if self.result and self.result.plan else None


def plan_batch(
    problems: Sequence[Combination],
    planner: str | Planner[StagedProblem, StagedPlan, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **config: Any,
) -> list[Outcome]:
    """Plan many problems; one that fails does not fail the others.

    Args:
        problems: thousands of problems, or (profile, cluster, S, M) tuples, in any mix of sizes.
        planner: a planner or its name; None is `tables`, which takes milliseconds a problem, or `policy` where a policy
            file is given. `auto` proves and refines every plan, each for as long as its configuration lets it.
        progress: called with the number of problems done and their number in all, after every CHUNK of them.
        config: options of the configuration of a planner given by name.

    Returns:
        An outcome for each problem, in the same order.

    Raises:
        BadInput: there is no such planner or option, or its policy file cannot be read.
    """
    planner = ("policy" if "policy" in config else "tables") if planner is None else planner
    maker = make_planner(planner, **config) if isinstance(planner, str) else planner
    outcomes: list[Outcome] = []
    for start in range(0, len(problems), CHUNK):
        outcomes += _plan_chunk(maker, problems[start : start + CHUNK])
        if progress is not None:
            progress(len(outcomes), len(problems))
    return outcomes


def _plan_chunk(planner: Planner[StagedProblem, StagedPlan, Any], combinations: Sequence[Combination]) -> list[Outcome]:
    tasks = [_problem(combination) for combination in combinations]
    problems = [problem for problem in tasks if isinstance(problem, StagedProblem)]
    outside = [planner.out_of_range(problem) if problem.stages > 1 else None for problem in problems]
    outcomes = map(_outcome, problems, solve_all(planner, problems), outside)
    return [next(outcomes) if isinstance(problem, StagedProblem) else Outcome(None, error=problem) for problem in tasks]


def _problem(combination: Combination) -> StagedProblem | AutomapError:
    if isinstance(combination, StagedProblem):
        return combination
    try:
        return StagedProblem(*combination)
    except AutomapError as error:
        return error


def _outcome(problem: StagedProblem, result: StagedResult | AutomapError, outside: str | None) -> Outcome:
    if isinstance(result, AutomapError):
        return Outcome(problem, error=result, outside=outside)
    error = None
    if result.plan is None:
        error = result.reason or Infeasible("no plan was found that fits the memory", where="planner")
    return Outcome(problem, result, error, outside)
