"""The constants of a kind of device and the numbers of a runtime, fitted to what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from automap_models.core.device import Device
from automap_models.cost.measured_step import DescribedModel, MeasuredPasses, MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.npz import read_npz
from automap_models.formats.runtime_yaml import RuntimeFile, file_with, numbers_of, read_runtime
from automap_models.planners.base import Watch
from automap_models.requests import CalibrateRequest
from automap_models.requests.profile import begin_of
from automap_models.simulate import calibration
from automap_models.simulate.calibration import CONSTANTS
from automap_models.simulate.observations import (
    FloatArray,
    MeasuredKind,
    SourceErrors,
    Values,
    errors_by_source,
    errors_of_all,
    pass_observation,
    step_observation,
)
from automap_models.simulate.runtime_numbers import NUMBERS
from automap_models.workloads.measured import described_model, measured_passes, passes_work, step_work

LEAST_STEPS = 3
"""That numbers of a runtime are fitted to, unless the pull is strong."""
STRONG_PULL = 5.0


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibration came to.

    Attributes:
        devices: names of those that were measured.
        device: with the fitted constants; None where they were not fitted.
        runtime: with the fitted numbers; None where they were not fitted.
        usual: the constants and numbers that were fitted, as they were, which they were pulled to.
        values: the same after the fit.
        resolution: of each, the share that the steps tell; the rest is the pull.
        steps: that they were fitted to.
        skipped: rows that cannot be priced.
        others: rows of other kinds of devices or other runtimes, or without seconds.
        before, fitted: errors by source of the numbers as they were, and of the fitted ones.
        left_out: the same of fits without the source, or without parts of the steps of a single one.
        together: errors of all in the fit, and of all when left out.
    """

    devices: tuple[str, ...]
    device: Device | None
    runtime: RuntimeFile | None
    usual: Values
    values: Values
    resolution: Values
    steps: int
    skipped: list[SkippedStep]
    others: int
    before: list[SourceErrors]
    fitted: list[SourceErrors]
    left_out: list[SourceErrors]
    together: tuple[SourceErrors, SourceErrors | None]


def solve(request: CalibrateRequest, watch: Watch) -> Calibrated:
    """Read the files, fit, and leave every source out in turn, or every tenth step of a single one."""
    runtime = None if request.runtime is None else read_runtime(request.runtime)
    devices = [read_device(name) for name in (request.device, *request.also) if name]
    steps, profiles, skipped, others = _read(request, runtime, {device.name for device in devices})
    devices = devices or [read_device(name) for name in sorted({step.device for step in steps})]
    constants = devices[0].constants
    numbers = {} if runtime is None else numbers_of(runtime, constants)
    usual = {**(asdict(constants) if request.device else {}), **numbers}
    pull = request.pull or (calibration.PULL if runtime is None else calibration.RUNTIME_PULL)
    observations = [step_observation(step, step_work(step), numbers) for step in steps]
    observations += [pass_observation(passes, passes_work(passes)) for passes in profiles]
    begin = begin_of(watch)
    begin(f"fitting {len(observations)} steps")
    kind = MeasuredKind(observations, devices)
    best = calibration.fit_resolved(kind, usual, pull)
    begin("leaving steps out in turn")
    # Errors of what a fit has seen say how well it fits; of a source left out, how far to trust it elsewhere.
    rest_s = calibration.left_out_s(kind, best.values, {name: usual[name] for name in best.values}, pull)
    fitted_s = calibration.predicted_s(kind, best.values)
    return Calibrated(
        devices=tuple(device.name for device in devices),
        device=_device(devices[0], best.values, kind.sources) if request.device else None,
        runtime=None if runtime is None else _runtime(runtime, best.values, steps, kind, rest_s),
        usual=usual,
        values={**usual, **best.values},
        resolution=best.resolution,
        steps=len(observations),
        skipped=skipped,
        others=others,
        before=errors_by_source(observations, calibration.predicted_s(kind, {})),
        fitted=errors_by_source(observations, fitted_s),
        left_out=errors_by_source(observations, rest_s),
        together=(
            errors_of_all(observations, fitted_s),
            errors_of_all(observations, rest_s) if rest_s.size else None,
        ),
    )


def _device(device: Device, values: Values, sources: Sequence[str]) -> Device:
    """The device with the constants among the numbers, which are fitted to steps of these sources."""
    constants = {name: value for name, value in values.items() if name in CONSTANTS}
    return replace(device, step=replace(device.constants, **constants), fitted_to=tuple(sources))


def _runtime(
    file: RuntimeFile,
    values: Values,
    steps: list[MeasuredStep],
    kind: MeasuredKind,
    rest_s: FloatArray,
) -> RuntimeFile:
    """The runtime with its numbers, and how far steps are off that are left out, of the models that were measured."""
    fitted = file_with(file, {name: value for name, value in values.items() if name in NUMBERS})
    folds = kind.folds
    medians = [errors_of_all([kind.observations[i] for i in fold], rest_s[fold]).median for fold in folds]
    ends = (round(min(medians), 3), round(max(medians), 3)) if medians else None
    mixtures = {step.model.shape.experts is not None for step in steps}
    return msgspec.structs.replace(
        fitted,
        fitted_to=tuple(kind.sources),
        left_out=ends if mixtures == {False} else None,
        mixtures_left_out=ends if mixtures == {True} else None,
    )


def _read(
    request: CalibrateRequest, runtime: RuntimeFile | None, devices: set[str]
) -> tuple[list[MeasuredStep], list[MeasuredPasses], list[SkippedStep], int]:
    """The steps and the passes in the files, rows that cannot be priced, and how many rows are of something else."""
    stated: DescribedModel | None = None if request.model is None else described_model(request.model)
    rows, profiles = [], []
    for path in request.files:
        if path.suffix == ".npz":
            profiles.append(measured_passes(read_npz(path), str(path), stated, request.sequence))
        else:
            rows += read_measured_steps(path, runtime)
    _require_one_device(profiles, request)
    timed = [row for row in rows if isinstance(row, MeasuredStep) and row.step_s is not None]
    steps = [row for row in timed if row.device in devices or not devices]
    if runtime is not None:
        steps = [step for step in steps if step.runtime.name == runtime.name]
        _require_steps(steps, runtime, request)
    skipped = [row for row in rows if isinstance(row, SkippedStep)]
    return steps, profiles, skipped, len(rows) - len(skipped) - len(steps)


def _require_one_device(profiles: list[MeasuredPasses], request: CalibrateRequest) -> None:
    measured_on = {passes.device: passes.name for passes in profiles}
    if len(measured_on) > 1:
        (one, first), (other, second) = list(measured_on.items())[:2]
        do = "give profiles of one kind of device at a time"
        raise BadInput(f"was measured on {other!r}, {first} on {one!r}", where=second, do=do)
    if profiles and request.device is None:
        what = "is of passes on one device, which tell nothing of a runtime"
        raise BadInput(what, where=profiles[0].name, do="give `device`, too, or measured steps alone")


def _require_steps(steps: list[MeasuredStep], runtime: RuntimeFile, request: CalibrateRequest) -> None:
    if len(steps) < LEAST_STEPS and (not steps or (request.pull or 0.0) < STRONG_PULL):
        what = f"{len(steps)} measured step(s) by this runtime are too few to fit numbers to"
        do = f"measure {LEAST_STEPS}" + (f", or give `pull={STRONG_PULL:g}`, which holds them" if steps else "")
        raise BadInput(what, where=f"runtime {runtime.name}", do=do)
