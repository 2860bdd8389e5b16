"""Plans for devices of unequal speed, by three searches inside each other.

    device orders      a few promising permutations of nodes, and of the devices inside them
      device cuts      a local search from the cuts of known plans; one or two cuts move at a time
        instruction cuts   exact for given device cuts, on the grid; then moved off it as long as that helps

For given device cuts the last stages of a plan, s … S-1, matter to those before only by their span T and their exposed
all-reduce R (cost.staged: `before_transfer`, `before_stage`), with u_s = pace_s·ΣC. The exact search goes from the last
stage to the first and keeps such suffixes. Of two suffixes from one boundary it drops the one with both numbers no
smaller.

    boundary   0 ··········· i ··········· k ········· m
                 stages < s  [   stage s   ][  suffix  ]      k, T(s+1) and R(s+1) give i, T(s) and R(s)

The searches go by the length L. Where the problem has a schedule, its step decides between what they find, the known
plans and the one that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations, product

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.observed import PlacedPlan
from automap_models.core.profile import FloatArray
from automap_models.core.result import TIE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import before_stage, before_transfer
from automap_models.planners.base import NEVER, SILENT, Deadline, Progress, Watch
from automap_models.planners.replan.speeds import StagePaces, idle_positions, stage_paces
from automap_models.planners.staged.pareto import IntArray, pareto_front, ragged_ranges
from automap_models.planners.staged.stage_tables import StageTables, coarse_cuts, stage_tables
from automap_models.simulate.step import step_cost

NAME = "replan"
"""The planner that plans for unequal devices are made by."""
MOST_NODES_PERMUTED = 5
"""Nodes up to which all their orders are looked at; beyond, the slow ones first or last or as they are."""
DEVICE_STEPS = (-4, -2, -1, 1, 2, 4)
"""How far one device cut moves at a time."""
FINE_CELLS = 2
"""How far, in points of the grid, cuts move off it at most in one step."""


@dataclass(frozen=True, eq=False)
class _Suffixes:
    """The last stages of plans, from the beginning of one stage on; ascending by i.

    Attributes:
        i, k: boundaries where the stage begins and ends.
        parent: index of the rest among the next stage's suffixes.
        span, exposed: T and R.
    """

    i: IntArray
    k: IntArray
    parent: IntArray
    span: FloatArray
    exposed: FloatArray


@dataclass(frozen=True, eq=False)
class _OnDevices:
    """A problem's tables with one choice of device cuts.

    Attributes:
        tables: of the problem.
        pace: [S] seconds of each stage per second of profile.
        replicas: [S] how many of its devices work.
        ring: [S] all-reduce of each stage, seconds per byte.
        transfer: [S-1] over each boundary, seconds per byte.
    """

    tables: StageTables
    pace: FloatArray
    replicas: IntArray
    ring: FloatArray
    transfer: FloatArray

    @property
    def micro_batches(self) -> int:
        """M."""
        return self.tables.micro_batches


@dataclass(frozen=True)
class SearchedOrder:
    """One device order that was searched.

    Attributes:
        device_order: [D] device at each position.
        step_s: of the shortest plan that the search came to in that order; None where none of them fits the memory.
    """

    device_order: tuple[int, ...]
    step_s: float | None


@dataclass(frozen=True)
class OrderSearch:
    """What a search over device orders came to.

    Attributes:
        plan: the shortest plan with its devices; the running one where no other is preferred.
        log: the orders that were searched.
        finished: whether the deadline let it search all that it was to.
    """

    plan: PlacedPlan
    log: tuple[SearchedOrder, ...]
    finished: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the search."""
        if self.finished:
            return ()
        return (f"the deadline ended the search in device order {len(self.log)}: more time may give a shorter plan",)


