"""What units load their device with, in the two parts that the search over ideals tells apart, and bounds from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.contraction import Contraction
from automap_models.core.placement_graph import BoolArray, FloatArray, IntArray

BISECTIONS = 60


class UnitLoads(NamedTuple):
    """m units and h nets (see core.contraction), each time in part 0 or 1 of a device's load.

    Attributes:
        accelerator_s: [2, m] time of each part on an accelerator.
        cpu_s: [2, m] the same on a CPU.
        memory_bytes: [m] on an accelerator.
        supported: [m] whether the unit can run on an accelerator.
        net_s: [h] what a net loads an accelerator with that holds some but not all of its units.
        net_part: [h] part to which that belongs.
        net_size: [h] number of its units.
        first_net: [m + 1] where each unit's nets begin in `net`.
        net: nets of the units, one unit after the other.
    """

    accelerator_s: FloatArray
    cpu_s: FloatArray
    memory_bytes: FloatArray
    supported: BoolArray
    net_s: FloatArray
    net_part: IntArray
    net_size: IntArray
    first_net: IntArray
    net: IntArray


def unit_loads(contraction: Contraction, first_pass: int | None = None) -> UnitLoads:
    """Loads of the units.

    Args:
        contraction: the units.
        first_pass: pass that is part 0, the other being part 1; None puts both into part 0.
    """
    m = len(contraction)
    size = np.diff(contraction.net_start)
    by_unit = np.argsort(contraction.net_units, kind="stable")
    part_of_pass = np.array([0, 0] if first_pass is None else [first_pass, 1 - first_pass])
    accelerator_s, cpu_s = np.zeros((2, 2, m))
    np.add.at(accelerator_s, part_of_pass, contraction.accelerator_s)
    np.add.at(cpu_s, part_of_pass, contraction.cpu_s)
    return UnitLoads(
        accelerator_s=accelerator_s,
        cpu_s=cpu_s,
        memory_bytes=contraction.memory_bytes,
        supported=contraction.supported,
        net_s=contraction.net_s,
        net_part=part_of_pass[contraction.net_pass],
        net_size=size,
        first_net=np.searchsorted(contraction.net_units[by_unit], np.arange(m + 1)).astype(np.int64),
        net=np.repeat(np.arange(size.size), size)[by_unit],
    )


class Capacity:
    """How much accelerator time of one part a number of devices can take off, none being loaded beyond a ceiling.

    An accelerator takes off as much as the ceiling; CPUs together what fits into their time when units can be split,
    those first that gain the most: a fractional knapsack. Only units that accelerators support count.
    """

    def __init__(self, loads: UnitLoads, part: int) -> None:
        gain_s = (loads.accelerator_s[part] * loads.supported)[loads.supported]
        price_s = loads.cpu_s[part][loads.supported]
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(-np.where(gain_s > 0, gain_s / price_s, 0.0), kind="stable")
        self._price_s = np.concatenate([[0.0], np.cumsum(price_s[order])])
        self._gain_s = np.concatenate([[0.0], np.cumsum(gain_s[order])])

    def most_s(self, accelerators: IntArray, cpus: IntArray, ceiling_s: float) -> FloatArray:
        """Accelerator time that so many devices can take off at most; the counts broadcast."""
        off_s = np.interp(cpus * ceiling_s, self._price_s, self._gain_s)
        return np.asarray(off_s + accelerators * ceiling_s)

    def least_ceiling_s(self, accelerators: int, cpus: int) -> float:
        """No placement on so many devices loads all of them less."""
        low, high = 0.0, float(max(self._gain_s[-1], self._price_s[-1]))
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            enough = self.most_s(np.array(accelerators), np.array(cpus), middle) >= self._gain_s[-1]
            low, high = (low, middle) if enough else (middle, high)
        return low
