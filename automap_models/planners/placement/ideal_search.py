"""The dynamic program over ideals: the fullest device as little loaded as can be, among contiguous placements.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §5.1.1:

    dp[c][k][I] = min over ideals I' ⊂ I of max(dp[one device less][I'], load of that device with I minus I')

with c CPUs and k accelerators in use. Done here from small ideals to large ones: once dp[·][·][I'] is final, a set
grows from I' node by node through the lattice, each larger ideal met once, and their entries are relaxed on the way.
Time on a device only grows with the set, so a ceiling on the loads ends the growth early; and an entry is dropped when
the devices that are left cannot run what is left under the ceiling. With a ceiling near the optimum little remains of
the N² / 2 pairs of ideals, and none is ever stored. So ceilings are tried from a lower bound on upwards: below one that
is too low there is nothing, which is a better bound; below one that is not there is the optimum.

A load has two parts, so that the same search serves max_i FW_i + max_i BW_i: the first is minimised under a ceiling,
the second only has to stay under a ceiling of its own (all zero where the passes are not apart).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import ROUNDING, PlacementProblem
from automap_models.core.placement_graph import FloatArray, IntArray
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.placement.ideal_kernel import Rules, Steps, Table, advance
from automap_models.planners.placement.ideal_lattice import Lattice
from automap_models.planners.placement.ideal_loads import Capacity, UnitLoads

SLACK = 1e-9
"""Ceilings may be passed by this share, which is floating-point rounding."""

PAIRS_AT_ONCE = 10_000_000
"""Pairs of ideals between two looks at the clock, at most."""

FIRST_EXCESS = 1 / 16
"""Share by which the first ceiling lies above the lower bound."""

WIDENING = 4
"""Factor by which that share grows from ceiling to ceiling."""


@dataclass(frozen=True, eq=False)
class Split:
    """A contiguous placement of m units.

    Attributes:
        value_s: largest part 0 of a load.
        devices: [m] device of each unit.
    """

    value_s: float
    devices: IntArray


class IdealSearch:
    """The dynamic program on one lattice.

    Attributes:
        least_s: no placement has a smaller largest part 0 of a load.
        most_s: [2] nor any a larger part.
    """

    def __init__(self, problem: PlacementProblem, loads: UnitLoads, lattice: Lattice, deadline: Deadline) -> None:
        self._problem, self._loads, self._lattice, self._deadline = problem, loads, lattice, deadline
        self._accelerators, self._cpus = devices_in_use(problem, loads.memory_bytes.size)
        self._capacity = tuple(Capacity(loads, part) for part in (0, 1))
        supported_s = loads.accelerator_s * loads.supported
        inside_s = np.stack([lattice.sums(times) for times in supported_s])
        self._rest_s = supported_s.sum(axis=1, keepdims=True) - inside_s
        self.least_s = self._capacity[0].least_ceiling_s(self._accelerators, self._cpus)
        nets_s = np.bincount(loads.net_part, weights=loads.net_s, minlength=2)
        self.most_s = np.maximum(supported_s.sum(axis=1) + nets_s, loads.cpu_s.sum(axis=1))

    def optimum(self, below_s: float | None = None) -> Split | None:
        """The placement with the least largest part 0, whatever its part 1; None if none is at most `below_s`.

        Raises:
            OutOfTime: the deadline has passed; with the largest ceiling below which there is nothing.
        """
        bound_s = self.least_s
        for ceiling_s in self._ceilings(float(self.most_s[0]) if below_s is None else below_s):
            try:
                found = self.under(ceiling_s, float(self.most_s[1]))
            except OutOfTime:
                raise OutOfTime(bound_s) from None
            if found is not None:
                return found
            bound_s = ceiling_s
        return None

    def _ceilings(self, last_s: float) -> Iterator[float]:
        excess = FIRST_EXCESS
        while 0 < self.least_s * (1 + excess) < last_s:
            yield self.least_s * (1 + excess)
            excess *= WIDENING
        yield last_s

    def under(self, first_s: float, second_s: float) -> Split | None:
        """The placement with the least largest part 0, if there is one with the parts under these ceilings.

        Raises:
            OutOfTime: the deadline has passed.
        """
        lattice, size = self._lattice, len(self._lattice)
        ceiling_s = np.array([first_s, second_s]) * (1.0 + SLACK)
        limit_bytes = self._problem.memory_bytes * (1.0 + ROUNDING)
        overlap = self._problem.communication == "max"
        rules = Rules(self._accelerators, self._cpus, limit_bytes, overlap, ceiling_s)
        table = self._table(ceiling_s)
        at_once = max(1, PAIRS_AT_ONCE // size)
        for begin in range(0, size, at_once):
            self._deadline.check()
            steps = Steps(lattice.first, lattice.node, lattice.larger)
            advance(begin, min(begin + at_once, size), steps, self._loads, rules, table)
        entry = int(table.best_s[-1].argmin())
        value_s = float(table.best_s[-1, entry])
        return None if np.isinf(value_s) else Split(value_s, self._devices(table, entry))

    def _table(self, ceiling_s: FloatArray) -> Table:
        """Only the empty ideal on no device is known."""
        left = np.arange(self._cpus, -1, -1)[:, None], np.arange(self._accelerators, -1, -1)
        most_s = np.stack(
            [
                capacity.most_s(left[1], left[0], float(ceiling)).ravel()
                for capacity, ceiling in zip(self._capacity, ceiling_s, strict=True)
            ]
        )
        best_s = np.full((len(self._lattice), most_s.shape[1]), np.inf)
        best_s[0, 0] = 0.0
        rounding_s = SLACK * self._rest_s[:, :1]
        return Table(best_s, np.zeros(best_s.shape, dtype=np.int32), self._rest_s, most_s + rounding_s)

    def _devices(self, table: Table, entry: int) -> IntArray:
        """[m] device of each unit, by the way back from the full ideal; devices are numbered along the order."""
        devices = np.empty(self._loads.memory_bytes.size, dtype=np.int64)
        ideal, width = len(self._lattice) - 1, self._accelerators + 1
        while ideal:
            smaller, on_cpu = divmod(int(table.before[ideal, entry]), 2)
            entry -= width if on_cpu else 1
            cpus, accelerators = divmod(entry, width)
            units = np.setdiff1d(self._lattice.nodes_of(ideal), self._lattice.nodes_of(smaller))
            devices[units] = self._problem.accelerators + cpus if on_cpu else accelerators
            ideal = smaller
        return devices


def devices_in_use(problem: PlacementProblem, units: int) -> tuple[int, int]:
    """Accelerators and CPUs that can hold anything: as many as there are, but no more than units."""
    return min(problem.accelerators, units), min(problem.cpus, units)
