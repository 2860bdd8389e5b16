"""The cost of a sharding plan: variables that it partitions, time of a step and memory of a device on a cluster.

- An instruction that follows a class which is sharded by an axis of n devices takes 1/n of its time; launches stay.
- A result that is summed over a sharded class is all-reduced along the axis, at its own sharding along the other one.
  It costs its bytes over the axis's bandwidth (a ring inside nodes, a ring between them, as in cost-model.md) and, if
  further layers wait for it, the 2·⌈log2 n⌉ launches of a tree. Data parallelism's gradient all-reduces are of this
  sort: the batch is a class like any other. Nothing overlaps.
- Results that are added are summed after the addition if both are summed along the same axis, whatever their classes.
- Memory: arguments, gradients as large as the parameters, and the activations that the backward pass reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.sharding import UNUSED, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import REPLICATED, MergedSums, ShardingWork
from automap_models.cost.collectives import all_reduce_start_s, mesh_all_reduce_s_per_byte
from automap_models.errors import BadInput


class AxisCost(NamedTuple):
    """An axis of `size` devices: seconds per all-reduced byte, and of each all-reduce whatever its size."""

    size: int
    s_per_byte: float
    start_s: float

    @property
    def saved(self) -> float:
        """The part of an instruction or a value that sharding by this axis takes away, 1 - 1/size."""
        return 1.0 - 1.0 / self.size


@dataclass(frozen=True)
class ShardingPrice:
    """The cost of a step on every device under a plan.

    Attributes:
        compute_s: all instructions, launches among them.
        all_reduce_s: [axes] time of the all-reduces along each axis.
        activation_bytes, gradient_bytes: [axes] bytes that they reduce on each device.
        memory_bytes: of each device.
    """

    compute_s: float
    all_reduce_s: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    gradient_bytes: tuple[float, ...]
    memory_bytes: float

    @property
    def time_s(self) -> float:
        """Time of a step."""
        return self.compute_s + sum(self.all_reduce_s)


class ShardingCount(NamedTuple):
    """Candidates that a plan partitions along all axes, and their bytes."""

    partitioned: int
    nbytes: float


def sharding_cost(problem: ShardingProblem, plan: ShardingPlan) -> ShardingPrice | ShardingCount:
    """The cost of a plan by the problem's objective: its price, or the number of variables that it partitions.

    Args:
        problem: one that the plan solves.
    """
    return sharding_count(plan) if problem.objective == "count" else plan_price(problem, plan)


def objective_value(problem: ShardingProblem, cost: ShardingPrice | ShardingCount) -> float:
    """The figure of a cost that the objective is about: variables, seconds or bytes."""
    if isinstance(cost, ShardingCount):
        return float(cost.partitioned)
    return cost.memory_bytes if problem.objective == "memory" else cost.time_s


def sharding_count(plan: ShardingPlan) -> ShardingCount:
    """Number and bytes of the variables that the plan partitions."""
    split = [v for a in range(len(plan.mesh)) for v, dim in plan.candidates(a).items() if dim != REPLICATED]
    return ShardingCount(len(split), sum(variable.nbytes for variable in split))


def plan_price(problem: ShardingProblem, plan: ShardingPlan) -> ShardingPrice:
    """The price of a plan, which may be for another mesh of the problem's cluster than the problem.

    Raises:
        BadInput: the problem has no work to price.
    """
    return classes_price(problem, plan.axis_of(problem.classes), [axis.size for axis in plan.mesh])


def classes_price(problem: ShardingProblem, axis_of: IntArray, sizes: Sequence[int] | None = None) -> ShardingPrice:
    """The price of a legal choice on the problem's cluster.

    Args:
        problem: one with work.
        axis_of: [k] the axis that shards each class, UNUSED for none.
        sizes: devices along each axis; None are those of the problem's mesh.

    Raises:
        BadInput: the problem has no work to price.
    """
    if problem.work is None:
        raise BadInput("has no work to price", where=problem.model, do="give the problem the step's work")
    sizes = [axis.size for axis in problem.mesh] if sizes is None else sizes
    return sharding_price(problem.work, axis_costs(problem.cluster, sizes, problem.launch_s), axis_of)


def replicated_price(problem: ShardingProblem) -> ShardingPrice:
    """The price of the plan in which every device does everything."""
    return classes_price(problem, np.full(len(problem.classes), UNUSED))


def axis_costs(cluster: Cluster, sizes: Sequence[int], launch_s: float) -> tuple[AxisCost, ...]:
    """The axes of a mesh on the first devices of a cluster.

    Args:
        sizes: devices along each axis; neighbours along the last one have consecutive numbers.
        launch_s: of a kernel.
    """
    rates = mesh_all_reduce_s_per_byte(cluster, tuple(sizes))
    return tuple(
        AxisCost(size, rate, all_reduce_start_s(size, launch_s)) for size, rate in zip(sizes, rates, strict=True)
    )


def sharding_price(work: ShardingWork, axes: Sequence[AxisCost], axis_of: IntArray) -> ShardingPrice:
    """The price of any legal choice of classes.

    Args:
        work: over k classes.
        axes: one or two.
        axis_of: [k] the axis that shards each class, UNUSED for none; classes in conflict are on different axes.
    """
    on = [axis_of == a for a in range(len(axes))]
    activations, gradients, starts = [], [], []
    for a in range(len(axes)):
        merged = [sums for sums in work.merged if on[a][list(sums.over)].all()]
        saved = [_merged_bytes(merged, axes, on, a, late=late) for late in (False, True)]
        activations.append(_summed(work.activation_sums, axes, on, a) - saved[0])
        gradients.append(_summed(work.gradient_sums, axes, on, a) - saved[1])
        starts.append(float(work.starts[on[a]].sum()) - sum(sums.number for sums in merged if not sums.late))
    return ShardingPrice(
        compute_s=work.launch_s + _divided(work.compute_s, work.compute, axes, on),
        all_reduce_s=tuple(
            (activations[a] + gradients[a]) * axis.s_per_byte + starts[a] * axis.start_s for a, axis in enumerate(axes)
        ),
        activation_bytes=tuple(activations),
        gradient_bytes=tuple(gradients),
        memory_bytes=_divided(work.held_bytes, work.memory, axes, on),
    )


def _divided(total: float, shared: FloatArray, axes: Sequence[AxisCost], on: Sequence[np.ndarray]) -> float:
    """What is left of a total: each part is multiplied by 1/n for every axis that shards one of its classes."""
    remainder = total - sum(
        axis.saved * float(np.diagonal(shared)[chosen].sum()) for axis, chosen in zip(axes, on, strict=True)
    )
    if len(axes) == 2:
        remainder += axes[0].saved * axes[1].saved * float(shared[np.ix_(on[0], on[1])].sum())
    return remainder


def _merged_bytes(
    merged: Sequence[MergedSums], axes: Sequence[AxisCost], on: Sequence[np.ndarray], a: int, *, late: bool
) -> float:
    """Bytes that a device need not all-reduce along axis a, because results are added first."""
    total = 0.0
    for sums in merged:
        if sums.late == late:
            others = (b for b in range(len(axes)) if b != a and on[b][list(sums.classes)].any())
            total += sums.nbytes * math.prod(1 / axes[b].size for b in others)
    return total


def _summed(sums: FloatArray, axes: Sequence[AxisCost], on: Sequence[np.ndarray], a: int) -> float:
    """Bytes that a device all-reduces along axis a."""
    reduced = float(np.diagonal(sums)[on[a]].sum())
    others = (b for b in range(len(axes)) if b != a)
    return reduced - sum(axes[b].saved * float(sums[np.ix_(on[a], on[b])].sum()) for b in others)
