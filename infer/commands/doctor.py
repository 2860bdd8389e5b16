"""`automap doctor`: what a command line or a configuration of another program will do, and the better one."""

from __future__ import annotations

import argparse
from typing import Any

from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.requests import DOCTOR_FIELDS, DoctorRequest
from automap_models.workloads.source import OF_CONFIG

from ..runner import Command, reported_by
from .parsing import DEVICE, add_options, add_topo, file_or_command, source_of
from .strategies import recomputed

SAID = """
    --model NAME|FILE  a built-in model or a config.json
    --sequence N       tokens in a sample
    --vocabulary N     tokens that the tokenizer knows
    --packed N         tokens of each document where several share a sample
    --micro-batch N    samples that a device takes at once
    --global-batch B   samples between two updates
    --recompute KIND   what the backward pass computes again
    --set NAME=VALUE   a variable of the script that is set outside, such as TP=8; may be repeated
    --ignore NAME      a setting that is not known, to be priced without: its name without dashes; all: every one; may
        be repeated
    --min-gain SHARE   how much shorter a setting has to be for each thing that makes it harder to run, such as a
        pipeline (default 2 %%; 0: the shortest, however hard)
"""
EPILOG = """COMMAND|FILE is one of
  a command line in quotes   that starts Megatron-LM, with torchrun or Slurm's srun around it
  a shell script             that holds one, or overrides of a configuration of verl or Megatron-Bridge: variables,
                             arrays and conditions are read, and nothing is run
  TOML                       of torchtitan up to 0.2
  JSON                       of DeepSpeed, and Galvatron's strategies
  YAML                       of Accelerate (FSDP, ParallelismConfig, DeepSpeed, Megatron-LM), axolotl, LLaMA-Factory,
                             NeMo, Megatron-Bridge, verl (its actor); a task of SkyPilot or a job of Kubernetes whose
                             script starts Megatron-LM
  .args, .py, .yaml          what automap export writes for megatron, megatron-bridge, torchtitan, deepspeed,
                             accelerate and galvatron, and what launches Megatron (--launch)

It says what the program refuses at start-up, what a step takes and consists of, whether it fits, and what a better
setting is: as the lines of the same file that change. A setting that is not known is named and asked for.

examples:
  automap doctor pretrain.sh --gpus 32xh100
  automap doctor "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 …" --device h100
  automap doctor llama3_70b.toml --gpus 64xh100
  automap doctor ds_config.json --model llama3-8b --gpus 8xa100 --sequence 4096 --recompute full
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is read, and what it does not say."""
    parser.add_argument("what", metavar="COMMAND|FILE", type=file_or_command, help="what is read, see below")
    add_topo(parser, required=False)
    add_options(
        parser.add_argument_group("what the file does not say"),
        DEVICE + SAID,
        recompute={"type": recomputed},
        set={"dest": "variables", "default": [], "type": _variable},
        ignore={"default": []},
        min_gain={"default": DEFAULT_MIN_GAIN},
    )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def request(namespace: argparse.Namespace) -> DoctorRequest:
    """What is asked for."""
    nothing: dict[str, Any] = dict.fromkeys(("batch", "sequence", "dtype", "trainable", *OF_CONFIG))
    return DoctorRequest(
        what=namespace.what,
        model=None if namespace.model is None else source_of({**nothing, "dropout": False, "what": namespace.model}),
        topo=namespace.topo,
        device=namespace.device,
        sequence=namespace.sequence,
        vocabulary=namespace.vocabulary,
        packed=namespace.packed,
        fields={name: value for name in DOCTOR_FIELDS if (value := getattr(namespace, name)) is not None},
        variables=dict(namespace.variables),
        ignored=tuple(namespace.ignore),
        min_gain=namespace.min_gain,
    )


COMMAND = Command(
    description="Read what already starts a training: say what will be refused, what a step takes and whether it fits, "
    "and the lines to change for a better one.",
    epilog=EPILOG,
    exits={2: "the file or the arguments are bad", 3: "it does not fit and nothing was found that does"},
    add_arguments=add_arguments,
    json="print what was read, its price and the better setting as JSON and nothing else",
    inputs=("what", "topo"),
    request=request,
    report=reported_by("doctor"),
)
