"""One layer of a transformer, operation by operation, in closed form: what it computes, keeps and sums.

The forward pass is written down as a model's code would run it. Each operation adds its own kernels of both passes, and
says what it saves:

    operation       forward              gradients of activations         of parameters           saves
    product y = xW  y, x, W              dx, dy, W                        dW, dy, x; its type     x
    norm            y, x, scale          dx, dy, x, scale, what else x    scale, dy, x            x
                                         has as gradients
    activation      z, y                 dy, dz, y                                                y, of ReLU a bit mask
    residual sum    y, x, change

(bytes that each kernel moves, its result first). A value that several products read has its gradients added up by one
more kernel. The kinds of kernels, and which of them are one, are those of the traced models (cost/kernels.py and
hlo/module_kernels.py say why), without kernels of single numbers a token.

A matrix that is frozen has no third of these products, and does not save x; an adapter beside it is two narrow ones.

What tensor parallelism sums follows from the marks (core.model_work): the result of a product over a dimension that
devices share, and the gradient of what is whole and read by products whose columns they share (1909.08053, section 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from automap_models.core.model_work import Amounts, Kernels, LayerWork, Mark, WorkKind, WorkPass, module_bits
from automap_models.core.sublayer_sizes import UNFUSED, Operations
from automap_models.core.tuning import ADAPTER, ALL, QUANTIZED_BYTES, LayerTraining
from automap_models.cost.layer_times import ITEM_BYTES

FORWARD, INPUT, WEIGHT = WorkPass.FORWARD, WorkPass.INPUT, WorkPass.WEIGHT
PER_TOKEN = Mark.SAMPLES | Mark.TOKENS
FIXED = 0
_NO_SIZES = (1.0, FIXED)
Size = tuple[float, int]
"""Of one side of a product, and what divides it."""
FLOAT32 = 4


@dataclass(frozen=True, eq=False)
class Value:
    """What a kernel reads or writes, of one sample.

    Attributes:
        shape: how many, rows, columns.
        mark: of its size.
        item_bytes: of an element.
        scores: whether it is of queries against keys, which a flash kernel does not move.
    """

    shape: tuple[float, float, float]
    mark: int
    item_bytes: float
    scores: bool = False

    @property
    def width(self) -> float:
        """Of a row."""
        return self.shape[2]

    @property
    def size(self) -> Size:
        """How many elements, and what divides them."""
        return prod(self.shape), self.mark

    @property
    def nbytes(self) -> float:
        """Of all elements."""
        return prod(self.shape) * self.item_bytes


_Moved = tuple[tuple[Value, bool], ...]
_Kernel = tuple[int, int, bool, int, tuple[Size, ...], _Moved]
"""Its pass, what bounds it, whether it is part of an attention core, of which modules, sizes of a product, and what it
moves, each with whether that is moved again (Kernels.moved_again)."""


@dataclass
class Layer:
    """A layer that is being written down.

    Attributes:
        tokens: of a sample.
        dtype: of activations and weights.
        training: what of it is trained.
        operations: what small ones save where they are not fused.
        parameters: number of them in each tensor that is trained, with its mark.
        frozen: tensors that are not.
        sums_forward, sums_backward, exchanged, saved_core, saved_eagerly, context: values, see LayerWork.
        document: tokens that attention reads at most.
    """

    tokens: int
    dtype: str
    training: LayerTraining = ALL
    operations: Operations = UNFUSED
    parameters: list[Size] = field(default_factory=list)
    frozen: list[Value] = field(default_factory=list)
    sums_forward: list[Value] = field(default_factory=list)
    sums_backward: list[Value] = field(default_factory=list)
    exchanged: list[Value] = field(default_factory=list)
    saved_core: list[Value] = field(default_factory=list)
    saved_eagerly: list[Value] = field(default_factory=list)
    context: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.item_bytes = ITEM_BYTES[self.dtype]
        self._kernels: list[_Kernel] = []
        self._unpacked: list[Value] = []
        self._saved: dict[Value, bool] = {}  # value → whether kernels of gradients of parameters read it
        self._gradients: dict[Value, list[Value]] = defaultdict(list)
        self._products: dict[tuple[Value, int], list[Value]] = defaultdict(list)  # what products of columns read
        self._norms: dict[Value, list[Value]] = defaultdict(list)  # what is normed → scales
        self._modules = 0  # bits of those that are being written down
        self._makers: dict[Value, int] = {}  # value of a forward pass → bits of those that make it
        self._results: list[Value] = []  # of those that end
        self._expert_sums = set[Value]()  # what devices sum that share an expert
        self.document = min(self.training.document or self.tokens, self.tokens)

    # --- values

    def value(
        self, width: float, mark: int = PER_TOKEN, *, rows: float = 0, count: float = 1, item_bytes: float = 0
    ) -> Value:
        """A value with so many columns; unless told otherwise with a row for each token, in the layer's type."""
        return Value((count, rows or self.tokens, width), mark, item_bytes or self.item_bytes)

    def like(self, x: Value, item_bytes: float = 0) -> Value:
        """Another value as large, in the same type or in another one."""
        return Value(x.shape, x.mark, item_bytes or x.item_bytes, x.scores)

    def weights(self, elements: float, mark: int = FIXED, item_bytes: float = 0) -> Value:
        """A tensor of parameters, or their gradients."""
        return Value((1, 1, elements), mark, item_bytes or self.item_bytes)

    def hold(self, elements: float, mark: int, name: str = "other", *, packed: bool = False) -> None:
        """Have a tensor of parameters, trained or not, and perhaps a frozen copy of it; `packed` is in 4 bits."""
        trains = self.training.trains(name)
        if trains:
            self.parameters.append((elements, mark))
        for _ in range((not trains) + self.training.copied):
            self.frozen.append(self.weights(elements, mark, QUANTIZED_BYTES if packed else 0))

    def save(self, *values: Value, for_weights: bool = False) -> None:
        """Keep values for the backward pass."""
        for value in values:
            self._saved[value] = self._saved.get(value, False) or for_weights

    def save_eagerly(self, x: Value, item_bytes: float) -> None:
        """Keep so many bytes more for each number of x where operations are not fused."""
        if item_bytes:
            self.saved_eagerly.append(self.like(x, item_bytes))

    def make_again(self, *values: Value) -> None:
        """Have values made in the backward pass in place of keeping them."""
        for value in values:
            self._saved.pop(value, None)

    def received(self, x: Value) -> None:
        """Note that an earlier layer saves x, and sums its gradients for all layers that read it."""
        self.make_again(x)
        self.sums_backward.remove(x)

    # --- kernels

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """What is written down meanwhile is part of one of MODULES, which may be computed again without the rest."""
        outside = self._modules
        self._modules |= module_bits(name)
        yield
        self._modules = outside

    def hand_on(self, x: Value) -> None:
        """Note that a module ends with x, which is kept where what follows reads it in the backward pass."""
        self._results.append(x)

    def _launch(self, of_pass: int, kind: int, core: bool, sizes: Iterable[Size], moved: _Moved) -> None:
        forward = of_pass is FORWARD
        if forward:
            self._makers.setdefault(moved[0][0], self._modules)
        self._kernels.append((of_pass, kind, core, self._modules * forward, tuple(sizes), moved))

    def memory(
        self,
        of_pass: int,
        *moved: Value,
        core: bool = False,
        routing: bool = False,
        again: Collection[Value] = (),
        name: str = "other",
    ) -> None:
        """A kernel that the memory bounds; what it moves `again` it would not if products of one value were one.

        Gradients of parameters that are not trained are not made: `name` is that of core.tuning.MATRICES.
        """
        if of_pass is WEIGHT and not self.training.trains(name):
            return
        kind = WorkKind.ROUTING if routing else WorkKind.MEMORY
        self._launch(of_pass, kind, core, (), tuple((value, value in again) for value in moved))

    def product(
        self,
        of_pass: int,
        sizes: Iterable[Size],
        *moved: Value,
        core: bool = False,
        again: Collection[Value] = (),
    ) -> None:
        """A product of matrices: sizes are how many, rows, columns and depth; what it moves its result and both."""
        self._launch(of_pass, WorkKind.PRODUCT, core, sizes, tuple((value, value in again) for value in moved))

    def unfused(self, of_pass: int, *moved: Value) -> None:
        """A kernel of its own in an eager program, which otherwise is part of another one."""
        bits, values = self._modules * (of_pass is FORWARD), tuple((value, False) for value in moved)
        self._kernels.append((of_pass, WorkKind.UNFUSED, False, bits, (), values))

    # --- operations

    def dense(
        self,
        x: Value,
        columns: float,
        mark: int = FIXED,
        *,
        bias: bool = False,
        experts: int = FIXED,
        float32: bool = False,
        owned: bool = True,
        data: bool = False,
        groups: int = 1,
        name: str = "other",
    ) -> Value:
        """A product with a matrix of parameters, or with one for each expert.

        Args:
            mark: TENSOR where devices share its columns; they share its depth where x has the mark.
            bias: whether one is added, by the kernel that reads the result.
            experts: EXPERTS where there is a matrix for each.
            float32: whether it is computed in that type, as routers are.
            owned: whether the parameters count with this layer.
            data: whether x is of the batch, and has no gradients.
            groups: of the columns of x and of the result, each with a matrix of its own, which devices share as x's.
            name: of the matrix, of core.tuning.MATRICES.
        """
        count, tokens, depth = x.shape[0] * groups, x.shape[1], x.width / groups
        depth_mark = x.mark & Mark.TENSOR
        experts, depth_mark = (depth_mark, FIXED) if groups > 1 else (experts, depth_mark)
        operand = self.like(x, FLOAT32) if float32 else x
        if float32:
            self.memory(FORWARD, operand, x)
        of_result = x.mark if groups > 1 else x.mark & PER_TOKEN
        y = Value((x.shape[0], tokens, columns), of_result | mark, operand.item_bytes)
        columns = columns / groups
        matrix = self.weights(count * depth * columns, mark | depth_mark | experts, operand.item_bytes)
        times, rows = (count, experts), (tokens, x.mark & PER_TOKEN)
        wide, deep = (columns, mark), (depth, depth_mark)
        # Products that read one value may be one product (Runtime.joins), which reads and casts it once.
        again = (operand,) * bool(self._products[x, mark])
        trains, packed = self.training.trains(name), self.training.quantized and name != ADAPTER and not float32
        self.product(FORWARD, (times, rows, wide, deep), y, operand, matrix, again=again)
        if not data:
            self.product(INPUT, (times, rows, deep, wide), operand, y, matrix, again=again)
        if trains:
            self.product(WEIGHT, (times, wide, deep, rows), matrix, y, operand, again=again)
            self.save(x, for_weights=True)
        # The gradient goes into one of fp32 that adds up: a pass over memory, unless the product itself adds there.
        if owned or self.item_bytes < FLOAT32:
            self.memory(WEIGHT, self.weights(*matrix.size, FLOAT32), matrix, name=name)
        if owned:
            self.hold(*matrix.size, name, packed=packed)
        if packed:
            self._unpacked.append(matrix)
            for of_pass in (FORWARD, INPUT):
                moved = matrix, self.weights(*matrix.size, QUANTIZED_BYTES)
                self._launch(of_pass, WorkKind.WIDENING, False, (), tuple((value, False) for value in moved))
        if bias:
            self.bias(y, experts)
        gradient = self.reads(x, operand.item_bytes)
        if not float32:
            self._products[x, mark].append(gradient)
        if mark and not depth_mark and x not in self.sums_backward:
            self.sums_backward.append(x)
        if depth_mark:
            self.sums_forward.append(y)
        self._expert_sums.update((x, y) if experts else ())
        if self.training.adapts(name):
            narrow = self.dense(x, self.training.rank * groups, experts=experts, groups=groups, name=ADAPTER)
            change = self.dense(narrow, y.width, mark, experts=experts, groups=groups, name=ADAPTER)
            self.memory(FORWARD, y, y, change)
        return y

    def bias(self, y: Value, experts: int = FIXED) -> None:
        """Parameters that are added to every row of a value, and the kernel that sums their gradients."""
        size, mark = y.shape[0] * y.width, y.mark & Mark.TENSOR | experts
        gradient = self.weights(size, mark)
        self.memory(WEIGHT, gradient, y, name="bias")
        if self.item_bytes < FLOAT32:
            self.memory(WEIGHT, self.weights(size, mark, FLOAT32), gradient, name="bias")
        self.hold(*gradient.size, "bias")

    def reads(self, x: Value, item_bytes: float = 0) -> Value:
        """One more operation makes a gradient of x, of so many bytes an element."""
        gradient = self.like(x, item_bytes)
        self._gradients[x].append(gradient)
        return gradient

    def norm(self, x: Value, *, layer_norm: bool, width: float = 0, fused: bool = False) -> Value:
        """A layer norm, or one without mean and bias.

        Args:
            width: of what is normed, if that is not a row of x.
            fused: whether the kernel that reads the result makes it, too.
        """
        mark = FIXED if width else x.mark & Mark.TENSOR
        y, scale = self.like(x), self.weights(width or x.width, mark, FLOAT32)
        self.memory(FORWARD, *((x,) if fused else (y, x, scale)))
        self.memory(WEIGHT, scale, y, x, name="norm")
        if layer_norm:
            self.memory(WEIGHT, scale, y, name="norm")
        for _ in range(1 + layer_norm):
            self.hold(*scale.size, "norm")
        self._norms[x].append(scale)
        trains = self.training.trains("norm")
        self.save(x, for_weights=trains)
        if not layer_norm:
            self.save_eagerly(x, self.operations.norm_bytes + self.operations.scale_bytes * trains)
            self._mean_square(x)
        return y

    def _mean_square(self, x: Value) -> None:
        """What a norm without mean runs in fp32, operation by operation, before its scale: as transformers' Llama does.

        forward     widened, squared, its mean, times the root of that, narrowed
        backward    widened; the root's gradient, a product and its sum, its mean's, and the square's, of three
                    products; the other one's; both added, and narrowed
        """
        wide = self.like(x, FLOAT32)
        for widths in ((wide, x), (wide,) * 2, (wide,), (wide,) * 2, (x, wide)):
            self.unfused(FORWARD, *widths)
        for count in (3, 1, 2, 2, 2, 2, 3, 3):
            self.unfused(INPUT, *(wide,) * count)
        self.unfused(INPUT, wide, x)
        self.unfused(INPUT, x, wide)

    def activation(self, y: Value, *, relu: bool = False) -> Value:
        """A function of each number, of ReLU with a mask of a byte each, or eagerly its result, which `down` reads."""
        z = self.like(y)
        copies = (not self.training.saves("down")) if relu else self.operations.activation_copies
        self.save_eagerly(y, copies * y.item_bytes - relu)
        self.memory(FORWARD, z, y)
        saved = y
        if relu:
            saved = self.like(y, 1)
            self.memory(FORWARD, saved, y)
        self.memory(INPUT, y, z, saved)
        self.save(saved)
        return z

    def scale(self, y: Value) -> Value:
        """A value times a vector of parameters."""
        z, scale = self.like(y), self.weights(y.width, y.mark & Mark.TENSOR)
        self.memory(FORWARD, z, y)
        self.memory(INPUT, y, z)
        self.memory(WEIGHT, scale, z, y, name="norm")
        self.hold(*scale.size, "norm")
        self.save(y, for_weights=self.training.trains("norm"))
        return z

    def gated(self, gate: Value, inner: Value) -> Value:
        """The activation of one value times another."""
        z = self.like(inner)
        self.memory(FORWARD, z, gate, inner)
        self.memory(INPUT, inner, z, gate)
        self.memory(INPUT, gate, z, gate, inner)
        self.unfused(FORWARD, z, gate)
        self.unfused(INPUT, z, gate)
        self.save(gate, inner)
        self.save_eagerly(z, (self.operations.gate_copies + self.operations.activation_copies) * z.item_bytes)
        return z

    def dropout(self, x: Value, share: float) -> tuple[Value, ...]:
        """The mask of what is left out of x, if something is; what reads x reads it, too."""
        if not share:
            return ()
        mask = self.like(x, 1)
        self.memory(FORWARD, mask)
        self.memory(INPUT, x, mask, x)
        self.save(mask)
        return (mask,)

    def add(self, x: Value, change: Value, *more: Value) -> Value:
        """The sum of a residual stream and what changes it; `more` are masks and scales that its kernel reads."""
        self.reads(x)
        self.memory(FORWARD, self.like(x), x, change, *more)
        return self.like(x)

    # --- the record

    def work(self, name: str, boundary: Iterable[Value] = (), *, causal: bool = True) -> LayerWork:
        """The layer.

        Args:
            name, causal: see LayerWork.
            boundary: what it hands on.
        """
        self._add_gradients()
        backward, makers = self.training.backward, self._makers | dict.fromkeys(self._results, 0)
        if not backward:
            self._kernels = [kernel for kernel in self._kernels if kernel[0] is FORWARD]
            self._saved, self.saved_core, self.saved_eagerly, self.sums_backward = {}, [], [], []
        return LayerWork(
            name=name,
            kernels=_kernels(self._kernels),
            parameters=_amounts(self.parameters),
            saved=_bytes_of(self._saved, makers),
            saved_core=_bytes_of(self.saved_core),
            saved_for_weights=_bytes_of([value for value, read in self._saved.items() if read], makers),
            boundary=_bytes_of(boundary),
            sums_forward=self._sums(self.sums_forward),
            sums_backward=self._sums(self.sums_backward),
            exchanged=_bytes_of(self.exchanged, self._makers),
            context=_bytes_of(self.context),
            causal=causal,
            copies=sum(value.shape[0] * value.shape[1] for value in self.exchanged) / self.tokens,
            frozen=_bytes_of(self.frozen),
            unpacked=_bytes_of(sorted(self._unpacked, key=lambda matrix: matrix.nbytes)[-1:]),
            saved_eagerly=_bytes_of(self.saved_eagerly),
            backward=backward,
        )

    def _sums(self, values: list[Value]) -> Amounts:
        of_experts = [Mark.EXPERTS * (value in self._expert_sums) for value in values]
        amounts = _bytes_of(values, self._makers)
        return replace(amounts, marks=amounts.marks | np.array(of_experts, dtype=np.int8))

    def _add_gradients(self) -> None:
        """The kernels of norms' backward passes, which add other gradients of their inputs, and those of sums."""
        by_value: dict[Value, list[list[Value]]] = defaultdict(list)
        for (x, _), of_one in self._products.items():
            by_value[x].append(of_one)
        for x in dict.fromkeys([*self._gradients, *self._norms]):
            others, scales = self._gradients[x], self._norms[x]
            if len(others) > 1:
                again = [gradient for of_one in by_value[x] for gradient in of_one[1:]]
                self.memory(INPUT, x, *others, again=[x, *others] if len(others) == len(again) + 1 else again)
            for number, scale in enumerate(scales):
                before = (x,) if others or number else ()
                self.memory(INPUT, x, x, x, scale, *before)


