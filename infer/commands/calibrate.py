"""`automap calibrate`: the constants of a kind of device from what was measured on it (docs/how-to/calibrate.md)."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from ..requests import CalibrateRequest
from ..runner import Command, Output, Report
from .parsing import add_options, file_argument, filled

if TYPE_CHECKING:
    from automap_models.cost.measured import MeasuredPasses, MeasuredStep, SkippedStep
    from automap_models.simulate.calibration import Observation

    from ..reports.calibration import Calibrated

EPILOG = """A FILE is one of
  measured steps   JSON: a model's sizes, a strategy, a cluster, seconds; docs/reference/files.md lists its keys. Steps
                   on other kinds of devices are left out.
  a profile        of a transformer, measured on the device: what automap-profile MODEL --measure -o FILE.npz writes of
                   a built-in model, a config.json, or a factory of a model of transformers. Profiles of a few widths,
                   micro-batches and lengths say more than one.

Fitted are the eight constants of training steps; peaks stay as they are. Profiles alone say nothing of links and of
overlap, so these stay as the device has them.

How well the constants predict steps of a source that is not among the files is found by leaving every source out in
turn, fitting to the others and pricing it. Each profile is a source.

A model is traced once, which takes seconds and jax, and kept in $AUTOMAP_CACHE, else $XDG_CACHE_HOME/automap, else
~/.cache/automap.

examples:
  automap-calibrate steps.json --device a100                      the constants, and errors by source
  automap-calibrate steps.json --device a100 --out my-a100.yaml   a device for automap-plan --device my-a100.yaml
  automap-calibrate steps.json --device a100 --also a100-40       both have these constants
  automap-calibrate small.npz wide.npz long.npz --device my-gpu.yaml --out fitted.yaml    from profiles of this machine

exit codes: 0 done, 2 the input or the arguments are bad, 1 a defect of ours, 141 the output's reader went away
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is fitted to what."""
    parser.add_argument(
        "files", metavar="FILE", type=file_argument, nargs="+", help="measured training steps, or measured profiles"
    )
    text = """
        --device KIND|FILE  the kind of device: a shipped one, or a YAML file whose name is that of the kind in the rows
        --also KIND|FILE    another kind that has the constants in common, such as one with less memory; may be repeated
        --model NAME|FILE   the built-in model or config.json that profiles are of which do not say
        --sequence N        tokens of a sample of profiles that do not say
        --pull WEIGHT       how much constants are pulled to the usual ones, those of V100, A100 and H100 (default 0.2;
            5 where few sources measured a device that is like these)
    """
    add_options(parser, text, device={"required": True}, also={"default": []}, pull={"type": _weight})


def _weight(text: str) -> float:
    """An argument's type: a positive number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value


def request(namespace: argparse.Namespace) -> CalibrateRequest:
    """What is asked for."""
    return filled(CalibrateRequest, namespace, files=tuple(namespace.files), also=tuple(namespace.also))


def run(request: CalibrateRequest) -> Calibrated:
    """Read the files, trace their models, fit, and leave every source out in turn.

    Raises:
        BadInput: a file cannot be used, or no row is of the kind.
    """
    from dataclasses import replace

    from automap_models.core.device import USUAL
    from automap_models.formats.atomic import Cache, cache_folder
    from automap_models.formats.hardware_yaml import read_device
    from automap_models.simulate.calibration import (
        PULL,
        fit_constants,
        left_out_s,
        pass_observation,
        step_observation,
    )
    from automap_models.workloads.measured import MeasuredWorks

    from ..reports.calibration import Calibrated
    from ..reports.text import Steps

    devices = [read_device(name) for name in (request.device, *request.also)]
    steps, profiles, skipped = _read(request)
    names = {device.name for device in devices}
    own = [step for step in steps if step.device in names and step.step_s is not None]
    usual = devices[0].step or USUAL if profiles and not own else USUAL
    works = MeasuredWorks(Cache(cache_folder()))
    observations: list[Observation] = []
    with Steps() as progress:
        for done, step in enumerate(own):
            progress.advance(done, len(own) + len(profiles), f"tracing {step.shape.name}")
            observations.append(step_observation(step, works.of(step)))
        for done, passes in enumerate(profiles, start=len(own)):
            progress.advance(done, len(own) + len(profiles), f"tracing the model of {passes.name}")
            observations.append(pass_observation(passes, works.of_passes(passes)))
        progress.begin(f"fitting {len(observations)} steps")
        pull = PULL if request.pull is None else request.pull
        fit = fit_constants(observations, devices, usual, usual, pull)
        progress.begin("leaving every source out in turn")
        left_out = left_out_s(observations, devices, fit.constants, usual, pull)
    return Calibrated(
        device=replace(devices[0], step=fit.constants),
        observations=observations,
        skipped=skipped,
        others=len(steps) - len(own),
        usual=usual,
        links=bool(own),
        fit=fit,
        left_out_s=left_out,
    )


def _read(request: CalibrateRequest) -> tuple[list[MeasuredStep], list[MeasuredPasses], list[SkippedStep]]:
    """The steps and the passes in the files, and rows that cannot be priced.

    Raises:
        BadInput: a file cannot be used, or two profiles are of different devices.
    """
    from automap_models.cost.measured import DescribedModel, SkippedStep
    from automap_models.errors import BadInput
    from automap_models.formats.measured_rows import read_measured_steps
    from automap_models.formats.npz import read_npz
    from automap_models.workloads.measured import described_model, measured_passes

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


def report(request: CalibrateRequest, calibrated: Calibrated) -> Report:
    """Tables on standard output."""
    from automap_models.formats.hardware_yaml import write_device

    from ..reports.calibration import calibration_document, device_comment, print_calibration

    files = ", ".join(path.name for path in request.files)
    return Report(
        lambda: print_calibration(calibrated),
        lambda: calibration_document(calibrated),
        {"device": lambda path: write_device(path, calibrated.device, device_comment(calibrated, files))},
    )


COMMAND = Command(
    summary="fit the constants of a kind of device to measured training steps or profiles",
    description="Fit the constants of training steps of a kind of device, such as the share of the peak that products "
    "of large matrices reach, to steps or profiles that were measured on it.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(Output("device", ("-o", "--out"), "device to write (YAML)"),),
    json="print constants and errors as JSON and nothing else",
    inputs=("files",),
    request=request,
    run=run,
    report=report,
)
