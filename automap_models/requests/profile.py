"""The profile of one micro-batch of a training step, and what else a model's source is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.microbatch import sized
from automap_models.core.model_work import ModelWork
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.errors import BadInput
from automap_models.export.targets import target_by_name
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_device
from automap_models.planners.base import Progress, Watch
from automap_models.requests import ExportRequest, PlanRequest, ProfileRequest, device_on
from automap_models.workloads.source import (
    Begin,
    Framework,
    Source,
    SourceKind,
    profile_source,
    require_no_model,
)


def solve(request: ProfileRequest, watch: Watch) -> Profile | None:
    """Read, trace, cost or measure, whatever the profile takes; None where no model is meant."""
    if request.source is None:
        return None
    profile = profiled(request.source, request.device, watch, request.framework, request.measuring)
    return profile if request.model is None else replace(profile, meta={**profile.meta, "model": request.model})


def profiled(
    source: Source,
    device: str | Device | None,
    watch: Watch,
    framework: Framework | None = None,
    measuring: Mapping[str, Any] | None = None,
) -> Profile:
    """The profile of a source by the clock of a device, or measured; see `profile_source`."""
    if isinstance(source.model, ProfiledModel | ModelWork):
        return _given(source.model).profile
    timed = device if isinstance(device, Device) else read_device(device or DEFAULT_DEVICE)

    def advance(done: int, total: int | None, what: str) -> None:
        watch(Progress(what, done, total))

    return profile_source(source, framework, timed, measuring, begin_of(watch), advance)


def profiled_model(
    request: PlanRequest | ExportRequest, cluster: Cluster, watch: Watch, *, cached: bool
) -> ProfiledModel:
    """The model with what its operators can be partitioned by on a cluster."""
    from automap_models.planners.portfolio.model import profiled_once

    source, size = request.source, request.microbatch_size
    assert source is not None
    if source.kind is SourceKind.FACTORY:
        _require_code(request)
    if isinstance(source.model, ProfiledModel | ModelWork):
        model = _given(source.model)
        model = replace(model, profile=sized(model.profile, size))
    else:
        device, cache = device_on(cluster, request.device), Cache(cache_folder() if cached else None)
        model = profiled_once(source, device, size, cluster, cache, begin_of(watch))
    if model.profile.own_code:
        _require_code(request)
    return model


def _require_code(request: PlanRequest | ExportRequest) -> None:
    """Refuse a framework that lacks the code of the model, one of the user's own, before that is traced.

    Raises:
        BadInput: naming what trains it.
    """
    option = "to" if isinstance(request, ExportRequest) else "target"
    name = getattr(request, option, None)
    limits = None if name is None else target_by_name(name).limits
    objection = None if limits is None else limits.code_objection(own_code=True)
    if objection is not None:
        raise BadInput(objection.what, where=f"`{option}`", do=objection.do)


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