def _amounts(sizes: Iterable[Size]) -> Amounts:
    amounts, marks = np.array(list(sizes), dtype=np.float64).reshape(-1, 2).T
    return Amounts(amounts.copy(), marks.astype(np.int8))


def _bytes_of(values: Iterable[Value], makers: Mapping[Value, int] = MappingProxyType({})) -> Amounts:
    """With the modules that make each."""
    several = list(values)
    amounts = _amounts((value.nbytes, value.mark) for value in several)
    return replace(amounts, modules=np.array([makers.get(value, 0) for value in several], dtype=np.int64))


def _kernels(kernels: list[_Kernel]) -> Kernels:
    sizes = [of_product or (_NO_SIZES,) * 4 for *_, of_product, _ in kernels]
    moved = [(k, value, again) for k, (*_, values) in enumerate(kernels) for value, again in values]
    return Kernels(
        passes=np.array([of_pass for of_pass, *_ in kernels], dtype=np.int8),
        kinds=np.array([kind for _, kind, *_ in kernels], dtype=np.int8),
        core=np.array([core for _, _, core, *_ in kernels], dtype=np.bool_),
        modules=np.array([bits for _, _, _, bits, *_ in kernels], dtype=np.int64),
        sizes=np.array([[size for size, _ in row] for row in sizes], dtype=np.float64).reshape(-1, 4),
        size_marks=np.array([[mark for _, mark in row] for row in sizes], dtype=np.int8).reshape(-1, 4),
        moved_kernels=np.array([k for k, *_ in moved], dtype=np.int64),
        moved_bytes=np.array([value.nbytes for _, value, _ in moved], dtype=np.float64),
        moved_marks=np.array([value.mark for _, value, _ in moved], dtype=np.int8),
        moved_scores=np.array([value.scores for _, value, _ in moved], dtype=np.bool_),
        moved_again=np.array([again for *_, again in moved], dtype=np.bool_),
    )
