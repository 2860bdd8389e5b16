"""What `automap plan` and Python's `plan` ask for: a strategy, or the best of every kind of plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import BLOCKS
from automap_models.core.device import Device
from automap_models.core.plan import Plan
from automap_models.core.schedules import WARM_UPS
from automap_models.core.strategy import Strategy
from automap_models.core.training_run import TrainingGoal
from automap_models.core.tuning import Training
from automap_models.cost.profile_layers import PRECISIONS, require_fields
from automap_models.errors import BadInput
from automap_models.export.targets import target_by_name
from automap_models.formats.plan import written_plan
from automap_models.formats.strategy_plan import StrategyDocument
from automap_models.planners.base import config_of
from automap_models.planners.options import ExploreOptions
from automap_models.planners.portfolio.profile_strategy import FORBIDDEN, without
from automap_models.requests import (
    FIELDS,
    TRAINING,
    TRAINING_GOAL,
    ExploreRequest,
    FitRequest,
    StrategyRequest,
    narrowed,
)
from automap_models.requests.strategies import divides
from automap_models.workloads.source import Source

FREE = (*FIELDS, *(field.name for field in fields(Strategy) if field.name not in (*FIELDS, "schedule", "global_batch")))
"""Fields of a strategy that only strategies have, those with an option of a command first."""
OF_STRATEGIES = (*FREE, *TRAINING, "schedule", "runtime", "flash", "imbalance", "reserve", "devices", "minimize")
"""Options that plans of stages do not know, and the schedule, which may be one that only strategies have."""
OF_STAGES: Mapping[str, str] = {
    "trainable": "strategies train what the model trains",
    "microbatch_size": "`micro_batch` is a strategy's",
    "state_factor": "strategies have the state of an `optimizer`",
    "pins": "strategies have stages of whole blocks, which `layers` gives",
    "together": "strategies have stages of whole blocks, which `layers` gives",
    "min_stage": "strategies have stages of whole blocks, which `layers` gives",
    "cut_at": "strategies cut where blocks end",
}
"""Options that plans of stages have and strategies do not know, each with the reason."""


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
        fit: whether all that is asked is what fits.
        options: by name: fields of ExploreOptions, whose `target` may be a framework's name, and OF_STRATEGIES.

    Raises:
        BadInput: an option does not go with the others.
    """
    options = {name: value for name, value in options.items() if _is_given(name, value)}
    common: dict[str, Any] = {"source": source, "topo": topo, "device": device, "cached": cached}
    common |= {"microbatch_size": microbatch_size, "verbose": verbose}
    # A strategy's file is priced as a strategy; plans of stages are costed by the request for those.
    if plan is not None and (written := _written(plan)) is not None:
        given: dict[str, Any] = {"fields": vars(written.strategy), "runtime": options.get("runtime") or written.runtime}
        given |= {"training": written.facts.training, "goal": _goal(options), "imbalance": options.get("imbalance")}
        return StrategyRequest(**common, options=ExploreOptions(), price=True, **given)
    divided = divides(source)
    of_source = {"trainable": source.trainable, "microbatch_size": microbatch_size} if divided else {}
    reasons = _of_stages({**options, **of_source})
    chosen = [name for name in (*OF_STRATEGIES, *TRAINING_GOAL) if name in options] + ["price"] * price + ["fit"] * fit
    # Both have schedules: one of these alone does not say that a strategy is meant.
    if options.get("schedule") in WARM_UPS:
        chosen.remove("schedule")
    if plan is not None or not (chosen or divided):
        within = config_of(ExploreOptions, "plan", **narrowed({"forbidden": (), **options}))
        return ExploreRequest(**common, options=within, plan=plan, target=options.get("target"))
    if reasons:
        _refuse_of_stages(reasons, source.what if divided else None, chosen)
    if not divided:
        require_fields(options)
        _refuse(options, TRAINING_GOAL, "is for tokens, and the samples of a profile have none")
    if price:
        of_searching = ("devices", "minimize", "reserve", "budget_s", "thorough", "max_stages", "min_gain")
        _refuse(options, of_searching, "is for a search, and `price` searches nothing")
    reserve = options.get("reserve", {})
    alike = ("runtime", "flash", "imbalance", "target", "devices", "minimize")
    searching = ("global_batch", "budget_s", "memory_bytes", "thorough", "max_stages", "min_gain")
    return (FitRequest if fit else StrategyRequest)(
        **common,
        options=ExploreOptions(**{name: options[name] for name in searching if name in options}),
        fields=_fields(options, source.dtype, source.batch if divided else None),
        training=Training.of_options(**{name: options[name] for name in TRAINING if name in options}),
        price=price,
        reserve=reserve if isinstance(reserve, Mapping) else {None: reserve},
        goal=_goal(options),
        **{name: options[name] for name in alike if name in options},
    )


def _goal(options: Mapping[str, Any]) -> TrainingGoal | None:
    return TrainingGoal.of_options({name: options[name] for name in TRAINING_GOAL if name in options})


def _refuse_of_stages(reasons: Mapping[str, str], transformer: str | None, chosen: Sequence[str]) -> NoReturn:
    """Refuse options of plans of stages, each with its reason, and say what takes them.

    Args:
        reasons: by option.
        transformer: what the model is called, where strategies alone are its plans.
        chosen: options of strategies that are given.
    """
    are, it = ("are", "them") if len(reasons) > 1 else ("is", "it")
    what = f"{are} not for a strategy, which `{chosen[0]}` gives" if chosen else f"{are} not for a transformer"
    do = f"leave {it} out" if transformer else f"leave out `{chosen[0]}`, or {it}"
    if transformer:
        do += f", or plan its profile: automap profile {transformer} -o profile.npz, then automap plan profile.npz"
    where = " and ".join(f"`{name}`" for name in reasons)
    raise BadInput(f"{what}: {'; '.join(dict.fromkeys(reasons.values()))}", where=where, do=do)


def _written(path: Path) -> Plan | None:
    """The plan in a file; None where it is of another kind than a strategy."""
    with suppress(BadInput):
        return written_plan(path, StrategyDocument)
    return None


def _of_stages(options: Mapping[str, Any]) -> dict[str, str]:
    """Options that are given and strategies do not know, each with the reason."""
    usual = {"cut_at": BLOCKS, "trainable": ()}
    reasons = {name: OF_STAGES[name] for name in OF_STAGES if options.get(name) not in (None, usual.get(name))}
    if options.get("objective") == "length":
        reasons["objective=length"] = "strategies have no length L"
    target = options.get("target")
    if target is not None and not target_by_name(target).takes_strategies:
        reasons[f"target={target}"] = "it takes no strategies"
    return reasons


def _fields(options: Mapping[str, Any], dtype: str | None, batch: int | None) -> dict[str, Any]:
    """The fields of a strategy that options give, and what else gives them: a transformer's type and batch."""
    given = {name: options[name] for name in (*FREE, "schedule") if name in options}
    if dtype in PRECISIONS:
        _refuse(options, ("precision",), f"is what `dtype={dtype}` says, too")
        given["precision"] = PRECISIONS[dtype]
    if batch is not None:
        _refuse(options, ("micro_batch",), f"is what `batch={batch}` says, too")
        given["micro_batch"] = batch
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
