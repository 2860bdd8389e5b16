"""The exact planner: the true optimum over every cut on the grid, every device cut and every sharding of a stage.

From the back, with T(s) and R(s) the span and the exposed all-reduce of the stages s … S-1 alone (cost.staged),

    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))      T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                      R(S-1) = AR_{S-1}

and L = T(0) + R(0). Both never fall when T(s+1) or R(s+1) rises, so of two suffixes that begin stage s at the same
boundary on the same devices a … q-1 one with both numbers no smaller can be dropped. Suffixes are shared: the search
runs over (stage, boundary, first device, end device), never over tuples of device cuts.

A known length U prunes it: a suffix dies when it and the least that must come before it (relaxation.prefix_bounds)
reach beyond U. Where U comes from says `staged.search`.
"""

from __future__ import annotations

import time
from typing import ClassVar

from automap_models.core.result import Bound, Result, Status
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import Infeasible
from automap_models.planners.base import NoConfig, Planner
from automap_models.planners.deadline import NEVER, Deadline
from automap_models.planners.staged.costs import StagedResult, result_of
from automap_models.planners.staged.relaxation import out_of_memory
from automap_models.planners.staged.search import anytime_search
from automap_models.planners.watch import SILENT, Progress, Watch


class ExactPlanner(Planner[StagedProblem, StagedPlan, NoConfig]):
    """The shortest plan of S stages on the grid, proven; until the deadline, the shortest found by then."""

    name: ClassVar[str] = "exact"

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The optimum over every cut on the grid, every device cut and every sharding, among plans that fit the memory.

        Raises:
            BadInput: the problem's constraints contradict one another, or leave no way to share out the devices.
        """
        begun_s = time.perf_counter()
        watch(Progress(f"searching all plans of {problem.stages} stage(s)"))
        search = anytime_search(problem, deadline)
        if search.plan is not None:
            bound = Bound(search.bound_s, "exact" if search.finished else "relaxation")
            status: Status = "optimal" if search.finished else "feasible"
            return result_of(problem, search.plan, search.cost, begun_s=begun_s, status=status, bound=bound)
        if search.finished:
            reason = out_of_memory(problem)
            return Result(problem, None, None, "infeasible", taken_s=time.perf_counter() - begun_s, reason=reason)
        reason = Infeasible("found no plan in the time given", where="planner exact", do="allow more time")
        bound = Bound(search.bound_s, "relaxation")
        return Result(problem, None, None, "stopped", bound, taken_s=time.perf_counter() - begun_s, reason=reason)
