"""Everything that is said about a staged plan beside the plan itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from automap_models.core.result import Bound, Result
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem


@dataclass(frozen=True, eq=False)
class PlanReport:
    """A planner's result, held against what one gets without planning; seconds.

    Baselines run by the same clock as the plan: the step under the problem's schedule, or without one the length L.

    Attributes:
        result: with a plan.
        simulated_length_s: simulated length by schedule name.
        single_device_s: one global batch on one device.
        data_parallel_s: step of plain data parallelism; None where it does not fit the memory.
        uniform_s: step of uniform cuts; None where they do not fit.
        policy: the policy that made the plan, if one did.
        seed: the seed of a planner that draws.

    Raises:
        Infeasible: the result has no plan.
    """

    result: Result[StagedProblem, StagedPlan]
    simulated_length_s: Mapping[str, float]
    single_device_s: float
    data_parallel_s: float | None
    uniform_s: float | None
    policy: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        self.result.required_plan()

    @property
    def problem(self) -> StagedProblem:
        """As solved."""
        return self.result.problem

    @property
    def plan(self) -> StagedPlan:
        """What was decided."""
        return self.result.required_plan()

    @property
    def cost(self) -> Any:
        """What the plan costs (cost.staged.StagedCost)."""
        return self.result.cost

    @property
    def bound(self) -> Bound | None:
        """What is proven about plans on the grid."""
        return self.result.bound

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for people."""
        return self.result.notes

    @property
    def search_log(self) -> tuple[SearchLogEntry, ...]:
        """The numbers of stages and micro-batches among which the planner chose, if it did."""
        entries = tuple(entry for entry in self.result.search_log if isinstance(entry, SearchLogEntry))
        return entries if len(entries) > 1 else ()

    @property
    def planning_s(self) -> float:
        """How long planning took."""
        return self.result.taken_s
