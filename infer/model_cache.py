"""A model profiled once: read from its file, or traced, costed and kept in the cache under what identifies it."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.microbatch import microbatch_size, with_microbatch_size
from automap_models.core.profiled_model import ProfiledModel
from automap_models.errors import BadInput
from automap_models.formats.cache import Cache, fingerprint
from automap_models.formats.device_yaml import read_device
from automap_models.formats.files import read_profile
from automap_models.formats.plan_json import cluster_document
from automap_models.formats.profiled_model_npz import model_from_npz, model_to_npz
from automap_models.version import __version__

from .reports.progress import Steps
from .requests import Source, SourceKind
from .sources import DEFAULT_DEVICE, module_of

if TYPE_CHECKING:
    from automap_models.hlo.adapter import Module

RULES = "shardy"
"""What may be partitioned: all that propagates."""
_TRACERS = ("jax", "flax", "optax")


def profiled_once(
    source: Source, device: str | None, microbatch_size: int | None, cluster: Cluster, cache: Cache, steps: Steps
) -> tuple[str, ProfiledModel]:
    """What identifies the model, and the model; what user code prints goes to stderr.

    Args:
        device: roofline of a model's times, by name or file; None for the default.
        microbatch_size: samples in the profiled micro-batch of a profile that does not say.

    Raises:
        BadInput: it cannot be read, traced or costed.
        UserCodeError: the user's own code raised.
    """
    with contextlib.redirect_stdout(sys.stderr):
        if source.kind is SourceKind.PROFILE:
            model = ProfiledModel(read_profile(source.what))  # before the digest: a device such as /dev/zero never ends
            key = _digest(Path(source.what).read_bytes())
        else:
            key, model = _traced_model(source, device, cluster, cache, steps)
    return key, _sized(model, microbatch_size)


def _sized(model: ProfiledModel, samples: int | None) -> ProfiledModel:
    """The model, its profile with the micro-batch size that the arguments give it."""
    if samples is None:
        return model
    own = microbatch_size(model.profile)
    if own not in (None, samples):
        raise BadInput(f"the profile says {own} samples itself", where="--microbatch-size", do="leave it out")
    return replace(model, profile=with_microbatch_size(model.profile, samples))


def _traced_model(
    source: Source, device_name: str | None, cluster: Cluster, cache: Cache, steps: Steps
) -> tuple[str, ProfiledModel]:
    """The model of a training step.

    A built-in model is known by its name, its sizes and the versions that trace it, a file by its content: what the
    cache has of them needs no tracing. A factory may return anything: it is traced, and known by its module's text.
    """
    device = read_device(device_name or DEFAULT_DEVICE)
    module = None
    if source.kind is SourceKind.FACTORY:
        steps.begin(f"tracing {source.what}")
        module = module_of(source)
    key = fingerprint({"step": _step(source, module), **_circumstances(device, cluster)})
    entry = cache.read(f"model-{key}")
    if entry is not None:
        with contextlib.suppress(BadInput):
            return key, model_from_npz(entry)
    if module is None:
        steps.begin(f"tracing {source.what}")
        module = module_of(source)
    model = _profiled(module, device, cluster, steps)
    cache.write(f"model-{key}", model_to_npz(model))
    return key, model


def _profiled(module: Module, device: Device, cluster: Cluster, steps: Steps) -> ProfiledModel:
    steps.begin(f"costing {len(module.operations):,} instructions")
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.planners.portfolio.model import profiled_model

    return profiled_model(module, instruction_graph(module), device, cluster, read_rule_set(RULES), steps.begin)


def _step(source: Source, module: Module | None) -> Mapping[str, object]:
    """What identifies a training step."""
    if module is not None:
        kinds = [[argument.name, argument.kind] for argument in module.arguments]
        text = module.mlir.operation.get_asm(enable_debug_info=True)  # layers stand in its locations
        return {"factory": source.what, "arguments": kinds, "module": _digest(text.encode())}
    if source.kind is SourceKind.MODULE:
        return {"file": _digest(Path(source.what).read_bytes()), "trainable": source.trainable}
    return {"what": source.what, **source.sizes}


def _circumstances(device: Device, cluster: Cluster) -> dict[str, object]:
    """What else a profiled model depends on; a device's memory limits no partitioning."""
    return {
        "device": {**asdict(device), "matrix": dict(device.matrix)},
        "cluster": {name: value for name, value in cluster_document(cluster).items() if name not in ("name", "memory")},
        "rules": RULES,
        "versions": {"automap": __version__, **{name: _version(name) for name in _TRACERS}},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
