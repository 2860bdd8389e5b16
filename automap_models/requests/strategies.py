"""The best strategy of a transformer on a cluster, and what its choices buy; or the price of one."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate, strategy_in_words
from automap_models.core.framework import Limits, ModelFacts
from automap_models.core.model_work import ModelWork
from automap_models.core.plan import Plan
from automap_models.core.result import Result
from automap_models.core.schedules import DEFAULT_MIN_GAIN, DEFAULT_SCHEDULE, schedule_family
from automap_models.core.strategy import PARTS, Precision, Strategy, TransformerShape, batch_in_samples, require_parts
from automap_models.core.tuning import FULL, Training
from automap_models.cost.profile_layers import ProfileWork
from automap_models.cost.runtime import Runtime
from automap_models.errors import BadInput
from automap_models.export.target import Source as PlanSource
from automap_models.export.targets import TARGETS, strategy_limits, target_by_name, training_limits
from automap_models.formats.atomic import write_json
from automap_models.formats.hardware_yaml import read_kinds
from automap_models.formats.runtime_yaml import GENERAL, known_runtimes, read_runtime, split_layers
from automap_models.formats.strategy_plan import estimate_document
from automap_models.planners import effort
from automap_models.planners.base import Deadline, Watch
from automap_models.planners.options import given
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.profile_strategy import PATIENT
from automap_models.planners.portfolio.space import default_batch
from automap_models.planners.strategies.compare import Alternative, Compared, Comparisons
from automap_models.planners.strategies.part_search import Searched
from automap_models.planners.strategies.parts import Part
from automap_models.planners.strategies.planner import is_trained
from automap_models.planners.strategies.problem import (
    StrategiesConfig,
    StrategyProblem,
    usual_batch,
    usual_dispatcher,
    usual_precision,
)
from automap_models.planners.strategies.remedies import what_would_fit, with_hosts
from automap_models.plots.figures import drawn
from automap_models.plots.html import strategy_html
from automap_models.requests import StrategyRequest, device_on
from automap_models.requests.offers import (
    Choice,
    Offer,
    choice_of,
    chosen,
    gpu_hour,
    is_choice,
    offered,
    part_search,
    parts_beside,
    with_even_batch,
)
from automap_models.requests.profile import profiled_model
from automap_models.simulate.strategy import StrategyPricing, require_device
from automap_models.workloads.sizes import Transformer
from automap_models.workloads.source import BUILT, Source, transformer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WorkT = TypeVar("WorkT", bound=ModelWork)


@dataclass(frozen=True, eq=False, kw_only=True)
class StrategyResult(Result[StrategyProblem, Strategy]):
    """The fastest strategy, what it costs, what is proven about it, and what its choices buy.

    Attributes:
        compared: what it was compared with.
        model_s: wall-clock time of reading or profiling the model, before the search.
        sizes: results on all clusters that were asked for, where there are several.
        choice: why it is this one of them; None where nobody asks which is best.
        even_batch: the best of all of its cluster with samples that the devices share evenly, where these would train
            more tokens a second.
        stages: the best plan of stages, which is longer, where these were searched, too.
    """

    compared: Compared
    model_s: float = 0.0
    sizes: Sequence[Result[StrategyProblem, Strategy]] = ()
    choice: Choice | None = None
    even_batch: Estimate | None = None
    stages: Candidate | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cost.model} on {self.cost.cluster}: {strategy_in_words(self.cost)})"

    def _repr_html_(self) -> str:
        """The parts of the step and the memory of every rank, as a notebook shows a result."""
        return strategy_html(self.cost)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write strategy.json, whole or not at all, as `automap plan --out` does; `export` reads it.

        Raises:
            BadInput: the file cannot be written.
        """
        write_json(path, searched_document(self))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """The parts of its step and its memory beside those of other strategies; a notebook shows it as it is."""
        from automap_models.plots.strategies import draw_strategies

        named = [(one.name, one.estimate) for one in (*self.compared.choices, *self.compared.kinds)]
        sizes = [(one.problem.cluster.devices, one.cost) for one in self.sizes]
        return drawn(path, lambda: draw_strategies(self.cost, named, self.compared.memory, sizes))


