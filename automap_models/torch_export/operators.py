"""What each ATen operator is to the planners: a word, FLOP, and which dimensions of its tensors belong together.

The word is StableHLO's for the same thing, so that one cost model and one set of restrictions serve both routes. The
labels (factors.py) follow from each operator's own rule of shapes; torch.distributed.tensor's strategies and Shardy's
factor mappings say the same where they have one, and the tests hold them against the operators themselves, run on
slices.

- `describe` says it for the operators in the tables here.
- decompositions.py has the operators that come to others; they are described by these.
- Of every other operator nothing is known: what it reads and makes stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from automap_models.torch_export.factors import Label, Labels, Roles

aten = torch.ops.aten

RESHAPE, COPY, ELEMENTWISE, RANDOM, CONSTANT = "reshape", "transpose", "map", "rng", "constant"
"""What shows the same numbers in another shape; moves them; computes one from one; makes random ones; reads nothing."""
ATTENTION = "scaled_dot_product_attention"


class Call(NamedTuple):
    """An operator with its arguments by their names in its schema, defaults included, and the tensors that it made."""

    arguments: Mapping[str, Any]
    results: tuple[Tensor, ...]

    def tensors(self, *names: str) -> list[Tensor]:
        """The tensors among the arguments of these names (of all names if none is given), in order."""
        trees = [self.arguments[name] for name in names] if names else list(self.arguments.values())
        return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


Labelled = tuple[Tensor | None, Labels]
"""A tensor with the labels of its dimensions; None is a number, which has no dimension."""


class Described(NamedTuple):
    """One instruction.

    Attributes:
        word: StableHLO's for it, or ATen's where that has none.
        operands, results: with their labels; without labels, the result is the operand in another shape.
        roles: of the labels.
        flop: floating-point operations.
        moved_bytes: what it reads and writes where that is not all of its operands and results.
    """

    word: str
    operands: tuple[Labelled, ...]
    results: tuple[Labelled, ...]
    roles: Roles = Roles()
    flop: float = 0.0
    moved_bytes: float | None = None

    @property
    def is_regrouping(self) -> bool:
        """Whether it is a reshape, whose dimensions are told from its shapes."""
        return self.results[0][1] == REGROUPED


REGROUPED: Labels = ("regrouped",)
Handler = Callable[[Call], list[Described]]

# ----------------------------------------------------------------------------------------------- one from one

_WORDS = {
    **{name: name for name in ("abs", "add", "atan2", "ceil", "clamp", "cos", "floor", "imag", "log", "log1p")},
    **{name: name for name in ("maximum", "minimum", "real", "remainder", "rsqrt", "sign", "sin", "sqrt", "tan")},
    **{name: name for name in ("tanh",)},
    **{"sub": "subtract", "rsub": "subtract", "mul": "multiply", "div": "divide", "true_divide": "divide"},
    **{"neg": "negate", "exp": "exponential", "expm1": "exponential_minus_one", "pow": "power"},
    **{"sigmoid": "logistic", "where": "select", "masked_fill": "select", "clamp_min": "maximum"},
    **{"eq": "compare", "ne": "compare", "lt": "compare", "le": "compare", "gt": "compare", "ge": "compare"},
    **{"relu": "maximum", "logical_and": "and", "bitwise_and": "and", "logical_or": "or", "bitwise_or": "or"},
    **{"logical_not": "not", "bitwise_not": "not", "isfinite": "is_finite", "log1p": "log_plus_one"},
    **{"_to_copy": "convert", "convert_element_type": "convert", "clone": COPY, "copy": COPY, "contiguous": COPY},
}
"""ATen's name → StableHLO's word; other operators that compute each number from one of each operand are `map`."""
_WITHOUT_FLOP = frozenset(
    {"exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "power", "rsqrt", "sqrt", "tanh"}
    | {"cos", "sin", "tan", COPY, RESHAPE}
)
"""XLA counts transcendental functions apart from FLOP."""
_RANDOM = {"bernoulli", "rand_like", "randn_like", "randint_like", "normal_functional", "uniform", "exponential"}


def pointwise(name: str, call: Call) -> list[Described]:
    """Each number of the results comes from one of each operand: dimensions are aligned at the last."""
    shape = call.results[0].shape
    operands: list[Labelled] = [(tensor, _aligned(tensor, shape)) for tensor in call.tensors()]
    word = RANDOM if name in _RANDOM else _WORDS.get(name, ELEMENTWISE)
    if word == "convert" and call.tensors()[0].dtype == call.results[0].dtype:
        word = COPY
    if word == "add" and len(operands) == 1:
        operands.append((None, ()))
    flop = 0.0 if word in _WITHOUT_FLOP else float(prod(shape))
    results = tuple((tensor, _aligned(tensor, shape)) for tensor in call.results)
    return [Described(word, tuple(operands), results, flop=flop)]


def _aligned(tensor: Tensor, shape: Sequence[int]) -> Labels:
    """Labels of a tensor that is broadcast to a shape, counted from the last dimension."""
    missing = len(shape) - tensor.dim()
    return tuple(
        None if size == 1 and shape[missing + dim] != 1 else tensor.dim() - dim for dim, size in enumerate(tensor.shape)
    )


# ------------------------------------------------------------------------------------- same numbers, elsewhere


def _regroup(call: Call) -> list[Described]:
    (operand,), (result,) = call.tensors(), call.results
    return [Described(RESHAPE, ((operand, ()),), ((result, REGROUPED),))]


def _permute(call: Call) -> list[Described]:
    dims = call.arguments.get("dims", call.arguments.get("permutation"))
    return _moved(call, [dim % len(dims) for dim in dims])


def _transpose(call: Call) -> list[Described]:
    rank = call.results[0].dim()
    order = list(range(rank))
    first, second = (call.arguments.get(name, default) % max(rank, 1) for name, default in (("dim0", 0), ("dim1", 1)))
    if rank > 1:
        order[first], order[second] = order[second], order[first]
    return _moved(call, order)


def _moved(call: Call, order: Sequence[int]) -> list[Described]:
    """A view with the dimensions in another order, which takes no time: strides say it."""
    (operand,), (result,) = call.tensors(), call.results
    return [Described(RESHAPE, ((operand, tuple(range(operand.dim()))),), ((result, tuple(order)),))]


def _complex(call: Call) -> list[Described]:
    """Complex numbers as pairs, or pairs as complex numbers: the dimension of the pair stays whole."""
    (operand,), (result,) = call.tensors(), call.results
    labels = tuple(range(max(operand.dim(), result.dim())))
    described = Described(
        RESHAPE,
        ((operand, labels[: operand.dim()]),),
        ((result, labels[: result.dim()]),),
        Roles(whole=frozenset(labels[-1:])),
    )
    return [described]


def _broadcast_in_dim(call: Call) -> list[Described]:
    (operand,), (result,) = call.tensors(), call.results
    to = call.arguments["broadcast_dimensions"]
    own = tuple(None if size != result.shape[dim] else dim for size, dim in zip(operand.shape, to, strict=True))
    return [Described("broadcast_in_dim", ((operand, own),), ((result, tuple(range(result.dim()))),))]


def _expand(call: Call) -> list[Described]:
    (operand,), (result,) = call.tensors(), call.results
    labels = tuple(range(result.dim(), 0, -1))
    return [Described("broadcast_in_dim", ((operand, _aligned(operand, result.shape)),), ((result, labels),))]


def _slice(call: Call) -> list[Described]:
    """Dimensions of which a part is taken stay whole, be it one slice or several."""
    operand = call.tensors()[0]
    dim = call.arguments.get("dim", 0) % operand.dim()
    described = []
    for result in call.results:
        labels: list[Label | None] = list(range(operand.dim()))
        kept = [label for label in labels if label != dim or result.dim() == operand.dim()]
        if result.dim() == operand.dim():
            kept[dim] = "part"
        roles = Roles(whole=frozenset({dim, "part"}))
        described.append(Described("slice", ((operand, tuple(labels)),), ((result, tuple(kept)),), roles))
    return described


def _padded(call: Call) -> list[Described]:
    """The gradient of a slice, or a padding: of equal rank or one less; dimensions that differ in size stay whole."""
    operand, result = call.tensors()[0], call.results[0]
    dim = call.arguments.get("dim")
    labels: list[Label | None] = list(range(result.dim()))
    if operand.dim() < result.dim():
        own = [label for label in labels if label != (dim or 0) % result.dim()]
    else:
        differs = [a != b for a, b in zip(operand.shape, result.shape, strict=True)]
        own = [("part", label) if other else label for label, other in zip(labels, differs, strict=True)]
    whole = {*labels, *own} - set(labels).intersection(own)
    if dim is not None:
        whole.add(dim % result.dim())
    return [Described("pad", ((operand, tuple(own)),), ((result, tuple(labels)),), Roles(whole=frozenset(whole)))]


def _concatenate(call: Call) -> list[Described]:
    (result,) = call.results
    parts = [tensor for tensor in call.tensors("tensors") if tensor.dim() == result.dim()]
    dim = call.arguments.get("dim", 0) % result.dim()
    labels = list(range(result.dim()))
    operands = tuple(
        (part, tuple(("part", i) if label == dim else label for label in labels)) for i, part in enumerate(parts)
    )
    whole = frozenset({dim, *(("part", i) for i in range(len(parts)))})
    return [Described("concatenate", operands, ((result, tuple(labels)),), Roles(whole=whole))]


def _stack(call: Call) -> list[Described]:
    """Tensors side by side along a dimension of its own."""
    (result,), parts = call.results, call.tensors()
    dim = call.arguments.get("dim", 0) % result.dim()
    labels = tuple(range(result.dim()))
    own = tuple(label for label in labels if label != dim)
    operands = tuple((part, own) for part in parts)
    return [Described("concatenate", operands, ((result, labels),), Roles(whole=frozenset({dim})))]


# ------------------------------------------------------------------------------------------------------- sums


def _reduce(call: Call) -> list[Described]:
    """A sum, or another reduction whose results over slices are combined by one of its own kind."""
    operand = call.tensors()[0]
    dims = reduced_dims(call.arguments.get("dim", call.arguments.get("dims")), operand.dim())
    keep = bool(call.arguments.get("keepdim", False))
    labels = tuple(range(operand.dim()))
    kept = tuple(None if dim in dims else dim for dim in labels if keep or dim not in dims)
    roles = Roles(reduced=frozenset(dims))
    results = tuple((result, kept) for result in call.results)
    return [Described("reduce", ((operand, labels),), results, roles, float(operand.numel() - call.results[0].numel()))]


def _select_along(call: Call) -> list[Described]:
    """A reduction that also says where (a maximum with its index): along it everything stays whole."""
    (described,) = _reduce(call)
    return [described._replace(roles=Roles(whole=described.roles.reduced))]


def _along(name: str, call: Call) -> list[Described]:
    """A scan, a sort or the like: along one dimension everything stays whole, also where the result is shorter."""
    operand = call.tensors()[0]
    if not operand.dim():
        return [Described(name, ((operand, ()),), tuple((result, ()) for result in call.results))]
    dim = call.arguments.get("dim", call.arguments.get("dims", -1))
    along = {d % operand.dim() for d in (dim if isinstance(dim, Iterable) else [-1 if dim is None else dim])}
    along = along or set(range(operand.dim()))
    labels = tuple(range(operand.dim()))
    of_result = tuple(("along", label) if label in along else label for label in labels)
    whole = frozenset({*along, *(("along", label) for label in along)})
    results = tuple((result, of_result) for result in call.results)
    operands = tuple((tensor, labels) for tensor in call.tensors())
    return [Described(name, operands, results, Roles(whole=whole), float(operand.numel()))]


def _lower_triangle(call: Call) -> list[Described]:
    (operand,), (result,) = call.tensors(), call.results
    labels = tuple(range(operand.dim()))
    return [Described("select", ((operand, labels),), ((result, labels),), Roles(whole=frozenset(labels[-2:])))]


def reduced_dims(dim: Any, rank: int) -> set[int]:
    """The dimensions that a reduction goes over, given as ATen takes them: one, several, or None or nothing for all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return set(range(rank))
    return {d % rank for d in (dim if isinstance(dim, (list, tuple)) else [dim])} if rank else set()


