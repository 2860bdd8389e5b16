"""The shardings by which the devices of a stage can share its operators: for each degree, from fast to small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from numpy.typing import ArrayLike

from automap_models.collection import uncollected
from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.mesh import MeshAxis
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.sharding import Objective, ShardingProblem
from automap_models.core.sharding_classes import ShardingWork
from automap_models.errors import BadInput
from automap_models.hlo.dimension_classes import ModuleSharding
from automap_models.hlo.module import Module
from automap_models.hlo.sharding_work import DivisibleProfile, sharding_work, step_times
from automap_models.hlo.step_classes import StepClasses
from automap_models.planners.sharding.milp import ShardingMilpPlanner

BETWEEN = (0.75, 0.5, 0.25)
"""Memory limits at which a choice between the fastest and the smallest is sought: from the one's to the other's."""

NOTABLE = 1e-3
"""A slower choice counts if it takes less memory by this share."""


@uncollected()
def stage_shardings(
    module: Module,
    sharding: ModuleSharding,
    graph: InstructionGraph,
    profile: Profile,
    device: Device,
    cluster: Cluster,
    times_s: ArrayLike | None = None,
    *,
    across_nodes: bool = False,
) -> tuple[ShardedProfile, ...]:
    """The shardings by which neighbouring devices can share a micro-batch of a step.

    For t = 2, 4, 8, … as far as it divides a node's devices: the choice of classes with which the whole step takes the
    least time on t devices, that of least memory, and what lies between; names tell which is which. Of choices of one
    degree, none is both slower and no smaller than another. Degrees by which nothing divides are left out.

    Args:
        module, sharding, graph: of one training step.
        profile: what `profile_from_graph` makes of the graph and the times.
        device: of which the cluster is made; launches, and without `times_s` all times, are by its roofline.
        times_s: [n] time of each instruction if it was not the roofline's, seconds.
        across_nodes: whether to add degrees of several whole nodes, which only plans of one stage can use.

    Raises:
        BadInput: the profile is of another step or of other times, or the device has no rate for a type in it.
    """
    step, times = StepClasses(module, sharding, graph), step_times(graph, device, times_s)
    divisible = DivisibleProfile(step, times, profile, device)
    search = _Search(profile.model, sharding, sharding_work(step, divisible.times), cluster, device.constants.launch_s)
    return tuple(
        divisible.partitioned(choice.classes, degree, name)
        for degree in degrees(cluster, across_nodes=across_nodes)
        for name, choice in _named(degree, search.front(degree))
    )


def degrees(cluster: Cluster, *, across_nodes: bool = False) -> tuple[int, ...]:
    """Powers of two that divide a node's devices, and, across nodes, whole nodes whose number divides the cluster's."""
    per_node, nodes = cluster.devices_per_node, cluster.nodes
    inside = [2**i for i in range(1, per_node.bit_length()) if per_node % 2**i == 0]
    beyond = [n * per_node for n in range(2, nodes + 1) if nodes % n == 0]
    return (*inside, *(beyond if across_nodes else ()))


class _Choice(NamedTuple):
    """Classes that are sharded together, and what that comes to for the whole step."""

    time_s: float
    memory_bytes: float
    classes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Search:
    """The cheapest choices of classes of a step along one axis; the cluster's own memory is no limit."""

    model: str
    sharding: ModuleSharding
    work: ShardingWork
    cluster: Cluster
    launch_s: float

    def front(self, degree: int) -> tuple[_Choice, ...]:
        """Choices from the fastest to the smallest; none where nothing divides by this degree."""
        try:
            self._problem(degree, "time", self.work.held_bytes)
        except BadInput:
            return ()
        return _undominated(self._choices(degree))

    def _choices(self, degree: int) -> Iterator[_Choice]:
        fastest = self._cheapest(degree, "time", self.work.held_bytes)
        smallest = self._cheapest(degree, "memory", self.work.held_bytes)
        yield from (fastest, smallest)
        spare = fastest.memory_bytes - smallest.memory_bytes
        if spare > NOTABLE * fastest.memory_bytes:
            for share in BETWEEN:
                yield self._cheapest(degree, "time", smallest.memory_bytes + share * spare)

    def _cheapest(self, degree: int, objective: Objective, memory_bytes: float) -> _Choice:
        result = ShardingMilpPlanner().solve(self._problem(degree, objective, memory_bytes))
        sharded = self.sharding.classes.sharded(result.required_plan().dims[0])
        return _Choice(result.cost.time_s, result.cost.memory_bytes, tuple(sharded.tolist()))

    def _problem(self, degree: int, objective: Objective, memory_bytes: float) -> ShardingProblem:
        cluster, mesh = self.cluster.with_memory(memory_bytes), (MeshAxis("model", degree),)
        return ShardingProblem(
            self.model, self.sharding.classes, cluster, mesh, objective, self.work, launch_s=self.launch_s
        )


def _undominated(choices: Iterator[_Choice]) -> tuple[_Choice, ...]:
    """From the fastest that shards anything on, each that takes notably less memory than all faster ones."""
    front: list[_Choice] = []
    for choice in sorted(choice for choice in choices if choice.classes):
        if not front or choice.memory_bytes < (1 - NOTABLE) * front[-1].memory_bytes:
            front.append(choice)
    return tuple(front)


def _named(degree: int, front: tuple[_Choice, ...]) -> list[tuple[str, _Choice]]:
    """`4-way` where there is no choice, else `4-way, least time`, `4-way, less memory`, `4-way, least memory`."""
    if len(front) < 2:
        return [(f"{degree}-way", choice) for choice in front]
    between = ["less memory"] if len(front) == 3 else [f"less memory {i}" for i in range(1, len(front) - 1)]
    labels = ["least time", *between, "least memory"]
    return [(f"{degree}-way, {what}", choice) for what, choice in zip(labels, front, strict=True)]