def solve(request: StrategyRequest, watch: Watch) -> StrategyResult | Estimate:
    """The price of a strategy; or the best one, and what its choices buy."""
    if request.price:
        return _priced(request, watch)
    begun = time.perf_counter()
    usual = StrategiesConfig()
    if request.options.thorough:
        usual = replace(usual, gap=0.0, budget_s=math.inf)
    config = replace(usual, budget_s=request.options.budget_s or usual.budget_s)
    clusters = offered(request)
    problems = list(_problems(request, clusters, watch))
    read = time.perf_counter()
    if isinstance(problems[0].work, ProfileWork):
        config = replace(config, patience=PATIENT.patience)
    min_gain = given(request.options, "min_gain")
    choosing = request if is_choice(request) else None
    return replace(searched(problems, config, watch, choosing=choosing, **min_gain), model_s=read - begun)


def _problems(request: StrategyRequest, clusters: Sequence[Cluster], watch: Watch) -> Iterator[StrategyProblem]:
    """What is searched on each cluster, for the samples that are usual on the largest one."""
    largest = max(clusters, key=lambda cluster: cluster.devices)
    batch = strategy_problem(replace(request, topo=largest), watch).global_batch
    for cluster in clusters:
        if request.goal is not None:
            gpu_hour(request, cluster)  # what has no price is refused before it is searched
        yield _problem_on(cluster, request, batch, watch)


def _problem_on(cluster: Cluster, request: StrategyRequest, batch: int, watch: Watch) -> StrategyProblem:
    options = replace(request.options, global_batch=batch, memory_bytes=None)  # the clusters are limited
    return strategy_problem(replace(request, topo=cluster, options=options), watch)


def strategy_problem(request: StrategyRequest, watch: Watch) -> StrategyProblem:
    """What is searched: the model on the cluster, within what is asked of its strategies."""
    cluster = request.cluster
    work, batch, fixed = _divided(request, watch)
    within = _limits(request)
    device = device_on(cluster, request.device)
    devices = [*read_kinds(cluster).values()] or [device]
    untyped = work("")
    runtime = _runtime(request, fixed.get("precision") or usual_precision(devices, within), device, untyped)
    if request.runtime is not None and untyped.shape.experts:
        fixed.setdefault("dispatcher", runtime.dispatcher)
    return StrategyProblem.from_work(
        work,
        cluster,
        device,
        global_batch=batch,
        fixed=fixed,
        within=within,
        reserve_bytes=request.reserve.get(None),
        rank_reserve_bytes={rank: nbytes for rank, nbytes in request.reserve.items() if rank is not None},
        runtime=runtime,
        most_ranks=request.options.max_stages,
    )


