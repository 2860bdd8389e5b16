"""What all planners of placements share: from what a search comes to, to a `Result` whose plan is costed once."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass

from automap_models.core.placement import PlacementPlan, PlacementProblem, PlacementResult, model_name
from automap_models.core.result import Bound, Result, Status
from automap_models.cost.placement import PlacementCost, placement_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import NEVER, SILENT, ConfigT, Deadline, Planner, Watch


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
    """

    plan: PlacementPlan | None = None
    cost: PlacementCost | None = None
    bound_s: float = 0.0
    optimal: bool = False
    reason: Infeasible | None = None


class PlacementPlanner(Planner[PlacementProblem, PlacementPlan, ConfigT]):
    """A planner of placements.

    Status "optimal", the bound and status "infeasible" are about the plans that the planner chooses from: `ideals`,
    for one, chooses from contiguous placements only.
    """

    @abstractmethod
    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best plan that the planner finds.

        Args:
            problem: what to place.
            deadline: when to stop with the best plan so far.
            watch: is told how far the search is.

        Raises:
            BadInput: the planner is not made for such a problem.
        """

    def solve(self, problem: PlacementProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> PlacementResult:
        """The best plan that the planner finds, its cost, and the bound that it proves.

        Raises:
            BadInput: the planner is not made for such a problem, or a package that it needs is not installed.
        """
        begin_s = time.perf_counter()
        outcome = self.search(problem, deadline, watch)
        plan, cost, reason = outcome.plan, outcome.cost, outcome.reason
        if plan is not None and cost is None:
            cost = placement_cost(problem, plan)
        if plan is not None and cost is not None and not cost.feasible:
            reason = _invalid(self.name, problem, plan)
            plan = cost = None
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
        return Result(problem, plan, cost, status, bound, facts=facts, taken_s=taken_s, reason=reason)


def no_placement(problem: PlacementProblem, planner: str) -> Infeasible:
    """Why a heuristic has no plan: none of those that it looked at fits, which proves nothing about the others."""
    need, have = float(problem.graph.memory_bytes.sum()), problem.memory_bytes
    return Infeasible(
        f"found no placement of {model_name(problem.graph)} ({need / 1e9:.3g} GB) on {problem.accelerators} "
        f"accelerator(s) of {have / 1e9:.3g} GB and {problem.cpus} CPU(s)",
        where=f"planner {planner}",
        do="try more devices, more memory or planner milp",
    )


def _invalid(planner: str, problem: PlacementProblem, plan: PlacementPlan) -> Infeasible:
    _, why = plan.check_valid(problem)
    return Infeasible(why, where=f"planner {planner}", do="try another planner, more devices or more memory")
