"""`automap calibrate`: a runtime and a kind of device from what was measured of them (docs/how-to/calibrate.md)."""

from __future__ import annotations

import argparse
import math

from automap_models.errors import BadInput
from automap_models.requests import CalibrateRequest

from ..runner import Command, Output, reported_by
from .parsing import add_options, file_argument, filled

EPILOG = """A FILE is one of
  measured steps   JSON: a model's sizes, a strategy, a cluster, seconds; docs/reference/files.md lists its keys. Steps
                   on other kinds of devices are left out.
  a profile        of a transformer, measured on the device: what automap profile MODEL --measure -o FILE.npz writes of
                   a built-in model, a config.json, or a factory of a model of transformers. Profiles of a few widths,
                   micro-batches and lengths say more than one.

With --runtime the numbers of a runtime are fitted, to steps of the systems that it runs, three at least; their devices
stay as they are. With --device the eight constants of training steps of a device are fitted; its peaks stay as they
are. With both, both are. Each number is pulled to what it was, and stays there if the steps tell nothing of it: the
command says which these are, and what step would tell of them.

How well the numbers predict steps of a source that is not among the files is found by leaving every source out in
turn, fitting to the others and pricing it; of a single source parts of its steps. Each profile is a source.

A model is traced once, which takes seconds and jax, and kept in $AUTOMAP_CACHE, else $XDG_CACHE_HOME/automap, else
~/.cache/automap.

examples:
  automap calibrate steps.json --runtime megatron -o ours.yaml    a runtime for automap plan --runtime ours.yaml
  automap calibrate steps.json --device a100                      the constants, and errors by source
  automap calibrate steps.json --device a100 --out my-a100.yaml   a device for automap plan --device my-a100.yaml
  automap calibrate steps.json --device a100 --also a100-40       both have these constants
  automap calibrate small.npz wide.npz long.npz --device my-gpu.yaml --out fitted.yaml    from profiles of this machine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is fitted to what."""
    parser.add_argument(
        "files", metavar="FILE", type=file_argument, nargs="+", help="measured training steps, or measured profiles"
    )
    text = """
        --runtime NAME|FILE  fit the numbers of this runtime: a shipped one, or a YAML file
        --device KIND|FILE  fit the constants of this device: a shipped one, or a YAML file with the name of the kind
            that is in the rows
        --also KIND|FILE    another kind that has the constants in common, such as one with less memory; may be repeated
        --model NAME|FILE   the built-in model or config.json that profiles are of which do not say
        --sequence N        tokens of a sample of profiles that do not say
        --pull WEIGHT       how much numbers are pulled to what they were (default 0.2, 1 with --runtime; 5 where
            few sources measured them, and for fewer than three steps)
    """
    add_options(parser, text, also={"default": []}, pull={"type": _weight})


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
    """What is asked for.

    Raises:
        BadInput: nothing is to be fitted, or a file has nothing to hold.
    """
    both = namespace.device is not None and namespace.runtime is not None
    if namespace.device_out is not None and not both:
        do = "give both, or --out alone"
        raise BadInput("is for a fit of --device and --runtime together", where="--device-out", do=do)
    if both and (namespace.out is None) != (namespace.device_out is None):
        what = "one of --out, for the runtime, and --device-out is given"
        raise BadInput(what, where="a fit of both", do="give the other, too: each is true beside the other only")
    return filled(CalibrateRequest, namespace, files=tuple(namespace.files), also=tuple(namespace.also))


COMMAND = Command(
    description="Fit the numbers of a runtime, such as the share of tensor parallelism's sums that it hides, to steps "
    "that were measured, or the constants of a kind of device, such as the share of the peak that products of large "
    "matrices reach, to steps or profiles that were measured on it.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(
        Output("fit", ("-o", "--out"), "runtime to write, or device where no runtime is fitted (YAML)"),
        Output("device", ("--device-out",), "device to write where both are fitted (YAML)"),
    ),
    json="print numbers and errors as JSON and nothing else",
    inputs=("files",),
    request=request,
    report=reported_by("calibration"),
)
