"""What would make a strategy fit where none does: the least change, tried, and found to fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from automap_models.core.estimate import Estimate
from automap_models.core.strategy import RECOMPUTE
from automap_models.core.units import counted, size
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Progress, Watch
from automap_models.planners.strategies.bounds import least_in_flight
from automap_models.planners.strategies.grid import Grid, Subspace
from automap_models.planners.strategies.planner import StrategiesPlanner, any_subspace
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem

QUICK = StrategiesConfig(gap=0.02, budget_s=3.0)
"""Of searches that are to find out whether anything fits."""


def what_would_fit(
    problem: StrategyProblem, reason: Infeasible, watch: Watch = SILENT, deadline: Deadline = NEVER
) -> Infeasible:
    """The reason why nothing fits, with the least change with which something does: tried, and found to fit.

    Changes come in the order of what they ask for: less in reserve, one field left open, all of them, fewer samples,
    more devices. Of samples it is the largest part of them that fits, of devices the smallest number of nodes.
    """
    changes = ((change, _fitting(changed, change, watch, deadline)) for change, changed in _changes(problem))
    change, best = next(filter(lambda entry: entry[1] is not None, changes), ("", None))
    if best is None:
        change, best = _more_devices(problem, watch, deadline)
    what = reason.what + _fullest(problem)
    if best is None:
        return Infeasible(what, where=reason.where, do=reason.do)
    return Infeasible(what, where=reason.where, do=f"{change}: the best strategy found then takes {best.step_s:.4g} s")


def _fitting(problem: StrategyProblem, change: str, watch: Watch, deadline: Deadline) -> Estimate | None:
    """The price of the best strategy found; None where nothing fits."""
    watch(Progress(f"trying {change}"))
    try:
        best: Estimate | None = StrategiesPlanner(QUICK).solve(problem, deadline=deadline).cost
    except BadInput:
        return None
    return best


def _changes(problem: StrategyProblem) -> Iterator[tuple[str, StrategyProblem]]:
    free = replace(problem, reserve_bytes=0.0, rank_reserve_bytes={})
    if problem.reserve_bytes or problem.rank_reserve_bytes:
        yield "reserve nothing", free
    for name in problem.fixed:
        if name != "precision":
            others = {key: value for key, value in problem.fixed.items() if key != name}
            yield f"leave `{name}` open", replace(problem, fixed=others)
    if problem.within is not None:
        yield "leave `target` out", replace(problem, within=None)
    if len(problem.fixed) > 1:
        precision = {name: value for name, value in problem.fixed.items() if name == "precision"}
        yield "leave all fields open", replace(problem, fixed=precision)
    samples = problem.global_batch
    while samples % 2 == 0:
        samples //= 2
        yield f"train {counted(samples, 'sample')} a step", replace(problem, global_batch=samples)


def _more_devices(problem: StrategyProblem, watch: Watch, deadline: Deadline) -> tuple[str, Estimate | None]:
    """The least number of nodes that fits, up to 32 times as many: more and more until something does, then between by
    bisection.

    Numbers that samples or layers cannot be divided by are passed over, and those of devices that nobody offers: they
    are powers of two, or whole nodes of 8.
    """
    cluster = problem.cluster

    def larger(nodes: int) -> StrategyProblem:
        return replace(problem, cluster=replace(cluster, nodes=nodes))

    def with_nodes(nodes: int) -> tuple[str, Estimate | None]:
        change = f"give {larger(nodes).cluster.devices} devices"
        return change, _fitting(larger(nodes), change, watch, deadline)

    nodes, sizes = cluster.nodes, list[int]()
    fitting: tuple[str, Estimate | None] = ("", None)
    while fitting[1] is None and nodes < 32 * cluster.nodes and not cluster.groups:
        offered = (size for size in range(nodes + 1, 2 * nodes + 1) if _offered(larger(size).cluster.devices))
        sizes = [size for size in offered if any_subspace(larger(size))]
        fitting, nodes = with_nodes(sizes[-1]) if sizes else fitting, 2 * nodes
    low, high = -1, len(sizes) - 1
    while fitting[1] is not None and high - low > 1:
        middle = (low + high) // 2
        trial = with_nodes(sizes[middle])
        low, high, fitting = (low, middle, trial) if trial[1] is not None else (middle, high, fitting)
    return fitting


def _offered(devices: int) -> bool:
    """Whether machines are sold and lent with so many devices."""
    return devices % 8 == 0 or devices & (devices - 1) == 0


def _fullest(problem: StrategyProblem, trials: int = 64) -> str:
    """What fills a device of the emptiest of some strategies that hold little."""
    grid, pricing = Grid(problem), problem.costs.pricing
    most = max(map(max, problem.recompute_sets))
    fields = {} if "recompute" in problem.fixed else {"recompute": RECOMPUTE[most]}
    degree_sets = (entry for entry in grid.degree_sets() if grid.schedules(entry))
    emptiest: Estimate | None = None
    for degrees in sorted(degree_sets, key=lambda entry: (entry.micro_batch, -entry.tp * entry.cp, entry.pp))[:trials]:
        subspace = Subspace(degrees, grid.zeros(degrees)[-1], grid.schedules(degrees)[0])
        with suppress(BadInput):  # of equal stages, which not all numbers of layers have
            trial = pricing.estimate(grid.strategy(subspace, **fields))
            if emptiest is None or trial.peak_memory < emptiest.peak_memory:
                emptiest = trial
    if emptiest is None:
        return ""
    strategy, (total, _, rank) = emptiest.strategy, emptiest.fullest
    parts = emptiest.memory[rank]._asdict()
    first, second = sorted(parts, key=lambda name: -parts[name])[:2]
    what = f": one of the emptiest needs {size(total)}, {size(parts[first])} of it {first}"
    costing = pricing.stages(strategy)[0]
    in_flight = float(least_in_flight(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)[rank])
    head = costing.of_layers.memory[pricing.work.order[-1], 0, 0] * in_flight
    if first == "activations" and costing.rank_of[-1] == rank and head > 0.25 * parts[first]:
        return f"{what} ({size(head)} of these logits of {in_flight:,.0f} micro-batches)"
    return f"{what} and {size(parts[second])} {second}"
