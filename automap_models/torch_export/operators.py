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

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from automap_models.torch_export.factors import REGROUPED, Call, Described, Handler, Label, Labelled, Labels, Roles
from automap_models.torch_export.operator_labels import (
    attention,
    attention_backward,
    convolution,
    convolution_backward,
    embedding,
    embedding_backward,
    gather,
    grouped_product,
    grouped_product_backward,
    histogram,
    index_call,
    index_put,
    index_select,
    product,
    scatter,
)

aten = torch.ops.aten

RESHAPE, COPY, ELEMENTWISE, RANDOM, CONSTANT = "reshape", "transpose", "map", "rng", "constant"
"""What shows the same numbers in another shape; moves them; computes one from one; makes random ones; reads nothing."""


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
    roles = Roles(fixed=frozenset(labels[-1:]))
    return [Described(RESHAPE, ((operand, labels[: operand.dim()]),), ((result, labels[: result.dim()]),), roles)]


def _broadcast_in_dim(call: Call) -> list[Described]:
    (operand,), (result,) = call.tensors(), call.results
    to = call.arguments["broadcast_dimensions"]
    labels = tuple(None if size != result.shape[dim] else dim for size, dim in zip(operand.shape, to, strict=True))
    return [Described("broadcast_in_dim", ((operand, labels),), ((result, tuple(range(result.dim()))),))]


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
        remaining = [label for label in labels if label != dim or result.dim() == operand.dim()]
        if result.dim() == operand.dim():
            remaining[dim] = "part"
        roles = Roles(fixed=frozenset({dim, "part"}))
        described.append(Described("slice", ((operand, tuple(labels)),), ((result, tuple(remaining)),), roles))
    return described


def _padded(call: Call) -> list[Described]:
    """The gradient of a slice, or a padding: of equal rank or one less; dimensions that differ in size stay whole."""
    operand, result = call.tensors()[0], call.results[0]
    dim = call.arguments.get("dim")
    labels: list[Label | None] = list(range(result.dim()))
    if operand.dim() < result.dim():
        placed = [label for label in labels if label != (dim or 0) % result.dim()]
    else:
        differs = [a != b for a, b in zip(operand.shape, result.shape, strict=True)]
        placed = [("part", label) if other else label for label, other in zip(labels, differs, strict=True)]
    fixed = {*labels, *placed} - set(labels).intersection(placed)
    if dim is not None:
        fixed.add(dim % result.dim())
    return [Described("pad", ((operand, tuple(placed)),), ((result, tuple(labels)),), Roles(fixed=frozenset(fixed)))]


def _concatenate(call: Call) -> list[Described]:
    (result,) = call.results
    parts = [tensor for tensor in call.tensors("tensors") if tensor.dim() == result.dim()]
    dim = call.arguments.get("dim", 0) % result.dim()
    labels = list(range(result.dim()))
    operands = tuple(
        (part, tuple(("part", i) if label == dim else label for label in labels)) for i, part in enumerate(parts)
    )
    fixed = frozenset({dim, *(("part", i) for i in range(len(parts)))})
    return [Described("concatenate", operands, ((result, tuple(labels)),), Roles(fixed=fixed))]


def _stack(call: Call) -> list[Described]:
    """Tensors side by side along a dimension of its own."""
    (result,), parts = call.results, call.tensors()
    dim = call.arguments.get("dim", 0) % result.dim()
    labels = tuple(range(result.dim()))
    operand_labels = tuple(label for label in labels if label != dim)
    operands = tuple((part, operand_labels) for part in parts)
    return [Described("concatenate", operands, ((result, labels),), Roles(fixed=frozenset({dim})))]


# ------------------------------------------------------------------------------------------------------- sums


def _reduce(call: Call) -> list[Described]:
    """A sum, or another reduction whose results over slices are combined by one of its own kind."""
    operand = call.tensors()[0]
    dims = reduced_dims(call.arguments.get("dim", call.arguments.get("dims")), operand.dim())
    keep = bool(call.arguments.get("keepdim", False))
    labels = tuple(range(operand.dim()))
    remaining = tuple(None if dim in dims else dim for dim in labels if keep or dim not in dims)
    roles = Roles(reduced=frozenset(dims))
    results = tuple((result, remaining) for result in call.results)
    return [Described("reduce", ((operand, labels),), results, roles, float(operand.numel() - call.results[0].numel()))]