# ------------------------------------------------------------------------------------------ products of matrices


def _product(first: Labels, second: Labels, result: Labels) -> Handler:
    """A product of two matrices, or of two stacks of them."""
    summed = frozenset({*first} & {*second} - {*result})

    def handler(call: Call) -> list[Described]:
        left, right = call.tensors()
        flop = 2.0 * left.numel() * call.results[0].shape[-1]
        return [_dot((left, first), (right, second), (call.results[0], result), summed, flop)]

    return handler


def _dot(left: Labelled, right: Labelled, result: Labelled, summed: frozenset[Label], flop: float) -> Described:
    return Described("dot_general", (left, right), (result,), Roles(reduced=summed), flop)


def _convolution(call: Call) -> list[Described]:
    """Images [N, C, …], kernels [O, C/groups, …], perhaps a bias [O] → [N, O, …]."""
    a, (result,) = call.arguments, call.results
    images, kernel = a["input"], a["weight"]
    described = [_convolved(call, result, images, kernel, result, "forward")]
    if a["bias"] is not None:
        labels = tuple(range(result.dim()))
        operands: tuple[Labelled, ...] = ((result, labels), (a["bias"], (1,)))
        described.append(Described("add", operands, ((result, labels),), flop=float(result.numel())))
    return described


def _convolution_backward(call: Call) -> list[Described]:
    """The gradients of images, kernel and bias, as far as they are wanted: each is an operation of its own."""
    a = call.arguments
    gradient, images, kernel = a["grad_output"], a["input"], a["weight"]
    described = []
    wanted = [kind for kind, is_wanted in zip(("images", "kernel", "bias"), a["output_mask"], strict=True) if is_wanted]
    for kind, result in zip(wanted, call.results, strict=True):
        if kind == "bias":
            labels = tuple(range(gradient.dim()))
            roles = Roles(reduced=frozenset(labels) - {1})
            flop = float(gradient.numel())
            described.append(Described("reduce", ((gradient, labels),), ((result, (1,)),), roles, flop))
        else:
            described.append(_convolved(call, gradient, images, kernel, result, kind))
    return described


