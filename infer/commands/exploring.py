"""From the arguments of `automap-plan` to an exploration, by way of the cache."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import automap_models
from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints, Pin
from automap_models.core.microbatch import microbatch_size, with_microbatch_size
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import DEFAULT_STATE_FACTOR
from automap_models.cost.roofline import Device
from automap_models.errors import BadInput
from automap_models.formats.cache import Cache, cache_folder, fingerprint
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.device_yaml import read_device
from automap_models.formats.files import read_profile
from automap_models.formats.hybrid_json import read_hybrid_plan
from automap_models.formats.json_fields import read_json
from automap_models.formats.plan_json import read_plan
from automap_models.formats.plan_report import KIND as PIPELINE
from automap_models.formats.plan_report import cluster_document
from automap_models.formats.profiled_model_npz import model_from_npz, model_to_npz
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import DEFAULT_BUDGET_S, Exploration, ExploreOptions, explore
from automap_models.planners.portfolio.space import Space
from automap_models.planners.portfolio.store import exploration_from_json, exploration_to_json

from ..reports.progress import Steps
from ..sources import DEFAULT_DEVICE, Kind, kind_of, module_of, require_applicable

if TYPE_CHECKING:
    from automap_models.hlo.adapter import Module

RULES = "shardy"
"""What may be partitioned: all that propagates."""
_TRACERS = ("jax", "flax", "optax")


@dataclass(frozen=True)
class Explored:
    """What the command came to.

    Attributes:
        exploration: the plans.
        options: how they were looked for.
        taken_s: from the arguments to the plans.
        cached: whether they come from the cache.
    """

    exploration: Exploration
    options: ExploreOptions
    taken_s: float
    cached: bool


def explored(arguments: argparse.Namespace) -> Explored:
    """Profile once, look at every kind of plan; or take what a former run with the same arguments came to.

    Raises:
        BadInput: an argument or a file cannot be used, or constraints contradict one another.
        Infeasible: no plan fits.
        UserCodeError: the user's own code raised.
    """
    begun = time.perf_counter()
    source = _source(arguments)
    cluster, constraints = _cluster(arguments), _constraints(arguments)
    cache = _cache(arguments)
    with Steps() as steps:
        options = ExploreOptions(
            constraints, arguments.budget or DEFAULT_BUDGET_S, arguments.thorough, arguments.seed, steps.begin
        )
        key, model = _model(source, arguments, cluster, cache, steps)
        space = Space(
            model,
            cluster,
            arguments.global_batch,
            DEFAULT_STATE_FACTOR if arguments.state_factor is None else arguments.state_factor,
            arguments.max_stages,
        )
        key = f"plans-{fingerprint({'model': key, **_asked(arguments, cluster)})}"
        found = _remembered(cache.read(key), space)
        cached = found is not None
        if found is None:
            found = explore(space, options)
            cache.write(key, exploration_to_json(found))
    return Explored(found, options, time.perf_counter() - begun, cached)


def read_back(arguments: argparse.Namespace) -> Candidate:
    """The plan in a file, whichever kind it is of, costed again.

    Raises:
        BadInput: an argument or a file cannot be used, or the plan belongs to another model or cluster.
        Infeasible: it does not fit.
        UserCodeError: the user's own code raised.
    """
    source, cluster = _source(arguments), _cluster(arguments)
    with Steps() as steps:
        _, model = _model(source, arguments, cluster, _cache(arguments), steps)
    if read_json(arguments.plan).any("kind") == PIPELINE:
        problem, plan = read_plan(arguments.plan, model.profile, cluster)
        return Candidate(problem, plan, plan.optimality)
    hybrid, whole = read_hybrid_plan(arguments.plan, model, cluster)
    return Candidate(hybrid, whole, whole.optimality)


def _source(arguments: argparse.Namespace) -> Kind:
    source = kind_of(arguments.what)
    require_applicable(source, arguments)
    return source


def _cache(arguments: argparse.Namespace) -> Cache:
    return Cache(None if arguments.no_cache else cache_folder())


def _cluster(arguments: argparse.Namespace) -> Cluster:
    cluster = read_cluster(arguments.topo)
    if arguments.memory is None:
        return cluster
    if arguments.memory > cluster.memory:
        what = f"{arguments.memory:g} bytes are more than the {cluster.memory:g} of a device of cluster {cluster.name}"
        raise BadInput(what, where="--memory", do="give less, or another cluster")
    return replace(cluster, memory=arguments.memory)


def _constraints(arguments: argparse.Namespace) -> Constraints:
    return Constraints(
        pins=tuple(map(Pin.parse, arguments.pin)),
        together=tuple(arguments.keep_together),
        max_stages=arguments.max_stages,
        forbidden=frozenset(arguments.forbid),
    )


def _asked(arguments: argparse.Namespace, cluster: Cluster) -> dict[str, object]:
    """Everything but the model that the plans depend on, as plain data."""
    names = ("global_batch", "microbatch_size", "state_factor", "pin", "keep_together", "max_stages", "forbid")
    asked = {name: getattr(arguments, name) for name in (*names, "budget", "thorough", "seed")}
    return {**asked, "cluster": cluster_document(cluster), "automap": automap_models.__version__}


def _remembered(entry: bytes | None, space: Space) -> Exploration | None:
    """The exploration in the cache; None where there is none of this space."""
    if entry is None:
        return None
    try:
        return exploration_from_json(entry, space)
    except BadInput:
        return None


def _sized(model: ProfiledModel, samples: int | None) -> ProfiledModel:
    """The model, its profile with the micro-batch size that the arguments give it."""
    if samples is None:
        return model
    own = microbatch_size(model.profile)
    if own not in (None, samples):
        raise BadInput(f"the profile says {own} samples itself", where="--microbatch-size", do="leave it out")
    return replace(model, profile=with_microbatch_size(model.profile, samples))


def _model(
    source: Kind, arguments: argparse.Namespace, cluster: Cluster, cache: Cache, steps: Steps
) -> tuple[str, ProfiledModel]:
    """The model, profiled once, and what identifies it; what user code prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        if source is Kind.PROFILE:
            key, model = _digest(Path(arguments.what).read_bytes()), ProfiledModel(read_profile(arguments.what))
        else:
            key, model = _traced_model(source, arguments, cluster, cache, steps)
    return key, _sized(model, arguments.microbatch_size)


