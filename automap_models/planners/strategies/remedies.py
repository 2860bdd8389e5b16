"""What would make a strategy fit where none does: changes, each tried, and found to fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from automap_models.core.estimate import Estimate
from automap_models.core.result import Result
from automap_models.core.strategy import RECOMPUTE, Strategy
from automap_models.core.units import counted, size
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Progress, Watch
from automap_models.planners.strategies.bounds import holds_state, least_in_flight
from automap_models.planners.strategies.grid import Grid, Subspace
from automap_models.planners.strategies.planner import StrategiesPlanner, any_subspace
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem

Change = tuple[str, StrategyProblem]
"""In words, and the problem as it is then."""
WORTH = 0.2
"""Share of a step that hosts have to save where something fits without them: how fast they update weights is known
within a factor of two."""
WORTH_OF_BLOCKS = 0.05
"""The same of blocks: how fast links are is known."""
QUICK = StrategiesConfig(gap=0.3, guesses=10, refined=1, rounds=0, trials=6, budget_s=0.6)
"""Of searches that are to find out whether anything fits."""
USEFUL = 0.1
"""Share of the peak below which nobody would train: what fits so alone divides sequences over all nodes, say."""
TRIAL = replace(QUICK, refined=2, trials=24, budget_s=0.3)
"""Of searches of what is found to fit, for about how long its step is."""


def is_useful(cost: Estimate) -> bool:
    """Whether somebody would train so: a profile, whose FLOP nobody knows, has no share of the peak that speaks against
    it."""
    return not 0.0 < cost.mfu < USEFUL


class Remedy(NamedTuple):
    """A change with which something fits, in words, and the best strategy found then."""

    change: str
    cost: Estimate


def what_would_fit(
    problem: StrategyProblem, reason: Infeasible, watch: Watch = SILENT, deadline: Deadline = NEVER
) -> Infeasible:
    """The reason why nothing fits, with the least change with which something does: tried, and found to fit.

    Changes come in the order of what they ask for: less in reserve, one field left open, all of them, fewer samples,
    more devices. Of samples it is the largest part of them that fits, of devices the smallest number of nodes.
    """
    changes = chain(without_reserve(problem), open_fields(problem), _fewer_samples(problem))
    remedy = next(remedies(changes, watch, deadline), None) or more_devices(problem, watch, deadline)
    what = reason.what + _fullest(problem)
    if remedy is None:
        return Infeasible(what, where=reason.where, do=reason.do)
    do = f"{remedy.change}: the best strategy found then takes {remedy.cost.step_s:.4g} s"
    return Infeasible(what, where=reason.where, do=do)


def on_hosts(problem: StrategyProblem) -> StrategyProblem | None:
    """The same with the optimiser in the memory of hosts, if that is known, the framework has it, and nobody says
    otherwise, nor fixes what goes with none of it."""
    if "offload" in problem.fixed or any(device.host_memory is None for device in problem.devices):
        return None
    if problem.within is not None and problem.within.offload_objection("optimizer") is not None:
        return None
    hosted = replace(problem, fixed={**problem.fixed, "offload": "optimizer"}, start=())
    return hosted if any_subspace(hosted) else None


def surely(
    problem: StrategyProblem, config: StrategiesConfig, watch: Watch = SILENT, deadline: Deadline = NEVER
) -> Result[StrategyProblem, Strategy]:
    """The result of a search; where it comes to nothing, though one of the emptiest strategies fits, that of a search
    beside this one, unless longer steps than some are of no interest."""
    result = StrategiesPlanner(config).solve(problem, deadline=deadline, watch=watch)
    ended = result.plan is not None or result.status == "infeasible" or problem.below_s < float("inf")
    least = None if ended else emptiest(problem)
    if least is None or not problem.fits(least):
        return result
    return StrategiesPlanner(config).solve(_beside(least, problem), deadline=deadline, watch=watch)


def _beside(estimate: Estimate, problem: StrategyProblem) -> StrategyProblem:
    """The problem whose search begins beside a strategy that fits, which is priced, too: so it comes to something."""
    return replace(problem, start=(estimate.strategy, estimate.strategy))


def at_risk(
    result: Result[StrategyProblem, Strategy], config: StrategiesConfig, watch: Watch = SILENT
) -> Result[StrategyProblem, Strategy]:
    """A search's result; where nothing fits, that of the same one with nothing in reserve, if something fits then."""
    if result.plan is not None:
        return result
    fuller = surely(replace(result.problem, reserve_bytes=0.0), config, watch)
    return result if fuller.plan is None else fuller


