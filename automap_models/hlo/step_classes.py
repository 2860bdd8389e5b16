"""The classes of dimensions that a training step's instructions and values have, and the results summed over them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import InstructionGraph, Phase
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
        nbytes: of the result, in all rounds of a loop.
        late: whether only the update reads it.
        operation: the module's that makes it.
    """

    over: int
    classes: Classes
    nbytes: float
    late: bool
    operation: int


_Due = dict[int, tuple[int, int]]
"""Class over which a value is still to be summed → key among the sums."""


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
        arguments = len(self.graph.arguments)
        made = (self._of_result(v) for v in range(arguments, len(self.graph.shapes)))
        return (*(self._of_rules_value(v) for v in range(arguments)), *made)

    @cached_property
    def sums(self) -> tuple[Sum, ...]:
        """Every result that is summed over a class.

        Two of them over the same class that are then added, and read by nothing else, are one sum, after the addition:
        XLA's pass all-reduce-reassociate, which runs for accelerators.
        """
        readers, waited = self._readers(), self._waited_for()
        found = self._found(waited)
        due: dict[int, _Due] = defaultdict(dict)
        for c, value in found:
            due[value][c] = (c, value)
        for use in self.sharding.rules.uses:
            if use.opcode not in _MOVED and use.opcode != "add":
                continue
            result = use.values[-1]
            pending = [due[v] if v in due and readers[v] == 1 else {} for v in _operands(use)]
            if use.opcode == "add" and len(pending) == 2:
                both = {c: (c, result) for c in pending[0] if c in pending[1]}
                for c, key in both.items():
                    del found[pending[0][c]], found[pending[1][c]]
                    found[key] = self._sum(c, result, waited, use)
                due[result] = both
            elif len(pending) == 1:
                due[result] = pending[0]
        return tuple(found.values())

    @cached_property
    def separate_sums(self) -> tuple[Sum, ...]:
        """The same where every result is summed on its own, as XLA does for CPUs."""
        return tuple(self._found(self._waited_for()).values())

    def _found(self, waited: set[int]) -> dict[tuple[int, int], Sum]:
        """The sums by class and value, in execution order."""
        return {
            (c, value): self._sum(c, value, waited, use)
            for u, use in enumerate(self.sharding.rules.uses)
            for c in self._reduced(u)
            for value in _results(use)
        }

    def _of_instruction(self, i: int) -> Classes:
        uses = self._uses.get(i)
        if not uses:
            return ()
        largest = max(uses, key=self._points) if len(uses) > 1 else uses[0]
        return _distinct(self._of_factors[slice(*self._factors[largest : largest + 2])])

    def _points(self, u: int) -> float:
        """How many points the loops of a use go through."""
        return float(np.prod(self.sharding.rules.factor_sizes[slice(*self._factors[u : u + 2])].astype(np.float64)))

    def _of_rules_value(self, value: int) -> Classes:
        """The classes of a value as the rules number them; arguments have the same numbers."""
        return _distinct(self._of_dims[self._dims[value] : self._dims[value + 1]])

    def _of_result(self, value: int) -> Classes:
        """The classes of a value of the graph that an instruction makes."""
        i = int(self.graph.producers[value])
        uses = [self.sharding.rules.uses[u] for u in self._uses.get(i, ())]
        if not uses:
            return ()
        position = value - int(self.graph.result_offsets[i])
        results = int(self.graph.result_offsets[i + 1] - self.graph.result_offsets[i])
        place = _PASSED_ON.get(self.graph.opcodes[i])
        if place is None:
            return self._of_rules_value(uses[-1].values[position - results])
        passed = [use for use in uses if use.opcode == self.graph.opcodes[i]]
        return self._of_rules_value(passed[position - results].values[place])

    def _sum(self, over: int, value: int, waited: set[int], use: Use) -> Sum:
        rounds = max(1, self.module.operations[use.operation].rounds)
        nbytes = self.sharding.rules.tensors[value].nbytes * rounds
        return Sum(over, self._of_rules_value(value), nbytes, value not in waited, use.operation)

    def _reduced(self, u: int) -> Classes:
        return _distinct([self._of_factors[f] for f in range(*self._factors[u : u + 2]) if self._reduces[f]])

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


def meets(classes: Collection[Classes], sharded: Collection[int]) -> NDArray[np.bool_]:
    """Which of these have one of the sharded classes, bool of the same length."""
    chosen = frozenset(sharded)
    return np.array([not chosen.isdisjoint(each) for each in classes], dtype=np.bool_)


def _results(use: Use) -> tuple[int, ...]:
    return use.values[len(use.values) - use.results :]


def _operands(use: Use) -> tuple[int, ...]:
    return use.values[: len(use.values) - use.results]


def _distinct(classes: Collection[int]) -> Classes:
    return tuple(sorted(set(classes) - {NO_CLASS}))
