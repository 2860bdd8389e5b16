"""What would make a strategy fit where none does: changes, each tried, and found to fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
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
QUICK = StrategiesConfig(gap=0.3, guesses=10, refined=1, rounds=1, trials=6, budget_s=2.0)
"""Of searches that are to find out whether anything fits."""
TRIAL = replace(QUICK, guesses=4, trials=2, budget_s=0.2)
"""Of searches of what is found to fit, for about how long its step is."""


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
    problem = replace(problem, shared=problem.costs)
    changes = chain(without_reserve(problem), open_fields(problem), _fewer_samples(problem))
    remedy = next(remedies(changes, watch, deadline), None) or more_devices(problem, watch, deadline)
    what = reason.what + _fullest(problem)
    if remedy is None:
        return Infeasible(what, where=reason.where, do=reason.do)
    do = f"{remedy.change}: the best strategy found then takes {remedy.cost.step_s:.4g} s"
    return Infeasible(what, where=reason.where, do=do)


def on_hosts(problem: StrategyProblem) -> StrategyProblem | None:
    """The same with the optimiser in the memory of hosts, if that is known, the framework has it, and nobody says
    otherwise."""
    if "offload" in problem.fixed or any(device.host_memory is None for device in problem.devices):
        return None
    if problem.within is not None and problem.within.offload_objection("optimizer") is not None:
        return None
    return replace(problem, fixed={**problem.fixed, "offload": "optimizer"}, start=())


def at_risk(
    result: Result[StrategyProblem, Strategy], config: StrategiesConfig, watch: Watch = SILENT
) -> Result[StrategyProblem, Strategy]:
    """A search's result; where nothing fits, that of the same one with nothing in reserve, if something fits then."""
    if result.plan is not None:
        return result
    fuller = StrategiesPlanner(config).solve(replace(result.problem, reserve_bytes=0.0), watch=watch)
    return result if fuller.plan is None else fuller


def with_hosts(
    result: Result[StrategyProblem, Strategy],
    config: StrategiesConfig,
    watch: Watch = SILENT,
    deadline: Deadline = NEVER,
) -> Result[StrategyProblem, Strategy]:
    """A search's result; or that of the same search with the optimiser on hosts: where nothing fits without, or where
    the best that fits recomputes everything and hosts save WORTH of its step. What is proven is of both."""
    offloaded, most_s = on_hosts(result.problem), float("inf")
    if result.plan is not None:
        most_s = (1.0 - WORTH) * result.cost.step_s
        if set(result.plan.recompute_kinds) != {"full"}:
            return result
    if offloaded is None:
        return result
    watch(Progress("trying the optimizer on hosts"))
    searches = (config,) if result.plan is None else (QUICK, config)  # the short one says whether the other is worth it
    other = result
    for search in searches:
        other = StrategiesPlanner(search).solve(offloaded, deadline=deadline, watch=watch)
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
    config: StrategiesConfig = TRIAL,
) -> Iterator[Remedy]:
    """Those of some changes with which something fits, by searches that go so far."""
    for change, changed in changes:
        watch(Progress(f"trying {change}"))
        with suppress(BadInput):
            cost: Estimate | None = StrategiesPlanner(config).solve(_of_one_sample(changed), deadline=deadline).cost
            if cost is not None:
                yield Remedy(change, cost)


def _of_one_sample(problem: StrategyProblem) -> StrategyProblem:
    """The problem with a micro-batch of one sample, unless that is given: what does not fit so does not with more."""
    return replace(problem, fixed={"micro_batch": 1, **problem.fixed}, shared=problem.costs)


def first_remedy(changes: Sequence[Change], watch: Watch = SILENT, deadline: Deadline = NEVER) -> Remedy | None:
    """The first of some changes with which a search finds what fits, where it does with all later ones, too: from the
    first one on with which one of the emptiest strategies does, by bisection."""

    def fits(changed: StrategyProblem) -> bool:
        problem = _of_one_sample(changed)
        least = emptiest(problem) if holds_state(problem) else None
        return least is not None and problem.fits(least)

    if not changes or not fits(changes[-1][1]):
        return None
    first = bisect_left(changes, True, hi=len(changes) - 1, key=lambda change: fits(change[1]))
    return next(remedies(changes[first:], watch, deadline, QUICK), None)