def with_hosts(
    result: Result[StrategyProblem, Strategy],
    config: StrategiesConfig,
    watch: Watch = SILENT,
    deadline: Deadline = NEVER,
) -> Result[StrategyProblem, Strategy]:
    """A search's result; or that of the same search with the optimiser on hosts: where nothing fits without, or where
    the best that fits recomputes everything or is not USEFUL, and hosts save WORTH of its step. What is proven is of
    both. And where it recomputes anything then, that with blocks whose hosts save what they need, where those save
    WORTH_OF_BLOCKS."""
    result = _with_optimizer(result, config, watch, deadline)
    problem, plan = result.problem, result.plan
    if plan is None or plan.recompute == "none" or problem.fixed.get("offload") == "none":
        return result
    if {"recompute", "recompute_blocks"} & set(problem.fixed) or not all(kind.host_memory for kind in problem.devices):
        return result
    if problem.within is not None and problem.within.recompute_objection("offload") is not None:
        return result
    watch(Progress("trying activations on hosts"))
    hosted = replace(problem, hosted=True, start=(plan, plan))
    other = result
    for search in dict.fromkeys((QUICK, config)):  # the short one says whether the other is worth it
        other = StrategiesPlanner(search).solve(hosted, deadline=deadline, watch=watch)
        if other.plan is None or other.cost.step_s > (1.0 - WORTH_OF_BLOCKS) * result.cost.step_s:
            return result
    return other


def _with_optimizer(
    result: Result[StrategyProblem, Strategy], config: StrategiesConfig, watch: Watch, deadline: Deadline
) -> Result[StrategyProblem, Strategy]:
    most_s = float("inf")
    if result.plan is not None:
        most_s = (1.0 - WORTH) * result.cost.step_s
        if set(result.plan.recompute_kinds) != {"full"} and is_useful(result.cost):
            return result
    if (offloaded := on_hosts(result.problem)) is None:
        return result
    watch(Progress("trying the optimizer on hosts"))
    other = result
    for search in dict.fromkeys((config,) if result.plan is None else (QUICK, config)):  # as above
        other = surely(offloaded, search, watch, deadline)
        if other.plan is None or other.cost.step_s > most_s:
            return result
    return _proven_of_both(result, other)


def _proven_of_both(
    result: Result[StrategyProblem, Strategy], other: Result[StrategyProblem, Strategy]
) -> Result[StrategyProblem, Strategy]:
    """The other result, with a bound that no strategy of the first one's problem is below either."""
    if result.status == "infeasible":
        return other
    bounds = [entry.bound.value if entry.bound else 0.0 for entry in (result, other)]
    if other.bound is not None and bounds[0] >= other.bound.value:
        return other
    return replace(other, bound=result.bound if all(bounds) else None, status="feasible")


def remedies(
    changes: Iterable[Change],
    watch: Watch = SILENT,
    deadline: Deadline = NEVER,
) -> Iterator[Remedy]:
    """Those of some changes with which something fits, by short searches."""
    for change, changed in changes:
        watch(Progress(f"trying {change}"))
        with suppress(BadInput):
            cost: Estimate | None = StrategiesPlanner(TRIAL).solve(_of_one_sample(changed), deadline=deadline).cost
            if cost is not None:
                yield Remedy(change, cost)


def _of_one_sample(problem: StrategyProblem) -> StrategyProblem:
    """The problem with a micro-batch of one sample, unless that is given: what does not fit so does not with more."""
    return replace(problem, fixed={"micro_batch": 1, **problem.fixed})


def first_remedy(changes: Sequence[Change], watch: Watch = SILENT, deadline: Deadline = NEVER) -> Remedy | None:
    """The first of some changes with which one of the emptiest strategies fits, where it does with all later ones, too:
    by bisection, for which memory is looked at and nothing is searched. Or one of the next two, where what is found
    with the first one is not USEFUL."""

    @cache
    def fitting(changed: StrategyProblem) -> Estimate | None:
        problem = _of_one_sample(changed)
        least = emptiest(problem) if holds_state(problem) else None
        return least if least is not None and problem.fits(least) else None

    def begun(change: Change) -> Change:
        least = fitting(change[1])
        return change if least is None else (change[0], _beside(least, change[1]))

    if not changes or fitting(changes[-1][1]) is None:
        return None
    first = bisect_left(changes, True, hi=len(changes) - 1, key=lambda change: fitting(change[1]) is not None)
    of_changes: list[Remedy] = []
    for remedy in remedies(map(begun, changes[first : first + 3]), watch, deadline):
        if is_useful(remedy.cost):
            return remedy
        of_changes.append(remedy)
    return of_changes[0] if of_changes else None


def without_reserve(problem: StrategyProblem) -> Iterator[Change]:
    """The change of all that is left free, where something is."""
    if problem.reserve_bytes or problem.rank_reserve_bytes:
        yield "reserve nothing", replace(problem, reserve_bytes=0.0, rank_reserve_bytes={})


