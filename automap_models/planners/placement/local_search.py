"""Local search: one unit to another device at a time, always the best such move, from many starts.

As the published baseline does it (Tarnawski et al., NeurIPS 2020: random starts, best single reassignment until there
is none), on colour classes with cycles fused (core.contraction), and further: among placements with the same slowest
device the evener one counts as better, and from the best local optimum some units are thrown about at random and the
search goes on (iterated local search). Devices may depend on each other both ways: the placements need not be
contiguous, so that they can be better than the best contiguous one.

For latency a move is judged by the latency itself, and placements whose subgraphs would wait for each other are out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.placement import ROUNDING, BoolArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.core.result import TIE
from automap_models.cost.placement import latency_s
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.heuristics import supported_devices, unit_greedy
from automap_models.planners.placement.moves import Effort, Loads, Score
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig, no_placement

STARTS = 10
"""Random starts."""
KICKS = 100
"""Times that the best placement is thrown about."""
TURNS = STARTS + 1 + KICKS
"""The greedy placement, random starts and kicks."""
KICKED = 0.05
"""Share of the units that then go to random devices, at least two."""
LATENCY_MOVES = 4000
"""Moves looked at for latency without a deadline; each costs an evaluation of the whole placement."""


class LocalSearchPlanner(PlacementPlanner[SeedConfig]):
    """Single moves from random starts, for `WORK` or LATENCY_MOVES moves without a deadline, else until it."""

    name: ClassVar[str] = "local-search"
    config_type: ClassVar[type[SeedConfig]] = SeedConfig

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best local optimum; none where none of those that it reached fits the memory."""
        units = contract(problem)
        random = np.random.default_rng(self.config.seed)
        search = search_throughput if problem.objective == "throughput" else search_latency
        device = search(problem, units, random, deadline, watch)
        if device is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, units.expand(device)))


def search_throughput(
    problem: PlacementProblem, units: Contraction, random: np.random.Generator, deadline: Deadline, watch: Watch
) -> IntArray | None:
    """[m] devices of the units in the best local optimum reached, memory first; None if it does not fit the memory."""
    allowed, effort = supported_devices(problem, units), Effort(deadline)
    best, best_score = None, None
    for turn in range(TURNS):
        watch(Progress(f"local search from start {turn + 1} of {TURNS}", turn, TURNS))
        if best is None or turn <= STARTS:
            start = _start(turn, problem, units, allowed, random, deadline)
        else:
            start = _kicked(best, allowed, random)
        if start is not None:
            device, score = descend(Loads(problem, units, start), lambda _: allowed, effort)
            if best_score is None or score.better_than(best_score):
                best, best_score = device, score
        if effort.spent:
            break
    return None if best_score is None or best_score.excess > 0 else best


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
    problem: PlacementProblem, units: Contraction, random: np.random.Generator, deadline: Deadline, watch: Watch
) -> IntArray | None:
    """[m] devices of the units in the best local optimum from the greedy placements and from none on accelerators.

    None where none of these starts fits.
    """
    best, best_s = None, np.inf
    for turn, start in enumerate(_latency_starts(problem, units, deadline)):
        watch(Progress(f"local search from start {turn + 1}", turn))
        if start is None or not np.isfinite(latency_s(problem, PlacementPlan("", units.expand(start)))):
            continue
        device = improve_latency(problem, units, start, random, Effort(deadline, LATENCY_MOVES))
        value_s = latency_s(problem, PlacementPlan("", units.expand(device)))
        if value_s < best_s:
            best, best_s = device, value_s
        if deadline.passed:
            break
    return best


def _latency_starts(problem: PlacementProblem, units: Contraction, deadline: Deadline) -> Iterator[IntArray | None]:
    """[m] placements to start from."""
    yield unit_greedy(problem, units, deadline)
    yield unit_greedy(replace(problem, objective="throughput", pieces=1), units, deadline)
    if problem.cpus:
        yield np.full(len(units), problem.accelerators)


def improve_latency(
    problem: PlacementProblem,
    units: Contraction,
    start: IntArray,
    random: np.random.Generator,
    effort: Effort,
) -> IntArray:
    """[m] devices after single moves that each shorten the latency, units in random order.

    Args:
        problem: for latency.
        units: of the problem.
        start: [m] devices of a placement that fits.
        random: where the orders come from.
        effort: when to stop; a move that is looked at is work of 1.
    """
    allowed, device = supported_devices(problem, units), start.copy()
    best_s = latency_s(problem, PlacementPlan("", units.expand(device)))
    improved = True
    while improved:
        improved = False
        for unit in random.permutation(len(units)).tolist():
            for target in np.flatnonzero(allowed[unit]).tolist():
                if target == device[unit] or not _has_room(problem, units, device, unit, target):
                    continue
                if effort.spent:
                    return device
                effort.spend(1)
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
    turn: int,
    problem: PlacementProblem,
    units: Contraction,
    allowed: BoolArray,
    random: np.random.Generator,
    deadline: Deadline,
) -> IntArray | None:
    """The greedy placement first, then random ones, on accelerators wherever these can be used."""
    if turn == 0:
        return unit_greedy(problem, units, deadline)
    wanted = allowed & (np.arange(problem.devices) < problem.accelerators)
    return _random(np.where(wanted.any(axis=1, keepdims=True), wanted, allowed), random)


def _kicked(device: IntArray, allowed: BoolArray, random: np.random.Generator) -> IntArray:
    some = random.random(device.size) < max(KICKED, 2.0 / device.size)
    return np.where(some, _random(allowed, random), device)


def _random(allowed: BoolArray, random: np.random.Generator) -> IntArray:
    """[m] a random device of those allowed for each unit."""
    drawn: IntArray = np.where(allowed, random.random(allowed.shape), -1.0).argmax(axis=1)
    return drawn
