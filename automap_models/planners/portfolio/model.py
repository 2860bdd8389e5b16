"""A model, profiled once for all kinds of plans; what is traced and costed is kept in the cache."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import distributions

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.layers import loop_notes
from automap_models.core.mesh import MeshAxis
from automap_models.core.microbatch import microbatch_size, sized
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import REPLICATED
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, fingerprint
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.schema import read_bytes
from automap_models.hlo.dimension_classes import ModuleSharding, sharding_classes
from automap_models.hlo.foreign import LARGEST_MODULE_BYTES
from automap_models.hlo.graph import instruction_graph, rules_of
from automap_models.hlo.module import MlirModule, Module
from automap_models.hlo.profile import clock_profile
from automap_models.hlo.rule_sets import RuleSet, read_rule_set
from automap_models.planners.sharding.milp import ShardingMilpPlanner
from automap_models.planners.staged.stage_shardings import stage_shardings
from automap_models.version import __version__
from automap_models.workloads.config_json import config_file
from automap_models.workloads.source import Begin, Source, SourceKind, module_of

RULES = "shardy"
"""What may be partitioned: all that propagates."""
_TRACERS = ("jax", "flax", "optax", "torch")


def profiled_model(
    module: Module, graph: InstructionGraph, device: Device, cluster: Cluster, rules: RuleSet, begin: Begin
) -> ProfiledModel:
    """Profile a step by a device's clock, and find out how it can be partitioned on a cluster.

    Raises:
        BadInput: the step has no backward pass or no parameters, or the device no rate for one of its types.
    """
    profile = clock_profile(graph, device)
    begin(f"propagating through {len(module.operations):,} operations")
    sharding = sharding_classes(module, rules_of(module), rules)
    begin("finding out what can be partitioned")
    batch_dims = _batch_dims(profile, sharding, cluster, rules.name)
    shardings = stage_shardings(module, sharding, graph, profile, device, cluster, across_nodes=True)
    notes = () if shardings else ("no operator can be partitioned over several devices of this cluster",)
    return ProfiledModel(
        profile, shardings, device.constants.launch_s, batch_dims, (*notes, *loop_notes(profile), *module.notes)
    )


def _batch_dims(profile: Profile, sharding: ModuleSharding, cluster: Cluster, rules: str) -> dict[str, int]:
    """The dimension of each input that auto data parallelism partitions (Auto-MAP §3.3); those it cannot are left out.

    The axis is as large as the cluster and the traced micro-batch let it be: what divides these samples divides others.
    Parameters stay whole: of a step with one input, partitioning its features would be as good a plan by the count.
    """
    devices, classes = math.gcd(microbatch_size(profile) or 1, cluster.devices), sharding.classes
    if devices < 2:
        return {}
    of_parameters = np.array([variable.kind == "parameter" for variable in classes.variables])[classes.dim_variables]
    shares_all = np.bincount(classes.dim_classes[of_parameters], minlength=len(classes)) > 0
    divisible = replace(classes, divisors=np.where(shares_all, 1, classes.divisors))
    try:
        problem = ShardingProblem(profile.model, divisible, cluster, (MeshAxis("data", devices),), rules=rules)
    except BadInput:  # nothing divides
        return {}
    inputs = ShardingMilpPlanner().plan(problem).candidates()
    return {variable.name: dim for variable, dim in inputs.items() if dim != REPLICATED}


def profiled_once(
    source: Source, device: Device, microbatch_size: int | None, cluster: Cluster, cache: Cache, begin: Begin
) -> ProfiledModel:
    """The model of a source.

    A built-in model is known by its name, its sizes and the versions that trace it, a file by its content: what the
    cache has of them needs no tracing. A factory may return anything: it is traced, and known by its module's text.

    Args:
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.

    Raises:
        BadInput: it cannot be read, traced or costed.
        UserCodeError: the user's own code raised.
    """
    if source.kind is SourceKind.PROFILE:
        model = ProfiledModel(read_profile(source.what))
    else:
        model = _traced_model(source, device, cluster, cache, begin)
    return replace(model, profile=sized(model.profile, microbatch_size))


def _traced_model(source: Source, device: Device, cluster: Cluster, cache: Cache, begin: Begin) -> ProfiledModel:
    def traced() -> Module:
        begin(f"tracing {source.what}")
        return module_of(source)

    module = traced() if source.kind is SourceKind.FACTORY else None
    key = fingerprint({"step": _step(source, module), **_circumstances(device, cluster)})

    def costed() -> ProfiledModel:
        step = traced() if module is None else module
        begin(f"costing {len(step.operations):,} instructions")
        return profiled_model(step, instruction_graph(step), device, cluster, read_rule_set(RULES), begin)

    return cache.once(f"model-{key}", ProfiledModel, costed)


def _step(source: Source, module: Module | None) -> Mapping[str, object]:
    """What identifies a training step."""
    if module is not None:
        kinds = [[argument.name, argument.kind] for argument in module.arguments]
        if isinstance(module, MlirModule):
            text = module.mlir.operation.get_asm(enable_debug_info=True)  # layers stand in its locations
        else:
            text = repr((module.meta, module.argument_types, module.operations, module.outputs))
        return {"factory": source.what, "arguments": kinds, "module": _digest(text.encode())}
    if source.kind is SourceKind.MODULE:
        return {"file": _digest(read_bytes(source.what, LARGEST_MODULE_BYTES)), "trainable": source.trainable}
    sizes = {**source.sizes, "dropout": source.dropout}
    if source.kind is SourceKind.CONFIG:  # its path names the model
        path = config_file(source.what).resolve()
        return {"config": _digest(read_bytes(path)), "names": path.parts[-2:], **sizes}
    return {"what": source.what, **sizes}


def _circumstances(device: Device, cluster: Cluster) -> dict[str, object]:
    """What else a profiled model depends on; a device's memory limits no partitioning."""
    installed = {name: [package.version for package in distributions(name=name)] for name in _TRACERS}
    return {
        "device": {**asdict(device), "matrix": dict(device.matrix)},
        "cluster": {**ClusterDocument.from_cluster(cluster).builtins(), "name": None, "memory": None},
        "rules": RULES,
        "versions": {"automap": __version__, **installed},
    }


def _digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()
