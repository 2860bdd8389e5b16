"""The best plan of one problem: a table and moves find good plans, branch and bound looks at all others.

    starts ──▶ moves (improve) ──▶ all plans that may be shorter (branch_and_bound) ──▶ the shortest, proven
    table ───┘                                                                             └──▶ cuts off the grid

What plans are compared by is the step under the problem's schedule, or without one Auto-MAP's length L. From the back,
with T(s) and R(s) the span and the exposed all-reduce of the stages s … S-1 alone (cost.staged),

    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))      T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                      R(S-1) = AR_{S-1}

and L = T(0) + R(0). Both never fall when T(s+1) or R(s+1) rises: the least of both behind a place, whatever plans they
belong to, bound all plans that go on there (step_bounds), and branch and bound looks at the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from automap_models.core.instruction_graph import IntArray
from automap_models.core.result import Bound, Result, Status
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.units import counted
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, NoConfig, Planner, Progress, Watch
from automap_models.planners.staged.branch_and_bound import shortest_below
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, SearchResult, StagedResult, result_of
from automap_models.planners.staged.feasibility import out_of_memory, plans_fit
from automap_models.planners.staged.frameworks import balanced
from automap_models.planners.staged.improve import PASSES, Moves, cut_places, near
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.planners.staged.step_bounds import evenly_s, least_step_s

STARTS = 4
"""Plans from which moves set out."""
LOOK_S = 0.3
"""Counted seconds of branch and bound behind the moves, at most: it mostly ends after a twentieth of that."""
PLANNER = "exact"
"""Who makes the plans that come out."""


def anytime_search(
    problem: StagedProblem,
    deadline: Deadline,
    upper_s: float = np.inf,
    starts: Iterable[StagedPlan] = (),
    costs: Costs | None = None,
) -> SearchResult:
    """The shortest plan that fits the memory, or what is known when the time is up.

    Args:
        deadline: when to stop; loops are counted (planners.effort) and look at it every second or so.
        upper_s: only shorter plans are of interest (by more than LENGTH_ROUNDING, relatively).
        starts: plans from which moves set out, too; those that are not valid are left out.
        costs: of this problem's plans, as far as they are known.

    Raises:
        BadInput: constraints contradict one another, or leave no way to share out the devices among the stages.
    """
    costs, places = Costs(problem) if costs is None else costs, cut_places(problem)
    moves, best = Moves(problem, places, PLANNER), None
    if not (moves.can_cut and plans_fit(moves.stages)):
        return SearchResult(None, None, np.inf, finished=True)
    if problem.stages == 1:
        return _one_stage(problem, upper_s, costs)
    valid = [start for start in starts if start.check_valid(problem)[0]]
    step_s, plan = moves.improved([*valid, *first_plans(moves)], equal=False, count=STARTS, passes=STARTS * PASSES)
    if plan is not None and step_s < upper_s * (1.0 - LENGTH_ROUNDING) and costs(plan).feasible:
        best = plan
    limit_s = upper_s if best is None else costs(best).step_s
    plan, bound_s = shortest_below(problem, places, limit_s, deadline, PLANNER)
    if plan is not None and costs(plan).feasible:
        best, limit_s = plan, costs(plan).step_s
    finished = bound_s >= limit_s * (1.0 - LENGTH_ROUNDING)
    return SearchResult(best, None if best is None else costs(best), limit_s if finished else bound_s, finished)


def _one_stage(problem: StagedProblem, upper_s: float, costs: Costs) -> SearchResult:
    """Of the plans of one stage, one for each sharding."""
    plans = [
        StagedPlan((), (), problem.micro_batches, PLANNER, (), (index,)) for index in range(len(problem.all_shardings))
    ]
    fitting = [plan for plan in plans if plan.check_valid(problem)[0] and costs(plan).feasible]
    best = min(fitting, key=lambda plan: costs(plan).step_s, default=None)
    if best is None or costs(best).step_s >= upper_s * (1.0 - LENGTH_ROUNDING):
        return SearchResult(None, None, upper_s, finished=True)
    return SearchResult(best, costs(best), costs(best).step_s, finished=True)


def first_plans(moves: Moves) -> list[StagedPlan]:
    """The plan of the table, even work on even devices, and where neither fits one that packs the memory."""
    problem, plans = moves.problem, moves.constructed()
    cuts = balanced(problem.profile.C, moves.cuts, problem.stages)
    if cuts is not None:
        devices = np.rint(np.arange(1, problem.stages) * problem.cluster.devices / problem.stages).astype(int)
        plans.append(StagedPlan(cuts, tuple(devices.tolist()), problem.micro_batches, moves.planner))
    return plans if any(np.isfinite(moves.step_s(plan)) for plan in plans) else moves.packed()


class TablesPlanner(Planner[StagedProblem, StagedPlan, NoConfig]):
    """The plan of a table (bottleneck), made shorter by moves and branch and bound in little time, without a proof."""

    name: ClassVar[str] = "tables"

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The best plan found in little time.

        Raises:
            BadInput: the problem's constraints contradict one another, or leave no way to share out the devices.
        """
        begun_s = time.perf_counter()
        watch(Progress("planning by tables and moves"))
        if deadline.passed:
            return late(problem, self.name)
        search = anytime_search(problem, deadline.part(LOOK_S, effort.counted_s))
        if search.plan is not None:
            return result_of(problem, replace(search.plan, planner=self.name), search.cost, begun_s=begun_s)
        return Result(problem, None, None, "stopped", reason=out_of_memory(problem))


