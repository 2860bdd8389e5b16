"""Operators whose dimensions are tied in ways of their own.

- Products: of matrices, convolutions, attention in one kernel, and rows grouped by expert.
- Rows and elements by index: looked up, written and added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor

from automap_models.torch_export.factors import (
    Call,
    Described,
    Handler,
    Label,
    Labelled,
    Labels,
    Roles,
    size_bytes,
    without_broadcast,
)

ATTENTION = "scaled_dot_product_attention"


def product(first: Labels, second: Labels, result: Labels) -> Handler:
    """A product of two matrices, or of two stacks of them."""
    summed = frozenset({*first} & {*second} - {*result})

    def handler(call: Call) -> list[Described]:
        left, right = call.tensors()
        flop = 2.0 * left.numel() * call.results[0].shape[-1]
        operands = ((left, first), (right, second))
        return [Described("dot_general", operands, ((call.results[0], result),), Roles(reduced=summed), flop)]

    return handler


def convolution(call: Call) -> list[Described]:
    """Images [N, C, …], kernels [O, C/groups, …], perhaps a bias [O] → [N, O, …]."""
    a, (result,) = call.arguments, call.results
    images, kernel = a["input"], a["weight"]
    described = [_convolved(call, result, images, kernel, result, "forward")]
    if a["bias"] is not None:
        labels = tuple(range(result.dim()))
        operands: tuple[Labelled, ...] = ((result, labels), (a["bias"], (1,)))
        described.append(Described("add", operands, ((result, labels),), flop=float(result.numel())))
    return described


def convolution_backward(call: Call) -> list[Described]:
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
    fixed: set[Label] = {*here, *there, *taps}
    channel, of_kernel = "c", ("c", "o") if a["transposed"] else ("o", "c")
    if a["groups"] > 1:
        is_depthwise = a["groups"] == images.shape[1] == outputs.shape[1]
        channel, of_kernel = ("o", ("o", "of group")) if is_depthwise else ("c", (of_kernel[0], "of group"))
        fixed.update({"of group"} if is_depthwise else {"c", "o", "of group"})
    tensors: dict[str, tuple[Tensor, Labels]] = {
        "forward": (outputs, ("n", "o", *there)),
        "images": (images, ("n", channel, *here)),
        "kernel": (kernel, (*of_kernel, *taps)),
    }
    labels = tensors[kind][1]
    operands = tuple(labelled for name, labelled in tensors.items() if name != kind)
    summed = frozenset({*operands[0][1]} & {*operands[1][1]} - {*labels}) - fixed
    roles = Roles(summed, frozenset(fixed))
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
            0 <= position * stride - pad + tap * dilation < size
            for position in range(outputs.shape[2 + i])
            for tap in range(kernel.shape[2 + i])
        )
    return 2.0 * images.shape[0] * kernel.shape[0] * kernel.shape[1] * pairs


def _of_dim(values: Sequence[int] | int, i: int) -> int:
    return values if isinstance(values, int) else values[i if len(values) > 1 else 0]


def attention(call: Call) -> list[Described]:
    """q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], perhaps a bias [B, H, T, S] → [B, H, T, E] in one kernel.

    It skips the masked half of a causal one's scores.
    """
    a = call.arguments
    operands = [
        (a["query"], ("b", "h", "t", "d")),
        (a["key"], ("b", "h", "s", "d")),
        (a["value"], ("b", "h", "s", "e")),
        *_attention_bias(a),
    ]
    labels: tuple[Labels, ...] = (("b", "h", "t", "e"), ("b", "h", "lse"))
    results = tuple((result, labels[i]) for i, result in enumerate(call.results[:2]) if result.numel())
    flop = _score_flop(a) * (a["query"].shape[3] + a["value"].shape[3])
    return [Described(ATTENTION, tuple(operands), results, _ATTENTION_ROLES, flop)]


def attention_backward(call: Call) -> list[Described]:
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
        (result, without_broadcast(labels, result))
        for result, labels in zip(call.results, every, strict=False)
        if result.numel()
    )
    flop = _score_flop(a) * (3 * a["query"].shape[3] + 2 * a["value"].shape[3])
    return [Described(ATTENTION, tuple(operands), results, _ATTENTION_ROLES, flop)]


def _score_flop(a: Mapping[str, Any]) -> float:
    """FLOP for each number of a head: two a score that is computed."""
    scores = float(prod(a["query"].shape[:3]) * a["value"].shape[2])
    return scores if a["is_causal"] else 2.0 * scores


_ATTENTION_ROLES = Roles(fixed=frozenset({"t", "s", "d", "e", "lse"}))


def grouped_product(call: Call) -> list[Described]:
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


def grouped_product_backward(call: Call) -> list[Described]:
    """Both gradients of transformers' own grouped product: of the rows, and of the experts' matrices."""
    rows, matrices, offsets, gradient = call.tensors()
    flop, fixed = 2.0 * rows.numel() * matrices.shape[-1], frozenset({"t", "e"})
    left, right = (rows, ("t", "k")), (matrices, ("e", "k", "n"))
    incoming, groups = (gradient, ("t", "n")), (offsets, ("e",))
    operands = (incoming, right, groups), (left, incoming, groups)
    of_rows, of_matrices = zip(call.results, (left[1], right[1]), strict=True)
    return [
        Described("dot_general", operands[0], (of_rows,), Roles(frozenset({"n"}), fixed), flop),
        Described("dot_general", operands[1], (of_matrices,), Roles(fixed=fixed), flop),
    ]


def histogram(call: Call) -> list[Described]:
    """How many of the numbers fall in each bin: how many rows each expert gets."""
    operand, result = call.tensors()[0], call.results[0]
    labels = tuple(range(operand.dim()))
    roles = Roles(frozenset(labels), frozenset({"bin"}))
    return [Described("reduce", ((operand, labels),), ((result, ("bin",)),), roles, float(operand.numel()))]


def _attention_bias(a: Mapping[str, Any]) -> list[Labelled]:
    bias = a.get("attn_bias")
    return [] if bias is None else [(bias, without_broadcast(("b", "h", "t", "s"), bias))]


def _rows(table: Tensor, dim: int, index: Tensor, result: Tensor) -> list[Described]:
    """Rows of a table by index: where it is sharded, each device looks up its own, and the results are summed."""
    index_labels = tuple(("index", i) for i in range(index.dim()))
    of_table: Labels = tuple("row" if d == dim else d for d in range(table.dim()))
    of_result = (*of_table[:dim], *index_labels, *of_table[dim + 1 :])
    operands, moved = ((table, of_table), (index, index_labels)), size_bytes(index) + 2 * size_bytes(result)
    return [Described("gather", operands, ((result, of_result),), Roles(frozenset({"row"})), 0.0, moved)]


def embedding(call: Call) -> list[Described]:
    """Rows of a table of embeddings by their numbers."""
    return _rows(call.arguments["weight"], 0, call.arguments["indices"], call.results[0])


def index_select(call: Call) -> list[Described]:
    """Slices along one dimension by their numbers."""
    a = call.arguments
    return _rows(a["self"], a["dim"] % max(a["self"].dim(), 1), a["index"], call.results[0])


def index_call(call: Call) -> list[Described]:
    """x[:, index]: by one index as `_rows`; by several, everything that they stand for stays whole."""
    table, indices = call.arguments["self"], list(call.arguments["indices"])
    index_dims = [dim for dim, index in enumerate(indices) if index is not None]
    if len(index_dims) == 1:
        return _rows(table, index_dims[0], indices[index_dims[0]], call.results[0])
    result = call.results[0]
    return [_several(call, table, index_dims, result, "gather")]


def _several(call: Call, table: Tensor, index_dims: Sequence[int], picked: Tensor, word: str) -> Described:
    """x[i, j, :]: dimensions of the indices come where the first of these stands, or first if they stand apart.

    An index that counts from 0 to the end, as the one of the samples in a mask, picks everything in order.
    """
    indices = [call.arguments["indices"][dim] for dim in index_dims]
    rank = max(index.dim() for index in indices)
    together = list(index_dims) == list(range(index_dims[0], index_dims[0] + len(index_dims)))
    first = index_dims[0] if together else 0
    of_table: list[Label | None] = [("row", dim) if dim in index_dims else dim for dim in range(table.dim())]
    others = [label for dim, label in enumerate(of_table) if dim not in index_dims]
    index_labels = [("index", i) for i in range(rank)]
    of_result = (*others[:first], *index_labels, *others[first:])
    tied: set[Label] = set()
    for dim, index, counts in zip(index_dims, indices, call.arguments["counting"], strict=True):
        along = [i for i, size in enumerate(index.shape) if size > 1]
        if counts and len(along) == 1 and index.numel() == table.shape[dim]:
            of_table[dim] = index_labels[rank - index.dim() + along[0]]
            tied.add(of_table[dim])
    operands = [(table, tuple(of_table))]
    for index in indices:
        index_label = index_labels[rank - index.dim() :]
        operands.append(
            (index, tuple(None if size == 1 else label for label, size in zip(index_label, index.shape, strict=True)))
        )
    roles = Roles(fixed=frozenset({*(("row", dim) for dim in index_dims), *index_labels} - tied))
    return Described(word, tuple(operands), ((picked, of_result),), roles, 0.0, 2 * size_bytes(picked))


def gather(call: Call) -> list[Described]:
    """out[i, j] = x[i, index[i, j]]: along the dimension as `_rows`, the others are one; shorter ones stay whole."""
    a, (result,) = call.arguments, call.results
    of_table, of_index, fixed = _paired(a["self"], a["index"], a["dim"])
    roles = Roles(frozenset({"row"}), frozenset(fixed))
    operands, moved = ((a["self"], of_table), (a["index"], of_index)), size_bytes(a["index"]) + 2 * size_bytes(result)
    return [Described("gather", operands, ((result, of_index),), roles, 0.0, moved)]


def _paired(table: Tensor, index: Tensor, dim: int) -> tuple[Labels, Labels, set[Label]]:
    """Labels of a tensor and of an index of the same rank into one of its dimensions, and those that stay whole."""
    dim %= max(table.dim(), 1)
    fixed: set[Label] = set()
    of_table: list[Label | None] = []
    of_index: list[Label | None] = []
    for d, (size, sizes) in enumerate(zip(table.shape, index.shape, strict=True)):
        if d == dim:
            of_table.append("row")
            of_index.append("index")
        elif size == sizes:
            of_table.append(d)
            of_index.append(d)
        else:
            of_table.append(d)
            of_index.append(("part", d))
            fixed.update({d, ("part", d)})
    return tuple(of_table), tuple(of_index), fixed


def scatter(call: Call) -> list[Described]:
    """x with numbers put in, or added, at an index along one dimension: each device writes its own rows."""
    a, (result,) = call.arguments, call.results
    of_table, of_index, fixed = _paired(a["self"], a["index"], a["dim"])
    operands = [(a["self"], of_table), (a["index"], of_index)]
    if isinstance(a.get("src"), Tensor):
        operands.append((a["src"], of_index if a["src"].shape == a["index"].shape else (None,) * a["src"].dim()))
    roles = Roles(fixed=frozenset({*fixed, "index"}))
    return [Described("scatter", tuple(operands), ((result, of_table),), roles)]


def embedding_backward(call: Call) -> list[Described]:
    """The gradient of a table: rows of gradients added at their indices."""
    a, (result,) = call.arguments, call.results
    index = a["indices"]
    of_index = tuple(("index", i) for i in range(index.dim()))
    operands = ((a["grad_output"], (*of_index, "d")), (index, of_index))
    roles = Roles(reduced=frozenset(of_index))
    return [Described("scatter", operands, ((result, ("row", "d")),), roles, float(a["grad_output"].numel()))]


def index_put(call: Call) -> list[Described]:
    """x with numbers put in at indices. Onto zeros, as gradients are, sums over the indices are sums of results."""
    a, (result,) = call.arguments, call.results
    indices, table, values = list(a["indices"]), a["self"], a["values"]
    index_dims = [dim for dim, index in enumerate(indices) if index is not None]
    picked = _several(call, table, index_dims, values, "scatter")
    (_, of_values), of_table = picked.results[0], picked.operands[0][1]
    if len(of_values) != values.dim():  # broadcast values
        of_values = (None,) * values.dim()
    roles = picked.roles
    if len(index_dims) == 1 and a.get("onto_zeros") and a["accumulate"]:
        index_labels = frozenset(label for label in of_values if isinstance(label, tuple) and label[0] == "index")
        roles = Roles(reduced=index_labels)
    operands = (*picked.operands, (values, without_broadcast(of_values, values)))
    return [Described("scatter", operands, ((result, of_table),), roles, float(values.numel()))]
