"""The divisions of a grid with their bounds, but for those that another division is never slower and never fuller than.

With the devices of a rank of the pipeline as a grid of data and context parallelism, a larger micro-batch whose
sequences are shared is as many tokens on a device as a smaller one whose are not:

    cp 2, dp 2, micro-batch 4        cp 1, dp 4, micro-batch 2        the same pp, tp, ep, micro-batches and gradients

The first one also passes keys and values on. It is left out where no layer takes less time with it, in any pass, and
none saves less: every strategy of it has a counterpart that holds no more. The counterpart is no longer but for what
gradients cannot hide behind where its backward passes are shorter, which is a share of one micro-batch. All of this is
looked up in the costs of layers, for each pair.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from math import gcd

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.cost.layer_costs import LayerCosts
from automap_models.cost.stage_costs import StageCosting
from automap_models.planners import effort
from automap_models.planners.strategies.bounds import division_bound
from automap_models.planners.strategies.family_costs import RankCosts
from automap_models.planners.strategies.grid import Division, Family, Grid
from automap_models.planners.strategies.problem import KnownCosts

TOLERANCE = 1e-9
"""Relative difference of computing that counts as none."""
GATHERING = 3
"""The stage of ZeRO whose gathering of weights is part of what layers take."""
USUAL_MICRO_BATCH = 2
REMEMBERED = 4096
"""Costs of divisions that are kept."""


class DividedModel:
    """What layers take under the divisions of a grid.

    Args:
        grid: of a problem.
        known: of its model on its cluster.
    """

    def __init__(self, grid: Grid, known: KnownCosts) -> None:
        self.grid, self.pricing, self.problem = grid, known.pricing, grid.problem
        self._ranks = known.ranks
        self._costs: dict[tuple[Division, int], RankCosts] = {}

    def costs(self, division: Division, zero: int) -> RankCosts:
        """Of a stage of ZeRO, whatever the way; what was asked for lately is at hand."""
        key = (division, zero)
        if key not in self._costs:
            reserve = self.problem.reserve(division.pp)
            whole = (*key, self.grid.precision, self.problem.global_batch, reserve.tobytes())
            if whole not in self._ranks:
                if len(self._ranks) >= REMEMBERED:
                    self._ranks.clear()
                    self._costs.clear()
                strategy = self.grid.strategy(Family(division, zero, self.grid.ways(division)[0]))
                self._ranks[whole] = RankCosts(self.pricing, strategy, reserve)
            self._costs[key] = self._ranks[whole]
        return self._costs[key]

    def bounded(
        self, divisions: Sequence[Division], recompute: list[int], late: Callable[[], bool]
    ) -> tuple[list[tuple[float, Division]], bool]:
        """Divisions with their bounds, and whether there was time for all of them.

        Args:
            divisions: with ways.
            recompute: kinds of recomputation that blocks may have.
            late: whether the time is over.
        """
        bounded: list[tuple[float, Division]] = []
        for division in divisions:
            if late():
                return bounded, False
            costs = self.costs(division, self.grid.zeros(division)[0])
            bounded.append((division_bound(costs, recompute), division))
        return bounded, True

    def dominated_by(self, division: Division, among: Container[Division]) -> float:
        """Seconds by which a strategy of it may be shorter than all strategies of one of these divisions with smaller
        micro-batches and less context parallelism, at most; infinite where none is never slower and never fuller."""
        if len(self.pricing.devices) > 1:
            return float("inf")
        least = float("inf")
        for other in with_whole_sequences(division):
            if other in among and least > 0.0:
                shorter = [self._shorter_by(other, division, zero) for zero in self._kinds_of_zero(division)]
                least = min(least, max(shorter))
        return least

    def _kinds_of_zero(self, division: Division) -> Iterable[int]:
        """One stage of ZeRO of each kind that layers take different times with."""
        zeros = self.grid.zeros(division)
        return {zero == GATHERING: zero for zero in zeros}.values()

    def _costing(self, division: Division, zero: int) -> StageCosting:
        (costing,) = self.pricing.stages(self.grid.strategy(Family(division, zero, self.grid.ways(division)[0])))
        return costing

    def _shorter_by(self, one: Division, other: Division, zero: int) -> float:
        """Seconds by which a strategy of the second division may be shorter than its counterpart of the first, at most;
        infinite where it may be shorter by any number, or hold less."""
        if zero not in self.grid.zeros(one):
            return float("inf")
        effort.count(effort.ALIKE)
        a, b = self._costing(one, zero), self._costing(other, zero)
        groups = ("tensor", "data", "expert_data", "crossing", "ends_crossing", "intra", "inter")
        if any(getattr(a.groups, name) != getattr(b.groups, name) for name in groups):
            return float("inf")
        least, most = a.of_layers, b.of_layers
        lighter = (
            _never_more(least.passes, most.passes)
            and _never_more(_as_first(least), _as_first(most))
            and _never_more(least.memory, most.memory)
            and _never_more(least.boundary_bytes, most.boundary_bytes)
            and _never_more(least.parameters, most.parameters)
            and _never_more(most.parameters, least.parameters)
            and a.runtime_bytes <= b.runtime_bytes
            and a.logits_bytes <= b.logits_bytes * (1 + TOLERANCE)
        )
        if not lighter:
            return float("inf")
        computed = (_computed(b) - _computed(a) * (1 + TOLERANCE)).max(axis=1)[list(self.problem.work.order)]
        return a.constants.overlap * float(np.maximum(computed, 0.0).sum())


def _computed(costing: StageCosting) -> FloatArray:
    """[k, R] seconds of the backward pass beside which gradients are summed."""
    return np.asarray(costing.of_layers.times[..., 1:4].sum(axis=-1))


def _as_first(costs: LayerCosts) -> FloatArray:
    """[k, R] seconds of the forward pass of a stage's first layer, whose gathering hides nowhere."""
    return np.asarray(costs.passes[..., 0] + costs.hidden_s[:, None])


def _never_more(one: FloatArray, other: FloatArray) -> bool:
    return bool((one <= other * (1 + TOLERANCE)).all())


def with_whole_sequences(division: Division) -> list[Division]:
    """The divisions of as many tokens a device, of the same devices, whose sequences fewer devices share."""
    d = division
    shares = [share for share in range(2, min(d.cp, d.micro_batch) + 1) if d.cp % share == d.micro_batch % share == 0]
    return [d._replace(cp=d.cp // n, dp=d.dp * n, micro_batch=d.micro_batch // n) for n in shares]


def usual_divisions(divisions: Sequence[Division], devices_per_node: int, experts: int) -> list[Division]:
    """What a person would try first: small micro-batches, tensor parallelism inside a node, whole sequences."""
    cp = min((d.cp for d in divisions), default=1)
    return [
        d
        for d in divisions
        if d.tp <= devices_per_node
        and d.sequence_parallel == (d.tp > 1)
        and d.micro_batch <= USUAL_MICRO_BATCH
        and d.cp == cp
        and d.ep in (1, gcd(d.dp, experts))
    ]