def searched(
    problems: Sequence[StrategyProblem],
    usual: StrategiesConfig,
    watch: Watch,
    min_gain: float = DEFAULT_MIN_GAIN,
    choosing: StrategyRequest | None = None,
) -> StrategyResult:
    """The best strategy, and what its choices buy.

    All searches share the budget. Those of the best strategy, on all clusters, have half of it in equal
    parts; those within frameworks and of what its choices buy have the rest, but no more than 3 counted seconds or
    twice what the former took, whichever is more.

    Args:
        problems: on one cluster, and on others of which the best strategies are wanted, too.
        usual: of all searches together.
        min_gain: how much shorter a strategy has to be that is harder to run (planners.strategies.problem).
        choosing: by which of them one is chosen; None is the first one.

    Raises:
        Infeasible: no strategy fits the memory.
    """
    begun, deadline, half_s = time.perf_counter(), Deadline(usual.budget_s, effort.counted_s), 0.5 * usual.budget_s
    config = replace(usual, budget_s=half_s / len(problems))
    begun_s = effort.counted_s()
    searches = [part_search(problem, config, watch, choosing, min_gain) for problem in problems]
    competing = None if choosing is None or choosing.devices is not None else choosing
    results = [(search.problem, search.full(may_fail=competing is not None)) for search in searches]
    offers = [Offer(Part(problem.cluster), problem, result) for problem, result in results if result is not None]
    bounded, compared = list(offers), dict[int, Compared]()

    def best() -> int:
        """The number of the best offer, as it is within frameworks: these may train longer ones than were found."""
        while (number := 0 if choosing is None else chosen(choosing, offers, min_gain)) not in compared:
            result = with_hosts(_result(offers[number]), config, watch, deadline.part(0.5 * deadline.remaining_s))
            searched_s = effort.counted_s() - begun_s
            if result.plan is None:
                return number
            comparing_s = min(max(3.0, 2.0 * searched_s / len(problems)), deadline.remaining_s)
            compared[number] = Comparisons(result, config, watch, comparing_s, training_limits(), min_gain).answer()
            offers[number] = replace(offers[number], result=compared[number].result)
        return number

    # Where whole kinds or zones compete they do so as they are searched; else with what frameworks train of all.
    first = competing is None or not any(search.sides for search in searches)
    number = best() if offers and first else None
    for search in searches if competing is not None else ():
        assert competing is not None
        least, within = None if number is None else offers[number], search.problem.within
        if least is not None and within is None and not isinstance(search.problem.work, ProfileWork):
            within = next((training_limits()[name] for name in frameworks_of(_result(least))), None)
        problem_on = partial(_problem_on, request=competing, batch=search.problem.global_batch, watch=watch)
        parts = list(parts_beside(competing, search, offers, least, problem_on, within, min_gain))
        bounded += parts
        offers += (fitting := [offer for offer in parts if offer.result is not None and offer.result.plan is not None])
        number = best() if first and (fitting or number is None) else number
    number = best() if number is None else number
    if number not in compared:
        result = _result(offers[number])
        assert result.reason is not None
        raise what_would_fit(result.problem, result.reason, watch, deadline)
    result, choice = compared[number].result, None
    if choosing is not None and len(bounded) > 1:
        choice = choice_of(choosing, bounded, offers[number], result.cost.step_s, min_gain)
    within = result.problem.within or next((training_limits()[name] for name in frameworks_of(result)), None)
    even_batch = with_even_batch(offers[number], within, config, watch, min_gain)
    sizes = [_result(offer) for offer in offers if not offer.part.idle or offer is offers[number]]
    if choosing is None:
        sizes.sort(key=lambda one: one.problem.cluster.devices)
    further: dict[str, Any] = {"compared": compared[number], "sizes": sizes if len(sizes) > 1 else ()}
    further |= {"choice": choice, "even_batch": even_batch, "taken_s": time.perf_counter() - begun}
    return StrategyResult(**{**vars(result), **further})


def _result(offer: Offer) -> Searched:
    assert offer.result is not None
    return offer.result


def frameworks_of(result: Result[StrategyProblem, Strategy]) -> list[str]:
    """Targets that train the strategy of a search; the one that it is for, where it is for one."""
    problem, strategy = result.problem, result.plan
    within = training_limits()
    if strategy is None or problem.within in within.values():
        return [name for name, limits in within.items() if limits == problem.within]
    return [name for name, limits in within.items() if is_trained(problem, strategy, limits)]


def _divided(request: StrategyRequest, watch: Watch) -> tuple[Callable[[str], ModelWork], int | None, dict[str, Any]]:
    """Type that layers compute in → the model's work; the samples of a step, and the fields that are fixed.

    Of a model that is no transformer the work is its profile's, in the type that it was profiled in.

    Raises:
        BadInput: a field is given that a profile does not say.
    """
    source, batch = request.source, request.options.global_batch
    training = request.training
    profile = source.model
    if isinstance(profile, ModelWork) and not isinstance(profile, ProfileWork):
        model = profile if training.is_full else _trained(profile, training)
        return lambda dtype: model, batch, dict(request.fields)
    if not isinstance(profile, ProfileWork):
        if divides(source):
            return lambda dtype: transformer(replace(source, dtype=dtype)).work(training), batch, dict(request.fields)
        profiled = profiled_model(request, request.cluster, watch, cached=request.cached)
        profile = ProfileWork.from_profile(profiled.profile)
    work, usual = _trained(profile, training), default_batch(profile.profile, request.cluster.devices)
    return lambda dtype: work, batch or usual, work.fields(request.fields)


def _trained(work: WorkT, training: Training) -> WorkT:
    """The work of a model by another optimiser; what it trains it says itself."""
    for name, option in (("freeze", "freeze"), ("rank", "lora"), ("loss", "loss"), ("packed", "packed")):
        if getattr(training, name) != getattr(FULL, name):
            what = "needs the layers of a transformer, and this model says what it trains"
            do = "leave it out, or give the model by its name or its config.json"
            raise BadInput(what, where=f"`{option}`", do=do)
    return replace(work, training=training)