def _convolved(call: Call, outputs: Tensor, images: Tensor, kernel: Tensor, result: Tensor, kind: str) -> Described:
    """A convolution, or one of its two gradients: three tensors, of which one is made from the others.

    Where every channel has a kernel of its own, channels are apart; with other groups they stay whole.
    """
    a = call.arguments
    spatial = range(2, images.dim())
    here, there, taps = ([(side, i) for i in spatial] for side in ("in", "out", "tap"))
    whole: set[Label] = {*here, *there, *taps}
    channel, of_kernel = "c", ("c", "o") if a["transposed"] else ("o", "c")
    if a["groups"] > 1:
        if a["groups"] == images.shape[1] == outputs.shape[1]:
            channel, of_kernel = "o", ("o", "of group")
        whole.update({"of group"} if channel == "o" else {"c", "o"})
    tensors: dict[str, tuple[Tensor, Labels]] = {
        "forward": (outputs, ("n", "o", *there)),
        "images": (images, ("n", channel, *here)),
        "kernel": (kernel, (*of_kernel, *taps)),
    }
    labels = tensors[kind][1]
    operands = tuple(labelled for name, labelled in tensors.items() if name != kind)
    summed = frozenset({*operands[0][1]} & {*operands[1][1]} - {*labels}) - whole
    roles = Roles(summed, frozenset(whole))
    return Described("convolution", operands, ((result, labels),), roles, _convolution_flop(a, images, kernel, outputs))


