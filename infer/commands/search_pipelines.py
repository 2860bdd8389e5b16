"""`automap search pp`: a pipeline plan by online training."""

from __future__ import annotations

import argparse

from ..requests import OnlineRequest
from ..runner import Command, Output, reported_by
from .parsing import DEVICE, SEED, STATE_FACTOR, STEP, add_options, add_topo, at_least, filled, name_argument, source_of

ABOUT = (
    "Pipeline parallelism by online training: an agent learns on the one profile where to cut it into stages, "
    "instruction by instruction, and which devices near the node boundaries each stage gets."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to cut on which cluster, and how long to learn."""
    parser.add_argument(
        "what",
        metavar="MODEL|PROFILE",
        type=name_argument,
        help="a model as automap-profile takes it, or a profile",
    )
    add_topo(parser)
    add_options(parser.add_argument_group("which training step"), STEP + DEVICE)
    problem = f"""
        --stages S         number of stages (default: one a node)
        --micro-batches M  in a global batch (default 16)
        {STATE_FACTOR}
        --radius N         devices around the node boundaries (default 3)
    """
    group = parser.add_argument_group("what to plan")
    add_options(group, problem, stages={"type": at_least(2)}, radius={"default": 3})
    learning = f"""
        --agent NAME|FILE         hyper-parameters: default, paper (Auto-MAP's own) or a YAML file like
            conf/online/default.yaml
        --episodes N              to play (default: the agent's)
        {SEED}
        --warm-start policy|FILE  begin with the trained policy's plan, or with this plan.json (./policy is a file)
    """
    group = parser.add_argument_group("who learns, for how long")
    add_options(group, learning, agent={"default": "default"}, seed={"default": 0})


def request(namespace: argparse.Namespace) -> OnlineRequest:
    """What is asked for."""
    return filled(OnlineRequest, namespace, source=source_of(vars(namespace)))


COMMAND = Command(
    description=ABOUT,
    epilog="",
    add_arguments=add_arguments,
    outputs=(
        Output("plan", ("--out",), "write the plan as JSON"),
        Output("plot", ("--plot",), "draw how the training went (.png, .svg, .pdf)", picture=True),
    ),
    json="print the plan as JSON and nothing else",
    inputs=("what", "warm_start"),
    request=request,
    report=reported_by("online"),
)
