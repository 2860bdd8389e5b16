"""What `automap plan` and Python's `plan` ask for: a strategy, or the best of every kind of plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.schedules import WARM_UPS
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import DEFAULT_RUNTIME
from automap_models.errors import BadInput
from automap_models.export.targets import strategy_limits, target_by_name
from automap_models.planners.base import config_of
from automap_models.planners.options import ExploreOptions
from automap_models.requests import FIELDS, ExploreRequest, StrategyRequest, cluster_of, narrowed
from automap_models.requests.strategies import divides
from automap_models.workloads.source import Source

FREE = (*FIELDS, *(of.name for of in fields(Strategy) if of.name not in (*FIELDS, "schedule", "global_batch")))
"""Fields of a strategy that only strategies have, those with an option of a command first."""
OF_STRATEGIES = (*FREE, "schedule", "runtime", "reserve", "devices")
"""Options that plans of stages do not know, and the schedule, which may be one that only strategies have."""
OF_STAGES = (
    *("batch", "dtype", "trainable", "microbatch_size", "state_factor", "plan", "min_gain", "min_stage"),
    *("pins", "together", "max_stages", "forbidden", "equal_replicas", "cut_at", "seed", "thorough"),
)
"""Options that strategies do not know."""


def plan_request(
    source: Source,
    topo: str | Cluster,
    options: Mapping[str, Any],
    *,
    device: str | Device | None = None,
    microbatch_size: int | None = None,
    plan: Path | None = None,
    cached: bool = False,
    price: bool = False,
) -> ExploreRequest | StrategyRequest:
    """A strategy where one is asked for, or nothing but a batch of a model that these divide; else every kind of plan.

    Args:
        source, topo, device, microbatch_size, plan, cached, price: as of the records.
        options: by name: fields of ExploreOptions, whose `target` may be a framework's name, and OF_STRATEGIES.

    Raises:
        BadInput: there is no such option, or one that does not go with the others.
    """
    known = (*(of.name for of in fields(ExploreOptions)), *OF_STRATEGIES)
    for name in options:
        if name not in known:
            raise BadInput(f"has no option {name!r}", where="plan", do=f"it has {', '.join(known)}")
    options = {name: value for name, value in options.items() if _is_given(name, value)}
    of_source = {"batch": source.batch, "dtype": source.dtype, "trainable": source.trainable or None}
    of_stages = {**of_source, "microbatch_size": microbatch_size, "plan": plan, **options}
    chosen = [name for name in OF_STRATEGIES if name in options]
    if options.get("schedule") in WARM_UPS:
        chosen.remove("schedule")
    chosen += ["price"] if price else []
    others = [name for name in OF_STAGES if of_stages.get(name) is not None]
    others += ["objective"] if options.get("objective") == "length" else []
    batch, target = options.get("global_batch"), options.get("target")
    takes = target is None or target_by_name(target).takes_strategies
    common: dict[str, Any] = {"source": source, "topo": topo, "device": device, "cached": cached}
    if chosen:
        _require_strategy(chosen[0], others, options, price)
    elif batch is None or others or not (takes and divides(source, cluster_of(topo), device)):
        within = config_of(ExploreOptions, "plan", **narrowed({"forbidden": (), **options}))
        return ExploreRequest(**common, options=within, microbatch_size=microbatch_size, plan=plan)
    reserve = options.get("reserve", {})
    return StrategyRequest(
        **common,
        options=ExploreOptions(batch, **{k: options[k] for k in ("budget_s", "memory_bytes") if k in options}),
        fields={name: options[name] for name in (*FREE, "schedule") if name in options},
        runtime=options.get("runtime", DEFAULT_RUNTIME),
        price=price,
        reserve=reserve if isinstance(reserve, Mapping) else {None: reserve},
        target=target,
        devices=options.get("devices"),
    )


def _is_given(name: str, value: object) -> bool:
    """Whether an option says something: of a strategy's field, that it is False does."""
    return value is not None and (name in FREE or not (value is False or value in ((), [])))


def _require_strategy(first: str, others: Sequence[str], options: Mapping[str, Any], price: bool) -> None:
    """Refuse what does not go with a strategy, which `first` gives."""
    for name in others:
        raise BadInput(f"is not for a strategy, which `{first}` gives", where=f"`{name}`", do="leave it out")
    if "global_batch" not in options:
        raise BadInput("a strategy needs it", where="`global_batch`", do="give the samples of a step")
    if "target" in options:
        strategy_limits(options["target"])
    for name in ("devices", "reserve", "budget_s", "target"):
        if price and name in options:
            what = "is for a search, and `price` searches nothing"
            raise BadInput(what, where=f"`{name}`", do="leave it out")
