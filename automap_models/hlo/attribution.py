"""Which forward instruction a backward or update instruction belongs to.

A device runs the backward pass and the update of what it runs forward, so every instruction of a training step is
given a home among the forward ones:

- backward: the forward instruction of the same layer, and there the one with the same opcode that reads the same
  value, or else the last. Where no layer says it: of a product, the forward product that reads the same value; of
  others, the last forward instruction that made an activation it reads.

      y = dot(x, w) ──▶ z = tanh(y)          forward
      dx = dot(dy, w)   dy = dz · (1 - z²)   backward: dy reads z, dx reads w, dw reads x
      dw = dot(x, dy)

- update: the forward instruction that first uses the parameter that is updated.
- whatever has no home yet: that of its largest operand, or else of its first reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from automap_models.core.instruction_graph import IntArray, Phase
from automap_models.cost.kernel_traffic import MATRIX_OPCODES
from automap_models.hlo.liveness import NEVER, VIEWS, Liveness

MOVES = VIEWS | {"convert", "copy", "reverse", "transpose"}
"""Opcodes whose result has the numbers of their operand."""


def homes(liveness: Liveness) -> IntArray:
    """[n] position of the forward instruction that each instruction belongs to; NEVER where none can be told."""
    assigned = _Homes(liveness)
    assigned.backward()
    assigned.update()
    assigned.from_readers()
    return np.array(assigned.home, dtype=np.int64)


class _Homes:
    def __init__(self, liveness: Liveness) -> None:
        graph = liveness.graph
        self.graph, self.liveness = graph, liveness
        self.home: list[int] = liveness.position.tolist()
        self.reads = liveness.reads
        self.storage = liveness.storage.tolist()
        self.producers = graph.producers.tolist()
        self.sizes: list[float] = graph.value_bytes.tolist()
        self.born, self.is_activation = liveness.born.tolist(), liveness.is_activation.tolist()
        self.root = self._roots()
        self.of_phase = {phase: [i for i, p in enumerate(graph.phases.tolist()) if p == phase] for phase in Phase}
        self.is_backward = set(self.of_phase[Phase.BACKWARD])

    def backward(self) -> None:
        """By layer, opcode and what is read; else by dataflow."""
        same: dict[tuple[str, str], list[int]] = defaultdict(list)
        layer: dict[str, int] = {}
        for i in self.of_phase[Phase.FORWARD]:
            if self.graph.layers[i]:
                same[self.graph.layers[i], self._opcode(i)].append(i)
                layer[self.graph.layers[i]] = i
        products = self._forward_products()
        for i in self.of_phase[Phase.BACKWARD]:
            name = self.graph.layers[i]
            alike = same.get((name, self._opcode(i)))
            if alike:
                self.home[i] = self.home[self._with_a_common_operand(i, alike)]
            elif name in layer:
                self.home[i] = self.home[layer[name]]
            else:
                self.home[i] = self._from_forward(i, products)

    def update(self) -> None:
        """By the parameter that is updated, else by dataflow."""
        parameter, first_use = self._updated_parameters(), self.liveness.first_use.tolist()
        for i in self.of_phase[Phase.UPDATE]:
            used = first_use[parameter[i]] if i in parameter else NEVER
            self.home[i] = used if used != NEVER else self._from_operands(i)

    def from_readers(self) -> None:
        """What still has no home is at home where its first reader is."""
        reader: dict[int, int] = {}
        for i in range(len(self.graph) - 1, -1, -1):
            if self.home[i] == NEVER:
                self.home[i] = reader.get(i, NEVER)
            if self.home[i] != NEVER:
                for value in self.reads[i]:
                    reader[self.producers[value]] = self.home[i]

    def _roots(self) -> list[int]:
        """[v] the value whose numbers each value has, perhaps moved or converted."""
        root = list(range(len(self.graph.shapes)))
        for i, opcode in enumerate(self.graph.opcodes):
            if opcode in MOVES and self.reads[i]:
                root[self.liveness.results[i][0]] = root[self.reads[i][0]]
        return root

    def _opcode(self, i: int) -> str:
        """A product of matrices is `dot` forward and `dot_general` backward."""
        opcode = self.graph.opcodes[i]
        return "dot_general" if opcode == "dot" else opcode

    def _with_a_common_operand(self, i: int, candidates: list[int]) -> int:
        """The last candidate that reads a value that i reads, or the last of all."""
        read = {self.storage[value] for value in self.reads[i]}
        alike = (i for i in reversed(candidates) if any(self.storage[value] in read for value in self.reads[i]))
        return next(alike, candidates[-1])

    def _forward_products(self) -> dict[tuple[str, int], list[int]]:
        """Opcode and root of an operand → the homes of the forward products that read it."""
        products: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i in self.of_phase[Phase.FORWARD]:
            if self.graph.opcodes[i] in MATRIX_OPCODES:
                for value in self.reads[i]:
                    products[self._opcode(i), self.root[value]].append(self.home[i])
        return products

    def _from_forward(self, i: int, products: Mapping[tuple[str, int], list[int]]) -> int:
        """By what it reads of the forward pass, else the home of its largest operand.

        Of several forward products that read what a product reads, it belongs to the last one that does not come after
        the home of the gradient that it reads.
        """
        alike = [j for value in self.reads[i] for j in products.get((self._opcode(i), self.root[value]), ())]
        if alike:
            producers = [self.producers[value] for value in self.reads[i]]
            latest = max((self.home[p] for p in producers if p in self.is_backward), default=max(alike))
            return max((j for j in alike if j <= latest), default=max(alike))
        storage = [self.storage[value] for value in self.reads[i]]
        makers = [self.born[value] for value in storage if self.is_activation[value] and self.born[value] != NEVER]
        return max(makers) if makers else self._from_operands(i)

    def _from_operands(self, i: int) -> int:
        """The home of the largest operand that has one; of equal ones, the last of the step."""
        operands = [(self.sizes[v], self.producers[v]) for v in self.reads[i] if self.producers[v] >= 0]
        housed = [(size, p) for size, p in operands if self.home[p] != NEVER]
        return self.home[max(housed)[1]] if housed else NEVER

    def _updated_parameters(self) -> dict[int, int]:
        """Update instruction → the parameter that it reads, or that what reads it updates at the same shape."""
        shapes, updates = self.graph.shapes, (self.graph.phases == Phase.UPDATE).tolist()
        trainable = set(self.liveness.parameters.tolist())
        parameter: dict[int, int] = {}
        for i in reversed(self.of_phase[Phase.UPDATE]):
            direct = [value for value in self.reads[i] if value in trainable]
            if direct:
                parameter[i] = direct[0]
            if i not in parameter:
                continue
            shape = shapes[parameter[i]]
            for value in self.reads[i]:
                before = self.producers[value]
                if before >= 0 and updates[before] and shapes[value] == shape:
                    parameter.setdefault(before, parameter[i])
        return parameter
