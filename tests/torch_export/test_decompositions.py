"""Our own decompositions give the numbers of the operators that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from automap_models.torch_export.decompositions import DECOMPOSED

aten = torch.ops.aten


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


LABELS = torch.tensor([3, 0, -100, 4])
TOTAL = torch.tensor(3.0)
WEIGHT = normal(5).abs()

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.addmm.default, (normal(6), normal(3, 4), normal(4, 6)), {"beta": 0.5, "alpha": 2.0}),
    (aten.baddbmm.default, (normal(2, 3, 6), normal(2, 3, 4), normal(2, 4, 6)), {"beta": 0.5}),
    (aten.mean.default, (normal(3, 4),), {}),
    (aten.mean.dim, (normal(3, 4, 5), [0, -1], True), {}),
    (aten.var_mean.correction, (normal(3, 4, 5), [1]), {"correction": 0, "keepdim": True}),
    (aten.var_mean.correction, (normal(3, 4, 5), [0, 2]), {}),
    (aten.var.correction, (normal(3, 4),), {"correction": 1}),
    (aten.native_layer_norm.default, (normal(3, 4, 6), [4, 6], normal(4, 6), normal(4, 6), 1e-5), {}),
    (aten.native_layer_norm.default, (normal(3, 6), [6], None, None, 1e-3), {}),
    (aten.native_group_norm.default, (normal(2, 6, 5), normal(6), normal(6), 2, 6, 5, 3, 1e-5), {}),
    (aten.nll_loss_backward.default, (normal(1)[0], normal(4, 5), LABELS, None, 1, -100, TOTAL), {}),
    (aten.nll_loss_backward.default, (normal(1)[0], normal(4, 5), LABELS, WEIGHT, 2, -100, TOTAL), {}),
    (aten.nll_loss_backward.default, (normal(4), normal(4, 5), LABELS, WEIGHT, 0, -100, TOTAL), {}),
    (
        aten.nll_loss2d_backward.default,
        (normal(1)[0], normal(2, 5, 1, 2), LABELS.view(2, 1, 2), WEIGHT, 1, -100, TOTAL),
        {},
    ),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_a_decomposition_gives_the_operator_s_numbers(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> None:
    operator, arguments, options = call
    expected = pytree.tree_leaves(operator(*arguments, **options))
    given = pytree.tree_leaves(DECOMPOSED[operator](*arguments, **options))
    for own, right in zip(given, expected, strict=True):
        torch.testing.assert_close(own.reshape(right.shape), right)
