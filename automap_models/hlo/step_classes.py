"""The classes of dimensions that a training step's instructions and values have, and the results summed over them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import InstructionGraph, IntArray, Phase
from automap_models.cost.kernel_traffic import MATRIX_OPCODES
from automap_models.hlo.dimension_classes import NO_CLASS, ModuleSharding
from automap_models.hlo.liveness import Liveness
from automap_models.hlo.module import Module
from automap_models.hlo.samples import COLUMNS, COUNT, DEPTH, NO_SIDE, ROWS
from automap_models.hlo.sharding_rules import Role, Use

PASSED_THROUGH = {"reshape", "transpose", "convert", "optimization_barrier"}
"""Opcodes of what changes no number, so that a sum is still due after it."""

_PLACES = {0b111: COUNT, 0b101: ROWS, 0b110: COLUMNS, 0b011: DEPTH}
"""Which of first operand, second operand (bit 1) and result (bit 2) have a factor → where it stands among the sizes."""

Classes = tuple[int, ...]


class Sum(NamedTuple):
    """A result that is summed over a class.

    Attributes:
        over: the class.
        value: the result, as the sharding rules number it.
        classes: of the result's dimensions.
        nbytes: of the result, in all rounds of a loop.
        late: whether only the update reads it.
        operation: the module's that makes it.
    """

    over: int
    value: int
    classes: Classes
    nbytes: float
    late: bool
    operation: int


class Merge(NamedTuple):
    """An addition of two results that are both summed if one axis shards all of some classes: one sum in place of two.

          h · w_1      memory · w_2        summed over class 1 and over class 2, if the axis shards them
              └─── add ───┘                summed once, after the addition, if the axis shards both

    Attributes:
        over: the classes, two or more, sorted.
        parts: the two sums that fall away.
        total: the sum that comes instead; its `over` is one of the classes.
    """

    over: Classes
    parts: tuple[Sum, Sum]
    total: Sum

    @property
    def saved_bytes(self) -> float:
        """What one sum is less than two."""
        return self.parts[0].nbytes + self.parts[1].nbytes - self.total.nbytes


_Due = dict[frozenset[int], Sum]
"""Classes → the sum that is still to come where one axis shards all of them."""


class StepClasses:
    """The classes of a step's instructions, values and sums.

    A loop has the classes of the largest operation in it.

    Attributes:
        module: of n operations.
        sharding: its rules and classes.
        graph: the module's, n instructions over v values.
        liveness: of the graph.
    """

    def __init__(self, module: Module, sharding: ModuleSharding, graph: InstructionGraph) -> None:
        self.module, self.sharding, self.graph, self.liveness = module, sharding, graph, Liveness(graph)
        self._uses: dict[int, list[int]] = defaultdict(list)
        for i, use in enumerate(sharding.rules.uses):
            self._uses[use.operation].append(i)
        self._dims = sharding.rules.dim_offsets.tolist()
        self._factors = sharding.rules.factor_offsets.tolist()
        self._sizes: list[float] = sharding.rules.factor_sizes.astype(np.float64).tolist()
        self._of_dims: list[int] = sharding.dim_classes.tolist()
        self._of_factors: list[int] = sharding.factor_classes.tolist()
        self._reduces: list[bool] = (sharding.rules.factor_roles & int(Role.REDUCTION) > 0).tolist()

    @cached_property
    def of_instructions(self) -> tuple[Classes, ...]:
        """[n] classes of each instruction; none for one without dimensions."""
        return tuple(self._of_instruction(i) for i in range(len(self.graph)))

    @cached_property
    def of_values(self) -> tuple[Classes, ...]:
        """[v] classes of each value."""
        return tuple(map(_distinct, self.of_dims))

    @cached_property
    def of_dims(self) -> tuple[Classes, ...]:
        """[v] the class of each dimension of each value, NO_CLASS for none; empty where no rule speaks of the value."""
        arguments = len(self.graph.arguments)
        results = (self._of_result(v) for v in range(arguments, len(self.graph.shapes)))
        return (*(self._dims_of(v) for v in range(arguments)), *results)

    def divided_sides(self, sharded: Collection[int]) -> IntArray:
        """[n] which size of a product has a sharded class; NO_SIDE where none has, and for all that are no products."""
        sides, chosen = np.full(len(self.graph), NO_SIDE), frozenset(sharded)
        for i, places in self._places.items():
            sides[i] = next((place for c, place in places if c in chosen), NO_SIDE)
        return sides

    @cached_property
    def _places(self) -> dict[int, list[tuple[int, int]]]:
        """Product → the classes of its factors, and where these stand among its sizes."""
        products = [i for i, opcode in enumerate(self.graph.opcodes) if opcode in MATRIX_OPCODES and i in self._uses]
        last, uses = {i: self._uses[i][-1] for i in products}, self.sharding.rules.uses
        return {
            i: [(self._of_factors[self._factors[u] + f], place) for f, place in product_places(uses[u]).items()]
            for i, u in last.items()
        }

    @property
    def sums(self) -> tuple[Sum, ...]:
        """Every result that is summed over a class, whatever other classes are sharded.

        Two of them over the same class that are then added, and read by nothing else, are one sum, after the addition:
        XLA's pass all-reduce-reassociate, which runs for accelerators.
        """
        return self._reassociated[0]

    @property
    def merges(self) -> tuple[Merge, ...]:
        """Additions by which sums over different classes become one where one axis shards all of these."""
        return self._reassociated[1]

    @cached_property
    def separate_sums(self) -> tuple[Sum, ...]:
        """The same where every result is summed on its own, as XLA does for CPUs."""
        return tuple(self._separate(self._waited_for()).values())

    def sums_over(self, sharded: Collection[int]) -> tuple[Sum, ...]:
        """The sums where one axis shards these classes, with every merge that they allow."""
        chosen = frozenset(sharded)
        remaining = dict.fromkeys(total for total in self.sums if total.over in chosen)
        for merge in self.merges:
            if chosen.issuperset(merge.over):
                for part in merge.parts:
                    del remaining[part]
                remaining[merge.total] = None
        return tuple(remaining)

    @cached_property
    def _reassociated(self) -> tuple[tuple[Sum, ...], tuple[Merge, ...]]:
        """What `sums` and `merges` say, from one walk through the operations.

        With every value that is only moved or added go the sums that are still due of it, by the classes that have to
        be sharded for it to be due: at an addition those of both sides together.
        """
        readers, waited = self._readers(), self._waited_for()
        sums = self._separate(waited)
        merges: list[Merge] = []
        due: dict[int, _Due] = defaultdict(dict)
        for c, value in sums:
            due[value][frozenset({c})] = sums[c, value]
        for use in self.sharding.rules.uses:
            if use.opcode not in PASSED_THROUGH and use.opcode != "add":
                continue
            pending = [due[v] if v in due and readers[v] == 1 else {} for v in use.operands]
            if use.opcode == "add" and len(pending) == 2:
                merged = self._merged((pending[0], pending[1]), waited, use)
                due[use.values[-1]] = {frozenset(merge.over): merge.total for merge in merged}
                for merge in merged:
                    if len(merge.over) > 1:
                        merges.append(merge)
                        continue
                    for part in merge.parts:
                        del sums[part.over, part.value]
                    sums[merge.total.over, merge.total.value] = merge.total
            elif len(pending) == 1:
                due[use.values[-1]] = pending[0]
        return tuple(sums.values()), tuple(merges)

    def _merged(self, sides: tuple[_Due, _Due], waited: set[int], use: Use) -> list[Merge]:
        """The merges at an addition: for each classes that one axis can shard together and that make both sides due."""
        merges: dict[frozenset[int], Merge] = {}
        adjacency = self.sharding.classes.adjacency
        for (first_classes, first), (second_classes, second) in product(*(side.items() for side in sides)):
            over = first_classes | second_classes
            members = sorted(over)
            if over not in merges and not adjacency[np.ix_(members, members)].any():
                total = self._sum(members[0], use.values[-1], waited, use)
                merges[over] = Merge(tuple(members), (first, second), total)
        return list(merges.values())

    def _separate(self, waited: set[int]) -> dict[tuple[int, int], Sum]:
        """The sums by class and value, in execution order."""
        return {
            (c, value): self._sum(c, value, waited, use)
            for u, use in enumerate(self.sharding.rules.uses)
            for c in self._reduced(u)
            for value in use.outputs
        }

    def _of_instruction(self, i: int) -> Classes:
        uses = self._uses.get(i)
        if not uses:
            return ()
        largest = max(uses, key=self._points) if len(uses) > 1 else uses[0]
        return _distinct(self._of_factors[slice(*self._factors[largest : largest + 2])])

    def _points(self, u: int) -> float:
        """How many points the loops of a use go through."""
        return math.prod(self._sizes[slice(*self._factors[u : u + 2])])

    def _dims_of(self, value: int) -> Classes:
        """The class of each dimension of a value as the rules number them; arguments have the same numbers."""
        return tuple(self._of_dims[self._dims[value] : self._dims[value + 1]])

    def _of_result(self, value: int) -> Classes:
        """The class of each dimension of a value of the graph that an instruction makes."""
        i = int(self.graph.producers[value])
        uses = [self.sharding.rules.uses[u] for u in self._uses.get(i, ())]
        if not uses:
            return ()
        position = value - int(self.graph.result_offsets[i])
        results = int(self.graph.result_offsets[i + 1] - self.graph.result_offsets[i])
        opcode = uses[-1].opcode  # a loop's own, behind those of what it runs
        # what has a use for each result, and where in that the result stands
        place = {"while": 1, "optimization_barrier": 1, "case": 0, "if": 0}.get(opcode)
        if place is None:
            return self._dims_of(uses[-1].values[position - results])
        passed = [use for use in uses if use.opcode == opcode]
        return self._dims_of(passed[position - results].values[place])

    def _sum(self, over: int, value: int, waited: set[int], use: Use) -> Sum:
        rounds = max(1, self.module.operations[use.operation].rounds)
        nbytes = self.sharding.rules.tensors[value].nbytes * rounds
        return Sum(over, value, _distinct(self._dims_of(value)), nbytes, value not in waited, use.operation)

    def _reduced(self, u: int) -> Classes:
        first, end = self._factors[u : u + 2]
        if not any(self._reduces[first:end]):
            return ()
        return _distinct([self._of_factors[f] for f in range(first, end) if self._reduces[f]])

    def _readers(self) -> Counter[int]:
        """How often each value is read."""
        return Counter(v for use in self.sharding.rules.uses for v in use.operands)

    def _waited_for(self) -> set[int]:
        """The values that more than the update of the parameters needs, directly or moved or added."""
        waited: set[int] = set()
        passed_on, updates = PASSED_THROUGH | {"add", "concatenate"}, (self.graph.phases == Phase.UPDATE).tolist()
        for use in reversed(self.sharding.rules.uses):
            moved = use.opcode in passed_on and waited.isdisjoint(use.outputs)
            if not moved and not updates[use.operation]:
                waited.update(use.operands)
        return waited


def product_places(use: Use) -> dict[int, int]:
    """Where each factor of a product stands among its sizes; one of more than two operands, or of one, as a count."""
    of_factor: dict[int, int] = defaultdict(int)
    for position, _, factor in use.rule.links if use.rule is not None else ():
        of_factor[factor] |= 1 << position
    return {factor: _PLACES.get(positions, COUNT) for factor, positions in of_factor.items()}


def meets(classes: Collection[Classes], sharded: Collection[int]) -> NDArray[np.bool_]:
    """Which of these have one of the sharded classes, bool of the same length."""
    chosen = frozenset(sharded)
    return np.array([not chosen.isdisjoint(members) for members in classes], dtype=np.bool_)


def _distinct(classes: Collection[int]) -> Classes:
    distinct = set(classes)
    distinct.discard(NO_CLASS)
    return tuple(sorted(distinct))
