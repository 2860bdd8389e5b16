"""`automap calibrate`: the constants of a kind of device from measured steps (docs/how-to/calibrate.md)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..requests import CalibrateRequest
from ..runner import Command, Output, Report
from .parsing import file_argument, filled, name_argument

if TYPE_CHECKING:
    from ..reports.calibration import Calibrated

EPILOG = """ROWS.json holds training steps that were measured: a model's sizes, a strategy, a cluster, seconds;
docs/reference/files.md lists its keys. Steps on other kinds of devices are left out. Fitted are the eight constants of
training steps; peaks stay as they are.

How well the constants predict steps of a source that is not among the rows is found by leaving every source out in
turn, fitting to the others and pricing it.

A model is traced once, which takes seconds and jax, and kept in $AUTOMAP_CACHE, else $XDG_CACHE_HOME/automap, else
~/.cache/automap.

examples:
  automap-calibrate steps.json --device a100                      the constants, and errors by source
  automap-calibrate steps.json --device a100 --out my-a100.yaml   a device for automap-plan --device my-a100.yaml
  automap-calibrate steps.json --device a100 --also a100-40       both have these constants

exit codes: 0 done, 2 the input or the arguments are bad, 1 a defect of ours, 141 the output's reader went away
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is fitted to what."""
    parser.add_argument("rows", metavar="ROWS.json", type=file_argument, help="measured training steps")
    parser.add_argument(
        "--device",
        metavar="KIND|FILE",
        type=name_argument,
        required=True,
        help="the kind of device: a shipped one, or a YAML file whose name is that of the kind in the rows",
    )
    parser.add_argument(
        "--also",
        metavar="KIND|FILE",
        type=name_argument,
        action="append",
        default=[],
        help="another kind that has the constants in common, such as one with less memory; may be repeated",
    )


def request(namespace: argparse.Namespace) -> CalibrateRequest:
    """What is asked for."""
    return filled(CalibrateRequest, namespace, also=tuple(namespace.also))


def run(request: CalibrateRequest) -> Calibrated:
    """Read the rows, trace their models, fit, and leave every source out in turn.

    Raises:
        BadInput: a file cannot be used, or no row is of the kind.
    """
    from dataclasses import replace

    from automap_models.core.measured import SkippedStep
    from automap_models.formats.atomic import Cache, cache_folder
    from automap_models.formats.hardware_yaml import read_device
    from automap_models.formats.measured_rows import read_measured_steps
    from automap_models.simulate.calibration import Observation, cross_validated, errors_by_source, fit_constants
    from automap_models.workloads.measured import MeasuredWorks

    from ..reports.calibration import Calibrated
    from ..reports.text import Steps

    devices = [read_device(name) for name in (request.device, *request.also)]
    names = {device.name for device in devices}
    rows = read_measured_steps(request.rows)
    skipped = [row for row in rows if isinstance(row, SkippedStep)]
    steps = [row for row in rows if not isinstance(row, SkippedStep)]
    own = [step for step in steps if step.device in names and step.step_s is not None]
    works = MeasuredWorks(Cache(cache_folder()))
    observations = []
    with Steps() as progress:
        for done, step in enumerate(own):
            progress.advance(done, len(own), f"tracing {step.shape.name}")
            observations.append(Observation(step, works.of(step)))
        progress.begin(f"fitting {len(own)} steps")
        fit = fit_constants(observations, devices)
        progress.begin("leaving every source out in turn")
        validated = cross_validated(observations, devices, fit.constants)
    return Calibrated(
        device=replace(devices[0], step=fit.constants),
        observations=observations,
        skipped=skipped,
        others=len(steps) - len(own),
        fit=fit,
        fitted=errors_by_source(observations, fit.predicted_s),
        validated=validated,
    )


def report(request: CalibrateRequest, calibrated: Calibrated) -> Report:
    """Tables on standard output."""
    from automap_models.formats.hardware_yaml import write_device

    from ..reports.calibration import calibration_document, device_comment, print_calibration

    return Report(
        lambda: print_calibration(calibrated),
        lambda: calibration_document(calibrated),
        {"device": lambda path: write_device(path, calibrated.device, device_comment(calibrated, request.rows.name))},
    )


COMMAND = Command(
    summary="fit the constants of a kind of device to measured training steps",
    description="Fit the constants of training steps of a kind of device, such as the share of the peak that products "
    "of large matrices reach, to steps that were measured on it.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(Output("device", ("-o", "--out"), "device to write (YAML)"),),
    json="print constants and errors as JSON and nothing else",
    inputs=("rows",),
    request=request,
    run=run,
    report=report,
)
