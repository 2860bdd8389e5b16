"""Local search for latency: single moves from the published greedy placement, a split for throughput, and CPUs alone.

A move is judged by the latency itself, and placements whose subgraphs would wait for each other are out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from automap_models.core.contraction import Contraction
from automap_models.core.dag import depth_first_order, topological_order
from automap_models.core.placement import ROUNDING, BoolArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.core.result import TIE
from automap_models.cost.placement import latency_s
from automap_models.planners.base import SILENT, Deadline, Progress, Watch
from automap_models.planners.placement.ideals import IdealsConfig, IdealsPlanner


class Effort:
    """How long a search may go on: until its deadline or, where that never comes, for so much work.

    Unlike seconds, work gives the same result everywhere.

    Args:
        work: how much may be done without a deadline, in any unit.
    """

    def __init__(self, deadline: Deadline, work: float) -> None:
        self._deadline = deadline
        self._remaining = work if np.isinf(deadline.remaining_s) else np.inf

    @property
    def spent(self) -> bool:
        """Whether to stop."""
        return self._remaining <= 0 or self._deadline.passed

    def spend(self, work: float) -> None:
        """Count work that was done."""
        self._remaining -= work


def supported_devices(problem: PlacementProblem, units: Contraction) -> BoolArray:
    """[m, D] whether a unit may be placed on a device, on its own."""
    on_accelerator = units.supported & (units.memory_bytes <= problem.memory_bytes * (1.0 + ROUNDING))
    is_cpu = np.arange(problem.devices) >= problem.accelerators
    allowed: BoolArray = is_cpu[None, :] | on_accelerator[:, None]
    return allowed


def search_latency(
    problem: PlacementProblem, units: Contraction, moves: int, seed: int, deadline: Deadline, watch: Watch
) -> IntArray | None:
    """[m] devices of the units in the best local optimum that the starts lead to; None where none of them fits.

    Args:
        moves: looked at from each start without a deadline; each costs an evaluation of the whole placement.
    """
    best, best_s = None, np.inf
    random = np.random.default_rng(seed)
    for turn, start in enumerate(_starts(problem, units, deadline)):
        watch(Progress(f"local search from start {turn + 1}", turn))
        if start is None or not np.isfinite(_latency_s(problem, units, start)):
            continue
        device, value_s = _improved(problem, units, start, random, Effort(deadline, moves))
        if value_s < best_s:
            best, best_s = device, value_s
        if deadline.passed and best is not None:
            break
    return best


def _starts(problem: PlacementProblem, units: Contraction, deadline: Deadline) -> Iterator[IntArray | None]:
    """[m] placements to start from, None where there is none; some have subgraphs that wait for each other."""
    filled = (filled_in_order(problem, units, order) for order in topological_orders(units))
    possible = [device for device in filled if device is not None]
    yield min(possible, key=lambda device: _latency_s(problem, units, device), default=None)
    pipeline = replace(problem, objective="throughput", pieces=1)
    # A graph with more ideals has the best split along a line.
    split = IdealsPlanner(IdealsConfig(most_ideals=20_000)).search(pipeline, deadline, SILENT).plan
    yield None if split is None else split.assignment[np.unique(units.unit_of, return_index=True)[1]]
    yield np.full(len(units), problem.accelerators) if problem.cpus else None


def _latency_s(problem: PlacementProblem, units: Contraction, device: IntArray) -> float:
    return latency_s(problem, PlacementPlan("", units.expand(device)))


def topological_orders(units: Contraction) -> Iterator[list[int]]:
    """Orders of the units: the first in the file first; depth first, by either end of each unit's readers.

    The published greedy is the depth-first one; which of a unit's readers comes first is up to its hash tables.
    """
    successors = units.successors()
    yield topological_order(successors)
    yield depth_first_order(successors)
    yield depth_first_order([after[::-1] for after in successors])


def filled_in_order(problem: PlacementProblem, units: Contraction, order: list[int]) -> IntArray | None:
    """As much as its memory holds on every accelerator, the rest on the CPUs; None where that needs CPUs there are not.

    A unit that depends on the accelerator at hand by way of a CPU begins the next one: subgraphs are contiguous.
    """
    allowed = supported_devices(problem, units)
    before: list[list[int]] = [[] for _ in range(len(units))]
    for producer, consumer in units.order.tolist():
        before[consumer].append(producer)
    device = np.full(len(units), problem.accelerators)
    now, used, limit = 0, 0.0, problem.memory_bytes * (1.0 + ROUNDING)
    through_cpu: set[int] = set()  # units on CPUs that depend on the accelerator at hand
    for unit in order:
        memory = float(units.memory_bytes[unit])
        if now < problem.accelerators and allowed[unit, 0]:
            if used + memory > limit or through_cpu.intersection(before[unit]):
                now, used = now + 1, 0.0
                through_cpu.clear()
            if now < problem.accelerators:
                device[unit], used = now, used + memory
                continue
        if not problem.cpus:
            return None
        if any(device[b] == now or b in through_cpu for b in before[unit]):
            through_cpu.add(unit)
    return device


def _improved(
    problem: PlacementProblem, units: Contraction, start: IntArray, random: np.random.Generator, effort: Effort
) -> tuple[IntArray, float]:
    """[m] devices after single moves that each shorten the latency, units in random order, and that latency."""
    allowed, device = supported_devices(problem, units), start.copy()
    best_s = _latency_s(problem, units, device)
    improved = True
    while improved:
        improved = False
        for unit in random.permutation(len(units)).tolist():
            for target in np.flatnonzero(allowed[unit]).tolist():
                if target == device[unit] or not _has_room(problem, units, device, unit, target):
                    continue
                if effort.spent:
                    return device, best_s
                effort.spend(1)
                home, device[unit] = int(device[unit]), target
                value_s = _latency_s(problem, units, device)
                if value_s < best_s * (1.0 - TIE):
                    best_s, improved = value_s, True
                else:
                    device[unit] = home
    return device, best_s


def _has_room(problem: PlacementProblem, units: Contraction, device: IntArray, unit: int, target: int) -> bool:
    if target >= problem.accelerators:
        return True
    used = float(units.memory_bytes[device == target].sum())
    return used + float(units.memory_bytes[unit]) <= problem.memory_bytes * (1.0 + ROUNDING)
