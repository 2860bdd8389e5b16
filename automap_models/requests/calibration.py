"""The constants of a kind of device, fitted to what was measured on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from automap_models.core.device import USUAL, Device, StepConstants
from automap_models.cost.measured_step import DescribedModel, MeasuredPasses, MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.npz import read_npz
from automap_models.planners.base import Watch
from automap_models.requests import CalibrateRequest
from automap_models.requests.profile import begin_of
from automap_models.simulate import calibration
from automap_models.workloads.measured import described_model, measured_passes, passes_work, step_work


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibration came to.

    Attributes:
        device: with the fitted constants.
        usual: what constants were pulled to.
        steps: that they were fitted to.
        skipped: rows that cannot be priced.
        others: rows of other kinds of devices, or without seconds.
        links: whether steps of several devices may say something of links and of overlap.
        fitted: errors by source.
        left_out: the same of fits without the source; empty where there is only one.
        together: errors of all in the fit, and of all when left out.
    """

    device: Device
    usual: StepConstants
    steps: int
    skipped: list[SkippedStep]
    others: int
    links: bool
    fitted: list[calibration.SourceErrors]
    left_out: list[calibration.SourceErrors]
    together: tuple[calibration.SourceErrors, calibration.SourceErrors | None]


def solve(request: CalibrateRequest, watch: Watch) -> Calibrated:
    """Read the files, fit, and leave every source out in turn."""
    devices = [read_device(name) for name in (request.device, *request.also)]
    rows, profiles, skipped = _read(request)
    names = {device.name for device in devices}
    measured = [row for row in rows if row.device in names and row.step_s is not None]
    usual = devices[0].step or USUAL if profiles and not measured else USUAL
    pull = calibration.PULL if request.pull is None else request.pull
    observations = [calibration.step_observation(step, step_work(step)) for step in measured]
    observations += [calibration.pass_observation(passes, passes_work(passes)) for passes in profiles]
    begin = begin_of(watch)
    begin(f"fitting {len(observations)} steps")
    kind = calibration.MeasuredKind(observations, devices)
    constants = calibration.fit_constants(kind, usual, usual, pull)
    fitted_s = calibration.predicted_s(kind, constants)
    begin("leaving every source out in turn")
    rest_s = calibration.left_out_s(kind, constants, usual, pull)
    return Calibrated(
        device=replace(devices[0], step=constants, fitted_to=tuple(kind.sources)),
        usual=usual,
        steps=len(observations),
        skipped=skipped,
        others=len(rows) - len(measured),
        links=bool(measured),
        fitted=calibration.errors_by_source(observations, fitted_s),
        left_out=calibration.errors_by_source(observations, rest_s),
        together=(
            calibration.errors_of_all(observations, fitted_s),
            calibration.errors_of_all(observations, rest_s) if rest_s.size else None,
        ),
    )


def _read(request: CalibrateRequest) -> tuple[list[MeasuredStep], list[MeasuredPasses], list[SkippedStep]]:
    """The steps and the passes in the files, and rows that cannot be priced."""
    stated: DescribedModel | None = None if request.model is None else described_model(request.model)
    rows, profiles = [], []
    for path in request.files:
        if path.suffix == ".npz":
            profiles.append(measured_passes(read_npz(path), str(path), stated, request.sequence))
        else:
            rows += read_measured_steps(path)
    measured_on = {passes.device: passes.name for passes in profiles}
    if len(measured_on) > 1:
        (one, first), (other, second) = list(measured_on.items())[:2]
        do = "give profiles of one kind of device at a time"
        raise BadInput(f"was measured on {other!r}, {first} on {one!r}", where=second, do=do)
    skipped = [row for row in rows if isinstance(row, SkippedStep)]
    return [row for row in rows if not isinstance(row, SkippedStep)], profiles, skipped
