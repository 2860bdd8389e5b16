"""`automap profile`: from a model, or another tool's profile, to profile.npz (formats.md, "Commands")."""

from __future__ import annotations

import argparse

from automap_models.errors import BadInput
from automap_models.planners.options import given
from automap_models.requests import ProfileRequest

from ..runner import Command, Output, reported_by
from .parsing import STEP, add_options, filled, kinds_of_models, name_argument, refuse, source_of

MEASURING = ("repeats", "warmup", "seed")
EPILOG = f"""{kinds_of_models("bert48, t5_base, vgg19, llama3-8b, mixtral-8x7b, …: see --list")}
  another tool's profile     PipeDream's and DAPPLE's graph.txt, JSON of dnn-partitioning and Piper; or an .npz
A file's format is recognised from its content.

examples:
  automap profile bert48 -o bert48.npz                         the times that a V100's clock gives
  automap profile t5_base --batch 8 --dtype bfloat16 --device a100 -o t5.npz
  automap profile Llama-3.1-405B/config.json --device h100 --sequence 8192 -o llama.npz
  automap profile my_models:make_step --show                   your JAX step: totals, heaviest parts, cheapest cuts
  automap profile my_models:make_model --measure -o mine.npz   real times of this machine
  automap profile step.before_optimizations.txt --trainable 'params/*' -o step.npz
  automap profile graph.txt -o profile.npz                     PipeDream's profile converted
  automap profile bert48.npz --plot bert48.png                 the arrays as a planner sees them
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to profile, and how."""
    add_options(parser, "--list  print the built-in models and the devices")
    parser.add_argument("what", metavar="MODEL|FILE", nargs="?", type=name_argument, help="what to profile, see below")
    step = f"""
        {STEP}
        --model NAME  name of the model in the profile and in plans
    """
    add_options(parser.add_argument_group("which training step"), step)
    times = """
        --device NAME|FILE  times by the clock of a known device or one in a YAML file (default v100)
        --measure           run the step on this machine and measure its time
        --repeats N         runs that have to agree within 10 %%, of which the least counts (default 5 for JAX, 10 for
            PyTorch)
        --warmup N          runs before them (default 2 for JAX, 3 for PyTorch)
        --seed N            of the random inputs (default 0)
    """
    add_options(parser.add_argument_group("where the times come from"), times)
    printed = """
        --show          print totals, heaviest parts and cheapest cuts
        --instructions  print every instruction
    """
    add_options(parser.add_argument_group("what to print"), printed)


def request(namespace: argparse.Namespace) -> ProfileRequest:
    """What is asked for."""
    if namespace.list:
        if namespace.what is not None:
            raise BadInput(f"{namespace.what} is given, too", where="--list", do="leave one of them out")
        refuse(namespace, ("out", "plot"), "there is no profile to write", "leave it or --list out")
        return ProfileRequest(None)
    if namespace.what is None:
        raise BadInput("no MODEL|FILE is given", do="see automap profile --help")
    if not any((namespace.out, namespace.show, namespace.instructions, namespace.json, namespace.plot)):
        raise BadInput("nothing to do", where="-o", do="give -o profile.npz to write it or --show to print it")
    if namespace.json and (namespace.show or namespace.instructions):
        raise BadInput("prints JSON and nothing else", where="--json", do="leave --show and --instructions out")
    source = source_of(vars(namespace))
    if namespace.measure:
        refuse(namespace, ("device",), "does not apply: --measure runs the model on this machine")
    else:
        refuse(namespace, MEASURING, "does not apply: nothing is measured without --measure")
    measuring = given(namespace, *MEASURING) if namespace.measure else None
    return filled(ProfileRequest, namespace, source=source, measuring=measuring)


COMMAND = Command(
    description="Make profile.npz, which automap infer plans from: what every instruction of a model's training "
    "step takes in time (C), sends over a cut (A) and holds in parameters (W).",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(
        Output("profile", ("-o", "--out"), "profile.npz to write", over_input=True),
        Output("plot", ("--plot",), "draw the arrays (.png, .svg, .pdf)", picture=True),
    ),
    json="print what --show does as JSON and nothing else",
    inputs=("what",),
    request=request,
    report=reported_by("profile"),
    names_files=False,
)
