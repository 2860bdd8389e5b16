"""What is said of an operator, and its factor mapping (hlo/sharding_rules.py): which dimensions it ties together.

An operator is described like an einsum: every dimension of what it reads and makes has a label, or none where nothing
is tied (a dimension of size 1 that is broadcast). Equal labels are one loop.

PyTorch merges dimensions before a product of matrices and splits them again after it. A value therefore remembers of
which *parts* each of its dimensions is made, major part first, and the parts are what classes are made of:

    x [B, T, D] ── view ──→ [B·T, D] ── mm ──→ [B·T, F] ── view ──→ [B, T, F]
    parts (B) (T) (D)       (B, T) (D)         (B, T) (F)           (B) (T) (F)

So both B and T stay what they are. Where two operands divide a dimension differently, the loop has as many factors as
the common refinement of both; what is one part in an operand follows the first of its factors, and the others stay
whole, as Shardy has it for reshapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from automap_models.hlo.sharding_rules import Role, Rule

Parts = tuple[tuple[int, ...], ...]
"""Of each dimension of a value: the sizes of what it is made of; their product is the dimension's size."""
Label = Hashable
Labels = tuple[Label | None, ...]


class Roles(NamedTuple):
    """Labels with a role, see sharding_rules.Role: what is summed over, and what must stay whole."""

    reduced: frozenset[Label] = frozenset()
    fixed: frozenset[Label] = frozenset()

    def role(self, label: Label) -> int:
        """The role of a label's factors."""
        return (Role.REDUCTION if label in self.reduced else 0) | (Role.FIXED if label in self.fixed else 0)


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


REGROUPED: Labels = ("regrouped",)
"""Of the result of a reshape, whose dimensions are told from its shapes."""
Handler = Callable[[Call], list[Described]]


def without_broadcast(labels: Labels, tensor: Tensor) -> Labels:
    """The labels of a tensor that may have dimensions of size 1 in the place of larger ones."""
    return tuple(None if size == 1 else label for label, size in zip(labels, tensor.shape, strict=True))


def size_bytes(tensor: Tensor) -> float:
    """What a tensor takes."""
    return float(tensor.numel() * tensor.element_size())


class Mapped(NamedTuple):
    """An operator's factor mapping, and the parts of its results."""

    rule: Rule
    results: tuple[Parts, ...]


def plain(shape: Sequence[int]) -> Parts:
    """Every dimension made of itself."""
    return tuple((int(size),) for size in shape)


def flat(parts: Parts) -> tuple[int, ...]:
    """All parts of a value in a row: its dimensions as the rules number them."""
    return tuple(size for of_dim in parts for size in of_dim)


def mapped(
    operands: Sequence[tuple[Parts, Labels]], results: Sequence[tuple[Sequence[int], Labels]], roles: Roles
) -> Mapped:
    """The mapping of an operator that is described by labels.

    Args:
        operands: parts and labels of each.
        results: shape and labels of each; a label that no operand has is a loop of its own.
        roles: of the labels; all others have none.
    """
    factorizations: dict[Label, list[tuple[int, ...]]] = {}
    for parts, labels in operands:
        for of_dim, label in zip(parts, labels, strict=True):
            if label is not None:
                factorizations.setdefault(label, []).append(of_dim)
            elif of_dim != (1,):
                raise ValueError(f"a dimension of parts {of_dim} has no label")
    for shape, labels in results:
        for size, label in zip(shape, labels, strict=True):
            if label is not None:
                factorizations.setdefault(label, [(int(size),)])
    builder = _Builder()
    factors = {label: builder.factors(forms, roles.role(label)) for label, forms in factorizations.items()}
    for position, (parts, labels) in enumerate(operands):
        builder.link(position, parts, [factors[label] if label is not None else None for label in labels])
    divided = []
    for position, (shape, labels) in enumerate(results, start=len(operands)):
        of_labels = [factors[label] if label is not None else None for label in labels]
        parts = tuple((int(size),) if loop is None else loop.sizes for size, loop in zip(shape, of_labels, strict=True))
        builder.link(position, parts, of_labels)
        divided.append(parts)
    return Mapped(builder.rule(), tuple(divided))


def regrouped(operand: Parts, shape: Sequence[int]) -> Mapped:
    """The mapping of a reshape: merged dimensions keep their parts, divided ones follow their major part."""
    builder, divided = _Builder(), list[tuple[int, ...]]()
    for first, parts, sizes in _groups(flat(operand), shape):
        loop = builder.factors([parts, sizes], 0)
        builder.link(0, (parts,), [loop], first)
        part = sum(map(len, divided))
        of_group = _shared_out(loop.sizes, sizes)
        builder.link(1, (tuple(size for dims in of_group for size in dims),), [loop], part)
        divided += of_group
    return Mapped(builder.rule(), (tuple(divided),))


