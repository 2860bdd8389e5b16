"""`automap run`: a plan on real processes, held against its prediction (docs/tutorials/run-torch.md)."""

from __future__ import annotations

import argparse

from automap_models.core.schedules import SCHEDULES
from automap_models.requests import RunRequest

from ..runner import Command, Output, reported_by
from .parsing import STEP, add_options, file_argument, filled, name_argument, source_of

BACKENDS = ("torch", "jax")
EPILOG = """MODEL is what the plan's profile was made of, most often a factory such as my_models:make_model.

One command starts all processes on this machine, one a device of the plan (gloo on CPUs, nccl on GPUs). Under torchrun
it is one of them, and the same line runs on a cluster:
  torchrun --nproc-per-node 4 --no-python automap run plan.json my_models:make_model

examples:
  automap run plan.json my_models:make_model                     three steps: table of predicted and measured times
  automap run plan.json my_models:make_model --check             … and losses and gradients against one process
  automap run plan.json my_models:make_model --schedule gpipe --trace run.trace.json
  automap run plan.json my_models:make_model -o times.json       measured times, which automap infer --observed reads
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which plan of which model, and how it runs."""
    parser.add_argument(
        "plan",
        metavar="PLAN",
        type=file_argument,
        help="plan.json of automap infer or automap plan; for models of JAX of automap search, too",
    )
    parser.add_argument("what", metavar="MODEL", type=name_argument, help="the model that it was made for")
    add_options(parser.add_argument_group("which training step"), STEP)
    text = f"""
        --backend        framework that runs it (default: what the model is written in)
        --device         kind of devices (default: cuda where there is one)
        --schedule NAME  {", ".join(SCHEDULES)} (default: the plan's own)
        --vp N           stages of the plan that share a rank's devices (default: what the schedule has; 2 for
            interleaved)
        --executor       who runs the passes on torch: its own schedule classes (default where they can) or automap's
            executor
        --zero Z         what the replicas of a stage share on torch: 0 nothing (DDP, default), 2 gradients and the
            optimizer's state, 3 the weights, too (FSDP2)
        --steps K        steps that are measured (default 3)
        --warmup N       steps before them (default 1)
        --seed N         of weights and data (default 0)
        --check          run the model whole on one process, too: compare the loss of every step and the gradients of
            the first
    """
    add_options(
        parser.add_argument_group("how it runs"),
        text,
        backend={"choices": BACKENDS},
        device={"choices": ("cpu", "cuda")},
        schedule={"choices": SCHEDULES},
        vp={"dest": "virtual"},
        executor={"choices": ("torch", "automap")},
        zero={"type": int, "choices": (0, 2, 3), "default": 0},
        steps={"default": 3},
        warmup={"default": 1},
    )


def request(namespace: argparse.Namespace) -> RunRequest:
    """What is asked for."""
    options = {**vars(namespace), "device": None}  # which device runs it is nothing of the model's
    return filled(RunRequest, namespace, source=source_of(options), seed=namespace.seed or 0)


COMMAND = Command(
    description="Run a plan of a model for some steps, one process a device, and say what each stage took beside what "
    "was predicted.",
    epilog=EPILOG,
    exits={1: "the check found a difference, or a process ended early", 130: "interrupted"},
    add_arguments=add_arguments,
    outputs=(
        Output("times", ("-o", "--out"), "times.json to write, which automap infer --observed reads"),
        Output("trace", ("--trace",), "Chrome trace to write: predicted and measured passes side by side"),
    ),
    json="print what --out writes and nothing else",
    inputs=("plan",),
    request=request,
    report=reported_by("run"),
)
