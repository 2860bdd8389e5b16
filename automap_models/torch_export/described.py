"""What is said of an operator: its call, and the instructions that it comes to with labelled dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from automap_models.torch_export.factors import Labels, Roles


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


def without_broadcast(labels: Labels, tensor: Tensor) -> Labels:
    """The labels of a tensor that may have dimensions of size 1 in the place of larger ones."""
    return tuple(None if size == 1 else label for label, size in zip(labels, tensor.shape, strict=True))


def size_bytes(tensor: Tensor) -> float:
    """What a tensor takes."""
    return float(tensor.numel() * tensor.element_size())
