"""What layers cost under the degrees of a grid, and which of these another one is never slower and never fuller than.

With the devices of a rank of the pipeline as a grid of data and context parallelism, a larger micro-batch whose
sequences are shared is as many tokens on a device as a smaller one whose are not:

    cp 2, dp 2, micro-batch 4        cp 1, dp 4, micro-batch 2        the same pp, tp, ep, micro-batches and gradients

The first one also passes keys and values on. It is left out where no layer takes less time with it, in any pass, and
none saves less: every strategy of it has a counterpart that holds no more. The counterpart is no longer but for what
gradients cannot hide behind where its backward passes are shorter, which is a share of one micro-batch. All of this is
looked up in the costs of layers, for each pair.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from automap_models.core.framework import Degrees
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.result import TIE
from automap_models.planners import effort
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
        self.grid, self.pricing, self.problem, self._ranks = grid, shared.pricing, grid.problem, shared.ranks

    def costs(self, degrees: Degrees, zero: int) -> RankCosts:
        """Of a stage of ZeRO, whatever the schedule; what was asked for lately is at hand."""
        key = (degrees, zero, self.grid.precision, self.problem.global_batch)
        if key not in self._ranks:
            if len(self._ranks) >= 8192:
                self._ranks.clear()
            strategy = self.grid.strategy(Subspace(degrees, zero, self.grid.schedules(degrees)[0]))
            self._ranks[key] = RankCosts(self.pricing, strategy)
        return self._ranks[key]

    def dominated_by(self, degrees: Degrees, among: Container[Degrees]) -> float:
        """Seconds by which a strategy of it may be shorter than all strategies of one of these with smaller
        micro-batches and less context parallelism, at most; infinite where none is never slower and never fuller."""
        least = float("inf")
        if len(self.pricing.devices) > 1:
            return least
        zeros = self.grid.zeros(degrees)
        kinds = {zero == 3: zero for zero in reversed(zeros)}.values()  # layers take different times with ZeRO-3 alone
        for other in with_whole_sequences(degrees):
            if other in among and least > 0.0:
                least = min(least, max(self._shorter_by(other, degrees, zero) for zero in kinds))
        return least

    def _shorter_by(self, one: Degrees, other: Degrees, zero: int) -> float:
        """Seconds by which a strategy of the second degrees may be shorter than its counterpart of the first, at most;
        infinite where it may be shorter by any number, or hold less."""
        if zero not in self.grid.zeros(one):
            return float("inf")
        effort.count(effort.ALIKE)
        a, b = (self.costs(degrees, zero).of_groups[0] for degrees in (one, other))
        groups = ("tensor", "data", "expert_data", "crossing", "ends_crossing", "intra", "inter")
        least, most = a.of_layers, b.of_layers
        lighter = (
            all(getattr(a.groups, name) == getattr(b.groups, name) for name in groups)
            and _never_more(least.passes, most.passes)
            # gathering for a stage's first layer hides nowhere
            and _never_more(
                least.passes[..., 0] + least.hidden_s[:, None], most.passes[..., 0] + most.hidden_s[:, None]
            )
            and _never_more(least.memory, most.memory)
            and _never_more(least.boundary_bytes, most.boundary_bytes)
            and _never_more(least.parameters, most.parameters)
            and _never_more(most.parameters, least.parameters)
            and _never_more(least.frozen_bytes, most.frozen_bytes)
            and a.runtime_bytes <= b.runtime_bytes
            and a.logits_bytes <= b.logits_bytes * (1 + TIE)
        )
        if not lighter:
            return float("inf")
        # [k, R] seconds of the backward passes beside which gradients are summed
        beside, beside_other = (layers.times[..., 1:4].sum(axis=-1) for layers in (least, most))
        computed = (beside_other - beside * (1 + TIE)).max(axis=1)[list(self.problem.work.order)]
        return a.constants.overlap * float(np.maximum(computed, 0.0).sum())


def _never_more(one: FloatArray, other: FloatArray) -> bool:
    return bool((one <= other * (1 + TIE)).all())


def with_whole_sequences(degrees: Degrees) -> list[Degrees]:
    """The sets of degrees of as many tokens a device, of the same devices, whose sequences fewer devices share."""
    d = degrees
    shares = [share for share in range(2, min(d.cp, d.micro_batch) + 1) if d.cp % share == d.micro_batch % share == 0]
    return [d._replace(cp=d.cp // n, dp=d.dp * n, micro_batch=d.micro_batch // n) for n in shares]
