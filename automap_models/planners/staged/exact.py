"""The exact planner and certificates: the optimum over every cut on the grid, every device cut and every sharding.

Without a schedule plans are compared by Auto-MAP's length L. From the back, with T(s) and R(s) the span and the exposed
all-reduce of the stages s … S-1 alone (cost.staged),

    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))      T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                      R(S-1) = AR_{S-1}

and L = T(0) + R(0). Both never fall when T(s+1) or R(s+1) rises: the least of both behind a place, whatever plans they
belong to, bound all plans that go on there (step_bounds), and branch and bound looks at the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

from automap_models.core.result import Bound, Result, Status
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.units import counted
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, StagedResult, result_of
from automap_models.planners.staged.feasibility import out_of_memory, plans_fit
from automap_models.planners.staged.search import anytime_search
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.planners.staged.step_bounds import evenly_s, least_step_s


@dataclass(frozen=True)
class ExactConfig:
    """How long to search.

    Attributes:
        certify_s: counted seconds (planners.effort), about as many as one core takes, after which the search stops.
    """

    certify_s: float = 60.0


class ExactPlanner(Planner[StagedProblem, StagedPlan, ExactConfig]):
    """The shortest plan of S stages on the grid, proven; when its time is up, the shortest found by then."""

    name: ClassVar[str] = "exact"
    config_type: ClassVar[type[ExactConfig]] = ExactConfig

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The optimum over every cut on the grid, every device cut and every sharding, among plans that fit the memory.

        Raises:
            BadInput: the problem's constraints contradict one another, or leave no way to share out the devices.
        """
        begun_s = time.perf_counter()
        watch(Progress(f"searching all plans of {problem.stages} stage(s)"))
        search = anytime_search(problem, deadline.part(self.config.certify_s, effort.counted_s))
        if search.plan is not None:
            bound = Bound(max(search.bound_s, evenly_s(problem)), "exact" if search.finished else "relaxation")
            status: Status = "optimal" if search.finished else "feasible"
            result = result_of(problem, search.plan, search.cost, begun_s=begun_s, status=status, bound=bound)
            return result if search.finished else replace(result, notes=(self._stopped,))
        if search.finished:
            reason = _no_plan(problem)
            return Result(problem, None, None, "infeasible", taken_s=time.perf_counter() - begun_s, reason=reason)
        reason = Infeasible("found no plan in the time given", where="planner exact", do="allow more time")
        bound = Bound(search.bound_s, "relaxation")
        return Result(problem, None, None, "stopped", bound, taken_s=time.perf_counter() - begun_s, reason=reason)

    @property
    def _stopped(self) -> str:
        return f"the exact search was stopped after {self.config.certify_s:g} s of computing; `certify_s` gives it more"


def _no_plan(problem: StagedProblem) -> Infeasible:
    """Why there is none: of the memory, or of what is asked of stages."""
    if not plans_fit(stage_arrays(problem)[0]):
        return out_of_memory(problem)
    stages, do = counted(problem.stages, "stage"), "ask for less, or take another number of stages"
    return Infeasible(f"no plan of {stages} is as its constraints ask", where="planner exact", do=do)


BOUND_S = 0.3
"""Counted seconds for a bound where no time is given for a proof."""


def certify(problem: StagedProblem, plan: StagedPlan, deadline: Deadline | None, costs: Costs | None = None) -> Bound:
    """What is proven about all plans on the grid, among which one competes: the optimum, or how short they can be.

    Args:
        problem: with S stages.
        plan: one that fits the memory.
        deadline: when to stop; with None there is only a bound.
        costs: of this problem's plans, as far as they are known.
    """
    costs = Costs(problem) if costs is None else costs
    length_s = costs(plan).step_s
    if problem.stages == 1 and not problem.shardings:
        return Bound(length_s, "exact")
    if deadline is None:
        least_s = least_step_s(problem, length_s, Deadline(BOUND_S, effort.counted_s))
        return Bound(least_s, "exact" if least_s >= length_s * (1.0 - LENGTH_ROUNDING) else "relaxation")
    search = anytime_search(problem, deadline, length_s, [plan], costs)
    least_s = max(search.bound_s, evenly_s(problem))
    return Bound(min(least_s, length_s), "exact" if search.finished else "relaxation")
