"""The fit of a kind of device to what was measured on it, as people read it: the constants, and errors by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from typing import Any

from automap_models.core.device import USUAL, Device, StepConstants
from automap_models.cost.measured import DescribedModel, MeasuredPasses, MeasuredStep, SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.atomic import Cache, cache_folder
from automap_models.formats.hardware_yaml import read_device, write_device
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.formats.npz import read_npz
from automap_models.simulate.calibration import (
    PULL,
    MeasuredKind,
    SourceErrors,
    ends_of_ranges,
    errors_by_source,
    errors_of_all,
    fit_constants,
    left_out_s,
    pass_observation,
    predicted_s,
    step_observation,
)
from automap_models.workloads.measured import MeasuredWorks, described_model, measured_passes

from ..requests import CalibrateRequest
from ..runner import Report
from .text import Column, Steps, Table, plain, print_parts


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
    fitted: list[SourceErrors]
    left_out: list[SourceErrors]
    together: tuple[SourceErrors, SourceErrors | None]


def report(request: CalibrateRequest) -> Report:
    """Read the files, trace their models, fit, and leave every source out in turn."""
    calibrated = _calibrated(request)
    rows = ", ".join(path.name for path in request.files)
    return Report(
        partial(print_calibration, calibrated),
        partial(calibration_document, calibrated),
        {"device": lambda path: write_device(path, calibrated.device, device_comment(calibrated, rows))},
    )


def _calibrated(request: CalibrateRequest) -> Calibrated:
    devices = [read_device(name) for name in (request.device, *request.also)]
    rows, profiles, skipped = _read(request)
    names = {device.name for device in devices}
    measured = [row for row in rows if row.device in names and row.step_s is not None]
    usual = devices[0].step or USUAL if profiles and not measured else USUAL
    pull = PULL if request.pull is None else request.pull
    works = MeasuredWorks(Cache(cache_folder()))
    observations = []
    with Steps() as steps:
        for done, step in enumerate(measured):
            steps.advance(done, len(measured) + len(profiles), f"tracing {step.shape.name}")
            observations.append(step_observation(step, works.of(step)))
        for done, passes in enumerate(profiles, start=len(measured)):
            steps.advance(done, len(measured) + len(profiles), f"tracing the model of {passes.name}")
            observations.append(pass_observation(passes, works.of_passes(passes)))
        steps.begin(f"fitting {len(observations)} steps")
        kind = MeasuredKind(observations, devices)
        constants = fit_constants(kind, usual, usual, pull)
        fitted_s = predicted_s(kind, constants)
        steps.begin("leaving every source out in turn")
        rest_s = left_out_s(kind, constants, usual, pull)
    return Calibrated(
        device=replace(devices[0], step=constants),
        usual=usual,
        steps=len(observations),
        skipped=skipped,
        others=len(rows) - len(measured),
        links=bool(measured),
        fitted=errors_by_source(observations, fitted_s),
        left_out=errors_by_source(observations, rest_s),
        together=(errors_of_all(observations, fitted_s), errors_of_all(observations, rest_s) if rest_s.size else None),
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


def print_calibration(calibrated: Calibrated) -> None:
    """Print the constants beside the usual ones, errors by source, and why rows were left out."""
    fitted, usual = asdict(calibrated.device.constants), asdict(calibrated.usual)
    columns = (
        Column("constant", [name.replace("_", " ") for name in fitted], left=True),
        Column("fitted", [f"{value:.3g}" for value in fitted.values()]),
        Column("usual", [f"{usual[name]:.3g}" for name in fitted]),
    )
    left_out = {errors.source: errors for errors in calibrated.left_out}
    rows = [(errors, left_out.get(errors.source)) for errors in calibrated.fitted]
    if len(rows) > 1:
        rows.append(calibrated.together)
    errors_table = (
        Column("source", [errors.source for errors, _ in rows], left=True),
        Column("steps", [str(errors.steps) for errors, _ in rows]),
        Column("median\nerror", [_share(errors.median) for errors, _ in rows]),
        Column("90 %\nbelow", [_share(errors.p90) for errors, _ in rows]),
        Column("left out:\nmedian", ["" if out is None else _share(out.median) for _, out in rows]),
        Column("90 %\nbelow", ["" if out is None else _share(out.p90) for _, out in rows]),
    )
    print_parts(
        [f"{calibrated.steps} steps on {calibrated.device.name}"],
        [Table(columns)],
        [Table(errors_table)],
        *([plain(remark)] for remark in _remarks(calibrated)),
    )


def _remarks(calibrated: Calibrated) -> Iterator[str]:
    if not calibrated.left_out:
        yield "There is one source: how well the constants predict another one is not known."
    if not calibrated.links:
        yield "Profiles say nothing of links and of overlap: their three constants are as before."
    for name, end in ends_of_ranges(calibrated.device.constants):
        yield f"{name.replace('_', ' ')} is at the end of its range, {end:g}: check the peaks of the device."
    for reason, count in Counter(row.reason for row in calibrated.skipped).items():
        yield f"{count} row(s) left out: {reason}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def calibration_document(calibrated: Calibrated) -> dict[str, Any]:
    """The same as plain JSON types."""
    return {
        "device": calibrated.device.name,
        "steps": calibrated.steps,
        "other_rows": calibrated.others,
        "constants": asdict(calibrated.device.constants),
        "fitted": [errors._asdict() for errors in calibrated.fitted],
        "left_out": [errors._asdict() for errors in calibrated.left_out],
        "together": [errors._asdict() for errors in calibrated.together if errors is not None],
        "skipped": [{"id": row.name, "reason": row.reason} for row in calibrated.skipped],
    }


def device_comment(calibrated: Calibrated, rows: str) -> str:
    """What stands at the beginning of the written file."""
    sources = ", ".join(f"{errors.source} ({errors.steps})" for errors in calibrated.fitted)
    left_out = "; ".join(f"{e.source} {_share(e.median)}, {_share(e.p90)}" for e in calibrated.left_out)
    shown = (
        f"\nMedian and 90th percentile of the error of a source left out of the fit: {left_out}." if left_out else ""
    )
    return f"step: fitted by automap-calibrate on {date.today()} to {rows}: steps of {sources}.{shown}"
