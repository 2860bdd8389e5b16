"""What layers cost under the degrees of a grid, worked out once for all searches of a model on a cluster."""

from __future__ import annotations

from automap_models.core.framework import Degrees
from automap_models.planners.strategies.grid import Grid, Subspace
from automap_models.planners.strategies.problem import SharedCosts
from automap_models.planners.strategies.subspace_costs import RankCosts


class DegreeCosts:
    """What layers take under the sets of degrees of a grid.

    Args:
        grid: of a problem.
        shared: of its model on its cluster.
    """

    def __init__(self, grid: Grid, shared: SharedCosts) -> None:
        self.grid, self.pricing, self._ranks = grid, shared.pricing, shared.ranks

    def costs(self, degrees: Degrees, zero: int) -> RankCosts:
        """Of a stage of ZeRO, whatever the schedule; what was asked for lately is at hand."""
        grid = self.grid
        key = (degrees, zero, grid.precision, grid.dispatcher, grid.offload, grid.problem.global_batch)
        if key not in self._ranks:
            if len(self._ranks) >= 8192:
                self._ranks.clear()
            strategy = self.grid.strategy(Subspace(degrees, zero, self.grid.schedules(degrees)[0]))
            self._ranks[key] = RankCosts(self.pricing, strategy)
        return self._ranks[key]
