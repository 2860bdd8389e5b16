"""What all planners of placements share: from what a search comes to, to a `Result` whose plan is costed once."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from automap_models.core.placement import (
    Objective,
    PlacementPlan,
    PlacementProblem,
    PlacementResult,
    device_name,
)
from automap_models.core.result import TIE, Bound, Result, Status
from automap_models.cost.makespan import makespan_bound_s
from automap_models.cost.placement import PlacementCost, placement_cost
from automap_models.cost.step_tables import StepTables
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, ConfigT, Deadline, Planner, Watch

WORDS: Mapping[Objective, str] = {"throughput": "throughput", "latency": "latency", "step": "steps"}
"""What messages call the objectives."""
HALVINGS = 60
"""Of an interval, until nothing changes any more: a double has 53 binary digits."""


@dataclass(frozen=True)
class SeedConfig:
    """The configuration of a planner that draws at random.

    Attributes:
        seed: of every draw.
    """

    seed: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search comes to.

    Attributes:
        plan: the best one, None where there is none.
        cost: of the plan, where the search evaluated it already.
        bound_s: no plan that the planner chooses from has a smaller value; infinite where there is no such plan.
        optimal: whether the plan is proven to be the best of these.
        reason: why there is no plan; None where the plan's own check is to say that.
        notes: what a person should know about it.
    """

    plan: PlacementPlan | None = None
    cost: PlacementCost | None = None
    bound_s: float = 0.0
    optimal: bool = False
    reason: Infeasible | None = None
    notes: tuple[str, ...] = ()


class PlacementPlanner(Planner[PlacementProblem, PlacementPlan, ConfigT]):
    """A planner of placements.

    Status "optimal", the bound and status "infeasible" are about the plans that the planner chooses from: `ideals`,
    for one, chooses from contiguous placements only.

    Attributes:
        objectives: what it plans for.
    """

    objectives: ClassVar[tuple[Objective, ...]]

    @abstractmethod
    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best plan that the planner finds.

        Args:
            problem: what to place.
            deadline: when to stop with the best plan so far.
            watch: is told how far the search is.

        Raises:
            BadInput: the planner is not made for such a problem, its objective aside.
        """

    def solve(self, problem: PlacementProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> PlacementResult:
        """The best plan that the planner finds, its cost, and the bound that it proves.

        Raises:
            BadInput: the planner is not made for such a problem, or a package that it needs is not installed.
        """
        if problem.objective not in self.objectives:
            known = " and ".join(WORDS[objective] for objective in self.objectives)
            do = "give another `objective` or another planner"
            raise BadInput(f"is for {known} only", where=f"planner {self.name}", do=do)
        begin_s = time.perf_counter()
        outcome = self.search(problem, deadline, watch)
        plan, cost, reason = outcome.plan, outcome.cost, outcome.reason
        if plan is not None and cost is None:
            cost = placement_cost(problem, plan)
        if plan is not None and cost is not None and not cost.feasible:
            reason = _invalid(self.name, problem, plan, cost)
            plan = cost = None
        if plan is not None and cost is not None and problem.objective == "step":
            outcome = _with_bound(problem, outcome, cost)
        status: Status = "infeasible" if outcome.bound_s == float("inf") else "stopped"
        bound = None
        if plan is not None and cost is not None:
            status = "optimal" if outcome.optimal else "feasible"
            reason = None
            if outcome.optimal or outcome.bound_s > 0:
                bound_s = min(outcome.bound_s, cost.value_s)
                bound = Bound(bound_s, "exact" if outcome.optimal and bound_s == cost.value_s else "relaxation")
        facts = {"seed": self.config.seed} if isinstance(self.config, SeedConfig) else {}
        taken_s = time.perf_counter() - begin_s
        notes = outcome.notes if plan is not None else ()
        return Result(problem, plan, cost, status, bound, notes, facts=facts, taken_s=taken_s, reason=reason)


def _with_bound(problem: PlacementProblem, outcome: Outcome, cost: PlacementCost) -> Outcome:
    """With the bound of all placements; one that reaches it is the best."""
    bound_s = max(outcome.bound_s, makespan_bound_s(StepTables.of(problem)))
    reached = cost.value_s <= bound_s * (1.0 + TIE)
    return replace(outcome, bound_s=cost.value_s if reached else bound_s, optimal=outcome.optimal or reached)


def _invalid(planner: str, problem: PlacementProblem, plan: PlacementPlan, cost: PlacementCost) -> Infeasible:
    valid, reason = plan.check_valid(problem)
    if valid:  # but its outputs are too much
        limits = problem.step_devices.memory_bytes
        device = int((cost.memory_bytes - limits).argmax())
        reason = (
            f"device {device_name(problem, device)} holds {cost.memory_bytes[device] / 1e9:.3g} GB at a time, "
            f"it has {limits[device] / 1e9:.3g} GB"
        )
    return Infeasible(reason, where=f"planner {planner}", do="try another planner, more devices or more memory")


def least_enough(high: float, enough: Callable[[float], bool]) -> float:
    """The least value from 0 to `high` that is enough, up to rounding; `high` where nothing smaller is.

    Args:
        high: a value that is enough.
        enough: whether a value is; with one that is, every larger one is, too.
    """
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
