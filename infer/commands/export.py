"""`automap export`: a plan in the words of another framework (docs/how-to/export.md)."""

from __future__ import annotations

import argparse

from automap_models.export.targets import LAUNCHES, TARGETS
from automap_models.requests import ExportRequest

from ..runner import Command, Output, reported_by
from .parsing import (
    DEVICE,
    PROFILED_SIZE,
    STEP,
    Show,
    add_options,
    add_topo,
    file_argument,
    filled,
    name_argument,
    refuse,
    source_of,
)

EPILOG = """PLAN is what automap infer, automap plan or automap search wrote with --out, or printed with --json: a plan
of stages, a strategy (automap plan MODEL --tp … --json), or a sharding plan. MODEL|FILE is the model or profile that it
was made for, as automap plan takes it; torch-csv, strategies and sharding plans do without.

examples:
  automap export plan.json --to torch-csv --out schedule.csv             the schedule, as torch reads it
  automap export plan.json profile.npz --to megatron --check             Megatron's own parser reads it back
  automap export plan.json profile.npz --to torchtitan --snap --out config.py
                                                                         cuts go to the nearest ends of blocks
  automap export strategy.json --to deepspeed --out pipeline.py
  automap export strategy.json llama3-70b --topo dgx-h100-4 --to deepspeed --snap --out pipeline.py
                                                                         … and what the nearest strategy loses
  automap export strategy.json --to megatron --launch slurm | sbatch     the script has the arguments
  automap export --list                                                  all targets
"""


def _print_targets() -> None:
    from automap_models.core.streams import printing

    width = max(map(len, TARGETS))
    with printing():
        print("\n".join(f"{name:<{width}}  {what}" for name, what in TARGETS.items()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which plan, of which model, for whom."""
    parser.add_argument("plan", metavar="PLAN", type=file_argument, help="the plan, see below")
    parser.add_argument("what", metavar="MODEL|FILE", nargs="?", type=name_argument, help="what it was made for")
    text = f"""
        --to TARGET  {", ".join(TARGETS)}
        --list       print the targets and exit
        --snap       where the target has no words for the plan, write the nearest that it has
        --check      have the target's own parser, which must be installed, read the file back
        --launch     also what starts it on the cluster: a script for Slurm, a SkyPilot task or a JobSet of Kubernetes;
            of Megatron in place of its arguments, of others beside the file
    """
    to, targets = {"choices": tuple(TARGETS), "required": True}, {"action": Show, "show": _print_targets}
    add_options(parser, text, to=to, list=targets, launch={"choices": LAUNCHES})
    add_options(parser.add_argument_group("which training step the plan was made for"), STEP + DEVICE + PROFILED_SIZE)
    add_topo(parser, required=False)


def request(namespace: argparse.Namespace) -> ExportRequest:
    """What is asked for."""
    if namespace.what is not None:
        return filled(ExportRequest, namespace, source=source_of(vars(namespace)))
    options = ("batch", "sequence", "dtype", "device", "microbatch_size", "trainable")
    refuse(namespace, options, "is for a model, and none is given", "give the model, or leave it out")
    return filled(ExportRequest, namespace, source=None)


COMMAND = Command(
    description="Write a plan in the words of a framework that trains: torch, torchtitan, Megatron-LM, DeepSpeed, "
    "Galvatron, JAX or transformers. A plan that it has no words for is refused, with the nearest one that it has.",
    epilog=EPILOG,
    exits={
        2: "the input or the arguments are bad, or the target has no words for the plan",
        3: "the snapped plan does not fit the memory",
    },
    add_arguments=add_arguments,
    outputs=(Output("file", ("-o", "--out"), "file to write (default: print it)"),),
    json="print what is written as JSON and nothing else",
    inputs=("plan", "what"),
    request=request,
    report=reported_by("export"),
)
