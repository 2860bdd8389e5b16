"""What `automap plan` and Python's `plan` ask for: a strategy, or the best of every kind of plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import BLOCKS
from automap_models.core.device import Device
from automap_models.core.model_work import ModelWork
from automap_models.core.plan import Plan
from automap_models.core.schedules import WARM_UPS
from automap_models.core.strategy import Precision, Strategy
from automap_models.core.tuning import Training
from automap_models.cost.profile_layers import PRECISIONS, require_fields
from automap_models.errors import BadInput
from automap_models.export.targets import target_by_name
from automap_models.formats.hardware_yaml import read_kinds
from automap_models.formats.plan import written_plan
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.planners.base import config_of
from automap_models.planners.options import ExploreOptions
from automap_models.planners.portfolio.profile_strategy import FORBIDDEN, without
from automap_models.planners.strategies.problem import HALF, usual_batch, usual_precision
from automap_models.requests import (
    FIELDS,
    TRAINING,
    TRAINING_RUN,
    ExploreRequest,
    FitRequest,
    StrategyRequest,
    cluster_of,
    device_on,
    narrowed,
)
from automap_models.requests.strategies import divides
from automap_models.workloads.source import Source, transformer

FREE = (*FIELDS, *(field.name for field in fields(Strategy) if field.name not in (*FIELDS, "schedule", "global_batch")))
"""Fields of a strategy that only strategies have, those with an option of a command first."""
OF_STRATEGIES = (*FREE, *TRAINING, "schedule", "runtime", "flash", "reserve", "devices")
"""Options that plans of stages do not know, and the schedule, which may be one that only strategies have."""
OF_STAGES: Mapping[str, str] = {
    "batch": "`micro_batch` is a strategy's",
    "trainable": "strategies train what the model trains",
    "microbatch_size": "`micro_batch` is a strategy's",
    "state_factor": "strategies have the state of an `optimizer`",
    "pins": "strategies have stages of whole blocks, which `layers` gives",
    "together": "strategies have stages of whole blocks, which `layers` gives",
    "cut_at": "strategies cut where blocks end",
    "min_gain": "strategies say what each choice gains",
    "min_stage": "strategies have stages of whole blocks, which `layers` gives",
}
"""Options that strategies of transformers do not know, each with the reason."""
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
    fit: bool = False,
    verbose: bool = False,
) -> ExploreRequest | StrategyRequest:
    """A strategy where a field of one is given, or a transformer is to be planned; else every kind of plan.

    Args:
        source, topo, device, microbatch_size, cached, verbose: as of the records.
        plan, price: as of the records; `plan` may be of a strategy.
        fit: whether all that is asked is what fits; the `batch` of a transformer is then a strategy's micro-batch.
        options: by name: fields of ExploreOptions, whose `target` may be a framework's name, and OF_STRATEGIES.

    Raises:
        BadInput: an option does not go with the others.
    """
    options = {name: value for name, value in options.items() if _is_given(name, value)}
    common: dict[str, Any] = {"source": source, "topo": topo, "device": device, "cached": cached}
    common |= {"microbatch_size": microbatch_size, "verbose": verbose}
    if plan is not None and (written := _written(plan)) is not None:
        given: dict[str, Any] = {"fields": vars(written.strategy), "runtime": options.get("runtime") or written.runtime}
        given |= {"training": written.facts.training, **{name: options.get(name) for name in TRAINING_RUN}}
        return StrategyRequest(**common, options=ExploreOptions(), price=True, **given)
    divided = divides(source)
    if fit and divided and source.batch is not None:
        _refuse(options, ("micro_batch",), "is what `batch` says, too")
        source, options = replace(source, batch=None), {**options, "micro_batch": source.batch}
        common["source"] = source
    if divided:
        options = _without_the_usual_state(options, source.dtype, topo, device)
    of_profile = {"batch": source.batch, "trainable": source.trainable, "microbatch_size": microbatch_size}
    others = _of_stages({**options, **of_profile})
    if not divided:
        others = [name for name in others if name not in OF_PROFILES]
    chosen = [name for name in (*OF_STRATEGIES, *TRAINING_RUN) if name in options] + ["price"] * price + ["fit"] * fit
    if options.get("schedule") in WARM_UPS:
        chosen.remove("schedule")
    if others and chosen:
        _refuse_beside(others, chosen[0], options)
    if others or plan is not None or not (chosen or divided):
        if others and divided and not isinstance(source.model, ModelWork):
            common["source"], options = _as_strategies(source, options, topo, device)
        within = config_of(ExploreOptions, "plan", **narrowed({"forbidden": (), **options}))
        of_stages = tuple(others) if divided else ()
        return ExploreRequest(**common, options=within, plan=plan, target=options.get("target"), of_stages=of_stages)
    if not divided:
        require_fields(options)
        _refuse(options, TRAINING_RUN, "is for tokens, and the samples of a profile have none")
    if price:
        of_searching = ("devices", "reserve", "budget_s", "thorough", "max_stages")
        _refuse(options, of_searching, "is for a search, and `price` searches nothing")
    reserve = options.get("reserve", {})
    searching = ("global_batch", "budget_s", "memory_bytes", "thorough", "max_stages")
    return (FitRequest if fit else StrategyRequest)(
        **common,
        options=ExploreOptions(**{name: options[name] for name in searching if name in options}),
        fields=_fields(options, source.dtype),
        training=Training.of_options(**{name: options[name] for name in TRAINING if name in options}),
        runtime=options.get("runtime"),
        flash=options.get("flash", True),
        price=price,
        reserve=reserve if isinstance(reserve, Mapping) else {None: reserve},
        target=options.get("target"),
        devices=options.get("devices"),
        tokens=options.get("tokens"),
        gpu_hour=options.get("gpu_hour"),
    )


def _without_the_usual_state(
    options: dict[str, Any], dtype: str | None, topo: str | Cluster, device: str | Device | None
) -> dict[str, Any]:
    """The options of a transformer's plan without a state factor that is Adam's at its precision."""
    given = options.get("state_factor")
    if given is None:
        return options
    precision = PRECISIONS.get(dtype or "") or options.get("precision") or _usual_precision(topo, device)
    usual = {"fp32": 4.0, "fp8": 14.0, "nvfp4": 14.0}.get(str(precision), 8.0)  # core.training_state
    return {name: value for name, value in options.items() if name != "state_factor" or given != usual}


def _usual_precision(topo: str | Cluster, device: str | Device | None) -> Precision:
    """In which strategies are searched on a cluster."""
    cluster = cluster_of(topo)
    return usual_precision([*read_kinds(cluster).values()] or [device_on(cluster, device)])


def _as_strategies(
    source: Source, options: dict[str, Any], topo: str | Cluster, device: str | Device | None
) -> tuple[Source, dict[str, Any]]:
    """A transformer of the type, and with the samples of a step, that its strategies have where nobody says."""
    if source.dtype is None:
        precision = _usual_precision(topo, device)
        source = replace(source, dtype=HALF.get(precision))
    usual = usual_batch(transformer(source).work().shape, cluster_of(topo).devices)
    return source, {"global_batch": usual, **options}


def _refuse_beside(others: Sequence[str], field: str, options: Mapping[str, Any]) -> NoReturn:
    """Refuse options of plans of stages beside the field of a strategy, each with its reason."""
    do = f"leave out `{field}`, or {'them' if len(others) > 1 else 'it'}"
    if others[0] == "target":
        raise BadInput(f"{options['target']} takes no strategies, and `{field}` is of one", where="`target`", do=do)
    reasons = {name: OF_STAGES.get(name, "a strategy has no length L") for name in others if name != "target"}
    several = dict.fromkeys(reasons.values())
    where = " and ".join(f"`{name}`" for name in reasons)
    are = "are" if len(reasons) > 1 else "is"
    raise BadInput(f"{are} not for a strategy, which `{field}` gives: {'; '.join(several)}", where=where, do=do)


def _written(path: Path) -> Plan | None:
    """The plan in a file; None where it is of another kind than a strategy."""
    with suppress(BadInput):
        return written_plan(path, StrategyDocument)
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
    return value is not None and (name in (*FREE, "flash") or not (value is False or value in ((), [])))
