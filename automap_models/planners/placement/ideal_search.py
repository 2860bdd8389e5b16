"""The dynamic program over ideals: the fullest device as little loaded as can be, among contiguous placements.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §5.1.1:

    dp[c][k][I] = min over ideals I' ⊂ I of max(dp[one device less][I'], load of that device with I minus I')

with c CPUs and k accelerators in use. An ideal is a set of nodes closed under predecessors; a set is contiguous exactly
when it is the difference of two ideals, one inside the other. Ideals are bit sets, numbered by size and, within a size,
in the order in which the search meets them: an ideal's number is larger than those of its subsets.

    a → b → d      ideals: {} {a} {ab} {ac} {abc} {abcd}        the difference of two of them, one inside the other,
     ↘ c ↗         steps:  {a} -b-> {ab}, {a} -c-> {ac}, …      is contiguous: {abcd} - {a} = {b, c, d}

Done here from small ideals to large ones: once dp[·][·][I'] is final, a set
grows from I' node by node through the lattice, each larger ideal met once, and their entries are relaxed on the way.
Time on a device only grows with the set, so a ceiling on the loads ends the growth early; and an entry is dropped when
the devices that are left cannot run what is left under the ceiling. With a ceiling near the optimum little remains of
the N² / 2 pairs of ideals, and none is ever stored. So ceilings are tried from a lower bound on upwards: below one that
is too low there is nothing, which is a better bound; below one that is not there is the optimum.

A load has two parts, so that the same search serves pipelines that run all forward passes before all backward passes.
Every pass then has a slowest device of its own and the time per sample is max_i FW_i + max_i BW_i (App. C.1). A dynamic
program over one largest load cannot minimise that sum, but it can minimise one of the two under a ceiling on the other,
and a minimum of the sum is among the placements where neither can be improved without the other. `optimum_of_passes`
meets those from the smallest backward maximum on, until the sum cannot fall any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap_models.core.contraction import Contraction
from automap_models.core.placement import ROUNDING, FloatArray, IntArray, PlacementProblem
from automap_models.planners.base import SILENT, Deadline, OutOfTime, Progress, Watch
from automap_models.planners.placement.ideal_kernel import (
    Rules,
    SmallArray,
    Steps,
    Table,
    UnitLoads,
    advance,
    unit_loads,
)
from automap_models.planners.placement.planner import least_enough

LESS = 1.0 - 3 * ROUNDING
"""A ceiling that leaves out what lies at the value it is multiplied with."""


@dataclass(frozen=True, eq=False)
class Lattice:
    """N ideals of m nodes; ideal 0 is empty, ideal N - 1 holds all nodes.

    Attributes:
        first: [N + 1] where the steps out of each ideal begin.
        node: [steps] node that a step adds.
        larger: [steps] ideal that it leads to.
    """

    first: IntArray
    node: SmallArray
    larger: SmallArray

    def __len__(self) -> int:
        return self.first.size - 1

    def nodes_of(self, ideal: int) -> IntArray:
        """Nodes of an ideal, in an order in which they can be added."""
        smaller, added = self._removable
        nodes = []
        while ideal:
            nodes.append(int(added[ideal]))
            ideal = int(smaller[ideal])
        return np.array(nodes[::-1], dtype=np.int64)

    @cached_property
    def _removable(self) -> tuple[IntArray, IntArray]:
        """[N] one of the ideals with one node less, and that node."""
        smaller, added = np.zeros((2, len(self)), dtype=np.int64)
        smaller[self.larger] = np.repeat(np.arange(len(self)), np.diff(self.first))
        added[self.larger] = self.node
        return smaller, added

    def sums(self, amounts: FloatArray) -> FloatArray:
        """[N] sum over the nodes of each ideal of [m] amounts."""
        smaller, added = self._removable
        more = amounts[added].tolist()
        total = [0.0] * len(self)
        for ideal, subset in enumerate(smaller[1:].tolist(), 1):
            total[ideal] = total[subset] + more[ideal]
        return np.array(total)


class TooManyIdeals(Exception):
    """The DAG has more ideals than the limit."""


def line_lattice(order: IntArray) -> Lattice:
    """The ideals of the path through all nodes in a given order: its prefixes."""
    m = order.size
    steps = np.arange(m + 2, dtype=np.int64)
    return Lattice(np.minimum(steps, m), order.astype(np.int32), steps[1 : m + 1].astype(np.int32))


def ideal_lattice(m: int, edges: IntArray, limit: int) -> Lattice:
    """All ideals of a DAG, by breadth-first search from the empty one.

    Args:
        edges: [e, 2] producer and consumer of each edge, each once; acyclic.

    Raises:
        TooManyIdeals: there are more ideals than the limit; they are counted no further.
    """
    producers, consumers = [0] * m, [[] for _ in range(m)]  # type: tuple[list[int], list[list[int]]]
    for producer, consumer in edges.tolist():
        producers[consumer] |= 1 << producer
        consumers[producer].append(consumer)
    ideals, number = [0], {0: 0}
    addable = [sum(1 << v for v in range(m) if not producers[v])]  # of each ideal: outside, all producers inside
    first, node, larger = [0], [], []  # type: tuple[list[int], list[int], list[int]]
    for ideal, inside in enumerate(ideals):  # which grows on the way
        remaining = addable[ideal]
        while remaining:
            bit = remaining & -remaining
            remaining ^= bit
            grown, v = inside | bit, bit.bit_length() - 1
            if grown not in number:
                if len(ideals) == limit:
                    raise TooManyIdeals
                number[grown] = len(ideals)
                ideals.append(grown)
                opened = (1 << c for c in consumers[v] if not producers[c] & ~grown)
                addable.append((addable[ideal] ^ bit) | sum(opened))
            node.append(v)
            larger.append(number[grown])
        first.append(len(node))
    return Lattice(np.array(first), np.array(node, dtype=np.int32), np.array(larger, dtype=np.int32))


@dataclass(frozen=True, eq=False)
class Split:
    """A contiguous placement of m units.

    Attributes:
        value_s: largest part 0 of a load.
        devices: [m] device of each unit.
    """

    value_s: float
    devices: IntArray


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
        everything_s = float(max(self._gain_s[-1], self._price_s[-1]))

        def enough(ceiling_s: float) -> bool:
            return bool(self.most_s(np.array(accelerators), np.array(cpus), ceiling_s) >= self._gain_s[-1])

        return least_enough(everything_s, enough) * (1.0 - ROUNDING)


class IdealSearch:
    """The dynamic program on one lattice.

    Attributes:
        least_s: no placement has a smaller largest part 0 of a load.
        most_s: [2] nor any a larger part.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        loads: UnitLoads,
        lattice: Lattice,
        deadline: Deadline,
        watch: Watch = SILENT,
    ) -> None:
        self._problem, self._loads, self._lattice = problem, loads, lattice
        self._deadline, self._watch = deadline, watch
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
                split = self.under(ceiling_s, float(self.most_s[1]))
            except OutOfTime:
                raise OutOfTime(bound_s) from None
            if split is not None:
                return split
            bound_s = ceiling_s
        return None

    def _ceilings(self, last_s: float) -> Iterator[float]:
        """A sixteenth above the lower bound, then four times as far each time."""
        excess = 1 / 16
        while 0 < self.least_s * (1 + excess) < last_s:
            yield self.least_s * (1 + excess)
            excess *= 4.0
        yield last_s

    def under(self, first_s: float, second_s: float) -> Split | None:
        """The placement with the least largest part 0, if there is one with the parts under these ceilings.

        Raises:
            OutOfTime: the deadline has passed.
        """
        lattice, size = self._lattice, len(self._lattice)
        ceiling_s = np.array([first_s, second_s]) * (1.0 + ROUNDING)
        limit_bytes = self._problem.memory_bytes * (1.0 + ROUNDING)
        overlap = self._problem.communication == "max"
        rules = Rules(self._accelerators, self._cpus, limit_bytes, overlap, ceiling_s)
        table = self._table(ceiling_s)
        # Pairs of ideals, times entries of each, between two looks at the deadline.
        chunk = max(1, 20_000_000 // (size * table.best_s.shape[1]))
        for begin in range(0, size, chunk):
            self._deadline.check()
            self._watch(Progress(f"growing stages from {size:,} ideals", begin, size))
            steps = Steps(lattice.first, lattice.node, lattice.larger)
            advance(begin, min(begin + chunk, size), steps, self._loads, rules, table)
        entry = int(table.best_s[-1].argmin())
        value_s = float(table.best_s[-1, entry])
        return None if np.isinf(value_s) else Split(value_s, self._devices(table, entry))

    def _table(self, ceiling_s: FloatArray) -> Table:
        """Only the empty ideal on no device is known."""
        free = np.arange(self._cpus, -1, -1)[:, None], np.arange(self._accelerators, -1, -1)
        most_s = np.stack(
            [
                capacity.most_s(free[1], free[0], float(ceiling)).ravel()
                for capacity, ceiling in zip(self._capacity, ceiling_s, strict=True)
            ]
        )
        best_s = np.full((len(self._lattice), most_s.shape[1]), np.inf)
        best_s[0, 0] = 0.0
        rounding_s = ROUNDING * self._rest_s[:, :1]
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


def optimum_of_passes(
    problem: PlacementProblem,
    contraction: Contraction,
    lattice: Lattice,
    deadline: Deadline,
    watch: Watch = SILENT,
    incumbent: Split | None = None,
) -> Split | None:
    """The placement with the least max_i FW_i + max_i BW_i, which is its `value_s`, up to ROUNDING.

    Args:
        incumbent: a known placement, returned unless there is a better one.

    Raises:
        OutOfTime: the deadline has passed; with a lower bound and, as `incumbent`, the best placement by then.
    """
    forward, backward = (
        IdealSearch(problem, unit_loads(contraction, first_pass), lattice, deadline, watch) for first_pass in (0, 1)
    )
    bound_s = forward.least_s + backward.least_s
    try:
        quickest = forward.optimum()
        if quickest is None:
            return None
        forward_s, ceiling_s = quickest.value_s, float(forward.most_s[0])
        while True:
            most_s = float(backward.most_s[0]) if incumbent is None else incumbent.value_s - forward_s
            lightest = backward.under(most_s, ceiling_s)
            if lightest is None:
                return incumbent
            bound_s = forward_s + lightest.value_s
            other = forward.under(ceiling_s, lightest.value_s)
            if other is None:
                return incumbent
            value_s = lightest.value_s + other.value_s
            if incumbent is None or value_s < incumbent.value_s:
                incumbent = Split(value_s, other.devices)
            if other.value_s <= forward_s * (1.0 + ROUNDING):
                return incumbent
            ceiling_s = min(other.value_s, incumbent.value_s - lightest.value_s) * LESS
    except OutOfTime:
        raise OutOfTime(bound_s, incumbent) from None
