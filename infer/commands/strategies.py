"""What `automap plan` takes of a strategy: fields that are given are fixed, and the others are searched.

`--for TARGET` plans from the start what automap-export can write for a framework.

Nothing here imports numpy: help is to be fast."""

from __future__ import annotations

import argparse

from automap_models.core.schedules import WARM_UPS
from automap_models.core.units import BYTES
from automap_models.errors import BadInput
from automap_models.planners.options import COMPETING

from ..requests import StrategyRequest
from .parsing import add_options, at_least, flag, given, positive, refuse

STRATEGY = """
    --tp N               tensor parallelism: devices that share every operator
    --pp N               ranks of the pipeline
    --dp N               ranks of data parallelism (default: what the others leave of the devices)
    --vp N               virtual stages a rank of the pipeline
    --cp N               context parallelism: devices that share every sequence
    --ep N               ranks of data parallelism that share the experts of a layer
    --micro-batch N      samples of a micro-batch on a rank of dp (default 1)
    --recompute          what the backward pass computes again: nothing (default), attention cores, or all of every
        block
    --zero               what ranks of dp divide: nothing (default), the optimizer's state, gradients too, weights too
        (FSDP)
    --sequence-parallel  the devices of tp share what is between operators, too
    --precision          of weights and activations (default: the faster of bf16 and fp16 on the devices, else fp32)
    --layers N,N,…       of each virtual stage, in the order of the model (default: equal)
    --no-flash           attention computes and keeps its scores, in several kernels
    --reserve [RANK=]SIZE
        memory of each device that is left free (default 8 %% of it, 0 is none), or of those of a rank of the pipeline,
        which counts from the last one on below 0: '4 GB', '0=6 GB', '-1=2 GB'; may be repeated
    --devices N..N       search on clusters of the same nodes with so many devices, doubling from the first to the last
    --price              search nothing: price the strategy; fields that are not given have the values shown here
"""
RECOMPUTE = ("none", "selective", "full")  # core.strategy knows these two, too; a test holds them together
PRECISIONS = ("fp32", "fp16", "bf16", "fp8")
FIELDS = (
    *("tp", "pp", "dp", "vp", "cp", "ep"),
    *("micro_batch", "recompute", "zero", "sequence_parallel", "precision", "layers"),
)
"""Fields of a strategy that have an option of the same name; `schedule` and `global_batch` are of searches, too."""
OF_STAGES = (
    *("batch", "trainable", "microbatch_size", "state_factor", "plan", "pins", "together", "max_stages", "cut_at"),
    *("min_gain", "min_stage"),
)
"""Options of plans of stages that strategies do not know."""
FORBIDDEN = {"data": ("dp",), "operator": ("tp",), "pipeline": ("pp", "vp")}
"""Kind of parallelism that is not to be used → the fields of a strategy that are then 1."""
PRECISION_OF = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Type that the layers compute in → the precision of a strategy."""


def add_strategy(group: argparse._ArgumentGroup) -> None:
    """--tp, --pp, … --price: what is fixed of a strategy."""
    unless = {"default": None, "action": "store_true"}
    add_options(
        group,
        STRATEGY,
        recompute={"choices": RECOMPUTE},
        zero={"type": int, "choices": range(4)},
        sequence_parallel=unless,
        precision={"choices": PRECISIONS},
        layers={"type": _numbers},
        no_flash=unless,
        reserve={"type": _reserve},
        devices={"type": _sizes},
        price=unless,
    )


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


def _numbers(text: str) -> tuple[int, ...]:
    number = at_least(0)
    return tuple(number(part) for part in text.split(","))


def of_stages(namespace: argparse.Namespace) -> str | None:
    """The option that is given and only plans of stages know; None where strategies can do what is asked.

    Strategies have equal replicas and cut where blocks end, and their search draws no random numbers.
    """
    names = [name for name, value in given(namespace, *OF_STAGES).items() if value not in ([], BLOCKS)]
    names += ["objective"] * (namespace.objective == "length")
    names += ["target"] * (namespace.target not in (None, *STRATEGIES_FOR))
    return flag(names[0]) if names else None


def strategy_request(namespace: argparse.Namespace) -> StrategyRequest | None:
    """What is to be searched or priced; None where an option is of plans of stages alone."""
    fields, target, others = given(namespace, *FIELDS, "schedule"), namespace.target, of_stages(namespace)
    running = given(namespace, "no_flash", "reserve", "devices", "price")
    chosen = [name for name in (*fields, *running) if name != "schedule" or fields[name] not in WARM_UPS]
    if others and not chosen:
        return None
    if others == flag("target"):
        do = f"choose from {', '.join(STRATEGIES_FOR)}, or give no field of a strategy"
        raise BadInput(f"{target} takes no strategies", where=others, do=do)
    if others:
        raise BadInput(f"is not for a strategy, which {flag(chosen[0])} gives", where=others, do="leave it out")
    if namespace.dtype in PRECISION_OF:
        refuse(namespace, ("precision",), f"is what --dtype {namespace.dtype} says, too")
        fields["precision"] = PRECISION_OF[namespace.dtype]
    for kind in namespace.forbid:
        refuse(namespace, FORBIDDEN[kind], f"is forbidden by --forbid {kind}")
        fields |= dict.fromkeys(FORBIDDEN[kind], 1)
    if namespace.price:
        of_searching = ("devices", "reserve", "budget_s", "thorough", "plot", "target")
        refuse(namespace, of_searching, "is for a search, and --price searches nothing")
    return StrategyRequest(
        fields,
        flash=not namespace.no_flash,
        price=bool(namespace.price),
        usual=not chosen,
        reserves=dict(namespace.reserve or ()),
        target=target,
        sizes=namespace.devices,
    )


PLANNED_FOR = ("torch-split-spec", "torchtitan", "megatron", "deepspeed", "galvatron")
"""Targets that restrict where a model is cut or how devices are shared out."""
STRATEGIES_FOR = ("torchtitan", "megatron", "deepspeed", "galvatron")
"""Those that strategies can be written for; a test holds them and the targets together."""
BLOCKS = "blocks"  # core.constraints knows it, too; a test holds them together


TARGET = f"""
    --for TARGET  only plans that automap-export can write for it ({", ".join(PLANNED_FOR)}): equal stages, cut where
        blocks end, under a schedule that it runs; of strategies, with the ZeRO and recomputation that it has