def _select_along(call: Call) -> list[Described]:
    """A reduction that also says where (a maximum with its index): along it everything stays whole."""
    (described,) = _reduce(call)
    return [described._replace(roles=Roles(fixed=described.roles.reduced))]


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
    fixed = frozenset({*along, *(("along", label) for label in along)})
    results = tuple((result, of_result) for result in call.results)
    operands = tuple((tensor, labels) for tensor in call.tensors())
    return [Described(name, operands, results, Roles(fixed=fixed), float(operand.numel()))]


def _lower_triangle(call: Call) -> list[Described]:
    (operand,), (result,) = call.tensors(), call.results
    labels = tuple(range(operand.dim()))
    return [Described("select", ((operand, labels),), ((result, labels),), Roles(fixed=frozenset(labels[-2:])))]


def reduced_dims(dim: Any, rank: int) -> set[int]:
    """The dimensions that a reduction goes over, given as ATen takes them: one, several, or None or nothing for all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return set(range(rank))
    return {d % rank for d in (dim if isinstance(dim, (list, tuple)) else [dim])} if rank else set()


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
        every = [label for _, row in (*operands, *results) for label in row]
        fixed = frozenset(label for label in every if isinstance(label, tuple))
        return [Described(word, operands, results, Roles(fixed=fixed), float(max(t.numel() for t in call.tensors())))]

    return handler


_VIEWS = (
    *("detach", "alias", "lift_fresh", "view", "_unsafe_view", "reshape", "_reshape_alias"),
    *("flatten", "unsqueeze", "squeeze", "unflatten"),
)
_SLICES = ("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind")
_REDUCTIONS = ("sum", "amax", "amin", "prod", "any", "all")
_POOLS = ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "avg_pool1d", "avg_pool3d")
_RESIZES = ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")
_GRADIENT = "_backward"
"""Ending of the operator that computes the gradient of another."""
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_VIEWS, _regroup),
    **dict.fromkeys(_SLICES, _slice),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("argmax", "argmin"), _select_along),
    **{name: partial(_along, name) for name in ("cumsum", "cumprod", "sort", "topk", "flip", "roll")},
    **dict.fromkeys(_POOLS, _windows("reduce_window")),
    **dict.fromkeys((name + _GRADIENT for name in _POOLS), _windows("select_and_scatter")),
    **dict.fromkeys(_RESIZES, _windows("resize")),
    **dict.fromkeys((name + _GRADIENT for name in _RESIZES), _windows("resize_gradient")),
    **dict.fromkeys(("permute", "prims.transpose"), _permute),
    **dict.fromkeys(("t", "transpose"), _transpose),
    **dict.fromkeys(("slice_backward", "select_backward", "constant_pad_nd"), _padded),
    **dict.fromkeys(("tril", "triu"), _lower_triangle),
    **dict.fromkeys(("scatter", "scatter_add"), scatter),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), index_put),
    **dict.fromkeys(("index", "_unsafe_index"), index_call),
    "view_as_complex": _complex,
    "view_as_real": _complex,
    "expand": _expand,
    "prims.broadcast_in_dim": _broadcast_in_dim,
    "cat": _concatenate,
    "stack": _stack,
    "mm": product(("m", "k"), ("k", "n"), ("m", "n")),
    "bmm": product(("b", "m", "k"), ("b", "k", "n"), ("b", "m", "n")),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "_scaled_dot_product_efficient_attention": attention,
    "_scaled_dot_product_efficient_attention_backward": attention_backward,
    "_grouped_mm": grouped_product,
    "grouped_mm_fallback": grouped_product,
    "grouped_mm_fallback_backward": grouped_product_backward,
    "histc": histogram,
    "embedding": embedding,
    "embedding_dense_backward": embedding_backward,
    "index_select": index_select,
    "gather": gather,
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
    if _is_pointwise(name, func):
        return pointwise(name, call)
    return None


def knows(name: str, func: Any) -> bool:
    """Whether `describe` knows an operator."""
    return name in HANDLERS or name in ("max", "min") or _is_pointwise(name, func)


def _is_pointwise(name: str, func: Any) -> bool:
    return name in _WORDS or name in _RANDOM or torch.Tag.pointwise in func.tags