def _convolution_flop(a: Mapping[str, Any], images: Tensor, kernel: Tensor, outputs: Tensor) -> float:
    """Multiplications and additions with the numbers that are there; those with padding are none."""
    if a["transposed"]:
        images, outputs = outputs, images
    pairs = 1
    for i in range(images.dim() - 2):
        size, stride, pad, dilation = (
            images.shape[2 + i],
            *(_of_dim(a[k], i) for k in ("stride", "padding", "dilation")),
        )
        pairs *= sum(
            0 <= at * stride - pad + tap * dilation < size
            for at in range(outputs.shape[2 + i])
            for tap in range(kernel.shape[2 + i])
        )
    return 2.0 * images.shape[0] * kernel.shape[0] * kernel.shape[1] * pairs


def _of_dim(values: Sequence[int] | int, i: int) -> int:
    return values if isinstance(values, int) else values[i if len(values) > 1 else 0]


def _attention(call: Call) -> list[Described]:
    """q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], perhaps a bias [B, H, T, S] → [B, H, T, E] in one kernel."""
    a = call.arguments
    operands = [
        (a["query"], ("b", "h", "t", "d")),
        (a["key"], ("b", "h", "s", "d")),
        (a["value"], ("b", "h", "s", "e")),
        *_attention_bias(a),
    ]
    labels: tuple[Labels, ...] = (("b", "h", "t", "e"), ("b", "h", "lse"))
    results = tuple((result, labels[i]) for i, result in enumerate(call.results[:2]) if result.numel())
    q, v = a["query"], a["value"]
    flop = 2.0 * prod(q.shape[:3]) * v.shape[2] * (q.shape[3] + v.shape[3])
    return [Described(ATTENTION, tuple(operands), results, _ATTENTION_ROLES, flop)]


