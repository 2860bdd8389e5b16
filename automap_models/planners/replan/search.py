"""Plans for devices of unequal speed: a few promising device orders, each searched as any staged problem is.

    device orders        a few permutations of nodes, and of the devices inside them
      staged search      moves from the plans that are known, the exact search, cuts off the grid

What plans are compared by is the problem's step under its schedule, or without one the length L.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.observed import PlacedPlan
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import Costs
from automap_models.planners.staged.search import anytime_search, refine
from automap_models.simulate.plan_step import step_cost

NAME = "replan"
"""The planner that plans for unequal devices are made by."""


@dataclass(frozen=True)
class ReplanConfig:
    """How to look for a new plan.

    Attributes:
        starts: planners for equal devices; the search sets out from their plans, too, not only from the running one.
        most_orders: orders of devices that are searched, the most promising ones.
        worth: a plan must be shorter by more than this share than the best before it, at first the running one.
        exact_s, refine_s: counted seconds (planners.effort) of the exact search in one device order, and of moving its
            plan off the grid.
    """

    starts: tuple[Planner[StagedProblem, StagedPlan, Any], ...] = ()
    most_orders: int = 4
    worth: float = 1e-3
    exact_s: float = 0.2
    refine_s: float = 0.2


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
    """

    plan: PlacedPlan
    log: tuple[SearchedOrder, ...]
    notes: tuple[str, ...] = ()


def search_orders(
    problem: StagedProblem,
    running: PlacedPlan,
    slowdown: FloatArray,
    starts: Sequence[StagedPlan] = (),
    *,
    config: ReplanConfig | None = None,
    deadline: Deadline = NEVER,
    watch: Watch = SILENT,
) -> OrderSearch:
    """The shortest plan that is found for devices of these speeds, in whatever order.

    Args:
        problem: with times of healthy devices.
        slowdown: [D] of every device.
        starts: further plans from whose device cuts to search.
    """
    config = config or ReplanConfig()
    cost = placed_cost(problem, running, slowdown)
    best, best_s = running, cost.step_s if cost.feasible else np.inf
    plans, log = (running.plan, *starts), list[SearchedOrder]()
    orders = promising_orders(problem, running, slowdown, config)
    for order in orders:
        if deadline.passed:
            break
        watch(Progress("searching device orders", len(log), len(orders)))
        ordered = in_order(problem, order, slowdown)
        shortest = search(ordered, plans, deadline, config)
        log.append(SearchedOrder(order, None if shortest is None else shortest[1].step_s))
        if shortest is not None and shortest[1].step_s < best_s * (1.0 - config.worth):
            plan, best_s = shortest[0], shortest[1].step_s
            best = PlacedPlan(plan, order, tuple(order[p] for p in ordered.idle_positions(plan)))
    if len(log) == len(orders) and not deadline.passed:
        return OrderSearch(best, tuple(log))
    note = f"the deadline ended the search in device order {len(log)}: more time may give a shorter plan"
    return OrderSearch(best, tuple(log), (note,))


def in_order(problem: StagedProblem, order: Sequence[int], slowdown: FloatArray) -> StagedProblem:
    """The problem on devices of these speeds, in that order.

    Args:
        problem: with times of healthy devices.
        order: [D] device at each position.
        slowdown: [D] of every device.
    """
    return replace(problem, shardings=(), slowdown=tuple(slowdown[list(order)].tolist()))


def placed_cost(problem: StagedProblem, placed: PlacedPlan, slowdown: FloatArray) -> StagedCost:
    """Cost of a plan on its devices, those that stand idle left out.

    Args:
        problem: with times of healthy devices.
        slowdown: [D] of every device.
    """
    return step_cost(in_order(problem, placed.device_order, slowdown), placed.plan, placed.idle_positions())


