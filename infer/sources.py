"""Where a model comes from, a file, a built-in model or a factory, and the way from there to a profile.

A model is profiled once: what is traced and costed is kept in the cache under what identifies it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_models import workloads
from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.microbatch import sized
from automap_models.core.profiled_model import ProfiledModel
from automap_models.errors import BadInput
from automap_models.formats.cache import Cache, fingerprint
from automap_models.formats.device_yaml import read_device
from automap_models.formats.files import holds_module, read_profile
from automap_models.formats.plan_json import cluster_document
from automap_models.formats.profiled_model_npz import model_from_npz, model_to_npz
from automap_models.resources import exists
from automap_models.user_code import call_factory, user_code
from automap_models.version import __version__

from .reports.text import Steps
from .requests import ProfileRequest, Source, SourceKind

if TYPE_CHECKING:
    from automap_models.core.device import Device
    from automap_models.core.instruction_graph import InstructionGraph
    from automap_models.core.profile import Profile
    from automap_models.hlo.module import Module

DEFAULT_DEVICE = "v100"


MODELS = (SourceKind.WORKLOAD, SourceKind.FACTORY)
STEPS = (SourceKind.MODULE, *MODELS)
APPLIES: Mapping[str, tuple[SourceKind, ...]] = {
    "framework": MODELS,
    "batch": MODELS,
    "sequence": MODELS,
    "dtype": MODELS,
    "trainable": (SourceKind.MODULE,),
    "device": STEPS,
    "measure": STEPS,
    "nodes": STEPS,
    "accelerator": STEPS,
    "host": STEPS,
    "link": STEPS,
}
"""Option → what it can be given for."""

_FACTORY = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:\w+")
_WORD = re.compile(r"[\w-]+")
_OTHER_FILES: Mapping[str, tuple[str, str]] = {
    ".py": ("is Python source", "name the factory in it, as in my_package.my_module:make_step"),
    ".pb": ("is a protocol buffer", "give XLA's dump as text: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'"),
}
"""Ending → what such a file is and what to give in its place."""


def source_of(options: Mapping[str, Any]) -> Source:
    """The source that a command's arguments name, all of which apply to it.

    Args:
        options: all arguments by name, `what` and those of APPLIES that the command has among them.

    Raises:
        BadInput: `what` looks like a name and is none, the file cannot be read, or an option does not apply.
    """
    what = str(options["what"])
    kind = kind_of(what)
    for name, kinds in APPLIES.items():
        if options.get(name) and kind not in kinds:
            raise superfluous(name, f"{what} {kind.value}")
    return Source(
        what, kind, options["batch"], options["sequence"], options["dtype"], tuple(options["trainable"] or ())
    )


def step_source(options: Mapping[str, Any], *, verified: bool = False) -> Source:
    """The same where operations are needed; with `verified`, where the step is run, too.

    Raises:
        BadInput: as `source_of`; or it is a profile; or cannot be run.
    """
    source = source_of(options)
    if source.kind not in STEPS:
        do = "give a model, a factory or an HLO file"
        raise BadInput("is a profile, without operations to partition", where=source.what, do=do)
    if verified and source.kind not in MODELS:
        raise BadInput(f"{source.what} {source.kind.value}", where="--verify", do="give a model or a factory to run")
    return source


def kind_of(what: str) -> SourceKind:
    """What it is: a model's name before a file of that name (`./bert48` is the file).

    Raises:
        BadInput: it looks like a name and is none, or the file cannot be read.
    """
    if what in workloads.names():
        return SourceKind.WORKLOAD
    path = Path(what)
    if not exists(path):
        if _FACTORY.fullmatch(what):
            return SourceKind.FACTORY
        if _WORD.fullmatch(what):
            raise _unknown_name(what)
        if ":" in path.name:
            do = "write a factory as my_package.my_module:make_step, without folders and .py"
            raise BadInput("is neither a file nor the name of a factory", where=what, do=do)
    elif path.suffix in _OTHER_FILES:
        why, do = _OTHER_FILES[path.suffix]
        raise BadInput(why, where=what, do=do)
    return SourceKind.MODULE if holds_module(path) else SourceKind.PROFILE


def require_no_model(what: Path) -> None:
    """Refuse what only `automap-profile` understands where a profile is asked for.

    Raises:
        BadInput: it is no file but a model's name or a factory.
    """
    name = str(what)
    if not exists(what) and (name in workloads.names() or _FACTORY.fullmatch(name)):
        raise BadInput(
            "is a model, not a profile", where=name, do=f"run automap-profile {name} -o profile.npz first and plan that"
        )


def _unknown_name(what: str) -> BadInput:
    known = workloads.names()
    close = difflib.get_close_matches(what, known, n=1)
    hint = f"did you mean {close[0]}? See" if close else f"known are {', '.join(known)}; see"
    return BadInput("is neither a file nor a known model", where=what, do=f"{hint} automap-profile --list")


def superfluous(name: str, why: str) -> BadInput:
    """An option that means nothing here, as an error."""
    return BadInput(f"does not apply: {why}", where=f"--{name}", do="leave it out")


def profile_of(request: ProfileRequest) -> Profile:
    """Read, trace, cost or measure: whatever the profile takes. What user code prints goes to stderr.

    Raises:
        BadInput: it cannot be done, see each of the ways.
        UserCodeError: the user's own code raised.
    """
    source = request.source
    if source is None:
        raise ValueError("there is no source to profile")
    if source.kind is SourceKind.PROFILE:
        profile = read_profile(source.what)
    else:
        device = read_device(request.device or DEFAULT_DEVICE) if request.measuring is None else None
        profile_by = _torch_profile if request.framework == "torch" else _jax_profile
        with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
            profile = profile_by(source, device, request.measuring or {}, steps)
    if request.model is None:
        return profile
    return replace(profile, meta={**profile.meta, "model": request.model})


def _jax_profile(source: Source, device: Device | None, measuring: Mapping[str, Any], steps: Steps) -> Profile:
    from automap_models.hlo.profile import profile_from_graph

    module, graph = traced(source, steps)
    if device is None:
        from automap_models.hlo.measure import measure_times

        measured = measure_times(module, graph=graph, progress=steps.advance, **measuring)
        return profile_from_graph(graph, measured.times_s, measured.meta)
    from automap_models.cost.kernels import roofline_times

    meta = {"times": "roofline, not measured", "device": device.name}
    return profile_from_graph(graph, roofline_times(graph, device), meta)


def traced(source: Source, steps: Steps) -> tuple[Module, InstructionGraph]:
    """The module of an HLO file or of a JAX model's training step, and its instruction graph.

    Raises:
        BadInput: it cannot be read or traced.
        UserCodeError: the user's own code raised.
    """
    steps.begin(f"{'tracing' if source.kind in MODELS else 'reading'} {source.what}")
    from automap_models.hlo.graph import instruction_graph

    module = module_of(source)
    steps.begin(f"costing {len(module.operations):,} instructions")
    return module, instruction_graph(module)


def module_of(source: Source) -> Module:
    """The module of an HLO file or of a JAX model's training step.

    Raises:
        BadInput: it cannot be read or traced.
        UserCodeError: the user's own code raised.
    """
    from automap_models.hlo.adapter import read_module, trace

    if source.kind is SourceKind.MODULE:
        return read_module(source.what, trainable=source.trainable)
    build = workloads.build if source.kind is SourceKind.WORKLOAD else workloads.from_factory
    step = build(source.what, **source.sizes)
    with user_code(source.what) if source.kind is SourceKind.FACTORY else contextlib.nullcontext():
        return trace(step)


def _torch_profile(source: Source, device: Device | None, measuring: Mapping[str, Any], steps: Steps) -> Profile:
    steps.begin("importing torch")
    from automap_models.torch_export.example import read_example
    from automap_models.torch_export.measure import measure_module
    from automap_models.torch_export.profile import profile_module

    steps.begin(f"building {source.what}")
    example = read_example(call_factory(source.what, **source.sizes), source.what)
    step = (example.model, example.args, example.kwargs)
    if device is None:
        steps.begin(f"measuring {source.what}")
        return measure_module(*step, **measuring)
    steps.begin(f"exporting {source.what}")
    return profile_module(*step, device=device)


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
    return key, replace(model, profile=sized(model.profile, microbatch_size))


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
