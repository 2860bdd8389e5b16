"""The dimensions of a step's variables, in classes that are sharded as a whole or not at all, and the step's work.

Propagation with one mesh axis and no resharding has a closed form: the dimensions of all values of a module fall into
such classes, and some classes exclude one another (hlo/sharding_classes.py says why). This module holds the classes
with dimensions of variables, and what a training step computes, sums and keeps, by these classes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import ArgumentKind, FloatArray, IntArray

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
    kind: ArgumentKind


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


class MergedSums(NamedTuple):
    """What is summed less where one axis shards all of several classes: results are added before they are summed.

    Attributes:
        over: the classes over which the added results are summed, two or more.
        classes: of the sum's dimensions.
        nbytes: by how much fewer bytes are summed.
        number: by how many fewer results.
        late: whether only the update of the parameters reads the sum.
    """

    over: tuple[int, ...]
    classes: tuple[int, ...]
    nbytes: float
    number: int
    late: bool


@dataclass(frozen=True, eq=False)
class ShardingWork:
    """Sums over a step's instructions and values, enough to price every legal choice of classes on up to two axes.

    Along one axis, an instruction (a value) has at most one sharded class, since two would conflict. So what k classes
    divide is given by sums over the instructions with class i (the diagonal) and with both i and j: float64 [k, k].

    Attributes:
        compute_s: time of all instructions on one device, without launches.
        launch_s: their launches, which nothing divides.
        compute: seconds of the instructions with classes i and j.
        held_bytes: what a device keeps for a step without sharding: arguments, gradients, activations for the backward
            pass.
        memory: bytes of those values that have dimensions of classes i and j.
        activation_sums: bytes of the results that are summed over class i and read by further layers; off the
            diagonal, of those with a dimension of class j. One all-reduce each where class i is sharded.
        gradient_sums: the same of results that only the update of the parameters reads.
        starts: [k] how many results `activation_sums` counts.
        merged: what the sums over different classes are less than these together.
    """

    compute_s: float
    launch_s: float
    compute: FloatArray
    held_bytes: float
    memory: FloatArray
    activation_sums: FloatArray
    gradient_sums: FloatArray
    starts: FloatArray
    merged: tuple[MergedSums, ...] = ()

    def __len__(self) -> int:
        return int(self.starts.size)
