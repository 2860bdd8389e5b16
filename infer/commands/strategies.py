"""What `automap plan` takes of a strategy: fields that are given are fixed, and the others are searched.

`--for TARGET` plans from the start what automap export can write for a framework.

Nothing here imports numpy: help is to be fast."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from automap_models.core.strategy import DISPATCHERS, MODULES, OFFLOADS, PRECISIONS, RECOMPUTE, ZERO_STAGES, modules_of
from automap_models.core.tuning import LOSSES, OPTIMIZERS, STATES
from automap_models.core.units import BYTES, SECONDS, TOKENS
from automap_models.export.targets import PLANNED_FOR
from automap_models.planners.options import ExploreOptions
from automap_models.requests import FIELDS, MINIMIZED, TRAINING, TRAINING_GOAL

from .parsing import add_options, at_least, positive

STRATEGY = """
    --tp N               tensor parallelism: devices that share every operator
    --pp N               ranks of the pipeline
    --dp N               ranks of data parallelism (default: what the others leave of the devices)
    --dp-replicate N     groups of ranks of dp, within which ZeRO divides: HSDP (default 1)
    --vp N               virtual stages a rank of the pipeline
    --cp N               context parallelism: devices that share every sequence
    --ep N               devices of a rank of the pipeline that share the experts of a layer
    --etp N              devices that share each expert: those of tp, or 1
    --tower-tp N         devices that share the operators of a tower of images, a divisor of tp; the other devices of
        tp and cp encode other images of a micro-batch (default with --price: those of tp, and all of cp encode all)
    --micro-batch N      samples of a micro-batch on a rank of dp (default 1)
    --recompute KIND     none (default), selective (attention cores), full, or modules by Megatron's names:
        layernorm+moe_act; or nothing, as hosts save what blocks need (offload)
    --zero               what ranks of dp divide: nothing (default), optimizer, gradients, weights too
    --sequence-parallel  the devices of tp share what is between operators, too
    --precision          of products (default: the faster of bf16 and fp16 on the devices, else fp32)
    --dispatcher         of tokens to experts (default alltoall, or what is faster where devices and --for have it
        and it saves --min-gain; with --runtime as its file says)
    --offload            what hosts hold and update (default none, unless nothing fits without or a fifth of the step
        is saved; none keeps activations off hosts, too)
    --layers N,N,…       of each virtual stage, in the order of the model
