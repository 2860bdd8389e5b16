"""Which dimensions of a step's variables are partitioned along the axes of a mesh: the problem and a plan, frozen.

mesh data=2, model=4        the batch is partitioned along `data`, a kernel's columns along `model`

                 model →                          variable          dims along data   along model
          ┌────┬────┬────┬────┐                   x [batch, 6]      0                 -1 (replicated)
  data ↓  │ 00 │ 01 │ 02 │ 03 │                   kernel [6, 8]     -1                1
          │ 10 │ 11 │ 12 │ 13 │
          └────┴────┴────┴────┘
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import ArgumentKind, FloatArray, IntArray
from automap_models.core.mesh import Mesh, MeshAxis, PlanKind, check_mesh, dim_at, mesh_text, path_ends
from automap_models.core.sharding_classes import REPLICATED, ShardingClasses, ShardingWork, Variable
from automap_models.errors import BadInput

Objective = Literal["count", "time", "memory"]
"""What a plan is chosen by: as many partitioned variables as possible (Auto-MAP's; of equally many, the most bytes),
the least time of a step within the memory of a device, or the least memory of a device (and of those the fastest)."""

CANDIDATES: dict[PlanKind, ArgumentKind] = {"operator": "parameter", "data": "input"}
"""Kind of plan → kind of variables that it decides on: operator partitioning decides on trainable parameters, auto data
parallelism on inputs (Auto-MAP §3.2, §3.3)."""

_NUMBER = re.compile(r"(?<=_)\d+|(?<=\.)\d+(?=\.)")
"""The index of a layer: `block_3/kernel`, `block.3.weight`."""

UNUSED = -1
"""In place of an axis: the class is sharded by none."""


@dataclass(frozen=True, eq=False)
class AxisCandidates:
    """What there is to decide along one axis of a mesh.

    Attributes:
        axis: its name and size, D devices.
        classes: of the model's dimensions, k of them.
    """

    axis: MeshAxis
    classes: ShardingClasses

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """[k] classes that can be sharded by this axis."""
        return np.asarray(self.classes.divisors % self.axis.size == 0)

    @cached_property
    def candidates(self) -> NDArray[np.bool_]:
        """[v] variables that the plan decides on; scalars are none."""
        kind = CANDIDATES[self.axis.kind]
        return np.array([v.kind == kind and bool(v.shape) for v in self.classes.variables])

    @cached_property
    def candidate_dims(self) -> IntArray:
        """[m] the dimensions that the plan decides on, as entries of `classes.dim_classes`."""
        return np.flatnonzero(self.candidates[self.classes.dim_variables])

    @cached_property
    def weights(self) -> IntArray:
        """[k] candidates that sharding a class partitions: each once, since a class with two dimensions is dead."""
        return np.bincount(self.classes.dim_classes[self.candidate_dims], minlength=len(self.classes))

    @cached_property
    def weights_bytes(self) -> FloatArray:
        """[k] bytes of those candidates."""
        sizes, dims = np.array([variable.nbytes for variable in self.classes.variables]), self.candidate_dims
        dim_classes, variables = self.classes.dim_classes[dims], self.classes.dim_variables[dims]
        return np.bincount(dim_classes, sizes[variables], len(self.classes)).astype(np.float64)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """[k] classes that the axis can shard and that hold a variable which it decides on."""
        return self.live & (self.weights > 0)

    def check(self, model: str, rules: str) -> None:
        """Refuse an axis along which nothing can be partitioned.

        Raises:
            BadInput: there is no variable to decide on, or no dimension that the axis divides.
        """
        if not self.candidates.any():
            what = "trainable parameters" if self.axis.kind == "operator" else "inputs"
            raise BadInput(f"has no {what} with dimensions", where=model, do="give a whole training step")
        if not self.allowed.any():
            raise self._nothing_divides(model, rules)

    def conflict(self, dims: tuple[int, ...]) -> str:
        """What propagation objects to in the partitioned dimension of each variable; "" where it does not."""
        classes, sharded = self.classes, self.classes.sharded(dims)
        dead = sharded[~self.live[sharded]]
        if dead.size:
            return f"{_first(classes, dead[0])} cannot be partitioned by {self.axis.size}"
        clashes = classes.conflicts[np.isin(classes.conflicts, sharded).all(axis=1)]
        if clashes.size:
            return f"{_first(classes, clashes[0, 0])} and {_first(classes, clashes[0, 1])} cannot both be partitioned"
        if dims != classes.dims(sharded.tolist()):
            return "leaves variables undecided that follow by propagation"
        return ""

    def _nothing_divides(self, model: str, rules: str) -> BadInput:
        """Which dimensions could be partitioned by other axis sizes."""
        divisors = self.classes.divisors[self.classes.dim_classes[self.candidate_dims]]
        sizes, first = np.unique(divisors, return_index=True)
        offers = [
            f"{self.classes.describe(int(self.candidate_dims[i]))} by a divisor of {size}"
            for size, i in zip(sizes.tolist(), first.tolist(), strict=True)
            if size > 1
        ]
        what = f"no dimension can be partitioned by {self.axis.size} under the rules {rules}"
        if offers:
            do = f"choose another size: {', '.join(offers[-4:])}"
        elif self.axis.kind == "data":
            do = f"give `batch`, a multiple of {self.axis.size} samples"
        else:
            do = "give other rules, such as `rules='shardy'`"
        return BadInput(what, where=f"{model}, `mesh`", do=do)


@dataclass(frozen=True, eq=False)
class ShardingProblem:
    """Which dimensions to partition along each axis of a mesh.

    Attributes:
        model: the model's name.
        classes: of the model's dimensions, k of them.
        cluster: where it shall run.
        mesh: one or two axes.
        objective: what the plan is chosen by.
        work: what the step computes, sums and keeps, over the same classes; time and memory need it.
        rules: name of the rule set behind the classes.
        launch_s: of a kernel on the cluster's devices.

    Raises:
        BadInput: the cluster has not that mesh, an axis has no variable to decide on or divides no dimension, or the
            objective needs work and there is none.
    """

    model: str
    classes: ShardingClasses
    cluster: Cluster
    mesh: Mesh
    objective: Objective = "count"
    work: ShardingWork | None = None
    rules: str = "shardy"
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        self.cluster.require_one_zone("a mesh of devices")
        check_mesh(self.mesh, self.cluster)
        for along in self.along:
            along.check(self.model, self.rules)
        if self.objective != "count" and self.work is None:
            do = "give the step's work, or the objective count"
            raise BadInput(f"the objective {self.objective} needs the work of a step", where=self.model, do=do)

    @cached_property
    def limit_bytes(self) -> float:
        """Memory of the smallest device of the mesh, which has the cluster's first devices."""
        devices = math.prod(axis.size for axis in self.mesh)
        return float(self.cluster.device_memory[:devices].min())

    @cached_property
    def along(self) -> tuple[AxisCandidates, ...]:
        """What there is to decide along each axis."""
        return tuple(AxisCandidates(axis, self.classes) for axis in self.mesh)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """[axes, k] classes that each axis can shard: those that it divides and that hold a variable it decides on."""
        return np.stack([along.allowed for along in self.along])


@dataclass(frozen=True)
class ShardingPlan:
    """A decision for every variable along every axis of a mesh, apart from what it costs.

    Attributes:
        mesh: the axes; together they partition different classes.
        variables: of the problem, all v of them.
        dims: [axes][v] the dimension of each variable that is partitioned across the axis, or -1 where none is.
        planner: name of the planner that made it.
    """

    mesh: Mesh
    variables: tuple[Variable, ...]
    dims: tuple[tuple[int, ...], ...]
    planner: str

    @classmethod
    def from_classes(cls, problem: ShardingProblem, axis_of: IntArray, planner: str) -> ShardingPlan:
        """The plan in which every class is sharded by an axis.

        Args:
            problem: whose classes they are.
            axis_of: [k] the axis that shards each class, UNUSED for none.
            planner: name of the planner that made it.
        """
        classes, axes = problem.classes, range(len(problem.mesh))
        dims = tuple(classes.dims(np.flatnonzero(axis_of == a).tolist()) for a in axes)
        return cls(problem.mesh, classes.variables, dims, planner)

    def by_variable(self, axis: int = 0) -> dict[Variable, int]:
        """Each variable with the dimension that is partitioned along that axis of the mesh."""
        return dict(zip(self.variables, self.dims[axis], strict=True))

    def partitioned_dims(self, kind: PlanKind) -> dict[str, int]:
        """Names of the variables that the axis of that kind partitions, each with the dimension."""
        along = [of_axis for axis, of_axis in zip(self.mesh, self.dims, strict=True) if axis.kind == kind]
        pairs = ((v.name, dim) for dims in along for v, dim in zip(self.variables, dims, strict=True))
        return {name: dim for name, dim in pairs if dim != REPLICATED}

    def candidates(self, axis: int = 0) -> dict[Variable, int]:
        """The variables that the plan decides on along that axis, likewise."""
        kind = CANDIDATES[self.mesh[axis].kind]
        return {variable: dim for variable, dim in self.by_variable(axis).items() if variable.kind == kind}

    def partitioned(self, axis: int = 0) -> int:
        """Number of candidates partitioned along that axis; the state that follows them is not counted."""
        return sum(dim != REPLICATED for dim in self.candidates(axis).values())

    def axis_of(self, classes: ShardingClasses) -> IntArray:
        """[k] the axis that shards each class, UNUSED for none."""
        axis_of = np.full(len(classes), UNUSED)
        for axis, dims in enumerate(self.dims):
            axis_of[classes.sharded(dims)] = axis
        return axis_of

    def check_valid(self, problem: ShardingProblem) -> tuple[bool, str]:
        """Whether propagation leads along each axis from this plan to itself without a conflict, and if not, why not.

        No class may be sharded along two axes either.
        """
        if self.mesh != problem.mesh:
            return False, f"is for the mesh {mesh_text(self.mesh)}, not {mesh_text(problem.mesh)}"
        if self.variables != problem.classes.variables or {len(dims) for dims in self.dims} != {len(self.variables)}:
            return False, f"has other variables than {problem.model}"
        for dims, along in zip(self.dims, problem.along, strict=True):
            if not all(REPLICATED <= dim < len(v.shape) for v, dim in zip(self.variables, dims, strict=True)):
                return False, "partitions a dimension that its variable does not have"
            if objection := along.conflict(dims):
                return False, objection if len(self.mesh) == 1 else f"along axis {along.axis.name}, {objection}"
        sharded = np.concatenate([problem.classes.sharded(dims) for dims in self.dims])
        if np.unique(sharded).size < sharded.size:
            return False, "partitions a dimension along both axes"
        return True, ""

    def partition_specs(self, params: Any, axes: Sequence[str] | None = None) -> Any:
        """A pytree of jax.sharding.PartitionSpec of the same structure, ready for jit's in_shardings.

        Args:
            params: parameters, or any other pytree of arguments of the step; found by the paths of their leaves.
            axes: names of the axes of jax's mesh; None are those of the plan's.

        Raises:
            BadInput: a leaf that is none of the plan's variables, or that has another shape.
        """
        try:
            import jax
            from jax.sharding import PartitionSpec
        except ImportError as error:
            what = f"partition specs need the jax extra ({error})"
            raise BadInput(what, do="pip install 'automap-models[jax]'") from None
        names = axes or [axis.name for axis in self.mesh]
        ends = [(name, path_ends(self.by_variable(axis))) for axis, name in enumerate(names)]

        def spec(path: Any, leaf: Any) -> PartitionSpec:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            axis_of_dim = {dim_at(of_axis, name, tuple(leaf.shape)): axis for axis, of_axis in ends}
            return PartitionSpec(*(axis_of_dim.get(dim) for dim in range(1 + max(axis_of_dim))))  # type: ignore[no-untyped-call]

        return jax.tree_util.tree_map_with_path(spec, params)

    def placements(self) -> dict[str, list[Any]]:
        """DTensor's placements, one for each axis of the mesh, for each variable by name.

        Raises:
            BadInput: torch is not installed.
        """
        try:
            from torch.distributed.tensor import Replicate, Shard
        except ImportError as error:
            what = f"DTensor placements need the torch extra ({error})"
            raise BadInput(what, do="pip install 'automap-models[torch]'") from None
        return {
            variable.name: [Replicate() if dim == REPLICATED else Shard(dim) for dim in dims]
            for variable, *dims in zip(self.variables, *self.dims, strict=True)
        }


def _first(classes: ShardingClasses, number: int) -> str:
    """The first dimension of a class, in words."""
    return classes.describe(int(np.flatnonzero(classes.dim_classes == number)[0]))


class Collectives(NamedTuple):
    """Collective operations of one sort: how many, and the bytes of their results on one device."""

    number: int
    nbytes: float


class VariableRow(NamedTuple):
    """Variables of one row.

    Attributes:
        name: their common name: indices that differ are `*`, and siblings stand in braces (`{k,q,v}`).
        variables: all of them.
        dim: the partitioned dimension, -1 for none.
    """

    name: str
    variables: tuple[Variable, ...]
    dim: int


def variable_rows(plan: ShardingPlan, axis: int = 0) -> list[VariableRow]:
    """The plan's candidates along an axis, without the first name of their paths if all share it."""
    candidates = plan.candidates(axis)
    firsts = {variable.name.partition("/")[:2] for variable in candidates}
    start = len("".join(firsts.pop())) if len(firsts) == 1 else 0
    alike: dict[tuple[str, int], list[Variable]] = {}
    for variable, dim in candidates.items():
        alike.setdefault((_NUMBER.sub("*", variable.name[start:]), dim), []).append(variable)
    numbered = [
        VariableRow(pattern if len(members) > 1 else members[0].name[start:], tuple(members), dim)
        for (pattern, dim), members in alike.items()
    ]
    return list(_siblings_together(numbered))


def _siblings_together(numbered: Sequence[VariableRow]) -> Iterator[VariableRow]:
    """Rows of equal shapes whose paths differ in the last name but one, and in nothing else, as one."""
    siblings_of: dict[tuple[str, str, int, frozenset[tuple[int, ...]], bool], list[tuple[str, VariableRow]]] = {}
    for row in numbered:
        mark = "/" if "/" in row.name else "."
        above, leaf = row.name.rpartition(mark)[::2]
        parents, parent = above.rpartition(mark)[::2]
        shapes = frozenset(variable.shape for variable in row.variables)
        siblings_of.setdefault((parents, leaf, row.dim, shapes, not parent), []).append((parent, row))
    for (parents, leaf, dim, _, _), rows in siblings_of.items():
        mark = "/" if "/" in rows[0][1].name else "."
        if len(rows) == 1:
            yield rows[0][1]
        else:
            siblings = f"{{{','.join(parent for parent, _ in rows)}}}"
            name = mark.join(filter(None, (parents, siblings, leaf)))
            yield VariableRow(name, tuple(variable for _, row in rows for variable in row.variables), dim)