def _traced_model(
    source: Kind, arguments: argparse.Namespace, cluster: Cluster, cache: Cache, steps: Steps
) -> tuple[str, ProfiledModel]:
    """The model of a training step.

    A built-in model is known by its name, its sizes and the versions that trace it, a file by its content: what the
    cache has of them needs no tracing. A factory may return anything: it is traced, and known by its module's text.
    """
    device = read_device(arguments.device or DEFAULT_DEVICE)
    module = None
    if source is Kind.FACTORY:
        steps.begin(f"tracing {arguments.what}")
        module = module_of(source, arguments)
    key = fingerprint({"step": _step(source, arguments, module), **_circumstances(device, cluster)})
    entry = cache.read(f"model-{key}")
    if entry is not None:
        with contextlib.suppress(BadInput):
            return key, model_from_npz(entry)
    if module is None:
        steps.begin(f"tracing {arguments.what}")
        module = module_of(source, arguments)
    model = _profiled(module, device, cluster, steps)
    cache.write(f"model-{key}", model_to_npz(model))
    return key, model


def _profiled(module: Module, device: Device, cluster: Cluster, steps: Steps) -> ProfiledModel:
    steps.begin(f"costing {len(module.operations):,} instructions")
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.planners.portfolio.model import profiled_model

    return profiled_model(module, instruction_graph(module), device, cluster, read_rule_set(RULES), steps.begin)


def _step(source: Kind, arguments: argparse.Namespace, module: Module | None) -> Mapping[str, object]:
    """What identifies a training step."""
    if module is not None:
        kinds = [[each.name, each.kind] for each in module.arguments]
        text = module.mlir.operation.get_asm(enable_debug_info=True)  # layers stand in its locations
        return {"factory": arguments.what, "arguments": kinds, "module": _digest(text.encode())}
    if source is Kind.MODULE:
        return {"file": _digest(Path(arguments.what).read_bytes()), "trainable": arguments.trainable}
    return {name: getattr(arguments, name) for name in ("what", "batch", "sequence", "dtype")}


def _circumstances(device: Device, cluster: Cluster) -> dict[str, object]:
    """What else a profiled model depends on; a device's memory limits no partitioning."""
    return {
        "device": {**asdict(device), "matrix": dict(device.matrix)},
        "cluster": {name: value for name, value in cluster_document(cluster).items() if name not in ("name", "memory")},
        "rules": RULES,
        "versions": {"automap": automap_models.__version__, **{name: _version(name) for name in _TRACERS}},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