def search_orders(
    problem: StagedProblem,
    running: PlacedPlan,
    slowdown: FloatArray,
    starts: Sequence[StagedPlan] = (),
    *,
    most_orders: int = 4,
    worth: float = 1e-3,
    deadline: Deadline = NEVER,
    watch: Watch = SILENT,
) -> OrderSearch:
    """The shortest plan that is found for devices of these speeds, in whatever order.

    Args:
        problem: with times of healthy devices.
        running: the plan that runs.
        slowdown: [D] of every device.
        starts: further plans from whose device cuts to search.
        most_orders: how many orders of devices are searched.
        worth: a plan must be shorter by more than this share than the best before it; the running one is the first.
        deadline: when to stop with the best plan so far.
        watch: is told of every order.
    """
    cost = step_cost(problem, running.plan, slowdown[list(running.device_order)], running.idle_positions())
    best, best_s = running, cost.step_s if cost.feasible else np.inf
    plans, log = (running.plan, *starts), list[SearchedOrder]()
    orders = promising_orders(problem.cluster, running, slowdown, most_orders)
    for order in orders:
        if deadline.passed:
            break
        watch(Progress("searching device orders", len(log), len(orders)))
        at = slowdown[list(order)]
        shortest = search(problem, at, plans, NAME, deadline)
        log.append(SearchedOrder(order, None if shortest is None else shortest[1]))
        if shortest is not None and shortest[1] < best_s * (1.0 - worth):
            plan, best_s = shortest
            best = PlacedPlan(plan, order, tuple(order[p] for p in idle_positions(plan, at)))
    return OrderSearch(best, tuple(log), len(log) == len(orders) and not deadline.passed)


def promising_orders(cluster: Cluster, running: PlacedPlan, slowdown: FloatArray, most: int) -> list[tuple[int, ...]]:
    """At most so many device orders, the running one first; the others by how even work on equal nodes would be."""
    orders = list(dict.fromkeys(device_orders(cluster, running.device_order, slowdown)))
    bound = np.array([0, *running.plan.device_cuts, cluster.devices])

    def capacity(order: tuple[int, ...]) -> float:
        return float((1.0 / stage_paces(slowdown[list(order)]).pace[bound[:-1], bound[1:]]).sum())

    return [orders[0], *sorted(orders[1:], key=capacity, reverse=True)[: most - 1]]


def device_orders(cluster: Cluster, running: Sequence[int], slowdown: FloatArray) -> Iterator[tuple[int, ...]]:
    """Orders of devices worth a look, those that move fewest nodes first; a node's devices stay together.

    Inside a node the devices are as they are, or the slow ones first or last.

    Args:
        cluster: nodes of G devices.
        running: [D] device at each position now.
        slowdown: [D] of every device.
    """
    nodes = np.array(running).reshape(cluster.nodes, cluster.devices_per_node)
    for inside in (nodes, _sorted_inside(nodes, slowdown), _sorted_inside(nodes, slowdown)[:, ::-1]):
        for order in node_orders([tuple(np.sort(slowdown[node]).tolist()) for node in nodes]):
            yield tuple(inside[list(order)].ravel().tolist())