"""
"""Options: fields of a strategy."""
PROGRAM = """
    --runtime NAME|FILE  by whose numbers a step is priced: megatron, torchtitan, deepspeed, fsdp, nanotron, …
        (conf/runtime), or a YAML file (default: that of --for, else programs in general)
    --imbalance X        with ep: tokens of the fullest device over the mean, as measured (default: the runtime's)
    --no-flash           attention computes and keeps its scores, in several kernels
    --reserve [RANK=]SIZE
        memory of each device that is left free, or of those of a rank of the pipeline, from the last one on below 0:
        '4 GB', '0=6 GB', '-1=2 GB' (default 8 %%); may be repeated
"""
"""Options: how a strategy is run, and what is left free."""
TRAINED = """
    --optimizer        of what is trained (default adamw)
    --states           of its moments; with bf16, 16-bit weights have no fp32 copy either (default fp32)
    --freeze PATTERN   layers or matrices that are not trained: embedding, 'block_?', 'block_*/q'; may be repeated
    --lora RANK        adapters beside the frozen matrices of all blocks, or of some: 16, 16:q,v
    --quantize         frozen matrices of blocks in 4 bits, as QLoRA has them
    --loss             of single sequences (default), or of pairs: beside a frozen reference, without one (ORPO, SimPO),
        or with a scalar in place of the vocabulary
    --packed N         tokens of each of the documents that share a sample, and that attention stays within
"""
"""Options: what is trained, and by which optimiser."""
RUN = """
    --tokens COUNT     days and hours of devices that training on so many takes: 1T, 300B, 15e9
    --gpu-hour X       what a device costs an hour, or each kind: h100=2.5,a100=1.2 (default: the cluster's)
    --deadline TIME    until when: '30 days'; of several clusters or --devices which meets it for the least
    --max-cost X       most that all of it may cost
    --mtbf TIME        mean time between two failures of one device: '5 years'
    --checkpoint TIME  that training stands still for a checkpoint (default 30 s)
    --restart TIME     from a failure until it goes on from the last checkpoint (default 5 min)
"""
"""Options: what a whole training takes."""
SEARCHING = """
    --devices N..N       so many devices of the same nodes, doubling from the first to the last
    --minimize           what is least of those that meet --deadline and --max-cost, of several clusters (--gpus A,B;
        --devices N..N) or of as many nodes of one as are best (default step)
"""


UNLESS = {"default": None, "action": "store_true"}
"""Of a switch that says nothing where it is not given."""


def add_strategy(parser: argparse.ArgumentParser, *, sized: bool = True) -> None:
    """--tp, --pp, … --minimize: what is fixed of a strategy, what runs it and what for; `sized` on several clusters."""
    add_options(
        parser.add_argument_group("what is fixed of a strategy; the search chooses the rest"),
        STRATEGY,
        recompute={"type": recomputed},
        zero={"type": int, "choices": ZERO_STAGES},
        sequence_parallel=UNLESS,
        precision={"choices": PRECISIONS},
        dispatcher={"choices": DISPATCHERS},
        offload={"choices": OFFLOADS},
        layers={"type": _numbers},
    )
    add_options(parser.add_argument_group("what runs it"), PROGRAM, no_flash=UNLESS, reserve={"type": _reserve})
    choices = {"optimizer": OPTIMIZERS, "states": STATES, "loss": LOSSES}
    trained = {name: {"choices": values} for name, values in choices.items()}
    add_options(parser.add_argument_group("what of the model is trained"), TRAINED, quantize=UNLESS, **trained)
    times: dict[str, Any] = {
        name: {"type": positive(SECONDS)} for name in ("deadline", "mtbf", "checkpoint", "restart")
    }
    group = parser.add_argument_group("what a whole training takes")
    add_options(group, RUN, tokens={"type": positive(TOKENS)}, gpu_hour={"type": _prices}, **times)
    if sized:
        add_options(group, SEARCHING, devices={"type": _sizes}, minimize={"choices": MINIMIZED})


def _prices(text: str) -> float | dict[str, float]:
    """`2.5`, or by kind `h100=2.5,a100=1.2`."""
    parts = [part.partition("=") for part in text.split(",")]
    try:
        if len(parts) == 1 and not parts[0][1]:
            return float(text)
        return {kind.strip(): float(price) for kind, _, price in parts}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no price such as 2.5 or h100=2.5,a100=1.2") from None


def _reserve(text: str) -> tuple[int | None, float]:
    rank, equals, amount = text.rpartition("=")
    if equals and not rank.strip().lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"{rank!r} is no rank of a pipeline; give a whole number, such as 0 or -1")
    nothing = amount.strip() == "0"
    return (int(rank) if equals else None), 0.0 if nothing else positive(BYTES)(amount)


def _sizes(text: str) -> tuple[int, int]:
    number = at_least(1)
    least, _, most = text.partition("..")
    return number(least), number(most or least)


def recomputed(text: str) -> str:
    """What is recomputed; modules in the order of MODULES."""
    if text in RECOMPUTE or modules_of(text):
        return "+".join(modules_of(text)) or text
    choices = f"{', '.join(RECOMPUTE)}, or modules joined by +: {', '.join(MODULES)}"
    raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {choices})")


def _numbers(text: str) -> tuple[int, ...]:
    number = at_least(0)
    return tuple(number(part) for part in text.split(","))


def plan_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """All options of plans by name, as `plan_request` takes them."""
    names = [option.name for option in fields(ExploreOptions)]
    names += (*FIELDS, *TRAINING, *TRAINING_GOAL, "devices", "minimize")
    options = {name: getattr(namespace, name, None) for name in names}
    options["reserve"] = None if namespace.reserve is None else dict(namespace.reserve)
    options["runtime"], options["imbalance"] = namespace.runtime, namespace.imbalance
    if namespace.no_flash:
        options["flash"] = False
    return options


TARGET = f"""
    --for TARGET  only what it runs, with its command or configuration: {", ".join(PLANNED_FOR)}
"""
"""Option: within what a framework can express."""
