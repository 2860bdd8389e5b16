"""Local search: one unit to another device at a time, always the best such move, from many starts.

As the published baseline does it (Tarnawski et al., NeurIPS 2020: random starts, best single reassignment until there
is none), on colour classes with cycles fused (core.contraction), and further: among placements with the same slowest
device the evener one counts as better, and from the best local optimum some units are thrown about at random and the
search goes on (iterated local search). Devices may depend on each other both ways: the placements need not be
contiguous, so that they can be better than the best contiguous one.

For latency a move is judged by the latency itself, and placements whose subgraphs would wait for each other are out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.placement import ROUNDING, PlacementPlan, PlacementProblem
from automap_models.core.placement_graph import BoolArray, IntArray
from automap_models.cost.placement import latency_s
from automap_models.planners.base import PlacementPlanner
from automap_models.planners.deadline import Deadline
from automap_models.planners.placement.heuristics import (
    no_placement,
    placement_plan,
    supported_devices,
    unit_greedy,
)
from automap_models.planners.placement.moves import TIE, Effort, Loads, Score

STARTS = 10
"""Random starts."""
KICKS = 100
"""Times that the best placement is thrown about."""
KICKED = 0.05
"""Share of the units that then go to random devices, at least two."""
LATENCY_MOVES = 4000
"""Moves looked at for latency without a time limit; each costs an evaluation of the whole placement."""


class LocalSearchPlanner(PlacementPlanner):
    """Single moves from random starts; options.seed draws them, options.time_limit_s ends them early."""

    name: ClassVar[str] = "local-search"

    def plan(self, problem: PlacementProblem) -> PlacementPlan:
        """The best local optimum found.

        Raises:
            Infeasible: none of them fits the memory.
        """
        units = contract(problem)
        limit = self.options.time_limit_s
        random = np.random.default_rng(self.options.seed)
        if problem.objective == "throughput":
            device = search_throughput(problem, units, random, Effort(limit))
        else:
            moves = LATENCY_MOVES if limit is None else None
            device = search_latency(problem, units, random, Deadline(np.inf if limit is None else limit), moves)
        return placement_plan(problem, self.name, units.expand(device))


def search_throughput(
    problem: PlacementProblem, units: Contraction, random: np.random.Generator, effort: Effort
) -> IntArray:
    """[m] devices of the units in the best local optimum found, memory first.

    Raises:
        Infeasible: it does not fit the memory.
    """
    allowed = supported_devices(problem, units)
    best, best_score = np.zeros(len(units), dtype=np.int64), None
    for turn in range(STARTS + 1 + KICKS):
        start = _start(turn, problem, units, allowed, random) if turn <= STARTS else _kicked(best, allowed, random)
        if start is None:
            continue
        device, score = descend(Loads(problem, units, start), lambda _: allowed, effort)
        if best_score is None or score.better_than(best_score):
            best, best_score = device, score
        if effort.spent:
            break
    if best_score is None or best_score.excess > 0:
        raise no_placement(problem, LocalSearchPlanner.name)
    return best


def descend(loads: Loads, allowed: Callable[[IntArray], BoolArray], effort: Effort) -> tuple[IntArray, Score]:
    """[m] devices in the local optimum that best moves lead to, and its score.

    Args:
        loads: the start.
        allowed: from the devices of the units to the [m, D] moves to choose from.
        effort: when to stop at the latest.
    """
    score = loads.score()
    while not effort.spent:
        effort.spend(loads.work)
        move = loads.best_move(allowed(loads.device))
        if move is None or not move[2].better_than(score):
            break
        loads.move(*move[:2])
        score = move[2]
    return loads.device, score


def search_latency(
    problem: PlacementProblem, units: Contraction, random: np.random.Generator, deadline: Deadline, moves: int | None
) -> IntArray:
    """[m] devices of the units in the best local optimum from the greedy placements and from none on accelerators.

    Raises:
        Infeasible: none of these starts fits.
    """
    starts = [unit_greedy(problem, units), unit_greedy(replace(problem, objective="throughput", pieces=1), units)]
    if problem.cpus:
        starts.append(np.full(len(units), problem.accelerators))
    best, best_s = None, np.inf
    for start in starts:
        if start is None or not np.isfinite(latency_s(problem, PlacementPlan("", units.expand(start)))):
            continue
        device = improve_latency(problem, units, start, random, deadline, moves)
        value_s = latency_s(problem, PlacementPlan("", units.expand(device)))
        if value_s < best_s:
            best, best_s = device, value_s
    if best is None:
        raise no_placement(problem, LocalSearchPlanner.name)
    return best


def improve_latency(
    problem: PlacementProblem,
    units: Contraction,
    start: IntArray,
    random: np.random.Generator,
    deadline: Deadline,
    moves: int | None = LATENCY_MOVES,
) -> IntArray:
    """[m] devices after single moves that each shorten the latency, units in random order.

    Args:
        problem: for latency.
        units: of the problem.
        start: [m] devices of a placement that fits.
        random: where the orders come from.
        deadline: when to stop.
        moves: how many to look at, at most.
    """
    allowed, device = supported_devices(problem, units), start.copy()
    best_s = latency_s(problem, PlacementPlan("", units.expand(device)))
    left, improved = moves, True
    while improved:
        improved = False
        for unit in random.permutation(len(units)).tolist():
            for target in np.flatnonzero(allowed[unit]).tolist():
                if target == device[unit] or not _has_room(problem, units, device, unit, target):
                    continue
                if deadline.passed or left == 0:
                    return device
                left = None if left is None else left - 1
                home, device[unit] = int(device[unit]), target
                value_s = latency_s(problem, PlacementPlan("", units.expand(device)))
                if value_s < best_s * (1.0 - TIE):
                    best_s, improved = value_s, True
                else:
                    device[unit] = home
    return device


def _has_room(problem: PlacementProblem, units: Contraction, device: IntArray, unit: int, target: int) -> bool:
    if target >= problem.accelerators:
        return True
    used = float(units.memory_bytes[device == target].sum())
    return used + float(units.memory_bytes[unit]) <= problem.memory_bytes * (1.0 + ROUNDING)


def _start(
    turn: int, problem: PlacementProblem, units: Contraction, allowed: BoolArray, random: np.random.Generator
) -> IntArray | None:
    """The greedy placement first, then random ones, on accelerators wherever these can be used."""
    if turn == 0:
        return unit_greedy(problem, units)
    wanted = allowed & (np.arange(problem.devices) < problem.accelerators)
    return _random(np.where(wanted.any(axis=1, keepdims=True), wanted, allowed), random)


def _kicked(device: IntArray, allowed: BoolArray, random: np.random.Generator) -> IntArray:
    some = random.random(device.size) < max(KICKED, 2.0 / device.size)
    return np.where(some, _random(allowed, random), device)


def _random(allowed: BoolArray, random: np.random.Generator) -> IntArray:
    """[m] a random device of those allowed for each unit."""
    drawn: IntArray = np.where(allowed, random.random(allowed.shape), -1.0).argmax(axis=1)
    return drawn
