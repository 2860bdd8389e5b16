"""Which of several clusters a model is trained on: the shortest step, the least cost or the fewest devices.

    --gpus 32xh100,64xa100 --devices 32..128    32 H100 · 64 H100 · 128 H100 · 32 A100 · 64 A100 · 128 A100
    --gpus 16xh100+16xa100                      both in one job · some nodes of both · 16 H100 · 8 H100 · 16 A100 · …
    --topo gcp-a2-zones                         all three zones · one of them · some nodes of two of them · …

Each is searched for the same samples of a step, parts of a cluster where they may be better than all of it
(planners.strategies.parts). What is chosen meets the deadline and the most that the training may cost, where any does,
and is the best by `Part.charged_s`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.core.framework import Limits
from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.training_run import TrainingRun
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import SIZED, clusters_named
from automap_models.planners.base import Watch
from automap_models.planners.strategies.part_search import PartSearch, Searched
from automap_models.planners.strategies.parts import Idle, Part
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.planners.strategies.remedies import surely
from automap_models.requests import PlanRequest, StrategyRequest


@dataclass(frozen=True)
class Choice:
    """Why it is this cluster.

    Attributes:
        minimize: what is least: step, cost or devices; the cost where that is too high, the step where it is too late.
        clusters: among how many that were searched.
        gap: by which share any of them, or any part of one, can be better at most, charged as they are; None where that
            is not proven.
        part_of: name of the cluster that it is a part of; empty where it is all of one.
        idle: what the others of its devices are.
    """

    minimize: str
    clusters: int
    gap: float | None
    part_of: str = ""
    idle: tuple[Idle, ...] = ()


@dataclass(frozen=True)
class Offer:
    """A cluster, or a part of one.

    Attributes:
        part: which.
        problem: on all of the cluster.
        result: of its search; None where its bound is all that is known.
    """

    part: Part
    problem: StrategyProblem
    result: Searched | None


def offered(request: StrategyRequest) -> list[Cluster]:
    """The clusters that a request is about, the one that it names first; those of `devices` are no offers of their own
    unless something is minimized.

    Raises:
        BadInput: a cluster cannot be read, or has no nodes of that many devices.
    """
    named = clusters_named(request.topo) if isinstance(request.topo, str) else [request.topo]
    named = [request.options.limited(cluster) for cluster in named]
    if request.devices is not None:
        sizes = [size for cluster in named for size in _sizes(cluster, *request.devices)]
        return sizes if is_choice(request) else list(dict.fromkeys([*named, *sizes]))
    return named


def is_choice(request: StrategyRequest) -> bool:
    """Whether one of these, or a part of one, is to be chosen; else the first one is meant, and others are shown beside
    it."""
    return request.minimize is not None or request.devices is None


def _is_sized(request: StrategyRequest) -> bool:
    """Whether fewer devices may be better for being fewer."""
    return request.minimize in ("cost", "devices") or (request.goal is not None and request.goal.max_cost is not None)


def part_search(
    problem: StrategyProblem,
    config: StrategiesConfig,
    watch: Watch,
    choosing: StrategyRequest | None,
    min_gain: float,
) -> PartSearch:
    """The search of a problem's cluster, and of its parts where one is to be chosen."""
    if choosing is None:
        return PartSearch(problem, config, watch=watch)
    charge = partial(charged, choosing, problem, min_gain=min_gain)
    return PartSearch(problem, config, charge, watch, sized=_is_sized(choosing))


def _sizes(cluster: Cluster, least: int, most: int) -> Iterator[Cluster]:
    """Clusters of the same nodes, with twice as many devices each as the one before."""
    cluster.require_uniform("a sweep of sizes", "leave `devices` out: all parts of a mixed cluster are tried")
    if least > most:
        raise BadInput(f"{least} to {most} are none", where="`devices`", do="give the smaller number first")
    while least <= most:
        nodes, odd = divmod(least, cluster.devices_per_node)
        if odd:
            what = f"{least} devices are no whole nodes of {cluster.devices_per_node}"
            raise BadInput(what, where="`devices`", do=f"begin with a multiple of {cluster.devices_per_node}")
        name = f"{least}x{cluster.device}" if SIZED.fullmatch(cluster.name) else cluster.name
        yield cluster if nodes == cluster.nodes else replace(cluster, nodes=nodes, name=name)
        least *= 2


def run_of(request: PlanRequest, cluster: Cluster, estimate: Estimate) -> TrainingRun | None:
    """What the training that is asked for takes by a strategy; None where none is.

    Raises:
        BadInput: what it costs is asked for, and a device has no price.
    """
    return _run(request, cluster, estimate.tokens_per_s)


def _run(request: PlanRequest, cluster: Cluster, tokens_per_s: float) -> TrainingRun | None:
    if not isinstance(request, StrategyRequest) or request.goal is None:
        return None
    return replace(request.goal, gpu_hour=gpu_hour(request, cluster)).run(tokens_per_s, cluster.devices)


def gpu_hour(request: StrategyRequest, cluster: Cluster) -> float | None:
    """What a device of a cluster costs an hour, in the mean: as the request says, else as the cluster.

    Raises:
        BadInput: it has no price, and what the training costs is asked for.
    """
    goal, kinds = request.goal, [(group.device, group.nodes * group.devices_per_node) for group in cluster.node_groups]
    price = None if goal is None or goal.gpu_hour is None else goal.gpu_hour
    if price is None or isinstance(price, float | int):
        hour = cluster.gpu_hour if price is None else price
        missing = [kind for kind, _ in kinds] if hour is None else []
    else:
        missing = [kind for kind, _ in kinds if kind not in price]
        hour = None if missing else sum(price[kind] * count for kind, count in kinds) / cluster.devices
    if missing and (request.minimize == "cost" or (goal is not None and goal.max_cost is not None)):
        do = f"give it, as in {missing[0] or 'h100'}=2.5, or gpu_hour in the file of the cluster"
        raise BadInput(f"{missing[0] or 'the device'} of {cluster.name} has no price", where="`gpu_hour`", do=do)
    return hour