def _attention_backward(call: Call) -> list[Described]:
    """Scores are computed anew, and each of the two products has two gradients: 5/2 of the forward pass."""
    a = call.arguments
    operands = [
        *((a[name], ("b", "h", "t", "e")) for name in ("grad_out_", "out")),
        (a["query"], ("b", "h", "t", "d")),
        (a["key"], ("b", "h", "s", "d")),
        (a["value"], ("b", "h", "s", "e")),
        (a["logsumexp"], ("b", "h", "lse")),
        *_attention_bias(a),
    ]
    every: tuple[Labels, ...] = (("b", "h", "t", "d"), ("b", "h", "s", "d"), ("b", "h", "s", "e"), ("b", "h", "t", "s"))
    results = tuple(
        (result, _broadcast(labels, result))
        for result, labels in zip(call.results, every, strict=False)
        if result.numel()
    )
    q, v = a["query"], a["value"]
    flop = 2.0 * prod(q.shape[:3]) * v.shape[2] * (3 * q.shape[3] + 2 * v.shape[3])
    return [Described(ATTENTION, tuple(operands), results, _ATTENTION_ROLES, flop)]


_ATTENTION_ROLES = Roles(whole=frozenset({"t", "s", "d", "e", "lse"}))


def _grouped_product(call: Call) -> list[Described]:
    """Rows of a matrix, grouped by expert, times the matrix of their expert; or the gradient of these matrices.

    What partitions rows, or experts, would break the groups apart: these stay whole.
    """
    left, right = call.tensors()[:2]
    groups = [(tensor, ("e",)) for tensor in call.tensors("offs")]
    if right.dim() == 3:
        labels: tuple[Labels, Labels, Labels] = (("t", "k"), ("e", "k", "n"), ("t", "n"))
    elif left.dim() == 3:
        labels = ("e", "m", "k"), ("k", "t"), ("m", "t")
    else:
        labels = ("k", "t"), ("t", "n"), ("e", "k", "n")
    roles = Roles(frozenset({"k"}) - {*labels[2]}, frozenset({"t", "e"}))
    operands = ((left, labels[0]), (right, labels[1]), *groups)
    flop = 2.0 * left.shape[-2] * left.shape[-1] * right.shape[-1]
    return [Described("dot_general", operands, ((call.results[0], labels[2]),), roles, flop)]


