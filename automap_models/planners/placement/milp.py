"""Integer programs for placements.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4. The planner
returns its best plan with a proven bound, at its deadline at the latest. Without one, searches and CP-SAT stop after so
much work, which they count, so that the plan does not depend on what else the machine does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from automap_models.core.placement import Objective, PlacementPlan, PlacementProblem
from automap_models.cost.placement import PlacementCost, placement_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import SILENT, Deadline, OutOfTime, Progress, Watch
from automap_models.planners.placement.latency_program import LatencyProgram, latency_program
from automap_models.planners.placement.local_search import LocalSearchConfig, LocalSearchPlanner
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.program import solve_program
from automap_models.planners.placement.throughput_program import ThroughputProgram, throughput_program

STATED: Mapping[Objective, Callable[[PlacementProblem, float, float, Deadline], LatencyProgram | ThroughputProgram]] = {
    "throughput": throughput_program,
    "latency": latency_program,
}
"""Objective → its program, of seconds a tick, the largest value that is wanted in ticks, and when to stop."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """What is known of a problem: the best plan, its cost, and a bound below which no plan is."""

    plan: PlacementPlan | None = None
    cost: PlacementCost | None = None
    bound_s: float = 0.0

    @property
    def value_s(self) -> float:
        """Of the plan; infinite without one."""
        return math.inf if self.cost is None else self.cost.value_s

    @property
    def closed(self) -> bool:
        """Whether the plan is proven to be the best, up to a millionth of its value, or that there is none."""
        return self.bound_s >= self.value_s * (1.0 - 1e-6)


@dataclass(frozen=True)
class ProgramConfig(SeedConfig):
    """The configuration of a planner that solves a program.

    Attributes:
        work_s: CP-SAT's deterministic seconds without a deadline (program.solve_program); twice as many for throughput,
            where a proof takes longer.
    """

    work_s: float = 15.0


class MilpPlanner(PlacementPlanner[ProgramConfig]):
    """Makes a plan to start from by local search, states the program and lets CP-SAT look for a better plan.

    Throughput: any placement, contiguous or not (§4.1). Latency: `pieces` subgraphs an accelerator (§4.2).
    """

    name: ClassVar[str] = "milp"
    config_type: ClassVar[type[ProgramConfig]] = ProgramConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("throughput", "latency")

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best plan, its bound and whether it is optimal; none where none fits, or none was met in time.

        Raises:
            BadInput: the program is not for such a problem, or OR-tools is not installed.
        """
        watch(Progress("planning a placement to start from"))
        sooner = deadline.part(0.1 * deadline.remaining_s)
        start = LocalSearchPlanner(LocalSearchConfig(self.config.seed)).search(problem, sooner, SILENT).plan
        improved = self.improved(problem, start, deadline, watch)
        if improved.plan is None:
            return Outcome(bound_s=improved.bound_s, reason=_without_plan(improved))
        plan = replace(improved.plan, planner=self.name)
        return Outcome(plan, improved.cost, bound_s=improved.bound_s, optimal=improved.closed)

    def improved(
        self, problem: PlacementProblem, start: PlacementPlan | None, deadline: Deadline, watch: Watch
    ) -> Incumbent:
        """The best plan and the bound that CP-SAT proves from a start on; Ctrl-C ends the search early."""
        start_bounds = _incumbent(problem, start)
        if start_bounds.closed or deadline.passed:
            return start_bounds
        watch(Progress("solving an integer program by CP-SAT"))
        upper_s = start_bounds.value_s if start_bounds.plan else _everything_s(problem)
        ticks = 1e9  # the best known value in the program: rounding n times down costs the bound n · 1e-9 of it
        tick_s = upper_s / ticks or 1.0
        work_s = np.inf
        if np.isinf(deadline.remaining_s):
            work_s = self.config.work_s * (1.0 if problem.objective == "latency" else 2.0)
        try:
            stated = STATED[problem.objective](problem, tick_s, ticks, deadline)
            hint = stated.hint(start_bounds.plan) if start_bounds.plan else {}
            answer = solve_program(stated.program, deadline, hint, work_s=work_s, seed=self.config.seed)
        except (KeyboardInterrupt, OutOfTime):
            return start_bounds
        bound_s = max(0.0, min(answer.bound * tick_s, upper_s if start_bounds.plan else math.inf))
        # A solution that only rounding made valid is none.
        solution = _incumbent(problem, None if answer.columns is None else stated.plan(answer.columns))
        best = min(start_bounds, solution, key=lambda candidate: candidate.value_s)
        return replace(best, bound_s=min(bound_s, best.value_s))


def _incumbent(problem: PlacementProblem, plan: PlacementPlan | None) -> Incumbent:
    """A plan and its cost; nothing where there is none, or it does not fit."""
    cost = None if plan is None else placement_cost(problem, plan)
    return Incumbent(plan, cost) if cost is not None and cost.feasible else Incumbent()


def _everything_s(problem: PlacementProblem) -> float:
    """No plan's value is larger: everything one after the other, where it is slow, each output received everywhere."""
    graph, receivers = problem.graph, problem.accelerators * problem.pieces
    return float(np.maximum(graph.accelerator_s, graph.cpu_s).sum() + graph.transfer_s.sum() * (1 + receivers))


def _without_plan(start_bounds: Incumbent) -> Infeasible:
    if start_bounds.closed:
        return Infeasible(
            "no placement fits the memory: that is proven",
            where="integer program",
            do="try more devices or more memory",
        )
    return Infeasible(
        "no placement was found in time, nor a proof that there is none",
        where="integer program",
        do="try a longer `time_limit_s`, more devices or more memory",
    )
