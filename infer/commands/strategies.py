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
    --dp-replicate N     groups of neighbours among the ranks of dp, within which ZeRO divides: HSDP (default 1, all)
    --vp N               virtual stages a rank of the pipeline
    --cp N               context parallelism: devices that share every sequence
    --ep N               devices that share the experts of a layer, of those of a rank of the pipeline
    --etp N              devices that share each expert: those of tp, or 1
    --micro-batch N      samples of a micro-batch on a rank of dp (default 1)
    --recompute KIND     what the backward pass computes again: none (default), attention cores (selective), full
        blocks, or modules by Megatron's names: layernorm+moe_act; or nothing, as hosts save what blocks need (offload)
    --zero               what ranks of dp divide: nothing (default), the optimizer's state, gradients too, weights too
        (FSDP)
    --sequence-parallel  the devices of tp share what is between operators, too
    --precision          of weights and activations (default: the faster of bf16 and fp16 on the devices, else fp32)
    --dispatcher         how tokens go to experts (default: by all-to-all, or once a node, by DeepEP or HybridEP, where
        the devices and --for have that and it saves --min-gain; with --runtime as its file says)
    --offload            what lies in the memory of hosts: nothing, or the optimizer's state, which they update (default
        nothing, unless nothing fits without or a fifth of the step is saved; none keeps activations off hosts, too)
    --layers N,N,…       of each virtual stage, in the order of the model (with --price: equal, else as frameworks split
        them)
    --runtime NAME|FILE  the program that runs it, by whose numbers seconds and memory are: megatron, torchtitan,
        deepspeed, fsdp, nanotron, … (conf/runtime), or a YAML file (default: that of --for, else programs in general)
    --imbalance X        of a mixture, with ep: tokens for the experts of the fullest device over the mean of all, as
        measured (default: that of the runtime's file, 1 of the shipped ones)
    --no-flash           attention computes and keeps its scores, in several kernels
    --reserve [RANK=]SIZE
        memory of each device that is left free (default 8 %% of it, 0 is none), or of those of a rank of the pipeline,
        which counts from the last one on below 0: '4 GB', '0=6 GB', '-1=2 GB'; may be repeated
"""
"""Options: fields of a strategy, how it is run, and what is left free."""
TRAINED = """
    --optimizer        of what is trained (default adamw)
    --states           what its moments are in; with bf16, 16-bit weights have no fp32 copy either (default fp32)
    --freeze PATTERN   layers, or matrices of layers, that are not trained: embedding, 'block_?', 'block_*/q'; may be
        repeated
    --lora RANK        adapters beside the frozen matrices of all blocks, or of some: 16, 16:q,v
    --quantize         frozen matrices of blocks in 4 bits, as QLoRA has them
    --loss             of single sequences (default), or of pairs: dpo, beside a frozen reference; pairs, without one
        (ORPO, SimPO, or its log-probabilities are there already); reward, a scalar in place of the vocabulary
    --packed N         tokens of each of the documents that share a sample, and that attention stays within
"""
"""Options: what is trained, and by which optimiser."""
RUN = """
    --tokens COUNT     say in how many days, and hours of all devices, the model is trained on so many: 1T, 300B, 15e9
    --gpu-hour X       what a device costs an hour, in any currency, or each kind: h100=2.5,a100=1.2 (else as the file
        of the cluster says)
    --deadline TIME    until when: '30 days'; with --devices which number of devices meets it for the least
    --max-cost X       most that all of it may cost
    --mtbf TIME        between two failures of one device in the mean, for what they take: '5 years'
    --checkpoint TIME  that training stands still for a checkpoint (default 30 s)
    --restart TIME     from a failure until it goes on from the last checkpoint (default 5 min)
"""
"""Options: what a whole training takes."""
SEARCHING = """
    --devices N..N       search on clusters of the same nodes with so many devices, doubling from the first to the last
    --minimize           on which of several clusters (--gpus A,B; --devices N..N) the plan is, of those within
        --deadline and --max-cost: the one with the shortest step (the default of several --gpus), the least cost, or
        the fewest devices
    --price              search nothing: price the strategy; fields that are not given have the values shown here
"""


UNLESS = {"default": None, "action": "store_true"}
"""Of a switch that says nothing where it is not given."""


def add_strategy(group: argparse._ArgumentGroup) -> None:
    """--tp, --pp, … --price: what is fixed of a strategy, and whether the rest is searched."""
    add_fields(group)
    add_options(group, SEARCHING, devices={"type": _sizes}, minimize={"choices": MINIMIZED}, price=UNLESS)


def add_fields(group: argparse._ArgumentGroup) -> None:
    """--tp, --pp, … --reserve: what is fixed of a strategy."""
    add_options(
        group,
        STRATEGY,
        recompute={"type": recomputed},
        zero={"type": int, "choices": ZERO_STAGES},
        sequence_parallel=UNLESS,
        precision={"choices": PRECISIONS},
        dispatcher={"choices": DISPATCHERS},
        offload={"choices": OFFLOADS},
        layers={"type": _numbers},
        no_flash=UNLESS,
        reserve={"type": _reserve},
    )
    choices = {"optimizer": OPTIMIZERS, "states": STATES, "loss": LOSSES}
    add_options(group, TRAINED, quantize=UNLESS, **{name: {"choices": values} for name, values in choices.items()})
    times: dict[str, Any] = {
        name: {"type": positive(SECONDS)} for name in ("deadline", "mtbf", "checkpoint", "restart")
    }
    add_options(group, RUN, tokens={"type": positive(TOKENS)}, gpu_hour={"type": _prices}, **times)


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
    --for TARGET  only plans that automap export can write for it ({", ".join(PLANNED_FOR)}): equal stages, cut where
        blocks end, under a schedule that it runs; of strategies, with the ZeRO and recomputation that it has
"""
"""Option: within what a framework can express."""
