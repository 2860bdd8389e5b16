"""The profile of one micro-batch of a training step, and what else a model's source is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.microbatch import sized
from automap_models.core.model_work import ModelWork
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.errors import BadInput, is_of_type
from automap_models.export.targets import target_by_name
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_device
from automap_models.hlo.step import TrainingStep
from automap_models.planners.base import Progress, Watch
from automap_models.requests import ExportRequest, PlanRequest, ProfileRequest, device_on
from automap_models.workloads.source import (
    OF_CONFIG,
    OF_KINDS,
    Begin,
    Source,
    SourceKind,
    framework_of,
    profile_source,
    require_no_model,
    source_kind,
)


def solve(request: ProfileRequest, watch: Watch) -> Profile | None:
    """Read, trace, cost or measure, whatever the profile takes; None where no model is meant."""
    if request.source is None:
        return None
    profile = profiled(request.source, request.device, watch, request.measuring)
    return profile if request.model is None else replace(profile, meta={**profile.meta, "model": request.model})


def profiled(
    source: Source,
    device: str | Device | None,
    watch: Watch,
    measuring: Mapping[str, Any] | None = None,
) -> Profile:
    """The profile of a source by the clock of a device, or measured; see `profile_source`."""
    if isinstance(source.model, ProfiledModel | ModelWork):
        return _given(source.model).profile
    timed = device if isinstance(device, Device) else read_device(device or DEFAULT_DEVICE)

    def advance(done: int, total: int | None, what: str) -> None:
        watch(Progress(what, done, total))

    return profile_source(source, timed, measuring, begin_of(watch), advance)


def profiled_model(
    request: PlanRequest | ExportRequest, cluster: Cluster, watch: Watch, *, cached: bool
) -> ProfiledModel:
    """The model with what its operators can be partitioned by on a cluster."""
    from automap_models.planners.portfolio.model import profiled_once

    source, size = request.source, request.microbatch_size
    assert source is not None
    if source.kind is SourceKind.FACTORY:
        _require_code(request, source)
    if isinstance(source.model, ProfiledModel | ModelWork):
        model = _given(source.model)
        model = replace(model, profile=sized(model.profile, size))
    else:
        device, cache = device_on(cluster, request.device), Cache(cache_folder() if cached else None)
        model = profiled_once(source, device, size, cluster, cache, begin_of(watch))
    if model.profile.own_code:
        _require_code(request, source)
    return model


def _require_code(request: PlanRequest | ExportRequest, source: Source) -> None:
    """Refuse a framework that lacks the code of the model, one of the user's own, before that is traced.

    Raises:
        BadInput: naming what trains it.
    """
    name = request.to if isinstance(request, ExportRequest) else getattr(request, "target", None)
    limits = None if name is None else target_by_name(name).limits
    objection = None if limits is None else limits.code_objection(own_code=True)
    if objection is not None:
        raise BadInput(objection.what, where=source.what, do=objection.do)


def _given(model: ProfiledModel | ModelWork) -> ProfiledModel:
    """A model that is profiled already; the work of one has no instructions."""
    if isinstance(model, ModelWork):
        do = "give the name of the model"
        raise BadInput("is the work of a model, of which strategies are searched and priced", where="`model`", do=do)
    return model


def begin_of(watch: Watch) -> Begin:
    """Tells a watcher that something of unknown length begins."""
    return lambda what: watch(Progress(what))


def sized_profile(path: Path, size: int | None = None) -> Profile:
    """The profile in a file, with the micro-batch size that the user gives it.

    Raises:
        BadInput: it cannot be read, or says another size itself.
    """
    require_no_model(path)
    return sized(read_profile(path), size)


OF_SOURCES = ("batch", "sequence", "dtype", "trainable", *OF_CONFIG)
"""Options that say which training step of a model by name is meant."""


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a source and of measuring; None is the default of each."""

    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None
    trainable: tuple[str, ...] = ()
    dropout: bool = False
    images: int | None = None
    image_tokens: int | None = None
    mtp: int | None = None
    repeats: int | None = None
    warmup: int | None = None
    seed: int | None = None


def source_of(model: object, inputs: object, options: ProfileOptions) -> Source:
    """Where the model comes from: a name or a file, or the object itself as a factory would return it."""
    if inputs is not None and isinstance(model, (str, os.PathLike, Profile, ProfiledModel, ModelWork)):
        raise BadInput(f"{model} brings its own", where="`inputs`", do="leave it out")
    if isinstance(model, (str, os.PathLike)):
        what = os.fspath(model)
        kind = source_kind(what)
        foreign = (name for name, kinds in OF_KINDS.items() if kind not in kinds)
        if name := next((name for name in foreign if getattr(options, name) not in (None, False)), ""):
            raise BadInput(f"{what} {kind.value}", where=f"`{name}`", do="leave it out")
        return Source(what, kind, **{name: getattr(options, name) for name in OF_SOURCES})
    for name in OF_SOURCES:
        if getattr(options, name) not in (None, False, ()):
            raise BadInput("is for the name of a model", where=f"`{name}`", do="leave it out: the model has its own")
    if isinstance(model, (Profile, ProfiledModel)):
        model = ProfiledModel(model) if isinstance(model, Profile) else model
        return Source(model.profile.model, SourceKind.PROFILE, model=model)
    if isinstance(model, ModelWork):
        return Source(model.shape.name, SourceKind.WORKLOAD, model=model)
    name = str(getattr(model, "name", None) or getattr(model, "__name__", None) or type(model).__name__)
    if framework_of(model) == "torch":
        from torch import Tensor

        if not isinstance(inputs, (Tensor, tuple, list, Mapping)):
            do = "give a tensor, a tuple of positional or a dict of keyword arguments"
            raise BadInput(is_of_type(inputs), where="`inputs`", do=do)
        return Source(name, SourceKind.FACTORY, model=(model, inputs))
    if isinstance(model, TrainingStep):
        return Source(name, SourceKind.FACTORY, model=model)
    if not callable(model):
        do = "give a Profile, a PyTorch module, a JAX training step, the name of a model or a file"
        raise BadInput(is_of_type(model), where="`model`", do=do)
    if not isinstance(inputs, (tuple, list)):
        do = "give the tuple of the step's arguments, the trainable parameters first and the batch last"
        raise BadInput(is_of_type(inputs), where="`inputs`", do=do)
    return Source(name, SourceKind.FACTORY, model=(model, tuple(inputs)))
