"""The dimensions of a step's variables, in classes that are sharded as a whole or not at all.

Propagation with one mesh axis and no resharding has a closed form: the dimensions of all values of a module fall into
such classes, and some classes exclude one another (hlo/sharding_classes.py says why). Kept here are the classes that
hold dimensions of variables.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from automap_models.core.instruction_graph import IntArray

REPLICATED = -1
"""In place of a dimension: the variable is not partitioned."""


@dataclass(frozen=True)
class Variable:
    """An argument of a training step.

    Attributes:
        name: path in the step's arguments, such as `params/encoder/block_3/kernel`.
        shape: its sizes.
        dtype: element type (`f32`).
        nbytes: its size.
        kind: a trainable parameter, state (the optimiser's moments) or an input of the step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: float
    kind: Literal["parameter", "state", "input"]


@dataclass(frozen=True, eq=False)
class ShardingClasses:
    """k classes of dimensions that are sharded together, whatever the mesh.

    Attributes:
        variables: all arguments of the step, v of them, in its order.
        dim_classes: int64 [n], the class of each dimension of each variable, variable by variable.
        divisors: int64 [k], the axis sizes that a class can be sharded by are those that divide this; 1 is a class that
            can never be sharded.
        conflicts: int64 [c, 2], pairs (i < j) of classes that cannot both be sharded along one axis, sorted.
    """

    variables: tuple[Variable, ...]
    dim_classes: IntArray
    divisors: IntArray
    conflicts: IntArray

    def __len__(self) -> int:
        return int(self.divisors.size)

    @cached_property
    def dim_offsets(self) -> IntArray:
        """[v+1] dimension d of variable v is entry dim_offsets[v] + d of `dim_classes`."""
        return np.concatenate([[0], np.cumsum([len(variable.shape) for variable in self.variables], dtype=np.int64)])

    @cached_property
    def dim_variables(self) -> IntArray:
        """[n] the variable that each dimension belongs to."""
        return np.repeat(np.arange(len(self.variables)), np.diff(self.dim_offsets))

    @cached_property
    def adjacency(self) -> NDArray[np.bool_]:
        """[k, k] whether two classes conflict."""
        matrix = np.zeros((len(self), len(self)), dtype=np.bool_)
        first, second = self.conflicts.T
        matrix[first, second] = matrix[second, first] = True
        return matrix

    def sharded(self, dims: Collection[int]) -> IntArray:
        """The classes, sorted, that hold the partitioned dimension of each variable (-1: none)."""
        chosen = np.array(list(dims), dtype=np.int64)
        entries = (self.dim_offsets[:-1] + chosen)[chosen != REPLICATED]
        return np.unique(self.dim_classes[entries])

    def dims(self, sharded: Collection[int]) -> tuple[int, ...]:
        """The partitioned dimension of each variable, -1 for none, where these classes are sharded.

        They do not conflict and can be sharded, so no variable has two such dimensions.
        """
        dims = np.full(len(self.variables), REPLICATED)
        entries = np.flatnonzero(np.isin(self.dim_classes, list(sharded)))
        owners = self.dim_variables[entries]
        dims[owners] = entries - self.dim_offsets[owners]
        return tuple(dims.tolist())

    def describe(self, entry: int) -> str:
        """`dimension 1 of params/fc1/kernel`, for an entry of `dim_classes`."""
        variable = int(self.dim_variables[entry])
        return f"dimension {entry - int(self.dim_offsets[variable])} of {self.variables[variable].name}"