def without_reserve(problem: StrategyProblem) -> Iterator[Change]:
    """The change of all that is left free, where something is."""
    if problem.reserve_bytes or problem.rank_reserve_bytes:
        yield "reserve nothing", replace(problem, reserve_bytes=0.0, rank_reserve_bytes={})


def open_fields(problem: StrategyProblem) -> Iterator[Change]:
    """Changes of nothing but what is asked of the strategy."""
    for name in problem.fixed:
        if name != "precision":
            others = {key: value for key, value in problem.fixed.items() if key != name}
            yield f"leave `{name}` open", replace(problem, fixed=others)
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
    cluster, least = problem.cluster, on_hosts(problem) or problem

    def larger(nodes: int) -> StrategyProblem:
        return replace(least, cluster=replace(cluster, nodes=nodes))

    nodes, remedy = cluster.nodes, None
    while remedy is None and nodes < 32 * cluster.nodes and not cluster.groups:
        problems = (larger(size) for size in range(nodes + 1, 2 * nodes + 1))
        offered = ((changed.cluster.devices, changed) for changed in problems if _offered(changed.cluster.devices))
        changes = [(f"give {devices} devices", changed) for devices, changed in offered if any_subspace(changed)]
        remedy, nodes = first_remedy(changes, watch, deadline), 2 * nodes
    return remedy


def _offered(devices: int) -> bool:
    """Whether machines are sold and lent with so many devices."""
    return devices % 8 == 0 or devices & (devices - 1) == 0


def emptiest(problem: StrategyProblem, trials: int = 64) -> Estimate | None:
    """The first that fits of some strategies that hold little, of stages as equal as may be, or the emptiest of them;
    None where the problem has none of them."""
    grid, pricing, layers = Grid(problem), problem.costs.pricing, problem.work.shape.layers
    most = max(kind for kinds in problem.recompute_sets for kind in kinds if kind < len(RECOMPUTE))
    fields: dict[str, Any] = {"recompute": RECOMPUTE[most], **problem.fixed}
    degree_sets = (entry for entry in grid.degree_sets() if grid.schedules(entry))
    least: Estimate | None = None
    for degrees in sorted(degree_sets, key=lambda entry: (entry.micro_batch, -entry.tp * entry.cp, entry.pp))[:trials]:
        subspace = Subspace(degrees, grid.zeros(degrees)[-1], grid.schedules(degrees)[0])
        fewest, more = divmod(layers, stages := degrees.pp * subspace.choice.vp)
        cuts: dict[str, Any] = {"layers": tuple(fewest + (stage < more) for stage in range(stages))} if more else {}
        with suppress(BadInput):
            trial = pricing.estimate(replace(grid.strategy(subspace), **{**cuts, **fields}))
            if problem.fits(trial):
                return trial
            if least is None or trial.peak_memory < least.peak_memory:
                least = trial
    return least


def _fullest(problem: StrategyProblem) -> str:
    """What fills a device of the emptiest strategy."""
    least = emptiest(problem)
    if least is None:
        return ""
    strategy, (total, _, rank) = least.strategy, least.fullest
    parts, pricing = least.memory[rank]._asdict(), problem.costs.pricing
    first, second = sorted(parts, key=lambda name: -parts[name])[:2]
    what = f": one of the emptiest needs {size(total)}, {size(parts[first])} of it {first}"
    costing = pricing.stages(strategy)[0]
    in_flight = float(least_in_flight(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)[rank])
    head = costing.of_layers.memory[pricing.work.order[-1], 0, 0] * in_flight
    if first == "activations" and costing.rank_of[-1] == rank and head > 0.25 * parts[first]:
        return f"{what} ({size(head)} of these logits of {in_flight:,.0f} micro-batches)"
    return f"{what} and {size(parts[second])} {second}"
