"""The step of balanced partitions by METIS (partition), the best of some.

METIS knows neither directions nor bytes: parts are numbered along the graph's order, operations that may not be where
their part is are moved, and each partition is simulated as it is.
"""

from __future__ import annotations

from typing import ClassVar

from automap_models.core.placement import Objective, PlacementPlan, PlacementProblem
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.packing import no_placement
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_search import metis_starts, score_of


class MetisPlanner(PlacementPlanner[SeedConfig]):
    """METIS, repaired."""

    name: ClassVar[str] = "metis"
    config_type: ClassVar[type[SeedConfig]] = SeedConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("step",)

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best of the partitions; none where none fits the memory.

        Raises:
            BadInput: pymetis is not installed.
        """
        units = StepUnits.of(problem)
        scored = []
        for index, device in enumerate(metis_starts(units, self.config.seed, deadline)):
            watch(Progress(f"partition {index + 1} by METIS", index))
            scored.append((score_of(units, device), index, device))
        score, _, device = min(scored)
        if score.excess_bytes > 0:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, units.expand(device)))