def _grouped_product_backward(call: Call) -> list[Described]:
    """Both gradients of transformers' own grouped product: of the rows, and of the experts' matrices."""
    rows, matrices, offsets, gradient = call.tensors()
    whole = frozenset({"t", "e"})
    flop = 2.0 * rows.numel() * matrices.shape[-1]
    groups = (offsets, ("e",))
    of_rows, of_matrices = (("t", "k"), ("e", "k", "n"))
    of_results = (call.results[0], of_rows), (call.results[1], of_matrices)
    return [
        Described(
            "dot_general",
            ((gradient, ("t", "n")), (matrices, of_matrices), groups),
            (of_results[0],),
            Roles(frozenset({"n"}), whole),
            flop,
        ),
        Described(
            "dot_general", ((rows, of_rows), (gradient, ("t", "n")), groups), (of_results[1],), Roles(whole=whole), flop
        ),
    ]


def _histogram(call: Call) -> list[Described]:
    operand, result = call.tensors()[0], call.results[0]
    labels = tuple(range(operand.dim()))
    roles = Roles(frozenset(labels), frozenset({"bin"}))
    return [Described("reduce", ((operand, labels),), ((result, ("bin",)),), roles, float(operand.numel()))]


def _attention_bias(a: Mapping[str, Any]) -> list[Labelled]:
    bias = a.get("attn_bias")
    return [] if bias is None else [(bias, _broadcast(("b", "h", "t", "s"), bias))]


def _broadcast(labels: Labels, tensor: Tensor) -> Labels:
    return tuple(None if size == 1 else label for label, size in zip(labels, tensor.shape, strict=True))


# -------------------------------------------------------------------------------------------- by index


def _rows(table: Tensor, dim: int, index: Tensor, result: Tensor) -> list[Described]:
    """Rows of a table by index: where it is sharded, each device looks up its own, and the results are summed."""
    index_labels = tuple(("index", i) for i in range(index.dim()))
    of_table: Labels = tuple("row" if d == dim else d for d in range(table.dim()))
    of_result = (*of_table[:dim], *index_labels, *of_table[dim + 1 :])
    moved = _bytes(index) + 2 * _bytes(result)
    return [
        Described(
            "gather", ((table, of_table), (index, index_labels)), ((result, of_result),), _SUMMED_ROWS, 0.0, moved
        )
    ]


_SUMMED_ROWS = Roles(reduced=frozenset({"row"}))


def _embedding(call: Call) -> list[Described]:
    return _rows(call.arguments["weight"], 0, call.arguments["indices"], call.results[0])


def _index_select(call: Call) -> list[Described]:
    a = call.arguments
    return _rows(a["self"], a["dim"] % max(a["self"].dim(), 1), a["index"], call.results[0])


def _index(call: Call) -> list[Described]:
    """x[:, index]: by one index as `_rows`; by several, everything that they stand for stays whole."""
    table, indices = call.arguments["self"], list(call.arguments["indices"])
    at = [dim for dim, index in enumerate(indices) if index is not None]
    if len(at) == 1:
        return _rows(table, at[0], indices[at[0]], call.results[0])
    result = call.results[0]
    return [_several(call, table, at, result, "gather")]


def _several(call: Call, whole: Tensor, at: Sequence[int], picked: Tensor, word: str) -> Described:
    """x[i, j, :]: dimensions of the indices come where the first of these stands, or first if they stand apart.

    An index that counts from 0 to the end, as the one of the samples in a mask, picks everything in order.
    """
    indices = [call.arguments["indices"][dim] for dim in at]
    rank = max(index.dim() for index in indices)
    together = list(at) == list(range(at[0], at[0] + len(at)))
    first = at[0] if together else 0
    of_table: list[Label | None] = [("row", dim) if dim in at else dim for dim in range(whole.dim())]
    others = [label for dim, label in enumerate(of_table) if dim not in at]
    index_labels = [("index", i) for i in range(rank)]
    of_result = (*others[:first], *index_labels, *others[first:])
    tied: set[Label] = set()
    for dim, index, counts in zip(at, indices, call.arguments["counting"], strict=True):
        along = [i for i, size in enumerate(index.shape) if size > 1]
        if counts and len(along) == 1 and index.numel() == whole.shape[dim]:
            of_table[dim] = index_labels[rank - index.dim() + along[0]]
            tied.add(of_table[dim])
    operands = [(whole, tuple(of_table))]
    for index in indices:
        own = index_labels[rank - index.dim() :]
        operands.append(
            (index, tuple(None if size == 1 else label for label, size in zip(own, index.shape, strict=True)))
        )
    roles = Roles(whole=frozenset({*(("row", dim) for dim in at), *index_labels} - tied))
    return Described(word, tuple(operands), ((picked, of_result),), roles, 0.0, 2 * _bytes(picked))


