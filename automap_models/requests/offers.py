"""Which of several clusters a model is trained on: the shortest step, the least cost or the fewest devices.

    --gpus 32xh100,64xa100 --devices 32..128    32 H100 · 64 H100 · 128 H100 · 32 A100 · 64 A100 · 128 A100
    --gpus 16xh100+16xa100                      both in one job · 16 H100 alone · 16 A100 alone
    --topo gcp-a2-zones                         all three zones · one of them · each two of them

Each is searched for the same samples of a step. What is chosen meets the deadline and the most that the training may
cost, where any does; a kind of devices or a zone more is as a step more of difficulty (planners.strategies.problem).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.estimate import Estimate
from automap_models.core.result import Result
from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.strategy import Strategy
from automap_models.core.training_run import TrainingRun
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import SIZED, clusters_named
from automap_models.planners.strategies.problem import StrategyProblem, charged_s
from automap_models.requests import PlanRequest, StrategyRequest

Searched = Result[StrategyProblem, Strategy]


@dataclass(frozen=True)
class Choice:
    """Why it is this cluster.

    Attributes:
        minimize: what is least: step, cost or devices; the cost where that is too high, the step where it is too late.
        clusters: among how many.
        gap: by which share any of them can be better at most; None where that is not proven.
    """

    minimize: str
    clusters: int
    gap: float | None


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
        return sizes if is_choice(request, named) else list(dict.fromkeys([*named, *sizes]))
    return [part for cluster in named for part in (cluster, *alone(cluster))]


def is_choice(request: StrategyRequest, clusters: Sequence[Cluster]) -> bool:
    """Whether one of these is to be chosen; else the first one is meant, and others are shown beside it."""
    return request.minimize is not None or (request.devices is None and len(clusters) > 1)


def _sizes(cluster: Cluster, least: int, most: int) -> Iterator[Cluster]:
    """Clusters of the same nodes, with twice as many devices each as the one before."""
    cluster.require_uniform("a sweep of sizes", "leave `devices` out")
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


def alone(cluster: Cluster) -> Iterator[Cluster]:
    """Each kind of devices of a mixed cluster alone, where all are named, and some of two or three zones, of those that
    are alike one: the others would stand idle."""
    kinds, zones = (dict.fromkeys(getattr(group, key) for group in cluster.groups) for key in ("device", "zone"))
    for kind in kinds if len(kinds) > 1 and all(kinds) else ():
        yield from _uniform([group for group in cluster.groups if group.device == kind], cluster.gpu_hour)
    alike = set[Cluster]()
    for some in (some for size in range(1, len(zones)) for some in combinations(zones, size) if len(zones) <= 3):
        groups, name = [group for group in cluster.groups if group.zone in some], f"{cluster.name} in {'+'.join(some)}"
        links = [link for link in cluster.zone_links if {*link.zones} <= {*some}]
        parts = [*_uniform(groups, cluster.gpu_hour)] or [Cluster.of_groups(groups, "", cluster.gpu_hour, links)]
        yield from (replace(part, name=name) for part in parts if part not in alike)
        alike.update(parts)


def _uniform(groups: Sequence[NodeGroup], gpu_hour: float | None) -> Iterator[Cluster]:
    """The cluster of groups of nodes that are of one kind, which is named, and in one zone."""
    first, *others = (replace(group, nodes=1) for group in groups)
    if first.device and all(other == first for other in others):
        nodes = sum(group.nodes for group in groups)
        sizes = {name: getattr(first, name) for name in ("devices_per_node", "intra", "inter", "memory", "device")}
        yield Cluster(nodes, **sizes, name=f"{nodes * first.devices_per_node}x{first.device}", gpu_hour=gpu_hour)


def run_of(request: PlanRequest, cluster: Cluster, estimate: Estimate) -> TrainingRun | None:
    """What the training that is asked for takes by a strategy; None where none is.

    Raises:
        BadInput: what it costs is asked for, and a device has no price.
    """
    if not isinstance(request, StrategyRequest) or request.goal is None:
        return None
    goal = replace(request.goal, gpu_hour=gpu_hour(request, cluster))
    return goal.run(estimate.tokens_per_s, estimate.strategy.devices)


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


def rated(request: StrategyRequest, result: Searched, step_s: float) -> tuple[float, float]:
    """How good a cluster is if a step takes so long on it, the least the best: 0 and what is to be small where all
    limits are met, 1 and the cost where that alone is too high, 2 and the days where it is not in time."""
    cluster, estimate = result.problem.cluster, result.cost
    rate = estimate.tokens_per_s_per_device * (estimate.step_s / step_s)
    run = run_of(request, cluster, replace(estimate, tokens_per_s_per_device=rate))
    if run is not None and run.in_time is False:
        return 2.0, run.days
    if run is not None and run.in_budget is False:
        return 1.0, run.cost or 0.0
    cost = 0.0 if run is None or run.cost is None else run.cost
    return 0.0, {"step": step_s, "cost": cost, "devices": float(cluster.devices)}[request.minimize or "step"]


def chosen(request: StrategyRequest, results: Sequence[Searched], min_gain: float = DEFAULT_MIN_GAIN) -> int:
    """The best result by `rated`, and of equal ones that with the shortest step; a kind of devices or a zone more is a
    step more of difficulty."""

    def order(number: int) -> tuple[float, ...]:
        result = results[number]
        if result.plan is None:
            return (3.0,)
        kinds = {(group.device, group.zone) for group in result.problem.cluster.node_groups}
        missed, amount = rated(request, result, result.cost.step_s)
        return missed, charged_s(amount, len(kinds) - 1, min_gain), result.cost.step_s

    return min(range(len(results)), key=order)


def choice_of(request: StrategyRequest, results: Sequence[Searched], best: Searched) -> Choice:
    """What is proven of the chosen result beside all others, of which each may be as short as its bound."""
    open_ones = [result for result in results if result.status != "infeasible"]
    (missed, amount), gap = rated(request, best, best.cost.step_s), None
    if all(result.plan is not None and result.bound is not None for result in open_ones):
        bounds = [rated(request, result, result.bound.value) for result in open_ones if result.bound is not None]
        least = min(bounds)
        gap = max(0.0, 1.0 - least[1] / amount) if least[0] == missed else None
    return Choice((request.minimize or "step", "cost", "step")[int(missed)], len(results), gap)
