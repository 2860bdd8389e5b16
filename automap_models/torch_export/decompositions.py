"""Operators that come to others: PyTorch's own decompositions, and our own where those keep too much together.

They are functions of an operator's arguments, run under the recorder: what they call is recorded in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from automap_models.torch_export.operators import reduced_dims

aten = torch.ops.aten


def _with_bias(product: Any, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    scaled: Tensor = _scaled(product(left, right), alpha) + _scaled(bias, beta)
    return scaled


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    total = aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype) if dim is not None else aten.sum(x, dtype=dtype)
    count: Tensor = total / (x.numel() // max(total.numel(), 1))
    return count


def _var_mean(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = sorted(reduced_dims(dim, x.dim()))
    count = prod(x.shape[d] for d in dims)
    average = _mean(x, dims, True)
    centred = x - average
    squares = aten.sum.dim_IntList(centred * centred, dims, keepdim)
    spread = squares / max(count - (1 if correction is None else correction), 0)
    return spread, average if keepdim else aten.squeeze.dims(average, dims)


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    apart = x.reshape(n, groups, c // groups, hw)
    spread, average = _var_mean(apart, [2, 3], correction=0, keepdim=True)
    scale = aten.rsqrt(spread + eps)
    normal = ((apart - average) * scale).view(x.shape)
    shape = [1, c, *[1] * (x.dim() - 2)]
    normal = normal if weight is None else normal * weight.view(shape)
    normal = normal if bias is None else normal + bias.view(shape)
    return normal, average.view(n, groups), scale.view(n, groups)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    spread, average = _var_mean(x, list(range(x.dim() - len(shape), x.dim())), correction=0, keepdim=True)
    scale = aten.rsqrt(spread + eps)
    normal = (x - average) * scale
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias, average, scale


def _nll_loss_backward(
    gradient: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: Tensor,
) -> Tensor:
    """Each class compared with the target, as TorchInductor has it in place of a scatter onto zeros."""
    dim = min(1, x.dim() - 1)
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    target = target.unsqueeze(dim)
    hit = torch.arange(x.shape[dim], device=x.device).view(shape) == target
    gradient = gradient / total_weight if reduction == 1 else gradient
    gradient = gradient.unsqueeze(dim) if reduction == 0 else gradient
    gradient = torch.where(target != ignored, -gradient, 0)
    gradient = gradient if weight is None else gradient * weight.view(shape)
    return torch.where(hit, gradient, 0).to(x.dtype)


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


DECOMPOSED: Mapping[Any, Callable[..., Any]] = {
    **decomposition_table,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten.addmm.default: partial(_with_bias, aten.mm),
    aten.baddbmm.default: partial(_with_bias, aten.bmm),
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: lambda *args, **options: _var_mean(*args, **options)[0],
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
}
"""Overload → what it comes to, as a function of the same arguments."""
