"""A traced training step, profiled once for all kinds of plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.mesh import MeshAxis
from automap_models.core.microbatch import microbatch_size
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import REPLICATED
from automap_models.cost.kernels import roofline_times
from automap_models.errors import BadInput
from automap_models.hlo.graph import rules_of
from automap_models.hlo.module import Module
from automap_models.hlo.profile import profile_from_graph
from automap_models.hlo.rule_sets import RuleSet
from automap_models.hlo.sharding_classes import ModuleSharding, sharding_classes
from automap_models.planners.sharding.milp import ShardingMilpPlanner
from automap_models.planners.staged.stage_shardings import stage_shardings

Watch = Callable[[str], None]
"""Is told what is being done."""


def profiled_model(
    module: Module, graph: InstructionGraph, device: Device, cluster: Cluster, rules: RuleSet, watch: Watch
) -> ProfiledModel:
    """Profile a step by a device's roofline, and find out how it can be partitioned on a cluster.

    Args:
        graph: of the module.
        rules: what may be partitioned.

    Raises:
        BadInput: the step has no backward pass or no parameters, or the device no rate for one of its types.
    """
    meta = {"times": "roofline, not measured", "device": device.name}
    profile = profile_from_graph(graph, roofline_times(graph, device), meta)
    watch(f"propagating through {len(module.operations):,} operations")
    sharding = sharding_classes(module, rules_of(module), rules)
    watch("finding out what can be partitioned")
    batch_dims = _batch_dims(profile, sharding, cluster, rules.name)
    shardings = stage_shardings(module, sharding, graph, profile, device, cluster, across_nodes=True)
    notes = () if shardings else ("no operator can be partitioned over several devices of this cluster",)
    return ProfiledModel(profile, shardings, device.launch_s, batch_dims, notes)


def _batch_dims(profile: Profile, sharding: ModuleSharding, cluster: Cluster, rules: str) -> dict[str, int]:
    """The dimension of each input that auto data parallelism partitions (Auto-MAP §3.3); those it cannot are left out.

    The axis is as large as the cluster and the traced micro-batch let it be: what divides these samples divides others.
    Parameters stay whole: of a step with one input, partitioning its features would be as good a plan by the count.
    """
    devices, classes = math.gcd(microbatch_size(profile) or 1, cluster.devices), sharding.classes
    if devices < 2:
        return {}
    of_parameters = np.array([variable.kind == "parameter" for variable in classes.variables])[classes.dim_variables]
    whole = np.bincount(classes.dim_classes[of_parameters], minlength=len(classes)) > 0
    divisible = replace(classes, divisors=np.where(whole, 1, classes.divisors))
    try:
        problem = ShardingProblem(profile.model, divisible, cluster, (MeshAxis("data", devices),), rules=rules)
    except BadInput:  # nothing divides
        return {}
    inputs = ShardingMilpPlanner().plan(problem).candidates()
    return {variable.name: dim for variable, dim in inputs.items() if dim != REPLICATED}