def _sorted_inside(
    nodes: np.ndarray[tuple[int, int], np.dtype[np.int64]], slowdown: FloatArray
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[N, G] each node's devices, the slow ones last."""
    return np.take_along_axis(nodes, np.argsort(slowdown[nodes], axis=1, kind="stable"), axis=1)


def node_orders(speeds: Sequence[tuple[float, ...]]) -> Iterator[tuple[int, ...]]:
    """Orders of nodes that differ in the speeds at some place, each by the order that moves fewest nodes.

    Args:
        speeds: [N] what tells nodes apart; nodes with the same are interchangeable.
    """
    same = range(len(speeds))
    if len(speeds) <= MOST_NODES_PERMUTED:
        orders: Iterable[tuple[int, ...]] = permutations(same)
    else:
        slow_last = tuple(sorted(same, key=lambda node: sum(speeds[node])))
        orders = (tuple(same), slow_last, slow_last[::-1])
    seen = set()
    for order in sorted(orders, key=lambda order: sum(a != b for a, b in zip(order, same, strict=True))):
        pattern = tuple(speeds[node] for node in order)
        if pattern not in seen:
            seen.add(pattern)
            yield order


def search(
    problem: StagedProblem,
    slowdown: FloatArray,
    starts: Iterable[StagedPlan],
    planner: str,
    deadline: Deadline = NEVER,
) -> tuple[StagedPlan, float] | None:
    """The shortest plan that is found on devices in that order, and its step; None where nothing fits the memory.

    Args:
        problem: with times of healthy devices.
        slowdown: [D] of the device at each position.
        starts: plans from whose device cuts the search sets out; the result is no longer than the best that fits.
        planner: the result's name for its maker.
        deadline: when to stop with the best plan so far.
    """
    paces, starts = stage_paces(slowdown), list(starts)
    own_cuts = [cut for plan in starts for cut in plan.cuts]
    by_length = replace(problem, schedule=None)
    tables = stage_tables(by_length, np.union1d(coarse_cuts(problem), np.array(own_cuts, dtype=np.int64)))
    best = _over_device_cuts(tables, paces, dict.fromkeys(plan.device_cuts for plan in starts), deadline)
    if best is None:
        return None
    cuts, device_cuts = _refined(by_length, paces, *best, deadline)
    candidates = [(cuts, device_cuts)]
    if problem.schedule is not None:
        candidates += [(plan.cuts, plan.device_cuts) for plan in starts]
    plans = [StagedPlan(*both, problem.micro_batches, planner, problem.grid.to_points(both[0])) for both in candidates]
    costs = [step_cost(problem, plan, slowdown, idle_positions(plan, slowdown)) for plan in plans]
    fitting = [(cost.step_s, plan) for cost, plan in zip(costs, plans, strict=True) if cost.feasible]
    if not fitting:
        return None
    step_s, plan = min(fitting, key=lambda pair: pair[0])
    return plan, step_s


def best_cuts(
    tables: StageTables, paces: StagePaces, device_cuts: tuple[int, ...], below_s: float = np.inf
) -> tuple[float, tuple[int, ...]] | None:
    """Length and instruction cuts of the shortest plan with those device cuts; None if none is below that length.

    Args:
        tables: places where stages may end.
        paces: of stages on the devices in their order.
        device_cuts: [S-1].
        below_s: only shorter plans are of interest.
    """
    on = _on_devices(tables, paces, device_cuts)
    if tables.micro_batches * tables.C[-1] / (1.0 / on.pace).sum() >= below_s:
        return None  # M·ΣC over all that can work at once bounds the length from below
    suffixes = [_last(on, below_s)]
    for stage in range(tables.stages - 2, -1, -1):
        suffixes.insert(0, _before(on, stage, suffixes[0], below_s))
    length = suffixes[0].span + suffixes[0].exposed
    if not length.size:
        return None
    j = int(length.argmin())
    best_s, cuts = float(length[j]), []
    for of_stage in suffixes[:-1]:
        cuts.append(int(tables.boundary[of_stage.k[j]]) - 1)
        j = int(of_stage.parent[j])
    return best_s, tuple(cuts)


def _on_devices(tables: StageTables, paces: StagePaces, device_cuts: tuple[int, ...]) -> _OnDevices:
    d = np.array([0, *device_cuts, tables.replicas_in_all])
    a, q = d[:-1], d[1:]
    transfer = [tables.devices.transfer[d[s + 1]][d[s], d[s + 2] - d[s + 1] - 1] for s in range(a.size - 1)]
    return _OnDevices(
        tables, paces.pace[a, q], paces.replicas[a, q], tables.devices.all_reduce[a, q], np.array(transfer)
    )


def _fits(on: _OnDevices, stage: int, i: IntArray, k: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    tables = on.tables
    return tables.fits(stage, i, k, np.full(i.size, on.replicas[stage]))


def _stage_times(on: _OnDevices, stage: int, i: IntArray, k: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[n] u, b and AR of a stage over boundaries i … k, seconds."""
    tables = on.tables
    both, forward = (on.pace[stage] * (total[k] - total[i]) for total in (tables.C, tables.F))
    return both, both - forward, on.ring[stage] * tables.shardings[0].weights_bytes(i, k)


def _last(on: _OnDevices, below_s: float) -> _Suffixes:
    tables, stage = on.tables, on.tables.stages - 1
    i = np.arange(stage, tables.end) if stage else np.zeros(1, dtype=np.int64)
    k = np.full_like(i, tables.end)
    both, backward, reduced = _stage_times(on, stage, i, k)
    span, exposed = before_stage(both, backward, reduced, np.zeros(i.size), np.full(i.size, -np.inf), on.micro_batches)
    kept = np.flatnonzero(_fits(on, stage, i, k) & (span + exposed < below_s))
    return _Suffixes(i[kept], k[kept], np.full(kept.size, -1), span[kept], exposed[kept])


def _before(on: _OnDevices, stage: int, rest: _Suffixes, below_s: float) -> _Suffixes:
    """The suffixes of a stage before those of the next one."""
    tables = on.tables
    x = on.transfer[stage] * tables.A[rest.i]
    after, exposed_after = before_transfer(x, rest.span, rest.exposed, on.micro_batches)
    front = pareto_front(rest.i, np.stack((after, exposed_after)))
    at, after, exposed_after = rest.i[front], after[front], exposed_after[front]
    begin = np.arange(stage, tables.end) if stage else np.zeros(1, dtype=np.int64)
    reach = tables.C[begin] + below_s / (on.micro_batches * on.pace[stage])
    furthest = np.searchsorted(tables.C, reach, side="right")
    owner, j = ragged_ranges(np.searchsorted(at, begin + 1), np.searchsorted(at, furthest))
    i, k = begin[owner], at[j]
    span, exposed = before_stage(*_stage_times(on, stage, i, k), after[j], exposed_after[j], on.micro_batches)
    short = np.flatnonzero(span + exposed < below_s)
    short = short[_fits(on, stage, i[short], k[short])]
    front2 = short[pareto_front(i[short], np.stack((span, exposed))[:, short])]
    return _Suffixes(i[front2], k[front2], front[j[front2]], span[front2], exposed[front2])


def _over_device_cuts(
    tables: StageTables, paces: StagePaces, starts: Iterable[tuple[int, ...]], deadline: Deadline
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Instruction and device cuts that no single move of a device cut makes shorter, from the best of the starts."""
    best_s, best, searched = np.inf, None, set[tuple[int, ...]]()
    waiting = list(starts)
    while waiting:
        for device_cuts in waiting:
            if deadline.passed:
                return best
            searched.add(device_cuts)
            shorter = best_cuts(tables, paces, device_cuts, best_s * (1.0 - TIE))
            if shorter is not None:
                best_s, best = shorter[0], (shorter[1], device_cuts)
        near = [] if best is None else _neighbours(best[1], tables.replicas_in_all)
        waiting = [device_cuts for device_cuts in near if device_cuts not in searched]
    return best


def _neighbours(device_cuts: tuple[int, ...], devices: int) -> Iterator[tuple[int, ...]]:
    """Device cuts after moving one of them by some devices, or two of them by one device each."""
    stages = range(len(device_cuts))
    singly = [{s: by} for s in stages for by in DEVICE_STEPS]
    jointly = [{s: a, t: b} for s, t in combinations(stages, 2) for a, b in product((-1, 1), repeat=2)]
    for moves in (*singly, *jointly):
        moved = tuple(cut + moves.get(s, 0) for s, cut in enumerate(device_cuts))
        if all(a < b for a, b in pairwise((0, *moved, devices))):
            yield moved


def _refined(
    problem: StagedProblem, paces: StagePaces, cuts: tuple[int, ...], device_cuts: tuple[int, ...], deadline: Deadline
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cuts moved by powers of two of instructions, as long as that makes the plan shorter."""
    most = max(FINE_CELLS * len(problem.profile) // problem.granularity, 1)
    offsets = [0, *(sign << j for j in range(most.bit_length()) for sign in (1, -1))] if cuts else [0]
    best_s = np.inf
    while not deadline.passed:
        places = np.unique(np.add.outer(np.array(cuts, dtype=np.int64), offsets))
        tables = stage_tables(problem, places[(places >= 0) & (places < len(problem.profile) - 1)])
        shorter = best_cuts(tables, paces, device_cuts, best_s * (1.0 - TIE))
        if shorter is None:
            break
        best_s, cuts = shorter
    return cuts, device_cuts
