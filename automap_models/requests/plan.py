"""What `automap plan` and Python's `plan` ask for: a strategy, or the best of every kind of plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import BLOCKS
from automap_models.core.device import Device
from automap_models.core.schedules import WARM_UPS
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import DEFAULT_RUNTIME
from automap_models.cost.profile_layers import PRECISIONS
from automap_models.errors import BadInput
from automap_models.export.targets import target_by_name
from automap_models.formats.plan import written_plan
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.planners.base import config_of
from automap_models.planners.options import ExploreOptions
from automap_models.planners.portfolio.profile_strategy import FORBIDDEN, without
from automap_models.requests import FIELDS, ExploreRequest, StrategyRequest, narrowed
from automap_models.requests.strategies import divides
from automap_models.workloads.source import Source

FREE = (*FIELDS, *(field.name for field in fields(Strategy) if field.name not in (*FIELDS, "schedule", "global_batch")))
"""Fields of a strategy that only strategies have, those with an option of a command first."""
OF_STRATEGIES = (*FREE, "schedule", "runtime", "reserve", "devices")
"""Options that plans of stages do not know, and the schedule, which may be one that only strategies have."""
OF_STAGES = (
    *("batch", "trainable", "microbatch_size", "state_factor", "pins", "together", "max_stages", "cut_at"),
    *("min_gain", "min_stage"),
)
"""Options that strategies of transformers do not know."""
OF_PROFILES = ("batch", "trainable", "microbatch_size")
"""Those of them that say which profile is meant, of a model whose strategies are made of one."""


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
    """A strategy where a field of one is given, or a transformer is to be planned; else every kind of plan.

    Args:
        source, topo, device, microbatch_size, plan, cached, price: as of the records; `plan` may be of a strategy.
        options: by name: fields of ExploreOptions, whose `target` may be a framework's name, and OF_STRATEGIES.

    Raises:
        BadInput: there is no such option, or one that does not go with the others.
    """
    accepted = (*(field.name for field in fields(ExploreOptions)), *OF_STRATEGIES)
    for name in options:
        if name not in accepted:
            raise BadInput(f"has no option {name!r}", where="plan", do=f"it has {', '.join(accepted)}")
    options = {name: value for name, value in options.items() if _is_given(name, value)}
    common: dict[str, Any] = {"source": source, "topo": topo, "device": device, "cached": cached}
    common["microbatch_size"] = microbatch_size
    if plan is not None and (written := _written(plan)) is not None:
        given: dict[str, Any] = {"fields": vars(written), "runtime": DEFAULT_RUNTIME}
        return StrategyRequest(**common, options=ExploreOptions(), price=True, **given)
    transformer = divides(source)
    of_profile = {"batch": source.batch, "trainable": source.trainable, "microbatch_size": microbatch_size}
    others = _of_stages({**options, **of_profile})
    if not transformer:
        others = [name for name in others if name not in OF_PROFILES]
    chosen = [name for name in OF_STRATEGIES if name in options] + (["price"] if price else [])
    if options.get("schedule") in WARM_UPS:
        chosen.remove("schedule")
    if others and chosen:
        if others[0] == "target":
            do = "choose another one, or give no field of a strategy"
            raise BadInput(f"{options['target']} takes no strategies", where="`target`", do=do)
        raise BadInput(f"is not for a strategy, which `{chosen[0]}` gives", where=f"`{others[0]}`", do="leave it out")
    if others or plan is not None or not (chosen or transformer):
        within = config_of(ExploreOptions, "plan", **narrowed({"forbidden": (), **options}))
        of_stages = others[0] if others and transformer else None
        return ExploreRequest(**common, options=within, plan=plan, target=options.get("target"), of_stages=of_stages)
    if price:
        of_searching = ("devices", "reserve", "budget_s", "thorough", "target")
        _refuse(options, of_searching, "is for a search, and `price` searches nothing")
    reserve = options.get("reserve", {})
    searching = ("global_batch", "budget_s", "memory_bytes", "thorough")
    return StrategyRequest(
        **common,
        options=ExploreOptions(**{name: options[name] for name in searching if name in options}),
        fields=_fields(options, source.dtype),
        runtime=options.get("runtime", DEFAULT_RUNTIME),
        price=price,
        reserve=reserve if isinstance(reserve, Mapping) else {None: reserve},
        target=options.get("target"),
        devices=options.get("devices"),
    )


def _written(path: Path) -> Strategy | None:
    """The strategy in a file; None where there is a plan of another kind."""
    with suppress(BadInput):
        return written_plan(path, StrategyDocument).strategy
    return None


def _of_stages(options: Mapping[str, Any]) -> list[str]:
    """Options that are given and strategies do not know: these have equal replicas, and cut where blocks end."""
    names = [name for name in OF_STAGES if options.get(name) not in (None, (), [], BLOCKS)]
    names += ["objective"] * (options.get("objective") == "length")
    target = options.get("target")
    return names + ["target"] * (target is not None and not target_by_name(target).takes_strategies)


def _fields(options: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """The fields of a strategy that options give, and what else gives them."""
    given = {name: options[name] for name in (*FREE, "schedule") if name in options}
    if dtype in PRECISIONS:
        _refuse(options, ("precision",), f"is what `dtype={dtype}` says, too")
        given["precision"] = PRECISIONS[dtype]
    for kind in options.get("forbidden", ()):
        _refuse(options, FORBIDDEN[kind], f"is forbidden by `forbidden={kind}`")
    return {**given, **without(options.get("forbidden", ()))}


def _refuse(options: Mapping[str, Any], names: Sequence[str], reason: str) -> None:
    for name in names:
        if name in options:
            raise BadInput(reason, where=f"`{name}`", do="leave it out")


def _is_given(name: str, value: object) -> bool:
    """Whether an option says something: of a strategy's field, that it is False does."""
    return value is not None and (name in FREE or not (value is False or value in ((), [])))
