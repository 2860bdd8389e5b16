"""Many plans of one problem at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from automap_models.core.staged import StagedPlan
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables


@dataclass(frozen=True, eq=False)
class PlanBatch:
    """P structurally valid plans of S stages.

    Attributes:
        k: [P, S] boundary where each stage ends, an index of the tables' boundaries.
        q: [P, S] device after the last one of each stage.
        sharding: [P, S] in which it runs, an index of the tables' shardings.
    """

    k: IntArray
    q: IntArray
    sharding: IntArray

    def __len__(self) -> int:
        return len(self.k)

    def take(self, index: IntArray | slice) -> PlanBatch:
        """Some of the plans."""
        return PlanBatch(*(getattr(self, of_plans.name)[index] for of_plans in fields(self)))

    def plan(self, tables: StageTables, row: int, planner: str) -> StagedPlan:
        """One of the plans."""
        cuts = tuple((tables.boundary[self.k[row, :-1]] - 1).tolist())
        shardings = tuple(self.sharding[row].tolist())
        return StagedPlan(cuts, tuple(self.q[row, :-1].tolist()), tables.micro_batches, planner, shardings=shardings)
