"""What sharding one dimension of a module's values says about the others: Shardy's factor mappings in flat arrays.

Each operation has *factors*, the loops it would be written with: a product of matrices has three, and every dimension
of its operands and of its result is one of them. A dimension that is several factors (a reshape merges two) follows the
first, major one; the minor ones stay whole. What a loop or a branch passes on is tied dimension by dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import NamedTuple

import numpy as np

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.hlo.module import Module, Tensor


class Role(IntFlag):
    """What is special about a factor; 0 is nothing: sharding it needs no communication."""

    REDUCTION = 1
    """Summed over (or reduced otherwise): where it is sharded, an all-reduce follows."""
    FIXED = 2
    """Must be replicated: Shardy marks it so, shards it by communication, or it is a minor factor of a dimension."""


class Rule(NamedTuple):
    """The factor mapping of one sort of operation.

    Attributes:
        sizes: of each factor.
        roles: of each factor.
        links: (operand or result, its dimension, factor that the dimension follows); operands count before results.
        unmapped: (operand or result, dimension) without a factor: it must stay whole.
    """

    sizes: tuple[int, ...]
    roles: tuple[int, ...]
    links: tuple[tuple[int, int, int], ...]
    unmapped: tuple[tuple[int, int], ...] = ()


class Use(NamedTuple):
    """An operation with its rule.

    Attributes:
        operation: which of the module's; for an operation in a loop or a branch, that loop or branch.
        opcode: StableHLO's word without the dialect.
        values: ids of its operands, then of its results.
        rule: None where Shardy has none.
        results: how many of the values it makes.
    """

    operation: int
    opcode: str
    values: tuple[int, ...]
    rule: Rule | None
    results: int = 1

    @property
    def operands(self) -> tuple[int, ...]:
        """Ids of its operands."""
        return self.values[: len(self.values) - self.results]

    @property
    def outputs(self) -> tuple[int, ...]:
        """Ids of its results."""
        return self.values[len(self.values) - self.results :]


@dataclass(frozen=True, eq=False)
class ShardingRules:
    """The rules of m operations (uses) over v values with n dimensions and f factors in all.

    The values are numbered anew, the module's arguments first: constants, and what is computed from constants alone,
    count once for every reader, since each can have a copy sharded as it likes.

    Attributes:
        tensors: [v] type of every value.
        uses: [m] the operations that have factors.
        factor_offsets: int64 [m+1] use i has the factors factor_offsets[i] … factor_offsets[i+1] - 1.
        factor_sizes: int64 [f].
        factor_roles: int8 [f], see Role.
        link_dims, link_factors: int64 [l], a dimension and the factor that it follows.
        whole_dims: dimensions that must stay whole.
        unruled: operations with dimensions for which Shardy has no rule.
    """

    tensors: tuple[Tensor, ...]
    uses: tuple[Use, ...]
    factor_offsets: IntArray
    factor_sizes: IntArray
    factor_roles: IntArray
    link_dims: IntArray
    link_factors: IntArray
    whole_dims: IntArray
    unruled: tuple[Use, ...]

    @cached_property
    def dim_offsets(self) -> IntArray:
        """[v+1] dimension d of value v is dimension dim_offsets[v] + d of all."""
        return offsets([len(tensor.shape) for tensor in self.tensors])

    @cached_property
    def dim_sizes(self) -> IntArray:
        """[n] sizes of all dimensions."""
        return np.array([size for tensor in self.tensors for size in tensor.shape], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class RuledModule(Module):
    """A module that comes with its rules and costs, as those of PyTorch's operators do (torch_export).

    Attributes:
        derived_rules: gives the factor mappings of the operations; called once, and only if they are needed.
        layers: [n] path of the module that each operation belongs to.
        flop, bytes_accessed: [n] of each operation.
        unknown: operators without a rule, which are taken to stay whole → number of their calls.
    """

    derived_rules: Callable[[], ShardingRules]
    layers: tuple[str, ...]
    flop: FloatArray
    bytes_accessed: FloatArray
    unknown: Mapping[str, int]

    @cached_property
    def rules(self) -> ShardingRules:
        """Factor mappings of the operations."""
        return self.derived_rules()

    @property
    def notes(self) -> tuple[str, ...]:
        """Which operators are not partitioned for want of a rule."""
        if not self.unknown:
            return ()
        calls = ", ".join(f"{name} ({number})" for name, number in self.unknown.items())
        return (f"no rule says how these operators can be partitioned, so they stay whole (number of calls): {calls}",)


def flat_rules(tensors: Sequence[Tensor], uses: Iterable[Use]) -> ShardingRules:
    """The rules of operations, in flat arrays."""
    every = list(uses)
    ruled = [use for use in every if use.rule is not None]
    rules = [use.rule for use in ruled if use.rule is not None]
    factor_offsets = offsets([len(rule.sizes) for rule in rules])
    dim_offsets = offsets([len(tensor.shape) for tensor in tensors])
    links, whole_dims = _tied(ruled, factor_offsets, dim_offsets)
    return ShardingRules(
        tensors=tuple(tensors),
        uses=tuple(ruled),
        factor_offsets=factor_offsets,
        factor_sizes=np.array([size for rule in rules for size in rule.sizes], dtype=np.int64),
        factor_roles=np.array([role for rule in rules for role in rule.roles], dtype=np.int64),
        link_dims=links[:, 0],
        link_factors=links[:, 1],
        whole_dims=whole_dims,
        unruled=tuple(use for use in every if use.rule is None),
    )


def _tied(uses: Sequence[Use], factor_offsets: IntArray, dim_offsets: IntArray) -> tuple[IntArray, IntArray]:
    """[l, 2] dimensions with their factors, and the dimensions without; all operations of one rule at a time."""
    of_rule: dict[Rule, list[int]] = {}
    for i, use in enumerate(uses):
        if use.rule is not None and use.rule.sizes:
            of_rule.setdefault(use.rule, []).append(i)
    links, whole_dims = [np.empty((0, 2), dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for rule, members in of_rule.items():
        width = 1 + max(tie[0] for tie in (*rule.links, *rule.unmapped))  # scalars after that take no part
        first_dims = dim_offsets[np.array([uses[i].values[:width] for i in members], dtype=np.int64)]
        for position, dim, factor in rule.links:
            links.append(np.stack([first_dims[:, position] + dim, factor_offsets[members] + factor], axis=1))
        whole_dims += [first_dims[:, position] + dim for position, dim in rule.unmapped]
    return np.concatenate(links), np.concatenate(whole_dims)


def same_everywhere(shape: tuple[int, ...], values: int) -> Rule:
    """The rule of values that are one and the same, as what a loop passes on from round to round."""
    links = tuple((position, dim, dim) for position in range(values) for dim in range(len(shape)))
    return Rule(shape, (0,) * len(shape), links)


def offsets(counts: Sequence[int]) -> IntArray:
    """[n+1] where the members of each of n groups begin, one group after the other."""
    return np.concatenate([[0], np.cumsum(np.array(counts, dtype=np.int64))])
