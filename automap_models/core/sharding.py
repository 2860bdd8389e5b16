"""Which dimensions of a step's variables are partitioned along a mesh axis: the problem and a plan, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.sharding_classes import REPLICATED, ShardingClasses, Variable
from automap_models.core.sharding_specs import partition_specs, placements
from automap_models.errors import BadInput

if TYPE_CHECKING:
    from automap_models.core.instruction_graph import IntArray

Kind = Literal["operator", "data"]
"""Operator partitioning decides on trainable parameters, auto data parallelism on inputs (Auto-MAP §3.2, §3.3)."""

CANDIDATES = {"operator": "parameter", "data": "input"}
"""Kind of plan → kind of variables that it decides on."""


@dataclass(frozen=True, eq=False)
class ShardingProblem:
    """What shall be partitioned along one mesh axis.

    Attributes:
        model: the model's name.
        kind: "operator" or "data".
        classes: of the model's dimensions.
        cluster: where it shall run.
        axis_size: devices along the axis, D.
        rules: name of the rule set behind the classes.

    Raises:
        BadInput: fewer than two devices along the axis, more than the cluster has, no variable to decide on, or no
            dimension that could be partitioned.
    """

    model: str
    kind: Kind
    classes: ShardingClasses
    cluster: Cluster
    axis_size: int
    rules: str = "shardy"

    def __post_init__(self) -> None:
        if not 2 <= self.axis_size <= self.cluster.devices:
            raise BadInput(
                f"{self.axis_size} device(s) along the axis, cluster {self.cluster.name} has {self.cluster.devices}",
                where="--mesh",
                do=f"give 2 to {self.cluster.devices}",
            )
        if not self.candidates.any():
            what = "trainable parameters" if self.kind == "operator" else "inputs"
            raise BadInput(f"has no {what} with dimensions", where=self.model, do="give a whole training step")
        if not (self.live & (self.weights > 0)).any():
            raise self._nothing_divides()

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """[k] classes that can be sharded by this axis."""
        live: NDArray[np.bool_] = self.classes.divisors % self.axis_size == 0
        return live

    @cached_property
    def candidates(self) -> NDArray[np.bool_]:
        """[v] variables that the plan decides on; scalars are none."""
        kind = CANDIDATES[self.kind]
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
    def weights_bytes(self) -> NDArray[np.float64]:
        """[k] bytes of those candidates."""
        sizes = np.array([variable.nbytes for variable in self.classes.variables])
        dims = self.candidate_dims
        found = np.bincount(self.classes.dim_classes[dims], sizes[self.classes.dim_variables[dims]], len(self.classes))
        return found.astype(np.float64)

    def _nothing_divides(self) -> BadInput:
        """Which dimensions could be partitioned by other axis sizes."""
        divisors = self.classes.divisors[self.classes.dim_classes[self.candidate_dims]]
        sizes, first = np.unique(divisors, return_index=True)
        offers = [
            f"{self.classes.describe(int(self.candidate_dims[i]))} by a divisor of {size}"
            for size, i in zip(sizes.tolist(), first.tolist(), strict=True)
            if size > 1
        ]
        what = f"no dimension can be partitioned by {self.axis_size} under the rules {self.rules}"
        do = f"choose another size: {', '.join(offers[-4:])}" if offers else "give other rules, such as --rules shardy"
        return BadInput(what, where=f"{self.model}, --mesh", do=do)


@dataclass(frozen=True)
class ShardingOptimality:
    """What is proven about the objective, such as the number of partitioned variables: no plan exceeds `bound`."""

    bound: float
    proof: Literal["exact", "relaxation"]


@dataclass(frozen=True)
class ShardingPlan:
    """A decision for every variable, apart from what it costs.

    Attributes:
        kind: "operator" or "data".
        axis_size: devices along the axis.
        variables: of the problem, all of them.
        dims: the dimension of each that is partitioned across the axis, or -1 where it is replicated.
        planner: who made it.
        decided_by_propagation: dimensions of candidates that followed from decisions on others.
        reward: Auto-MAP's, the sum over an episode that makes this plan.
        search_s: how long the search took.
        episodes: episodes that an agent played; 0 for other planners.
        optimality: what the planner could prove.
        interrupted: whether the search was cut off, so that this is the best plan until then.
    """

    kind: Kind
    axis_size: int
    variables: tuple[Variable, ...]
    dims: tuple[int, ...]
    planner: str
    decided_by_propagation: int = 0
    reward: float = 0.0
    search_s: float = 0.0
    episodes: int = 0
    optimality: ShardingOptimality | None = None
    interrupted: bool = False

    @property
    def by_variable(self) -> dict[Variable, int]:
        """Each variable with its partitioned dimension."""
        return dict(zip(self.variables, self.dims, strict=True))

    @property
    def candidates(self) -> dict[Variable, int]:
        """The variables that the plan decides on, likewise."""
        return {variable: dim for variable, dim in self.by_variable.items() if variable.kind == CANDIDATES[self.kind]}

    @property
    def partitioned(self) -> int:
        """Number of partitioned variables among the candidates; the state that follows them is not counted."""
        return sum(dim != REPLICATED for dim in self.candidates.values())

    def check_valid(self, problem: ShardingProblem) -> tuple[bool, str]:
        """Whether propagation leads from this plan to itself without a conflict, and if not, why not."""
        if self.kind != problem.kind or self.axis_size != problem.axis_size:
            return False, f"is a {self.kind} plan for an axis of {self.axis_size}, not {problem.axis_size}"
        if self.variables != problem.classes.variables or len(self.dims) != len(self.variables):
            return False, f"has other variables than {problem.model}"
        if not all(REPLICATED <= dim < len(v.shape) for v, dim in zip(self.variables, self.dims, strict=True)):
            return False, "partitions a dimension that its variable does not have"
        why = self._conflict(problem)
        return not why, why

    def _conflict(self, problem: ShardingProblem) -> str:
        """What propagation objects to; "" where it does not."""
        classes = problem.classes
        sharded = classes.sharded(self.dims)
        dead = sharded[~problem.live[sharded]]
        if dead.size:
            return f"{_first(classes, dead[0])} cannot be partitioned by {self.axis_size}"
        clashes = classes.conflicts[np.isin(classes.conflicts, sharded).all(axis=1)]
        if clashes.size:
            return f"{_first(classes, clashes[0, 0])} and {_first(classes, clashes[0, 1])} cannot both be partitioned"
        if self.dims != classes.dims(sharded.tolist()):
            return "leaves variables undecided that follow by propagation"
        return ""

    def partition_specs(self, params: Any, axis: str = "model") -> Any:
        """A pytree of jax.sharding.PartitionSpec of the same structure, ready for jit's in_shardings.

        Args:
            params: parameters, or any other pytree of arguments of the step; found by the paths of their leaves.
            axis: name of the mesh axis.

        Raises:
            BadInput: a leaf that is none of the plan's variables, or that has another shape.
        """
        return partition_specs([(axis, self.by_variable)], params)

    def placements(self) -> dict[str, list[Any]]:
        """DTensor's placements on a mesh of one axis, for each variable by name.

        Raises:
            BadInput: torch is not installed.
        """
        return placements([("model", self.by_variable)])


def _first(classes: ShardingClasses, of: int) -> str:
    """The first dimension of a class, in words."""
    return classes.describe(int(np.flatnonzero(classes.dim_classes == of)[0]))
