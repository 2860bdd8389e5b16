"""Sharding problems of a traced training step, and what Shardy and data parallelism make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.mesh import Mesh, MeshAxis
from automap_models.core.result import Result
from automap_models.core.sharding import Collectives, Objective, ShardingPlan, ShardingProblem
from automap_models.cost.sharding import plan_price, replicated_price
from automap_models.errors import BadInput
from automap_models.formats.sharding_plan import ShardingReport
from automap_models.hlo.module import MlirModule
from automap_models.planners.sharding.milp import ShardingMilpPlanner
from automap_models.workloads.source import Begin, Source, module_of

if TYPE_CHECKING:
    from automap_models.hlo.dimension_classes import ModuleSharding
    from automap_models.hlo.module import Module
    from automap_models.hlo.rule_sets import RuleSet


@dataclass(frozen=True, eq=False)
class TracedSharding:
    """A traced step and the sharding classes of its variables.

    Attributes:
        sharding: classes under the rules.
    """

    module: Module
    sharding: ModuleSharding
    rules: str

    @classmethod
    def from_source(cls, source: Source, rule_set: RuleSet, begin: Begin) -> TracedSharding:
        """Trace a source and propagate shardings through its operations.

        Raises:
            BadInput: it cannot be read or traced.
            UserCodeError: the user's own code raised.
        """
        from automap_models.hlo.dimension_classes import sharding_classes
        from automap_models.hlo.graph import rules_of

        begin(f"tracing {source.what}")
        module = module_of(source, all_blocks=True)
        begin(f"propagating through {len(module.operations):,} operations")
        return cls(module, sharding_classes(module, rules_of(module), rule_set), rule_set.name)

    @cached_property
    def graph(self) -> InstructionGraph:
        """The step's instructions."""
        from automap_models.hlo.graph import instruction_graph

        return instruction_graph(self.module)

    def counted(self, cluster: Cluster, mesh: Mesh) -> ShardingProblem:
        """As many partitioned variables as possible.

        Raises:
            BadInput: nothing can be partitioned along the mesh.
        """
        return ShardingProblem(self.module.name, self.sharding.classes, cluster, mesh, rules=self.rules)

    def priced(
        self, cluster: Cluster, mesh: Mesh, objective: Objective, device: Device, *, reassociated: bool = True
    ) -> ShardingProblem:
        """The least time or memory of a step. On a mixed cluster all devices of the mesh wait for the slowest one.

        Args:
            device: whose clock the times are by.
            reassociated: whether sums of partial results are reduced once; XLA for CPUs reduces every one on its own.

        Raises:
            BadInput: nothing can be partitioned along the mesh, or the device has no rate for a type.
        """
        from automap_models.formats.hardware_yaml import known_devices, read_device
        from automap_models.hlo.clock import clock_seconds
        from automap_models.hlo.sharding_work import sharding_work, step_times
        from automap_models.hlo.step_classes import StepClasses

        classes, times = StepClasses(self.module, self.sharding, self.graph), step_times(self.graph, device)
        work = sharding_work(classes, times, reassociated=reassociated)
        if not cluster.is_known:
            seconds = clock_seconds(self.graph, [*map(read_device, known_devices()), device])
            cluster = cluster.relative_to(device.name, seconds, "float32")
        problem = self.counted(cluster, mesh)
        if cluster.slowdown is not None:
            slowest = float(cluster.slowdown[: math.prod(axis.size for axis in mesh)].max())
            work = replace(work, compute_s=slowest * work.compute_s, compute=slowest * work.compute)
        return replace(problem, objective=objective, work=work, launch_s=device.constants.launch_s)

    @property
    def runs_with_xla(self) -> bool:
        """Whether XLA can compile and run the step, and Shardy read it."""
        return isinstance(self.module, MlirModule)

    def inserted_by_shardy(self, plan: ShardingPlan) -> Mapping[str, Collectives] | None:
        """What Shardy's own propagation of a plan along all its axes inserts, by Shardy's word for it.

        None for a step of PyTorch's operators, which Shardy does not read.
        """
        if not isinstance(self.module, MlirModule):
            return None
        from automap_models.hlo.shardy import collectives

        inserted: dict[str, Collectives] = {}
        along = [(dims, axis.size) for dims, axis in zip(plan.dims, plan.mesh, strict=True)]
        for kind, nbytes in collectives(self.module, along):
            number, total = inserted.get(kind, Collectives(0, 0.0))
            inserted[kind] = Collectives(number + 1, total + nbytes)
        return inserted


def data_parallel_plan(problem: ShardingProblem) -> ShardingPlan | None:
    """The batch across all devices of the mesh; None where they do not divide it."""
    mesh = (MeshAxis("data", math.prod(axis.size for axis in problem.mesh)),)
    try:
        counted = replace(problem, mesh=mesh, objective="count")
    except BadInput:
        return None
    return ShardingMilpPlanner().plan(counted)


def price_report(result: Result[ShardingProblem, ShardingPlan], planning_s: Callable[[], float]) -> ShardingReport:
    """A plan and the prices beside it.

    Args:
        planning_s: seconds from the model to the plan, asked when all is done.

    Raises:
        Infeasible: the result has no plan.
    """
    result.required_plan()
    problem, price = result.problem, result.cost
    parallel = data_parallel_plan(problem)
    notes, memory = result.notes, problem.limit_bytes
    if price.memory_bytes > memory:
        notes = (*notes, f"needs {price.memory_bytes / 1e9:.1f} GB, a device has {memory / 1e9:.1f} GB")
    fields: dict[str, Any] = {**vars(result), "notes": notes}
    return ShardingReport(
        **fields,
        replicated=replicated_price(problem),
        data_parallel=plan_price(problem, parallel) if parallel else None,
        planning_s=planning_s(),
    )