def divides(source: Source) -> bool:
    """Whether the model has layers that all strategies divide: those of a transformer that is known.

    Raises:
        BadInput: its config.json cannot be read, or an option is out of range.
    """
    if (is_work := isinstance(source.model, ModelWork)) or source.kind not in BUILT:
        return is_work
    plain = replace(source, images=None, image_tokens=None, mtp=None)  # what is wrong with these is said later
    return isinstance(transformer(plain).architecture, Transformer)


def _priced(request: StrategyRequest, watch: Watch) -> Estimate:
    """The price of a strategy."""
    strategy, pricing = priceable(request, watch)
    with batch_in_samples(strategy.dp * strategy.micro_batch):
        return pricing.estimate(strategy)


def priceable(request: StrategyRequest, watch: Watch) -> tuple[Strategy, StrategyPricing]:
    """The strategy that a request gives, which the model, the cluster and the framework can run, and what prices it.

    Raises:
        BadInput: one of them cannot.
    """
    cluster = request.cluster
    kinds, device = read_kinds(cluster), device_on(cluster, request.device)
    devices = [*kinds.values()] or [device]
    work, batch, fixed = _divided(request, watch)
    fields = {"precision": usual_precision(devices), **fixed}
    untyped, within = work(""), _limits(request)
    shape, runtime = untyped.shape, _runtime(request, fields["precision"], device, untyped)
    usual = runtime.dispatcher if shape.experts and request.runtime is not None else None
    fields.setdefault("dispatcher", usual or usual_dispatcher(shape, devices, within))
    fields.setdefault("global_batch", batch or usual_batch(shape, cluster.devices))
    strategy = _strategy(fields, cluster, shape)
    for kind in devices:
        require_device(kind, strategy)
    model = work(strategy.dtype)
    if within is not None:
        objection = within.objection(strategy, model.facts)
        if objection is not None:
            if request.target is None:
                raise BadInput(objection.what, where="`runtime`", do=f"{objection.do}, or another `runtime`")
            raise BadInput(objection.what, where="`target`", do=objection.do)
    return strategy, StrategyPricing(model, cluster, device, runtime, kinds)


def _limits(request: StrategyRequest) -> Limits | None:
    """What the target can express, or else what the runtime runs; None where neither is given."""
    return _runtime_limits(request.runtime) if request.target is None else strategy_limits(request.target)


def _runtime(request: StrategyRequest, precision: Precision, device: Device, model: ModelWork) -> Runtime:
    """How a framework runs strategies of a model in that precision, with the imbalance of experts that is asked for."""
    _require_runtime(request.runtime, request.fields, model.facts)
    runtime = _named_runtime(request, precision, device)
    if request.imbalance is None:
        return runtime
    if not model.shape.experts:
        raise BadInput(f"{model.shape.name} has no experts", where="`imbalance`", do="leave it out")
    return replace(runtime, imbalance=request.imbalance)


def _named_runtime(request: StrategyRequest, precision: Precision, device: Device) -> Runtime:
    """As asked for, as the target's, or as programs in general."""
    named = request.runtime
    if isinstance(named, Runtime):
        return named
    if named is None and request.target is not None:
        runs = strategy_limits(request.target).runtime or request.target
        named = runs if runs in known_runtimes() else None
    runtime = read_runtime(named or GENERAL).runtime(precision, device.name)
    return replace(runtime, name=str(named or ""), flash=runtime.flash and request.flash)


def _runtime_limits(runtime: Runtime | str | Path | None) -> Limits | None:
    """What a runtime that is named, or in a file, runs; None where nobody says."""
    return None if runtime is None or isinstance(runtime, Runtime) else read_runtime(runtime).limits(training_limits())


def _require_runtime(named: Runtime | str | Path | None, fields: Mapping[str, Any], facts: ModelFacts) -> None:
    """Refuse what the framework that a shipped runtime is of does not have, which its numbers do not tell of.

    Raises:
        BadInput: a field asks for it; says what the framework has instead.
    """
    limits = _runtime_limits(named)
    for name, value in fields.items():
        objection = None if limits is None else limits.field_objection(name, value, facts)
        if objection is not None:
            raise BadInput(objection.what, where=f"`{name}`", do=f"{objection.do}, or another `runtime`")


