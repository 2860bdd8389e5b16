"""A module's work by classes of dimensions: what its instructions take, which results are summed, what is kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, Phase
from automap_models.core.sharding_work import ShardingWork
from automap_models.cost.roofline import Device, roofline_times
from automap_models.hlo.liveness import Liveness
from automap_models.hlo.module import Module
from automap_models.hlo.sharding_classes import NO_CLASS, ModuleSharding
from automap_models.hlo.sharding_rules import Role, Use

_MOVED = {"reshape", "transpose", "convert", "optimization_barrier"}
"""Opcodes through which a sum is still due: they change no number."""

_PASSED_ON = {"while": 1, "optimization_barrier": 1, "case": 0, "if": 0}
"""Opcode of what has a use for each result → where in that the result stands."""

Classes = tuple[int, ...]


class Sum(NamedTuple):
    """A result that is summed over a class.

    Attributes:
        over: the class.
        classes: of the result's dimensions.
        nbytes: of the result; less than 0 takes back one that need not be summed on its own.
        late: whether only the update reads it.
    """

    over: int
    classes: Classes
    nbytes: float
    late: bool


def sharding_work(
    module: Module, sharding: ModuleSharding, graph: InstructionGraph, device: Device, *, reassociated: bool = True
) -> ShardingWork:
    """The work of a training step on a device, by the roofline.

    A loop's time follows the classes of the largest operation in it. Two results that are summed over the same class
    and then added, and read by nothing else, are all-reduced once, after the addition: XLA's pass
    all-reduce-reassociate, which runs for accelerators.

    Args:
        graph: of the module.
        device: of which the cluster is made.
        reassociated: whether that pass runs; XLA for CPUs reduces every result on its own.

    Raises:
        BadInput: the device has no rate for a matrix product's element type.
    """
    reader = _Reader(module, sharding, graph)
    work_s = roofline_times(graph, replace(device, launch_s=0.0))
    compute = _pairs(len(sharding.classes), zip(reader.instruction_classes(), work_s.tolist(), strict=True))
    held = list(reader.held())
    sums = [each for each in reader.sums() if reassociated or each.nbytes >= 0]
    k = len(sharding.classes)
    return ShardingWork(
        compute_s=float(work_s.sum()),
        launch_s=float(roofline_times(graph, device).sum() - work_s.sum()),
        compute=compute,
        held_bytes=sum(nbytes for _, nbytes in held),
        held=_pairs(k, held),
        activation_sums=_summed(k, (s for s in sums if not s.late)),
        gradient_sums=_summed(k, (s for s in sums if s.late)),
        starts=np.bincount(
            [s.over for s in sums if not s.late], [float(np.sign(s.nbytes)) for s in sums if not s.late], k
        ).astype(np.float64),
    )


def _pairs(k: int, amounts: Iterable[tuple[Classes, float]]) -> FloatArray:
    """[k, k] sums of the amounts with classes i and j."""
    total: Counter[Classes] = Counter()
    for classes, amount in amounts:
        total[classes] += amount  # type: ignore[assignment]
    matrix = np.zeros((k, k))
    for classes, amount in total.items():
        matrix[np.ix_(classes, classes)] += amount
    return matrix


def _summed(k: int, sums: Iterable[Sum]) -> FloatArray:
    """[k, k] bytes summed over class i, and of those of results with class j."""
    matrix = np.zeros((k, k))
    for over, classes, nbytes, _ in sums:
        matrix[over, over] += nbytes
        matrix[over, [c for c in classes if c != over]] += nbytes
    return matrix


class _Reader:
    """The classes of instructions, values and sums."""

    def __init__(self, module: Module, sharding: ModuleSharding, graph: InstructionGraph) -> None:
        self.module, self.sharding, self.graph = module, sharding, graph
        rules = sharding.rules
        self._uses: dict[int, list[int]] = defaultdict(list)
        for i, use in enumerate(rules.uses):
            self._uses[use.operation].append(i)
        self._dims = rules.dim_offsets.tolist()
        self._factors = rules.factor_offsets.tolist()
        self._of_dims: list[int] = sharding.dim_classes.tolist()
        self._of_factors: list[int] = sharding.factor_classes.tolist()

    def instruction_classes(self) -> Iterator[Classes]:
        """The classes of each instruction, in order; none for one without dimensions."""
        for i in range(len(self.module.operations)):
            uses = self._uses.get(i, [])
            largest = max(uses, key=self._points) if len(uses) > 1 else uses[0] if uses else None
            yield () if largest is None else _distinct(self._of_factors[slice(*self._factors[largest : largest + 2])])

    def _points(self, u: int) -> float:
        """How many points the loops of a use go through."""
        return float(np.prod(self.sharding.rules.factor_sizes[slice(*self._factors[u : u + 2])].astype(np.float64)))

    def value_classes(self, value: int) -> Classes:
        """The classes of a value of the rules."""
        return _distinct(self._of_dims[self._dims[value] : self._dims[value + 1]])

    def held(self) -> Iterator[tuple[Classes, float]]:
        """Classes and bytes of arguments, gradients and activations for the backward pass."""
        for v, argument in enumerate(self.graph.arguments):
            copies = 2.0 if argument.kind == "parameter" else 1.0
            yield self.value_classes(v), copies * float(self.graph.value_bytes[v])
        for v in np.flatnonzero(Liveness(self.graph).kept).tolist():
            yield self._result_classes(v), float(self.graph.value_bytes[v])

    def _result_classes(self, value: int) -> Classes:
        """The classes of a value of the graph that an instruction makes."""
        i = int(self.graph.producers[value])
        uses = [self.sharding.rules.uses[u] for u in self._uses.get(i, [])]
        if not uses:
            return ()
        position = value - int(self.graph.result_offsets[i])
        results = int(self.graph.result_offsets[i + 1] - self.graph.result_offsets[i])
        place = _PASSED_ON.get(self.graph.opcodes[i])
        if place is None:
            return self.value_classes(uses[-1].values[position - results])
        passed = [use for use in uses if use.opcode == self.graph.opcodes[i]]
        return self.value_classes(passed[position - results].values[place])

    def sums(self) -> Iterator[Sum]:
        """Every result that is summed over a class."""
        readers, waited = self._readers(), self._waited_for()
        due: dict[int, Classes] = {}
        for u, use in enumerate(self.sharding.rules.uses):
            summed_over = self._reduced(u)
            for value in _results(use):
                for c in summed_over:
                    yield self._sum(c, value, waited, use)
                if summed_over:
                    due[value] = summed_over
            operands = _operands(use)
            pending = [due.get(v, ()) if readers[v] == 1 else () for v in operands]
            if use.opcode in _MOVED and len(operands) == 1 and pending[0]:
                due[use.values[-1]] = pending[0]
            if use.opcode == "add" and len(operands) == 2:
                both = tuple(c for c in pending[0] if c in pending[1])
                if both:
                    due[use.values[-1]] = both
                    for c in both:
                        saved = self._sum(c, use.values[-1], waited, use)
                        yield saved._replace(nbytes=-saved.nbytes)

    def _sum(self, over: int, value: int, waited: set[int], use: Use) -> Sum:
        rounds = max(1, self.module.operations[use.operation].rounds)
        nbytes = self.sharding.rules.tensors[value].nbytes * rounds
        return Sum(over, self.value_classes(value), nbytes, value not in waited)

    def _reduced(self, u: int) -> Classes:
        offsets, roles = self._factors, self.sharding.rules.factor_roles
        span = range(offsets[u], offsets[u + 1])
        return _distinct([self._of_factors[f] for f in span if roles[f] & Role.REDUCTION])

    def _readers(self) -> Counter[int]:
        """How often each value is read."""
        return Counter(v for use in self.sharding.rules.uses for v in _operands(use))

    def _waited_for(self) -> set[int]:
        """The values that more than the update of the parameters needs, directly or moved or added."""
        waited: set[int] = set()
        for use in reversed(self.sharding.rules.uses):
            moved = use.opcode in _MOVED | {"add"} and not waited.intersection(_results(use))
            if not moved and self.graph.phases[use.operation] != Phase.UPDATE:
                waited.update(_operands(use))
        return waited


def _results(use: Use) -> tuple[int, ...]:
    return use.values[len(use.values) - use.results :]


def _operands(use: Use) -> tuple[int, ...]:
    return use.values[: len(use.values) - use.results]


def _distinct(classes: Collection[int]) -> Classes:
    return tuple(sorted(set(classes) - {NO_CLASS}))
