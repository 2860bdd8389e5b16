"""Sharding plans that are chosen by what they cost: the problem, and a plan along every axis of a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import Mesh, check_mesh
from automap_models.core.sharding import ShardingOptimality, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.core.sharding_specs import partition_specs, placements
from automap_models.core.sharding_work import ShardingWork

Objective = Literal["time", "memory"]


@dataclass(frozen=True, eq=False)
class PricedShardingProblem:
    """Which dimensions to partition along each axis of a mesh, for the least time or memory.

    Attributes:
        model: the model's name.
        classes: of the model's dimensions.
        work: what the step computes, sums and keeps, over the same classes.
        cluster: where it shall run.
        mesh: one or two axes.
        launch_s: of a kernel on the cluster's devices.
        objective: what shall be least: a step's time, or the memory of a device.
        rules: name of the rule set behind the classes.

    Raises:
        BadInput: the cluster has not that mesh, or nothing divides along one of its axes, see ShardingProblem.
    """

    model: str
    classes: ShardingClasses
    work: ShardingWork
    cluster: Cluster
    mesh: Mesh
    launch_s: float = 0.0
    objective: Objective = "time"
    rules: str = "shardy"

    def __post_init__(self) -> None:
        check_mesh(self.mesh, self.cluster)
        _ = self.along

    @cached_property
    def along(self) -> tuple[ShardingProblem, ...]:
        """The problem along each axis on its own."""
        return tuple(
            ShardingProblem(self.model, axis.kind, self.classes, self.cluster, axis.size, self.rules)
            for axis in self.mesh
        )

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """[axes, k] classes that each axis can shard: those that it divides and that hold a variable it decides on."""
        return np.stack([problem.live & (problem.weights > 0) for problem in self.along])


@dataclass(frozen=True)
class PricedShardingPlan:
    """A plan along each axis of the mesh; together they partition different classes.

    Attributes:
        mesh: the axes.
        plans: one along each.
        planner: who made them.
        search_s: how long that took.
        optimality: what is proven about the objective, in seconds or bytes: no plan is below `bound`.
    """

    mesh: Mesh
    plans: tuple[ShardingPlan, ...]
    planner: str
    search_s: float = 0.0
    optimality: ShardingOptimality | None = None

    def check_valid(self, problem: PricedShardingProblem) -> tuple[bool, str]:
        """Whether propagation leads from each plan to itself and no class is sharded twice; if not, why not."""
        if self.mesh != problem.mesh:
            return False, "is for another mesh"
        for axis, plan, along in zip(self.mesh, self.plans, problem.along, strict=True):
            valid, why = plan.check_valid(along)
            if not valid:
                return False, f"along axis {axis.name}, {why}"
        sharded = [set(problem.classes.sharded(plan.dims).tolist()) for plan in self.plans]
        if len(sharded) == 2 and sharded[0] & sharded[1]:
            return False, "partitions a dimension along both axes"
        return True, ""

    def axis_of(self, problem: PricedShardingProblem) -> NDArray[np.int64]:
        """[k] the axis that shards each class, -1 for none."""
        axis_of = np.full(len(problem.classes), -1)
        for a, plan in enumerate(self.plans):
            axis_of[problem.classes.sharded(plan.dims)] = a
        return axis_of

    @property
    def along(self) -> list[tuple[str, dict[Variable, int]]]:
        """For each axis its name, and each variable with the dimension that it partitions."""
        return [(axis.name, plan.by_variable) for axis, plan in zip(self.mesh, self.plans, strict=True)]

    def partition_specs(self, params: Any) -> Any:
        """A pytree of jax.sharding.PartitionSpec over all axes; see ShardingPlan.partition_specs."""
        return partition_specs(self.along, params)

    def placements(self) -> dict[str, list[Any]]:
        """DTensor's placements on the mesh, one for each axis, for each variable by name."""
        return placements(self.along)