def _gather(call: Call) -> list[Described]:
    """out[i, j] = x[i, index[i, j]]: along the dimension as `_rows`, the others are one; shorter ones stay whole."""
    a, (result,) = call.arguments, call.results
    of_table, of_index, whole = _paired(a["self"], a["index"], a["dim"])
    roles = Roles(frozenset({"row"}), frozenset(whole))
    moved = _bytes(a["index"]) + 2 * _bytes(result)
    return [
        Described("gather", ((a["self"], of_table), (a["index"], of_index)), ((result, of_index),), roles, 0.0, moved)
    ]


def _paired(table: Tensor, index: Tensor, dim: int) -> tuple[Labels, Labels, set[Label]]:
    """Labels of a tensor and of an index of the same rank into one of its dimensions, and those that stay whole."""
    dim %= max(table.dim(), 1)
    whole: set[Label] = set()
    of_table: list[Label | None] = []
    of_index: list[Label | None] = []
    for d, (size, own) in enumerate(zip(table.shape, index.shape, strict=True)):
        if d == dim:
            of_table.append("row")
            of_index.append("index")
        elif size == own:
            of_table.append(d)
            of_index.append(d)
        else:
            of_table.append(d)
            of_index.append(("part", d))
            whole.update({d, ("part", d)})
    return tuple(of_table), tuple(of_index), whole


def _scatter(call: Call) -> list[Described]:
    """x with numbers put in, or added, at an index along one dimension: each device writes its own rows."""
    a, (result,) = call.arguments, call.results
    of_table, of_index, whole = _paired(a["self"], a["index"], a["dim"])
    operands = [(a["self"], of_table), (a["index"], of_index)]
    if isinstance(a.get("src"), Tensor):
        operands.append((a["src"], of_index if a["src"].shape == a["index"].shape else (None,) * a["src"].dim()))
    roles = Roles(whole=frozenset({*whole, "index"}))
    return [Described("scatter", tuple(operands), ((result, of_table),), roles)]


def _embedding_backward(call: Call) -> list[Described]:
    """The gradient of a table: rows of gradients added at their indices."""
    a, (result,) = call.arguments, call.results
    index = a["indices"]
    of_index = tuple(("index", i) for i in range(index.dim()))
    operands = ((a["grad_output"], (*of_index, "d")), (index, of_index))
    roles = Roles(reduced=frozenset(of_index))
    return [Described("scatter", operands, ((result, ("row", "d")),), roles, float(a["grad_output"].numel()))]


def _index_put(call: Call) -> list[Described]:
    """x with numbers put in at indices. Onto zeros, as gradients are, sums over the indices are sums of results."""
    a, (result,) = call.arguments, call.results
    indices, table, values = list(a["indices"]), a["self"], a["values"]
    at = [dim for dim, index in enumerate(indices) if index is not None]
    picked = _several(call, table, at, values, "scatter")
    (_, of_values), of_table = picked.results[0], picked.operands[0][1]
    if len(of_values) != values.dim():  # broadcast values
        of_values = (None,) * values.dim()
    roles = picked.roles
    if len(at) == 1 and a.get("onto_zeros") and a["accumulate"]:
        index_labels = frozenset(label for label in of_values if isinstance(label, tuple) and label[0] == "index")
        roles = Roles(reduced=index_labels)
    operands = (*picked.operands, (values, _broadcast(of_values, values)))
    return [Described("scatter", operands, ((result, of_table),), roles, float(values.numel()))]


# ------------------------------------------------------------------------------------------- images


