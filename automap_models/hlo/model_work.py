"""A model's work by layers, from the traced training step of a few of its blocks.

    trace ── layers (model_layers.py) ──→ kernels, parameters, kept values, sums of each layer
        └─── classes of dimensions ─────→ what samples, tokens, tensor and expert parallelism divide (work_marks.py)

Kernels are fused as cost/kernels.py and module_kernels.py say, but not across layers: so blocks that are alike have the
same record, and a pipeline can be cut between any two. What gives parameters another type or order is not counted:
those of mixed precision are at hand in the type that the layers compute in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.core.model_work import Amounts, Kernels, LayerWork, Mark, ModelWork, WorkKind, WorkPass
from automap_models.core.strategy import TransformerShape
from automap_models.cost.kernels import REDUCTION_OPCODES, Traffic, kernel_traffic
from automap_models.hlo.block_labels import BlockStack
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.kept import kept_values
from automap_models.hlo.model_layers import BEFORE, ModelLayers
from automap_models.hlo.module import Module
from automap_models.hlo.module_kernels import module_traffic
from automap_models.hlo.samples import COLUMNS, COUNT, DEPTH, ROWS
from automap_models.hlo.sharding_classes import ModuleSharding
from automap_models.hlo.step_classes import PASSED_THROUGH, StepClasses, Sum, product_places
from automap_models.hlo.work_marks import WorkMarks


def model_work(
    module: Module, sharding: ModuleSharding, shape: TransformerShape, stacks: Sequence[BlockStack], dtype: str
) -> ModelWork:
    """The work of a transformer.

    Args:
        module: the training step with `BlockStack.traced` blocks of each stack, of one sample or more.
        sharding: its classes of dimensions.
        shape: of the whole model.
        stacks: in the order in which the forward pass runs them.
        dtype: of activations and weights.
    """
    return _Work(module, sharding, shape, tuple(stacks)).model(dtype)


class _Entry(NamedTuple):
    """Bytes that a kernel moves."""

    nbytes: float
    mark: int
    scores: bool


class _Work:
    """The work of a trace; see `model_work`."""

    def __init__(
        self, module: Module, sharding: ModuleSharding, shape: TransformerShape, stacks: tuple[BlockStack, ...]
    ) -> None:
        self.graph: InstructionGraph = instruction_graph(module)
        self.step = StepClasses(module, sharding, self.graph)
        self.layers = ModelLayers(module, self.graph, stacks)
        self.marks = WorkMarks(self.step, self.layers, shape)
        self.shape, self.stacks, self.reads = shape, stacks, self.step.liveness.reads
        self.samples = self.graph.shapes[self.layers.token_inputs[0]][0]

    def model(self, dtype: str) -> ModelWork:
        """The record of the whole model."""
        distinct: list[LayerWork] = []
        numbers: dict[int, int] = {}
        order = []
        for layer, name, causal in self._order():
            if layer not in numbers:
                work = replace(self.layer(layer, name), causal=causal)
                alike = (k for k, other in enumerate(distinct) if _alike(work, other))
                numbers[layer] = next(alike, len(distinct))
                if numbers[layer] == len(distinct):
                    distinct.append(work)
            order.append(numbers[layer])
        tied = sum(self._size(v) for v, layers in self.layers.of_parameters.items() if self._is_tied(layers))
        return ModelWork(self.shape, tuple(distinct), tuple(order), dtype, tied)

    def layer(self, layer: int, name: str) -> LayerWork:
        """The record of one layer of the trace."""
        kept, core = self._kept(layer)
        weights = self._read_for_weights(layer)
        return LayerWork(
            name=name,
            kernels=self._kernels(layer),
            parameters=self._parameters(layer),
            kept=self._amounts(kept),
            kept_core=self._amounts(core),
            kept_for_weights=self._amounts(v for v in kept if v in weights),
            boundary=self._amounts(self._handed_on(layer)),
            sums_forward=self._sums(layer, Phase.FORWARD),
            sums_backward=self._sums(layer, Phase.BACKWARD),
            exchanged=self._amounts(self._exchanged(layer)),
            context=self._amounts(self._keys_and_values(layer)),
        )

    def _order(self) -> Iterator[tuple[int, str, bool]]:
        """The layer of the trace that comes at each place of the model, its name, and whether it is causal."""
        yield BEFORE, "embedding", True
        for stack, first in zip(self.stacks, self.layers.first_blocks, strict=False):
            for block in range(stack.layers):
                yield first + stack.source(block)[0], stack.scope.rstrip("_"), stack.causal
        yield self.layers.after, "head", True

    def _is_tied(self, layers: Sequence[int]) -> bool:
        return BEFORE in layers and self.layers.after in layers

    # --- kernels

    @cached_property
    def traffic(self) -> Traffic:
        """What kernels read and write."""
        traffic = kernel_traffic(self.graph, self.layers.of_instructions, np.flatnonzero(self.kept).tolist())
        return module_traffic(self.graph, traffic, self._modules, self.kept)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """[v] whether a value is saved for the backward pass."""
        return kept_values(self.graph) & self.layers.from_inputs

    @cached_property
    def _modules(self) -> NDArray[np.int64]:
        """[n] one number for each module, pass and layer; negative for what runs on its own."""
        numbers: dict[tuple[object, ...], int] = {}
        columns = self.layers.of_instructions, self.passes.tolist(), self.graph.in_core.tolist(), self.graph.layers
        keys = list(zip(*columns, strict=True))
        every = [numbers.setdefault(key, len(numbers)) for key in keys]
        alone = (key[0] == self.layers.after + 1 or self._sums_tokens(i) for i, key in enumerate(keys))
        return np.where(np.fromiter(alone, np.bool_, len(keys)), -1, np.array(every, dtype=np.int64))

    def _sums_tokens(self, i: int) -> bool:
        """Whether an instruction reduces what has samples or tokens to something without."""
        if self.graph.opcodes[i] not in REDUCTION_OPCODES:
            return False
        per_token = Mark.SAMPLES | Mark.TOKENS
        read, result = (
            self.marks.of_value(v) & per_token for v in (self.reads[i][0], int(self.graph.result_offsets[i]))
        )
        return result == 0 < read

    @cached_property
    def passes(self) -> NDArray[np.int8]:
        """[n] the pass of each instruction."""
        backward = np.where(self.layers.gradients_only, WorkPass.WEIGHT, WorkPass.INPUT)
        return np.where(self.graph.phases == Phase.FORWARD, WorkPass.FORWARD, backward).astype(np.int8)

    @cached_property
    def _moved(self) -> dict[int, list[_Entry]]:
        """Instruction → what its kernel moves; those that write nothing of their own are none."""
        moved: dict[int, list[_Entry]] = defaultdict(list)
        traffic = self.traffic
        columns = (traffic.kernels.tolist(), traffic.values.tolist(), traffic.nbytes.tolist())
        for i, v, nbytes in zip(*columns, strict=True):
            if nbytes > 0 and self.graph.shapes[v]:
                scores = bool(self.graph.in_core[i]) and self.marks.is_scores(v)
                moved[i].append(_Entry(*self._of_one_sample(nbytes, self.marks.of_value(v)), scores))
        return moved

    @cached_property
    def _of_layers(self) -> dict[int, list[int]]:
        """Layer → its instructions whose kernels write something."""
        of_layers: dict[int, list[int]] = defaultdict(list)
        for i in sorted(self._moved):
            if not self._changes_a_parameter(i):
                of_layers[self.layers.of_instructions[i]].append(i)
        return of_layers

    def _changes_a_parameter(self, i: int) -> bool:
        """Whether an instruction of the forward pass gives a parameter another type or order."""
        moves = self.graph.opcodes[i] in PASSED_THROUGH
        return moves and self.layers.shown_parameters[self.reads[i][0]] in self.layers.of_parameters

    def _kernels(self, layer: int) -> Kernels:
        chosen = self._of_layers[layer]
        sizes, size_marks = np.ones((len(chosen), 4)), np.zeros((len(chosen), 4), dtype=np.int8)
        kinds = np.full(len(chosen), WorkKind.MEMORY, dtype=np.int8)
        for k, i in enumerate(chosen):
            if self.graph.opcodes[i] == "dot_general":
                kinds[k] = WorkKind.PRODUCT
                sizes[k], size_marks[k] = self._product(i)
        moved = [(k, *entry) for k, i in enumerate(chosen) for entry in self._moved[i]]
        return Kernels(
            passes=self.passes[chosen],
            kinds=kinds,
            core=self.graph.in_core[chosen],
            sizes=sizes,
            size_marks=size_marks,
            moved_kernels=np.array([entry[0] for entry in moved], dtype=np.int64),
            moved_bytes=np.array([entry[1] for entry in moved], dtype=np.float64),
            moved_marks=np.array([entry[2] for entry in moved], dtype=np.int8),
            moved_scores=np.array([entry[3] for entry in moved], dtype=np.bool_),
        )

    def _product(self, i: int) -> tuple[list[float], list[int]]:
        """The four sizes of a product, and their marks; each mark stands at one of them."""
        use, classes = self.step.of_factors(i)
        assert use.rule is not None
        sizes, of_sizes = [1.0] * 4, [set[int]() for _ in range(4)]
        for factor, place in product_places(use).items():
            sizes[place] *= use.rule.sizes[factor]
            of_sizes[place].add(classes[factor])
        of_all = self.marks.of_classes(c for own in of_sizes for c in own)
        marks, left = [0] * 4, of_all
        for place in (ROWS, COUNT, COLUMNS, DEPTH):
            marks[place] = left & self.marks.of_classes(of_sizes[place])
            left &= ~marks[place]
        if left:  # the tokens of experts, which go with their samples
            marks[next(place for place in range(4) if marks[place] & Mark.SAMPLES)] |= left
        samples = next((place for place in range(4) if marks[place] & Mark.SAMPLES), None)
        if samples is not None:
            sizes[samples] /= self.samples
        return sizes, marks

    # --- values

    def _of_one_sample(self, amount: float, mark: int) -> tuple[float, int]:
        return (amount / self.samples if mark & Mark.SAMPLES else amount), mark

    def _amounts(self, values: Iterable[int]) -> Amounts:
        """Bytes of values."""
        return _amounts(self._of_one_sample(float(self.graph.value_bytes[v]), self.marks.of_value(v)) for v in values)

    def _size(self, v: int) -> float:
        """Number of elements of a value."""
        return float(np.prod(np.array(self.graph.shapes[v], dtype=np.float64)))

    def _parameters(self, layer: int) -> Amounts:
        """Those that the layer is the first to read."""
        owned = (v for v, layers in self.layers.of_parameters.items() if layers and layers[0] == layer)
        return _amounts((self._size(v), self.marks.of_value(v)) for v in owned)

    def _kept(self, layer: int) -> tuple[list[int], list[int]]:
        """Values that a layer saves for the backward pass: outside attention cores, and within them."""
        outside: list[int] = []
        within: list[int] = []
        for v, keeper in self._keepers.items():
            if keeper == layer:
                maker = int(self.graph.producers[v])
                inner = self.graph.in_core[maker] and v not in self.layers.core_results
                (within if inner else outside).append(v)
        return outside, within

    @cached_property
    def _keepers(self) -> dict[int, int]:
        """Saved value → the layer that saves it: the first that reads it, since a pipeline may be cut before that."""
        layers, keepers = self.layers.of_instructions, dict[int, int]()
        for v in np.flatnonzero(self.kept).tolist():
            producer = int(self.graph.producers[v])
            at_home = any(layers[i] == layers[producer] for i in self.layers.forward_readers[v])
            handed_on = v in self.layers.crossing and not at_home
            keepers[v] = self.layers.crossing[v][1][0] if handed_on else layers[producer]
        return keepers

    def _read_for_weights(self, layer: int) -> set[int]:
        """Values that the kernels of the WEIGHT pass read."""
        chosen = [i for i in self._of_layers[layer] if self.passes[i] == WorkPass.WEIGHT]
        read = self.traffic.values[np.isin(self.traffic.kernels, chosen)]
        return set(self.step.liveness.storage[read].tolist())

    def _handed_on(self, layer: int) -> Iterator[int]:
        """Values made up to a layer that later ones read in the forward pass."""
        for v, (producer, reading) in self.layers.crossing.items():
            if producer <= layer < reading[-1] and self.graph.shapes[v]:
                yield v

    def _exchanged(self, layer: int) -> Iterator[int]:
        """What the experts of a layer make for its tokens."""
        for i in self._products(layer, WorkPass.FORWARD):
            result = int(self.graph.result_offsets[i])
            classes = frozenset(self.step.of_values[result])
            of_experts = (self.marks.experts & classes & set(self.step.of_values[v]) for v in self.reads[i])
            if classes & self.marks.hidden and all(of_experts):
                yield result

    def _keys_and_values(self, layer: int) -> list[int]:
        """What the products of attention cores read from outside, other than queries."""
        chosen: dict[int, None] = {}
        for i in self._products(layer, WorkPass.FORWARD):
            if self.graph.in_core[i]:
                outside = [v for v in map(self._behind_moves, self.reads[i]) if not self._comes_from_core(v)]
                chosen |= dict.fromkeys([min(outside, key=self._size)])  # queries have as many heads, or more
        return list(chosen)

    def _products(self, layer: int, of_pass: WorkPass) -> list[int]:
        chosen = self._of_layers[layer]
        return [i for i in chosen if self.graph.opcodes[i] == "dot_general" and self.passes[i] == of_pass]

    def _comes_from_core(self, v: int) -> bool:
        maker = int(self.graph.producers[v])
        return maker >= 0 and bool(self.graph.in_core[maker])

    def _behind_moves(self, v: int) -> int:
        """The value from outside an attention core that a value of it is in another order or type, or itself."""
        while self._comes_from_core(v) and self.graph.opcodes[self.graph.producers[v]] in PASSED_THROUGH:
            v = self.reads[int(self.graph.producers[v])][0]
        return v

    def _sums(self, layer: int, phase: Phase) -> Amounts:
        """What the devices of tensor parallelism sum in a pass."""
        return _amounts(
            self._of_one_sample(total.nbytes, self.marks.of_classes(total.classes))
            for total in self._waited_sums
            if self.layers.of_instructions[total.operation] == layer and self.graph.phases[total.operation] == phase
        )

    @cached_property
    def _waited_sums(self) -> list[Sum]:
        """The sums that layers wait for; of results that a layer adds up, whatever else it adds to them, one."""
        ends: dict[tuple[int, int, int], Sum] = {}
        for total in self.step.sums_over(self.marks.tensor):
            if not total.late:
                i = total.operation
                key = self.layers.of_instructions[i], int(self.graph.phases[i]), self._added_to(i)
                ends.setdefault(key, total)
        return list(ends.values())

    def _added_to(self, i: int) -> int:
        """The last of the instructions that only move the result of one, or add something to it."""
        readers = self._readers[i]
        while len(readers) == 1 and (self.graph.opcodes[readers[0]] in PASSED_THROUGH | {"add"}):
            i = readers[0]
            readers = self._readers[i]
        return i

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        """Instruction → those that read a result of it."""
        readers: dict[int, list[int]] = defaultdict(list)
        for maker, i in zip(
            self.graph.producers[self.graph.operands].tolist(), self.graph.consumers.tolist(), strict=True
        ):
            readers[maker].append(i)
        return readers


def _amounts(entries: Iterable[tuple[float, int]]) -> Amounts:
    """Amounts of one mark each: those of the same mark stay apart."""
    pairs = list(entries)
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    return Amounts(values, np.array([mark for _, mark in pairs], dtype=np.int8))


def _alike(one: LayerWork, other: LayerWork) -> bool:
    """Whether two layers are the same but for rounding."""
    return all(_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(LayerWork))


def _same(one: object, other: object) -> bool:
    if isinstance(one, Kernels | Amounts):
        return all(_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-9, atol=0))
    return one == other
