"""What a model computes, keeps and sums, layer by layer: what a strategy is priced from.

Everything is of one sample on one device that shares nothing. What a strategy makes of it follows from marks, one for
each sort of dimension that a strategy divides:

    quantity on a device = quantity · b^[SAMPLES] / (cp^[TOKENS] · tp^[TENSOR] · ep^[EXPERTS])

where b is the samples of a micro-batch. With sequence parallelism tp divides also what has TOKENS without TENSOR.

    embedding ─→ block ─→ block ─→ … ─→ head           layers of the model, in order
        │          │                      │
        └──────────┴──── LayerWork ───────┘            alike ones share one record
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.framework import ModelFacts
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.schedules import SCHEDULES
from automap_models.core.strategy import MODULES, ON_DEVICES, RECOMPUTE, Recompute, TransformerShape, modules_of
from automap_models.core.tuning import FULL, Training

MarkArray = NDArray[np.int8]


class Mark:
    """What a quantity is proportional to: bits."""

    SAMPLES = 1
    """The samples of a micro-batch."""
    TOKENS = 2
    """The tokens of a sample, which context parallelism divides."""
    TENSOR = 4
    """Heads, columns of the perceptron or rows of the vocabulary, which tensor parallelism divides."""
    EXPERTS = 8
    """The experts of a layer, which expert parallelism divides. What has SAMPLES has none: with a share of the experts
    come the tokens of the devices that have the others."""


class WorkPass:
    """Which pass a kernel belongs to."""

    FORWARD = 0
    INPUT = 1
    """Of the backward pass, what gradients of activations are made by."""
    WEIGHT = 2
    """Of the backward pass, what only gradients of parameters are made by."""


class WorkKind:
    """What bounds a kernel's time."""

    PRODUCT = 0
    """A product of matrices."""
    MEMORY = 1
    """Everything else."""
    ROUTING = 2
    """Copies of tokens on their way to experts and back, each its own kernel where a framework fuses none."""
    UNFUSED = 3
    """What an eager program runs beside another kernel, which computes all of it elsewhere."""
    WIDENING = 4
    """Of weights in 4 bits before a product."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """n kernels of a layer, alike ones each on its own.

    Attributes:
        passes: int8 [n], see WorkPass.
        kinds: int8 [n], see WorkKind.
        core: bool [n] whether the kernel is part of an attention core: scores, softmax, and their product with values.
            A flash kernel computes a core as a whole.
        sizes: float64 [n, 4] of a product: how many there are, rows, columns, depth; FLOP are twice their product.
            Ones where the kernel is none.
        size_marks: int8 [n, 4].
        moved_kernels: int64 [m] the kernel of each entry of the two arrays below.
        moved_bytes: float64 [m] read or written.
        moved_marks: int8 [m].
        moved_scores: bool [m] whether these are scores of queries against keys, which a flash kernel does not move.
        moved_again: bool [m] whether they would not move if all products that read one value were one product.
        modules: int64 [n] `module_bits` that each of the forward pass is part of, but for attention cores; 0: of none.
    """

    passes: NDArray[np.int8]
    kinds: NDArray[np.int8]
    core: NDArray[np.bool_]
    sizes: FloatArray
    size_marks: MarkArray
    moved_kernels: IntArray
    moved_bytes: FloatArray
    moved_marks: MarkArray
    moved_scores: NDArray[np.bool_]
    moved_again: NDArray[np.bool_]
    modules: IntArray | int = 0

    def __len__(self) -> int:
        return int(self.passes.size)

    @cached_property
    def products(self) -> NDArray[np.bool_]:
        """[n] which are products of matrices."""
        return np.asarray(self.kinds == WorkKind.PRODUCT)

    @cached_property
    def of_experts(self) -> NDArray[np.bool_]:
        """[n] which are products of all experts of a layer."""
        return np.asarray((self.size_marks[:, 0] & Mark.EXPERTS) > 0)

    @cached_property
    def of_tensor(self) -> NDArray[np.bool_]:
        """[n] of which products tensor parallelism divides a side."""
        return np.asarray(((self.size_marks & Mark.TENSOR) > 0).any(axis=1))

    @cached_property
    def of_activations(self) -> NDArray[np.bool_]:
        """[n] whether a product has no parameters and none of their gradients: there is one for each sample."""
        return np.asarray((self.size_marks[:, 0] & Mark.SAMPLES) > 0)

    @cached_property
    def read_again(self) -> NDArray[np.bool_]:
        """[n] whether a kernel moves what is not moved where products of one value are one product."""
        return np.bincount(self.moved_kernels, self.moved_again, minlength=len(self)) > 0

    @cached_property
    def frozen(self) -> bool:
        """Whether matrices of the layer are not trained: fewer products make gradients of parameters than read them."""
        passes = self.passes[self.products & ~self.of_activations]
        return bool((passes == WorkPass.WEIGHT).sum() < (passes == WorkPass.FORWARD).sum())

    @cached_property
    def casts(self) -> NDArray[np.bool_]:
        """[n] whether a kernel reads gradients of parameters that are whole and writes them in another type."""
        per_token = (self.moved_marks & (Mark.SAMPLES | Mark.TOKENS)) > 0
        entries = np.bincount(self.moved_kernels, minlength=len(self))
        of_tokens = np.bincount(self.moved_kernels, per_token, minlength=len(self))
        alone = (self.passes == WorkPass.WEIGHT) & (self.kinds == WorkKind.MEMORY)
        return np.asarray(alone & (entries > 1) & (of_tokens == 0))


@dataclass(frozen=True, eq=False)
class Amounts:
    """k amounts of bytes, or numbers of parameters, with their marks.

    Attributes:
        values: float64 [k].
        marks: int8 [k].
        modules: int64 [k] `module_bits` that make each; 0: none does.
    """

    values: FloatArray
    marks: MarkArray
    modules: IntArray | int = 0

    def made_by(self, bits: IntArray) -> Amounts:
        """Those that some modules make, and 0 for the others: values [k, R], of R choices of modules."""
        chosen = np.broadcast_to(self.modules, self.values.shape)[:, None] & bits > 0
        return Amounts(np.where(chosen, self.values[:, None], 0.0), self.marks, self.modules)


NOTHING = Amounts(np.zeros(0), np.zeros(0, dtype=np.int8))


@dataclass(frozen=True, eq=False)
class LayerWork:
    """One layer of a model: a block, or what comes before or after the blocks.

    Attributes:
        name: path of the layer without its number, such as `block`.
        kernels: of its forward and backward pass; the update is not among them.
        parameters: number of those that are trained; those that several layers share count with the first.
        saved: bytes saved from the forward to the backward pass, but for those of attention cores.
            What one layer hands on to others counts where it is first read.
        saved_core: bytes saved within attention cores, which selective recomputation and flash kernels spare.
        saved_eagerly: bytes that an eager program saves besides, whose small operations are kernels each (Operations).
        saved_for_weights: of `saved`, bytes that are kept on from the INPUT to the WEIGHT pass where these are apart.
        boundary: bytes handed to the next layer, or through it to later ones.
        sums_forward, sums_backward: bytes of each all-reduce among the devices of tensor parallelism, in the passes;
            EXPERTS marks those of devices that share an expert.
        exchanged: bytes that tokens take to their experts, one way, of one forward pass; none without experts.
        context: bytes of keys and values, or of states, which the devices of context parallelism pass on.
        causal: whether its attention masks the half of the scores, which a flash kernel skips.
        copies: of a token that experts take; 0 where there are none, or where that is not known.
        frozen: bytes of parameters that are not trained.
        unpacked: bytes of the largest of them that are in 4 bits, in the type of the layer.
        backward: whether gradients go through it.
    """

    name: str
    kernels: Kernels
    parameters: Amounts
    saved: Amounts
    saved_core: Amounts
    saved_for_weights: Amounts
    boundary: Amounts
    sums_forward: Amounts
    sums_backward: Amounts
    exchanged: Amounts
    context: Amounts
    causal: bool = True
    copies: float = 0.0
    frozen: Amounts = NOTHING
    unpacked: Amounts = NOTHING
    saved_eagerly: Amounts = NOTHING
    backward: bool = True

    @cached_property
    def module_bits(self) -> int:
        """Of all modules that it has."""
        core = module_bits("core_attn") if self.kernels.core.any() else 0
        return int(np.bitwise_or.reduce(np.ravel(self.kernels.modules), initial=core))


class SharedWork(NamedTuple):
    """What layers at several places use, and every rank of the pipeline that has one of them holds.

    Attributes:
        parameters: how many.
        frozen_bytes: of what is not trained.
        places: ascending; the layer at the first one has it among its own.
        is_output: whether the embedding is the output matrix, where these are what is shared.
    """

    parameters: float
    frozen_bytes: float
    places: tuple[int, ...]
    is_output: bool = True


class TowerLayers(NamedTuple):
    """Alike layers of an encoder of images: the first rank of the pipeline has them, whatever the cuts.

    Attributes:
        layer: one of them.
        copies: how many.
        recomputes: whether they recompute what the first block does.
    """

    layer: LayerWork
    copies: int = 1
    recomputes: bool = False


@lru_cache(maxsize=1024)
def module_bits(recompute: Recompute) -> int:
    """A bit for each of its modules, by their places in MODULES."""
    return sum(1 << MODULES.index(name) for name in modules_of(recompute))


def _apart(names: tuple[str, ...]) -> tuple[str, ...]:
    """Modules without those that are part of another one of them: of a whole mixture."""
    return tuple(name for name in names if "moe" not in names or name not in ("moe_act", "shared_experts"))


def undivided(layer: LayerWork) -> LayerWork:
    """The layer where every device has all tokens: neither cp nor sequence parallelism divides what it does."""
    others = np.int8(~Mark.TOKENS)
    parts = {field.name: getattr(layer, field.name) for field in fields(layer)}
    amounts = {
        name: replace(part, marks=part.marks & others) for name, part in parts.items() if isinstance(part, Amounts)
    }
    sizes, moved = (marks & others for marks in (layer.kernels.size_marks, layer.kernels.moved_marks))
    kernels = replace(layer.kernels, size_marks=sizes, moved_marks=moved)
    changes: dict[str, Any] = {**amounts, "kernels": kernels, "context": NOTHING}
    return replace(layer, **changes)


@dataclass(frozen=True, eq=False)
class ModelWork:
    """A model, layer by layer.

    Attributes:
        shape: sizes that strategies are checked against.
        layers: distinct layers.
        order: the layer of `layers` that comes at each place; the first place is what comes before the blocks, the
            last what comes after them, so that there are `shape.layers` + 2.
        dtype: element type of activations and weights, `bfloat16`, `float16` or `float32`.
        tied: number of trained parameters that the first and the last place share, the word embedding's, which are
            counted with the first place; 0 where none are.
        shared: beside these.
        recurrent, training: see ModelFacts.
        tower: what encodes images for the first place.
        modules: those of MODULES of which all sets have a price; costs have a column for each set.
        recompute, schedules: what strategies of it may recompute beside modules, and their schedules, by name.
    """

    shape: TransformerShape
    layers: tuple[LayerWork, ...]
    order: tuple[int, ...]
    dtype: str
    tied: float = 0.0
    shared: tuple[SharedWork, ...] = ()
    recurrent: bool = False
    training: Training = FULL
    tower: tuple[TowerLayers, ...] = ()
    modules: tuple[str, ...] = MODULES

    recompute: ClassVar[tuple[Recompute, ...]] = ON_DEVICES
    schedules: ClassVar[tuple[str, ...]] = tuple(SCHEDULES)

    @cached_property
    def kinds(self) -> tuple[Recompute, ...]:
        """All that blocks may recompute: RECOMPUTE, and sets of its modules of which none is part of another."""
        sets: list[tuple[str, ...]] = [()]
        for name in filter(self._has, self.modules):
            sets += [(*others, name) for others in sets]
        return (*RECOMPUTE, *("+".join(names) for names in sets[1:] if names == _apart(names)))

    @cached_property
    def blocks(self) -> FloatArray:
        """[k] how many blocks are of each layer."""
        return np.bincount(self.order[1:-1], minlength=len(self.layers)).astype(np.float64)

    def kind(self, recompute: Recompute) -> int:
        """Which of `kinds` it is, without modules that the model does not have."""
        if recompute in RECOMPUTE:
            return RECOMPUTE.index(recompute)
        return self.kinds.index("+".join(filter(self._has, _apart(modules_of(recompute)))) or "none")

    def with_modules(self, kinds: Iterable[Recompute], others: Iterable[str] = ()) -> ModelWork:
        """The same where only sets of the modules of some kinds, and of others, have a price."""
        names = {*others, *(name for kind in kinds for name in modules_of(kind))}
        return replace(self, modules=tuple(filter(names.__contains__, MODULES)))

    def _has(self, module: str) -> bool:
        return any(layer.module_bits & module_bits(module) for layer in self.layers)

    @cached_property
    def facts(self) -> ModelFacts:
        """What frameworks ask of the model."""
        tied = self.tied > 0 or any(one.is_output for one in self.shared)
        encodes = not all(layer.causal for layer in self.layers)
        return ModelFacts(self.shape, tied, recurrent=self.recurrent, training=self.training, encodes=encodes)
