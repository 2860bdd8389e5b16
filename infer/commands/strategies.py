"""What `automap plan` takes of a strategy: with any of its fields given, that strategy is priced.

Nothing here imports numpy: help is to be fast."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from automap_models.core.schedules import DEFAULT_SCHEDULE, SCHEDULES
from automap_models.errors import BadInput

from ..requests import StrategyRequest
from .parsing import at_least, given, refuse

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.strategy import Strategy

DEGREES = {
    "tp": "tensor parallelism: devices that share every operator",
    "pp": "ranks of the pipeline",
    "dp": "ranks of data parallelism (default: what the others leave of the devices)",
    "vp": "virtual stages a rank of the pipeline",
    "cp": "context parallelism: devices that share every sequence",
    "ep": "ranks of data parallelism that share the experts of a layer",
}
RECOMPUTE = ("none", "selective", "full")  # core.strategy knows these two, too; a test holds them together
PRECISIONS = ("fp32", "fp16", "bf16", "fp8")
FIELDS = (*DEGREES, "micro_batch", "recompute", "zero", "sequence_parallel", "precision", "layers")
"""Fields of a strategy that have an option of the same name; `schedule` and `global_batch` are of searches, too."""
OF_PROFILES = ("batch", "dtype", "trainable", "microbatch_size", "state_factor", "plan", "min_gain")
OF_SEARCHES = (
    *("pin", "keep_together", "max_stages", "forbid", "equal_replicas", "cut_at", "for"),
    *("budget", "thorough", "seed", "plot"),
)


def add_strategy(group: argparse._ArgumentGroup) -> None:
    """--tp, --pp, … --no-flash: a strategy to be priced."""
    for name, shown in DEGREES.items():
        group.add_argument(f"--{name}", metavar="N", type=at_least(1), help=shown)
    group.add_argument(
        "--micro-batch", metavar="N", type=at_least(1), help="samples of a micro-batch on a rank of dp (default 1)"
    )
    group.add_argument(
        "--recompute",
        choices=RECOMPUTE,
        help="what the backward pass computes again: nothing (default), attention cores, or all of every block",
    )
    group.add_argument(
        "--zero",
        type=int,
        choices=range(4),
        help="what ranks of dp divide: nothing (default), the optimizer's state, gradients too, weights too (FSDP)",
    )
    group.add_argument(
        "--sequence-parallel",
        action="store_true",
        default=None,
        help="the devices of tp share what is between operators, too",
    )
    group.add_argument("--precision", choices=PRECISIONS, help="of weights and activations (default bf16)")
    group.add_argument(
        "--layers",
        metavar="N,N,…",
        type=_numbers,
        help="of each virtual stage, in the order of the model (default: equal)",
    )
    group.add_argument(
        "--no-flash",
        action="store_true",
        default=None,
        help="attention computes and keeps its scores, in several kernels",
    )


def _numbers(text: str) -> tuple[int, ...]:
    number = at_least(0)
    return tuple(number(part) for part in text.split(","))


def strategy_request(namespace: argparse.Namespace) -> StrategyRequest | None:
    """The strategy that is asked for; None where no field of one is given.

    Raises:
        BadInput: an option means nothing beside it, or the global batch is missing.
    """
    fields = given(namespace, *FIELDS)
    if not fields:
        refuse(namespace, ("no_flash",), "is for a strategy, of which no field is given")
        return None
    first = next(iter(fields)).replace("_", "-")
    refuse(namespace, (*OF_PROFILES, *OF_SEARCHES), f"is not for a strategy, which --{first} gives")
    fields |= given(namespace, "schedule", "global_batch")
    if "global_batch" not in fields:
        raise BadInput("a strategy needs it", where="`global_batch`", do="give the samples of a step")
    return StrategyRequest(fields, flash=not namespace.no_flash)


def strategy_of(request: StrategyRequest, cluster: Cluster) -> Strategy:
    """The strategy on a cluster, with the fields that are open as `Strategy` has them.

    Data parallelism takes the devices that are left, and the schedule is 1F1B, with virtual stages the interleaved one.

    Raises:
        BadInput: see `Strategy`; or it has another number of devices.
    """
    from automap_models.core.strategy import Strategy

    fields: dict[str, Any] = {"micro_batch": 1, **request.fields}
    shared = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    if "dp" not in fields and cluster.devices % shared:
        what = f"tp × cp × pp are {shared} devices, which do not divide the {cluster.devices} of cluster {cluster.name}"
        raise BadInput(what, where="`dp`", do="let the product of all be the number of devices")
    fields.setdefault("dp", cluster.devices // shared)
    fields.setdefault("schedule", "interleaved" if fields.get("vp", 1) > 1 else DEFAULT_SCHEDULE)
    fields.setdefault("vp", SCHEDULES[fields["schedule"]].virtual or 1)
    try:
        strategy = Strategy(**fields)
    except BadInput as error:
        if error.where != "`micro_batches`":
            raise
        samples = fields["dp"] * fields["micro_batch"]
        do = f"{error.do}, of {samples} sample(s) each (dp × micro-batch)"
        raise BadInput(error.what, where="`global_batch`", do=do) from None
    strategy.require_cluster(cluster)
    return strategy