def open_fields(problem: StrategyProblem) -> Iterator[Change]:
    """Changes of nothing but what is asked of the strategy."""
    for name in problem.fixed:
        if name != "precision":
            others = replace(problem, fixed={key: value for key, value in problem.fixed.items() if key != name})
            yield f"leave `{name}` open", (name == "offload" and on_hosts(others)) or others
    if problem.within is not None:
        yield "leave `target` out", replace(problem, within=None)
    if len(problem.fixed) > 1:
        precision = {name: value for name, value in problem.fixed.items() if name == "precision"}
        yield "leave all fields open", replace(problem, fixed=precision)


def _fewer_samples(problem: StrategyProblem) -> Iterator[Change]:
    samples = problem.global_batch
    while samples % 2 == 0:
        samples //= 2
        yield f"train {counted(samples, 'sample')} a step", replace(problem, global_batch=samples)


def more_devices(problem: StrategyProblem, watch: Watch, deadline: Deadline) -> Remedy | None:
    """The least number of nodes that fits, with the optimiser on their hosts if it may be there, up to 32 times as
    many: more and more until something does, then between by bisection.

    Numbers that samples or layers cannot be divided by are passed over, and those of devices that nobody offers: they
    are powers of two, or whole nodes of 8.
    """
    cluster, hosted = problem.cluster, on_hosts(problem) or problem

    def larger(nodes: int) -> StrategyProblem:
        return replace(hosted, cluster=replace(cluster, nodes=nodes))

    nodes, least_useful = cluster.nodes, None
    while nodes < 32 * cluster.nodes and not cluster.groups:
        problems = (larger(size) for size in range(nodes + 1, 2 * nodes + 1))
        offered = ((changed.cluster.devices, changed) for changed in problems if _offered(changed.cluster.devices))
        changes = [(f"give {devices} devices", changed) for devices, changed in offered if any_subspace(changed)]
        remedy, nodes = first_remedy(changes, watch, deadline), 2 * nodes
        if remedy is not None and is_useful(remedy.cost):
            return remedy
        if least_useful is not None:
            break
        least_useful = remedy
    return least_useful


def _offered(devices: int) -> bool:
    """Whether machines are sold and lent with so many devices."""
    return devices % 8 == 0 or devices & (devices - 1) == 0


def emptiest(problem: StrategyProblem, trials: int = 64) -> Estimate | None:
    """The first that fits of some strategies that hold little, of stages as equal as may be, or the emptiest of them;
    None where the problem has none of them."""
    grid, pricing, layers = Grid(problem), problem.costs.pricing, problem.work.shape.layers
    most = max(kind for kind in problem.recompute if kind < len(RECOMPUTE))
    fields: dict[str, Any] = {"recompute": RECOMPUTE[most], **problem.fixed}
    degree_sets = [entry for entry in grid.degree_sets() if grid.schedules(entry)]
    degree_sets.sort(key=lambda entry: (entry.micro_batch, -entry.tp * entry.cp, entry.pp))
    for costs in pricing.layers:
        costs.expect(degree_sets[:trials], grid.some_strategy)
    fullest, least = float("inf"), None
    for degrees in degree_sets[:trials]:
        subspace = Subspace(degrees, grid.zeros(degrees)[-1], grid.schedules(degrees)[0])
        fewest, more = divmod(layers, stages := degrees.pp * subspace.choice.vp)
        cuts: dict[str, Any] = {"layers": tuple(fewest + (stage < more) for stage in range(stages))} if more else {}
        with suppress(BadInput):
            strategy = replace(grid.strategy(subspace), **{**cuts, **fields})
            strategy.require_model(problem.work.shape)
            nbytes, limits = pricing.memory(strategy)
            if (nbytes <= limits - problem.reserve(degrees.pp)).all():
                return pricing.estimate(strategy)
            if nbytes.max() < fullest:
                fullest, least = float(nbytes.max()), strategy
    return None if least is None else pricing.estimate(least)


def _fullest(problem: StrategyProblem) -> str:
    """What fills a device of the emptiest strategy."""
    least = emptiest(problem)
    if least is None:
        return ""
    strategy, (total, _, rank) = least.strategy, least.fullest
    parts, pricing = least.memory[rank]._asdict(), problem.costs.pricing
    first, second = sorted(parts, key=lambda name: -parts[name])[:2]
    what = f": one of the emptiest needs {size(total)}, {size(parts[first])} of it {first}"
    costing = pricing.stages(strategy)[0][0]
    in_flight = float(least_in_flight(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)[rank])
    head = costing.of_layers.memory[pricing.work.order[-1], 0, 0] * in_flight
    if first == "activations" and costing.rank_of[-1] == rank and head > 0.25 * parts[first]:
        return f"{what} ({size(head)} of these logits of {in_flight:,.0f} micro-batches)"
    return f"{what} and {size(parts[second])} {second}"