"""
"""Option: within what a framework can express."""


def narrow(namespace: argparse.Namespace) -> None:
    """Ask of plans what the target asks of them; `--equal-replicas`, `--cut-at` and `--forbid` are set accordingly.

    Stages that divide operators, each by its own number of devices, are left out where the target has one number."""
    name, namespace.target = namespace.target, None
    if name is None:
        return
    from automap_models.core.framework import StageLimits
    from automap_models.export.targets import target_by_name

    target = target_by_name(name)
    limits = target.limits
    assert limits is not None
    if namespace.schedule is not None and namespace.schedule not in limits.schedules:
        do = f"choose from {', '.join(limits.schedules)}"
        raise BadInput(f"{name} does not run schedule {namespace.schedule}", where="`schedule`", do=do)
    namespace.target = StageLimits(
        tuple(schedule for schedule in COMPETING if schedule in limits.schedules),
        limits.filled,
        limits.ties,
        target.takes_strategies,
        limits.power_of_two,
        name if limits.one_series else "",
    )
    namespace.equal_replicas = namespace.equal_replicas or limits.equal_replicas
    if limits.cuts != "anywhere":
        if namespace.cut_at not in (None, BLOCKS):
            raise BadInput(f"{name} cuts where blocks end", where="`cut_at`", do="leave it out")
        namespace.cut_at = BLOCKS
    forbidden = getattr(namespace, "forbid", None)
    if limits.sharding != "by stage" and forbidden is not None and "operator" not in forbidden:
        namespace.forbid = [*forbidden, "operator"]
