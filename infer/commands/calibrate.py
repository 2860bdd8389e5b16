"""`automap calibrate`: the constants of a kind of device from what was measured on it (docs/how-to/calibrate.md)."""

from __future__ import annotations

import argparse
import math

from automap_models.requests import CalibrateRequest

from ..runner import Command, Output, reported_by
from .parsing import add_options, file_argument, filled

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


COMMAND = Command(
    description="Fit the constants of training steps of a kind of device, such as the share of the peak that products "
    "of large matrices reach, to steps or profiles that were measured on it.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(Output("device", ("-o", "--out"), "device to write (YAML)"),),
    json="print constants and errors as JSON and nothing else",
    inputs=("files",),
    request=request,
    report=reported_by("calibration"),
)