def charged(
    request: StrategyRequest, problem: StrategyProblem, part: Part, step_s: float, min_gain: float = DEFAULT_MIN_GAIN
) -> tuple[float, float]:
    """How good a cluster is if a step takes so long on it, the least the best: 0 and what is to be small where all
    limits are met, 1 and the cost where that alone is too high, 2 and the days where it is not in time."""
    missed, amount = _rated(request, part.cluster, problem.global_batch * problem.work.shape.sequence / step_s, step_s)
    return missed, part.charged_s(amount, min_gain)


def _rated(request: StrategyRequest, cluster: Cluster, tokens_per_s: float, step_s: float) -> tuple[float, float]:
    run = _run(request, cluster, tokens_per_s)
    if run is not None and run.in_time is False:
        return 2.0, run.days
    if run is not None and run.in_budget is False:
        return 1.0, run.cost or 0.0
    cost = 0.0 if run is None or run.cost is None else run.cost
    return 0.0, {"step": step_s, "cost": cost, "devices": float(cluster.devices)}[request.minimize or "step"]


def parts_beside(
    request: StrategyRequest,
    search: PartSearch,
    offers: Sequence[Offer],
    best: Offer | None,
    problem_on: Callable[[Cluster], StrategyProblem],
    within: Limits | None,
    min_gain: float = DEFAULT_MIN_GAIN,
) -> Iterator[Offer]:
    """Parts of a cluster that may be better than the best offer, and those that were not searched.

    Args:
        search: of the cluster.
        offers: that of the cluster is among them, unless nothing divides it.
        problem_on: what is searched on a part that has not all kinds of devices.
        within: a framework that trains the best offer: what none trains is of no use.
    """
    problem, least = search.problem, (math.inf, math.inf)
    kinds = {group.device for group in problem.cluster.node_groups}

    def on_part(cluster: Cluster) -> StrategyProblem:
        alike = {group.device for group in cluster.node_groups} == kinds
        return replace(replace(problem, cluster=cluster) if alike else problem_on(cluster), within=within)

    if best is not None and best.result is not None and best.result.plan is not None:
        least = charged(request, best.problem, best.part, best.result.cost.step_s, min_gain)
    search.run(on_part, next((offer.result for offer in offers if offer.problem is problem), None), least)
    yield from (Offer(part, problem, result) for part, result in search.results)
    yield from (Offer(part, problem, None) for part in search.passed)


def chosen(request: StrategyRequest, offers: Sequence[Offer], min_gain: float = DEFAULT_MIN_GAIN) -> int:
    """The best result by `charged`, and of equal ones that with the shortest step."""

    def order(number: int) -> tuple[float, ...]:
        offer = offers[number]
        if offer.result is None or offer.result.plan is None:
            return (3.0,)
        step_s = offer.result.cost.step_s
        return *charged(request, offer.problem, offer.part, step_s, min_gain), step_s

    return min(range(len(offers)), key=order)


def with_even_batch(
    offer: Offer, within: Limits | None, config: StrategiesConfig, watch: Watch, min_gain: float = DEFAULT_MIN_GAIN
) -> Estimate | None:
    """The best strategy found for all of a cluster with the nearest number of samples that its devices share evenly;
    None where they share those that are asked for, others are a quarter more or less, or train no more tokens a second.

    Args:
        offer: of the cluster, or of a part.
        within: a framework that trains its strategy.
        config: of the search that came to it.
    """
    problem, result = offer.problem, offer.result
    devices, batch = problem.cluster.devices, problem.global_batch
    samples = round(batch / devices) * devices
    if result is None or result.plan is None or samples == batch or abs(samples - batch) > batch / 4:
        return None
    even = replace(problem, global_batch=samples, within=within, start=(), below_s=math.inf)
    short = replace(config, gap=max(config.gap, 0.02), budget_s=min(0.25 * config.budget_s, 2.0))
    with suppress(BadInput):  # other fields that are given do not divide these samples either
        cost: Estimate | None = surely(even, short, watch).cost
        if cost is not None and cost.tokens_per_s * (1.0 - min_gain) > result.cost.tokens_per_s:
            return cost
    return None


def choice_of(
    request: StrategyRequest, offers: Sequence[Offer], best: Offer, step_s: float, min_gain: float = DEFAULT_MIN_GAIN
) -> Choice:
    """What is proven of the chosen one, with a step of so many seconds, beside all others, as short as their bounds."""
    (missed, amount), gap = charged(request, best.problem, best.part, step_s, min_gain), None
    bounds = [(offer, bound_s) for offer in offers if (bound_s := _bound_s(offer)) < float("inf")]
    if all(bound_s for _, bound_s in bounds):
        least = min(charged(request, one.problem, one.part, bound_s, min_gain) for one, bound_s in bounds)
        gap = max(0.0, 1.0 - least[1] / amount) if least[0] == missed else None
    searched, name = sum(offer.result is not None for offer in offers), best.problem.cluster.name
    minimized = (request.minimize or "step", "cost", "step")[int(missed)]
    return Choice(minimized, searched, gap, name if best.part.idle else "", best.part.idle)


def _bound_s(offer: Offer) -> float:
    """What no step on it is shorter than; infinite where nothing fits, 0 where nothing is proven."""
    if offer.result is None or offer.result.bound is None:
        fits = offer.result is None or offer.result.status != "infeasible"
        return offer.part.bound_s if fits else float("inf")
    return max(offer.part.bound_s, offer.result.bound.value)