def opaque(operands: Sequence[Parts], results: Sequence[Sequence[int]]) -> Mapped:
    """The mapping of an operator of which nothing is known: everything that it reads and makes stays whole."""
    undivided = tuple(plain(shape) for shape in results)
    builder = _Builder()
    for position, parts in enumerate((*operands, *undivided)):
        builder.link(position, parts, [builder.factors([of_dim], Role.FIXED) for of_dim in parts])
    return Mapped(builder.rule(), undivided)


def of_constants(rule: Rule) -> Rule:
    """The rule of an operator that reads constants alone: every device can make all of it, and take what it needs."""
    links = tuple(link for link in rule.links if not rule.roles[link[2]] & Role.FIXED)
    return Rule(rule.sizes, rule.roles, links) if links else Rule((), (), ())


class _Loop(NamedTuple):
    """A loop: ids and sizes of its factors, major one first; `fits` says whether its divisions have any in common."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]
    fits: bool


class _Builder:
    """Collects the factors of one operator and what follows them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._roles: list[int] = []
        self._links: list[tuple[int, int, int]] = []

    def factors(self, forms: Sequence[tuple[int, ...]], role: int) -> _Loop:
        """The factors of a loop that is divided in these ways; one that stays whole where they do not fit."""
        sizes = refined(forms)
        fits = sizes is not None
        sizes = sizes or (prod(forms[0]),)
        first = len(self._sizes)
        self._sizes += sizes
        self._roles += [role if fits else role | Role.FIXED] * len(sizes)
        return _Loop(tuple(range(first, len(self._sizes))), sizes, fits)

    def link(self, position: int, parts: Parts, loops: Sequence[_Loop | None], part: int = 0) -> None:
        """Let the parts of a value, from its part number `part` on, follow the loops of its dimensions."""
        for of_dim, loop in zip(parts, loops, strict=True):
            factors = list(zip(loop.ids, loop.sizes, strict=True)) if loop is not None else []
            for size in of_dim:
                if loop is not None and size > 1:
                    self._links.append((position, part, factors[0][0] if factors else loop.ids[-1]))
                    factors = self._after(factors, size) if loop.fits else factors
                part += 1

    def _after(self, factors: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
        """A loop's factors behind a part of that size, which follows its first one; its others stay whole."""
        size //= factors[0][1]
        factors = factors[1:]
        while size > 1:
            self._roles[factors[0][0]] |= Role.FIXED
            size //= factors[0][1]
            factors = factors[1:]
        return factors

    def rule(self) -> Rule:
        """What was collected; nothing where no dimension is larger than 1."""
        if not self._links:
            return Rule((), (), ())
        return Rule(tuple(self._sizes), tuple(self._roles), tuple(self._links))


def refined(forms: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The coarsest division of a size that refines all of these, without ones; None where there is none.

    >>> refined([(6, 4), (2, 12)])
    (2, 3, 4)
    >>> refined([(6, 4), (4, 6)]) is None
    True
    """
    total = prod(forms[0])
    if total < 2:
        return (total,)
    ends = {total}
    for form in forms:
        inner = 1
        for size in reversed(form):
            ends.add(inner)
            inner *= size
    outward = sorted(ends, reverse=True)
    if any(large % small for large, small in pairwise(outward)):
        return None
    return tuple(large // small for large, small in pairwise(outward))


def _groups(parts: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The shortest runs of parts and of sizes with equal products: number of the first part, parts, sizes."""
    groups: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(parts) or j < len(sizes):
        first_part, first_size, left, right = i, j, 1, 1
        while True:
            if left == right and (i > first_part or j > first_size):
                break
            if left <= right and i < len(parts):
                left *= parts[i]
                i += 1
            else:
                right *= sizes[j]
                j += 1
        groups.append((first_part, tuple(parts[first_part:i]), tuple(int(size) for size in sizes[first_size:j])))
    return groups


def _shared_out(factors: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Of each size the factors that it is made of; where they are not made of whole ones, the sizes themselves."""
    shared, remaining = [], list(factors)
    for size in sizes:
        members: list[int] = []
        while prod(members) < size and remaining:
            members.append(remaining.pop(0))
        shared.append(tuple(members) or (size,))
    fits = all(prod(members) == size for members, size in zip(shared, sizes, strict=True))
    return shared if fits else [(int(size),) for size in sizes]