def late(problem: StagedProblem, planner: str) -> StagedResult:
    """That there was no time for a problem."""
    late = Infeasible("the time was up before it was asked", where=f"planner {planner}", do="allow more time")
    return Result(problem, None, None, "stopped", reason=late)


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


CELLS = 2
"""How far beside a cut all plans are looked at, in points of the grid."""


def refine(
    problem: StagedProblem, plan: StagedPlan, costs: Costs | None = None, *, equal: bool = False, around_s: float = 0.1
) -> StagedPlan:
    """The plan that moves by single instructions, off the grid, lead to; the same one where that is no shorter.

        the plan ──▶ by the length L: all that cut 1, 2, 4, … instructions beside it ──▶ the best, and again ──▶ moves

    Under a schedule so many plans would take too long to look at.

    Args:
        plan: one that fits the memory.
        costs: of this problem's plans, as far as they are known.
        around_s: counted seconds in which all plans beside it are looked at, by the length L.
    """
    if plan.stages == 1 or problem.constraints.cut_at is not None:
        return plan
    costs, instructions = Costs(problem) if costs is None else costs, np.arange(len(problem.profile) - 1)
    if problem.schedule is None:
        reach = CELLS * len(problem.profile) // problem.granularity
        plan = around([plan], costs, instructions, reach, Deadline(around_s, effort.counted_s))
    moves = Moves(problem, instructions, plan.planner)
    step_s, moved = moves.improved([plan], equal=equal or problem.constraints.equal_replicas)
    if moved is None or step_s >= moves.step_s(plan) * (1.0 - LENGTH_ROUNDING) or not costs(moved).feasible:
        return plan
    return moved


def around(
    plans: Sequence[StagedPlan], costs: Costs, instructions: IntArray, reach: int, deadline: Deadline
) -> StagedPlan:
    """The plan beside which no shorter one lies: the first of some, and from each shorter one on again.

        cuts of the plan ──▶ 0, 1, 2, 4, … reach beside them ──┬──▶ all plans that cut there ──▶ the shortest
        cuts of the others ──▶ 0 and 1 beside them ────────────┘    (branch_and_bound)

    Args:
        plans: the one to set out from, whether it is valid and fits or not, and others whose cuts may be good ones;
            each of several stages.
        instructions: after which stages may end, ascending.
        reach: how far to look beside a cut, in places of `instructions`.
        deadline: when to stop; loops are counted (planners.effort).
    """
    plan, problem, last = plans[0], costs.problem, len(instructions) - 1
    limit_s = costs(plan).step_s if plan.check_valid(problem)[0] and costs(plan).feasible else np.inf
    others = np.searchsorted(instructions, np.unique([other.cuts for other in plans]))
    while not deadline.passed:
        beside = np.add.outer(np.searchsorted(instructions, plan.cuts), near(reach))
        numbers = np.unique(np.clip(np.append(beside, np.add.outer(others, near(1))), 0, last))
        shorter, _ = shortest_below(problem, instructions[numbers], limit_s, deadline, plan.planner)
        if shorter is None or not costs(shorter).feasible:
            break
        plan, limit_s = shorter, costs(shorter).step_s
    return plan