def promising_orders(
    problem: StagedProblem, running: PlacedPlan, slowdown: FloatArray, config: ReplanConfig
) -> list[tuple[int, ...]]:
    """At most so many device orders, the running one first; the others by how even work on equal nodes would be."""
    cluster = problem.cluster
    orders = list(dict.fromkeys(device_orders(cluster, running.device_order, slowdown)))
    bound = np.array([0, *running.plan.device_cuts, cluster.devices])

    def capacity(order: tuple[int, ...]) -> float:
        return float(in_order(problem, order, slowdown).stage_speeds.rate[bound[:-1], bound[1:]].sum())

    return [orders[0], *sorted(orders[1:], key=capacity, reverse=True)[: config.most_orders - 1]]


def device_orders(cluster: Cluster, running: Sequence[int], slowdown: FloatArray) -> Iterator[tuple[int, ...]]:
    """Orders of devices worth a look, those that move fewest nodes first; a node's devices stay together.

    Inside a node the devices are as they are, or the slow ones first or last. Of a mixed cluster only nodes of one
    group take each other's places.

    Args:
        running: [D] device at each position now.
        slowdown: [D] of every device.
    """
    nodes = np.split(np.array(running), cluster.node_bounds[1:-1])
    slow_last = [node[np.argsort(slowdown[node], kind="stable")] for node in nodes]
    slow_first = [node[::-1] for node in slow_last]
    group = cluster.group_of[cluster.node_bounds[:-1]]
    orders = [
        order
        for order in node_orders([tuple(np.sort(slowdown[node]).tolist()) for node in nodes])
        if (group[list(order)] == group).all()
    ]
    for inside in (nodes, slow_last, slow_first):
        for order in orders:
            yield tuple(np.concatenate([inside[node] for node in order]).tolist())


def node_orders(speeds: Sequence[tuple[float, ...]]) -> Iterator[tuple[int, ...]]:
    """Orders of nodes that differ in the speeds at some place, each by the order that moves fewest nodes.

    Of up to five nodes all orders, of more the slow ones first or last or as they are.

    Args:
        speeds: [N] what tells nodes apart; nodes with the same are interchangeable.
    """
    same = range(len(speeds))
    if len(speeds) <= 5:
        orders: Iterable[tuple[int, ...]] = permutations(same)
    else:
        slow_last = tuple(sorted(same, key=lambda node: sum(speeds[node])))
        orders = (tuple(same), slow_last, slow_last[::-1])
    visited = set()
    for order in sorted(orders, key=lambda order: sum(a != b for a, b in zip(order, same, strict=True))):
        pattern = tuple(speeds[node] for node in order)
        if pattern not in visited:
            visited.add(pattern)
            yield order


def search(
    problem: StagedProblem,
    starts: Iterable[StagedPlan],
    deadline: Deadline = NEVER,
    config: ReplanConfig | None = None,
) -> tuple[StagedPlan, StagedCost] | None:
    """The shortest plan that the search comes to and its cost; None where nothing fits the memory.

    Args:
        starts: plans from which the search sets out; the result is no longer than the best that fits.
    """
    costs, config = Costs(problem), config or ReplanConfig()
    valid = [start for start in starts if start.check_valid(problem)[0]]
    shortest = _shortest(costs, valid)
    exact = deadline.part(config.exact_s, effort.counted_s)
    upper_s = np.inf if shortest is None else costs(shortest).step_s
    result = anytime_search(problem, exact, upper_s, valid, costs)
    shortest = _shortest(costs, [*valid, *([] if result.plan is None else [result.plan])])
    if shortest is None:
        return None
    shortest = refine(problem, shortest, costs, around_s=config.refine_s)
    return replace(shortest, planner=NAME, coarse_cuts=problem.grid.to_points(shortest.cuts)), costs(shortest)


def _shortest(costs: Costs, plans: Sequence[StagedPlan]) -> StagedPlan | None:
    """The shortest of some plans that fit."""
    fitting = [plan for plan in plans if costs(plan).feasible]
    return min(fitting, key=lambda plan: costs(plan).step_s) if fitting else None
