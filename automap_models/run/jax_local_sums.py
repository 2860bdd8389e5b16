"""Gradients that replicas sum for themselves: exchanged once a step instead of once a micro-batch.

A gradient of a weight is a sum over samples, which a stage's replicas share. XLA, left alone, all-reduces what every
backward program returns. But the gradients of the micro-batches are only added up, and so replicas may as well add up
their own and exchange the total:

    program   ... ── head ──┬─ x, dy by samples ──→ tail: xᵀ dy ──→ one gradient a replica ──→ own total    [d, ...]
                            └─ what is passed on                                          after M of them:
                                                                      all totals of the replicas, all-reduced  [...]

The tail of a program is what lies between the operations that sum over samples and the results that are averaged over
micro-batches: moves, conversions, additions, products with constants. It is run on each replica's own samples
(`jax.shard_map` over the axis of replicas alone). A sum that anything else reads stays in the head, where XLA reduces
it in every micro-batch: those of batch normalisation, for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from automap_models.hlo.module import MlirModule
from automap_models.hlo.stablehlo_values import is_zero
from automap_models.hlo.step_classes import StepClasses
from automap_models.hlo.step_cut import Program

_LINEAR = frozenset({"reshape", "transpose", "convert", "negate", "add", "subtract"})
"""Opcodes that may come after a sum over replicas or before it, whatever their operands are sums of."""
_SCALING = frozenset({"multiply", "divide"})
"""The same where one operand is a sum and the other is made of constants."""
_SUMMING = frozenset({"dot", "dot_general", "convolution"})
"""Opcodes that add up products and nothing else."""
_ADD = "stablehlo.add"


@dataclass(frozen=True)
class LocalSums:
    """A program in two parts.

    Attributes:
        head: what replicas run together; it returns what the tail reads, too.
        tail: what each replica runs on its samples.
        totals: its results: one a replica, to be summed.
        roots: its operations that sum over samples.
    """

    head: Program
    tail: Program
    totals: tuple[int, ...]
    roots: frozenset[int]


class LocalSumFinder:
    """Finds the tails of the programs of a step.

    Args:
        module: the step.
        classes: its classes of dimensions.

    Attributes:
        sums_over: operation → the classes that it sums over.
    """

    def __init__(self, module: MlirModule, classes: StepClasses) -> None:
        self.module, self.classes = module, classes
        self.sums_over: dict[int, set[int]] = defaultdict(set)
        for total in classes.separate_sums:
            self.sums_over[total.operation].add(total.over)
        self._operations = module.operations
        self._readers: dict[int, list[int]] = defaultdict(list)
        for i, operation in enumerate(self._operations):
            for v in operation.operands:
                self._readers[v].append(i)

    def split(
        self, program: Program, summed: Iterable[int], passed: Iterable[int], samples: frozenset[int]
    ) -> LocalSums | None:
        """The program in two, or None where it sums nothing over samples that is only averaged.

        Args:
            summed: its outputs that are added up over micro-batches.
            passed: its outputs that others read.
            samples: the classes of dimensions along which replicas share samples.
        """
        passed = frozenset(passed)
        search = _Search(self, frozenset(program.operations), passed, samples)
        totals = tuple(v for v in summed if search.is_tail(v))
        while totals:
            inside = search.operations_of(totals)
            outside = set(program.operations) - inside.sums
            leaking = {v for i in inside.sums for v in self.results(i) if v not in totals and self._read(v, outside)}
            safe_totals = tuple(v for v in totals if not leaking & inside.needed[v] and not self._read(v, outside))
            if safe_totals == totals:
                return self._parts(program, inside, totals)
            totals = safe_totals
        return None

    def results(self, i: int) -> range:
        """The values that an operation makes."""
        offsets = self.classes.graph.result_offsets
        return range(int(offsets[i]), int(offsets[i + 1]))

    def producer(self, v: int) -> int:
        """The operation that makes a value; negative for arguments."""
        return int(self.classes.graph.producers[v])

    def is_constant(self, v: int) -> bool:
        """Whether a value depends on no argument."""
        i = self.producer(v)
        return i >= 0 and all(map(self.is_constant, self._operations[i].operands))

    def adds_up(self, i: int) -> bool:
        """Whether an operation's result is nothing but a sum of products of its operands' elements."""
        operation = self._operations[i]
        if operation.opcode in _SUMMING:
            return True
        first = {"reduce": 1, "scatter": 0}.get(operation.opcode)
        if first is None or len(operation.results) != 1:
            return False
        handle = self.module.handles[i]
        bodies = [region.blocks[0].operations for region in handle.regions]
        adds = [[op.operation.name for op in body][:1] == [_ADD] and len(list(body)) == 2 for body in bodies]
        return all(adds) and is_zero(handle.operands[first])

    def _read(self, v: int, operations: set[int]) -> bool:
        return any(i in operations for i in self._readers[v])

    def _parts(self, program: Program, inside: _Inside, totals: tuple[int, ...]) -> LocalSums:
        local = inside.sums | inside.constants
        results = {v for i in local for v in self.results(i)}
        reads = sorted({v for i in local for v in self._operations[i].operands} - results)
        operations = [i for i in program.operations if i not in inside.sums]
        given = set(program.inputs)
        outputs = dict.fromkeys(v for v in (*program.outputs, *reads) if v not in totals and v not in given)
        head = replace(program, operations=tuple(operations), outputs=tuple(outputs))
        tail = replace(program, operations=tuple(sorted(local)), inputs=tuple(reads), outputs=totals)
        return LocalSums(head, tail, totals, frozenset(inside.roots))


@dataclass
class _Inside:
    """What a tail is made of: sums and what follows them, constants, the roots; and the values that a total needs."""

    sums: set[int]
    constants: set[int]
    roots: set[int]
    needed: dict[int, set[int]]


class _Search:
    """One walk back from a program's results."""

    def __init__(
        self, finder: LocalSumFinder, operations: frozenset[int], passed: frozenset[int], samples: frozenset[int]
    ) -> None:
        self.finder, self.operations, self.passed, self.samples = finder, operations, passed, samples
        self._cache: dict[int, bool] = {}

    def is_root(self, i: int) -> bool:
        """Whether an operation is a sum over samples."""
        over = bool(self.finder.sums_over[i] & self.samples)
        return over and self.finder.adds_up(i) and not any(map(self._lies_by_samples, self.finder.results(i)))

    def is_tail(self, v: int) -> bool:
        """Whether a value is a sum over samples, or made of such sums alone."""
        if v not in self._cache:
            self._cache[v] = self._follows(self.finder.producer(v))
        return self._cache[v]

    def _follows(self, i: int) -> bool:
        if i not in self.operations or self.passed.intersection(self.finder.results(i)):
            return False
        if self.is_root(i):
            return True
        operation = self.finder.module.operations[i]
        if operation.opcode in _SCALING:
            first, second = operation.operands
            pairs = [(first, second)] if operation.opcode == "divide" else [(first, second), (second, first)]
            return any(self.is_tail(a) and self.finder.is_constant(b) for a, b in pairs)
        if operation.opcode == "reduce":  # over dimensions of one element, say
            return self.finder.adds_up(i) and self.is_tail(operation.operands[0])
        return operation.opcode in _LINEAR and all(map(self.is_tail, operation.operands))

    def operations_of(self, totals: Iterable[int]) -> _Inside:
        """What has to run on each replica for these."""
        inside = _Inside(set(), set(), set(), {})
        for total in totals:
            inside.needed[total] = set()
            self._collect(total, inside, inside.needed[total])
        return inside

    def _collect(self, v: int, inside: _Inside, needed: set[int]) -> None:
        i = self.finder.producer(v)
        needed.add(v)
        inside.sums.add(i)
        root = self.is_root(i)
        if root:
            inside.roots.add(i)
        for u in self.finder.module.operations[i].operands:
            if self.finder.is_constant(u) and not self._lies_by_samples(u):
                self._constants(u, inside)
            elif not root:
                self._collect(u, inside, needed)

    def _lies_by_samples(self, v: int) -> bool:
        return bool(self.samples.intersection(self.finder.classes.of_dims[v]))

    def _constants(self, v: int, inside: _Inside) -> None:
        i = self.finder.producer(v)
        inside.constants.add(i)
        for u in self.finder.module.operations[i].operands:
            self._constants(u, inside)