def _windows(word: str) -> Handler:
    """Pooling, interpolation and their gradients: samples and channels are apart, the rest stays whole."""

    def handler(call: Call) -> list[Described]:
        def labels(tensor: Tensor, side: str) -> Labels:
            apart = tensor.dim() - spatial
            return (*range(apart), *((side, i) for i in range(spatial)))

        rank = max(tensor.dim() for tensor in call.tensors())
        spatial = rank - 2 if rank > 2 else 1
        operands = tuple((tensor, labels(tensor, f"in{i}")) for i, tensor in enumerate(call.tensors()))
        results = tuple((tensor, labels(tensor, f"out{i}")) for i, tensor in enumerate(call.results))
        every = [label for _, of in (*operands, *results) for label in of]
        whole = frozenset(label for label in every if isinstance(label, tuple))
        return [Described(word, operands, results, Roles(whole=whole), float(max(t.numel() for t in call.tensors())))]

    return handler


def _bytes(tensor: Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())


_VIEWS = (
    "detach",
    "alias",
    "lift_fresh",
    "view",
    "_unsafe_view",
    "reshape",
    "_reshape_alias",
    "flatten",
    "unsqueeze",
    "squeeze",
    "unflatten",
)
_SLICES = ("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind")
_REDUCTIONS = ("sum", "amax", "amin", "prod", "any", "all")
_WINDOWS = {
    "reduce_window": ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "avg_pool1d", "avg_pool3d"),
    "select_and_scatter": (
        *("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward"),
        "avg_pool3d_backward",
    ),
    "resize": ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    "resize_gradient": (
        *("upsample_nearest2d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward"),
    ),
}
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_VIEWS, _regroup),
    **dict.fromkeys(_SLICES, _slice),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("argmax", "argmin"), _select_along),
    **{name: partial(_along, name) for name in ("cumsum", "cumprod", "sort", "topk", "flip", "roll")},
    **{name: _windows(word) for word, names in _WINDOWS.items() for name in names},
    **dict.fromkeys(("permute", "prims.transpose"), _permute),
    **dict.fromkeys(("t", "transpose"), _transpose),
    **dict.fromkeys(("slice_backward", "select_backward", "constant_pad_nd"), _padded),
    **dict.fromkeys(("tril", "triu"), _lower_triangle),
    **dict.fromkeys(("scatter", "scatter_add"), _scatter),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _index_put),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    "view_as_complex": _complex,
    "view_as_real": _complex,
    "expand": _expand,
    "prims.broadcast_in_dim": _broadcast_in_dim,
    "cat": _concatenate,
    "stack": _stack,
    "mm": _product(("m", "k"), ("k", "n"), ("m", "n")),
    "bmm": _product(("b", "m", "k"), ("b", "k", "n"), ("b", "m", "n")),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_grouped_mm": _grouped_product,
    "grouped_mm_fallback": _grouped_product,
    "grouped_mm_fallback_backward": _grouped_product_backward,
    "histc": _histogram,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index_select": _index_select,
    "gather": _gather,
}
"""ATen's name, without overload and without the `_` of its in-place form → what describes a call of it."""
FACTORIES = frozenset(
    {"arange", "empty", "empty_like", "empty_strided", "eye", "fill", "full", "full_like", "linspace", "new_empty"}
    | {"new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "rand", "randn", "randint"}
    | {"randperm", "scalar_tensor", "zero", "zeros", "zeros_like"}
)
"""They read no number of any tensor."""


def describe(name: str, func: Any, call: Call) -> list[Described] | None:
    """The instructions that a call of an operator is; None where nothing is known of it.

    Args:
        name: ATen's, without overload and without the `_` of its in-place form.
        func: the overload.
        call: its arguments and results.
    """
    if name in ("max", "min") and "dim" in call.arguments:
        return _select_along(call)
    if name in ("max", "min") and len(call.tensors()) == 1:
        return _reduce(call)
    if name in HANDLERS:
        return HANDLERS[name](call)
    if name in _WORDS or name in _RANDOM or torch.Tag.pointwise in func.tags:
        return pointwise(name, call)
    return None


def knows(name: str, func: Any) -> bool:
    """Whether `describe` knows an operator."""
    return (
        name in HANDLERS
        or name in _WORDS
        or name in _RANDOM
        or torch.Tag.pointwise in func.tags
        or name in ("max", "min")
    )