def _strategy(fields: Mapping[str, Any], cluster: Cluster, shape: TransformerShape) -> Strategy:
    """The strategy of a model on a cluster, with the fields that are open as `Strategy` has them.

    Data parallelism takes the devices that are left, and the schedule is 1F1B, with virtual stages the interleaved one.
    Layers that do not make equal stages are split as frameworks do it.
    """
    fields = {"micro_batch": 1, **fields}
    require_parts(shape, **{key: fields[key] for key in PARTS if key in fields})
    shared = fields.get("tp", 1) * fields.get("cp", 1) * fields.get("pp", 1)
    if "dp" not in fields and cluster.devices % shared:
        what = f"tp × cp × pp are {shared} devices, which do not divide the {cluster.devices} of cluster {cluster.name}"
        raise BadInput(what, where="`dp`", do="let the product of all be the number of devices")
    fields.setdefault("dp", cluster.devices // shared)
    fields.setdefault("schedule", "interleaved" if fields.get("vp", 1) > 1 else DEFAULT_SCHEDULE)
    fields.setdefault("vp", schedule_family(fields["schedule"]).virtual or 1)
    with batch_in_samples(fields["dp"] * fields["micro_batch"]):
        strategy = Strategy(**fields)
    strategy.require_cluster(cluster)
    if strategy.layers is None and strategy.stages <= shape.layers:
        strategy = replace(strategy, layers=split_layers(shape.layers, strategy.stages, "ends"))
    strategy.require_model(shape)
    return strategy


def gap(result: Result[StrategyProblem, Strategy]) -> float | None:
    """By which share of the step any other strategy can be shorter at most; None where nothing is proven."""
    if result.bound is None or result.plan is None:
        return None
    return max(0.0, 1.0 - result.bound.value / float(result.cost.step_s))


def command_line(result: StrategyResult) -> tuple[str | None, tuple[str, ...]]:
    """What starts the strategy under the framework that it is for, and notes; None where that reads a file instead."""
    within, best, cluster = result.problem.within, result.cost, result.problem.cluster
    if within is None or within.name not in TARGETS:
        return None, ()
    written = target_by_name(within.name).write(PlanSource(Plan.of_strategy(best)), Path("plan"))
    alike = cluster.nodes * cluster.devices_per_node == cluster.devices
    where = f"--nnodes {cluster.nodes} --nproc-per-node {cluster.devices_per_node}" if alike else "…"
    return (f"torchrun {where} {written.program}", written.notes) if written.program else (None, ())


def searched_document(result: StrategyResult) -> dict[str, Any]:
    """The same as plain JSON types: the best strategy as of a price, and what was proven."""
    document = estimate_document(result.cost)
    document |= {
        "status": result.status,
        "bound_s": None if result.bound is None else result.bound.value,
        "gap": gap(result),
        "search": dict(result.facts),
        "search_s": result.taken_s,
        "model_s": result.model_s,
        "choices": [
            {"choice": answer.name, "requires": answer.requires, "best": _document(answer.estimate)}
            for answer in result.compared.choices
        ],
        "kinds": [{"kind": answer.name, "best": _document(answer.estimate)} for answer in result.compared.kinds],
        "shorter": shorter_documents(result.compared.shorter),
        "memory": [estimate_document(answer) for answer in result.compared.memory],
    }
    if result.compared.uneven is not None:
        document["unequal_layers"] = estimate_document(result.compared.uneven)
    if result.problem.cluster.groups:
        document["node_order"] = [group.device for group in result.problem.cluster.groups]
    if result.problem.within is not None:
        document |= {"for": result.problem.within.name, "without_limits": _document(result.compared.unlimited)}
        document["command"], _ = command_line(result)
    if result.choice is not None:
        document["choice"] = asdict(result.choice)
    if result.even_batch is not None:
        document["even_batch"] = estimate_document(result.even_batch)
    if result.sizes:
        document["sizes"] = [
            {
                "cluster": answer.problem.cluster.name,
                "devices": answer.problem.cluster.devices,
                "bound_s": None if answer.bound is None else answer.bound.value,
                "best": _document(answer.cost),
            }
            for answer in result.sizes
        ]
    return document


def shorter_documents(alternatives: Iterable[Alternative]) -> list[dict[str, Any]]:
    """What is shorter than an answer, and what that needs, as plain JSON types."""
    return [{"requires": answer.requires, "best": _document(answer.estimate)} for answer in alternatives]


def _document(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate_document(estimate)
