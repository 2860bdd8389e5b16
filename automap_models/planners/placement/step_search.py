"""Searches for a short step: baselines to start from, and simulated annealing over groups.

Every move is judged by simulating all operations (cost.makespan). A move takes a group of neighbouring classes, from
the whole of a coarse METIS partition down to a single class, and puts it on another device, half of the time on that of
a neighbour. Worse placements are accepted with a probability that falls to nothing (Kirkpatrick et al., Science 220,
1983). Placements that pass the memory count as worse than all that do not, by how much they pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from automap_models.core.placement import IntArray, Objective, PlacementProblem
from automap_models.cost.makespan import step_values
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.expert import layers_in_order
from automap_models.planners.placement.list_scheduling import etf
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig, packed
from automap_models.planners.placement.step_groups import StepUnits, grouped, numbered_along, several_parts, weights


@dataclass(frozen=True)
class Annealing:
    """The numbers of a search for a short step.

    Attributes:
        budget_s: of a search without a deadline, in seconds as `operations_per_s` counts them.
        operations_per_s: operations and edges simulated in such a second. So a search has as many moves on a busy
            machine as on an idle one, with a deadline, too; only a machine that is slower is cut off by it.
        most_moves: of a search without a deadline, however small the graph.
        levels: groups of the partitions from which moves are drawn; single classes come on top.
        warm, cold: temperatures at the start and at the end, as shares of the best makespan.
    """

    budget_s: float = 5.0
    operations_per_s: float = 1.6e7
    most_moves: int = 8_000
    levels: tuple[int, ...] = (16, 64, 256, 1024)
    warm: float = 0.002
    cold: float = 1e-5

    def moves(self, units: StepUnits, budget_s: float) -> int:
        """How many moves a search has that has so many seconds; infinitely many are `budget_s` of them."""
        problem = units.problem
        counted = self.operations_per_s / (len(problem.graph) + len(problem.graph.edges))
        if np.isinf(budget_s):
            return min(max(200, int(counted * self.budget_s)), self.most_moves)
        return int(counted * budget_s)

    def warmth(self, done: float) -> float:
        """The temperature when so much of a search is over, as a share of the best makespan."""
        return float(self.warm * (self.cold / self.warm) ** done)


ANNEALING = Annealing()


@dataclass(frozen=True, order=True)
class StepScore:
    """How good a placement is; compared in this order.

    Attributes:
        excess_bytes: beyond the memory, over all devices.
        value_s: makespan.
    """

    excess_bytes: float
    value_s: float


def score_of(units: StepUnits, device: IntArray) -> StepScore:
    """How good the placement of the units is."""
    values, excess = step_values(units.tables, units.expand(device)[None])
    return StepScore(float(excess[0]), float(values[0]))


def starts(units: StepUnits, seed: int, deadline: Deadline) -> Iterator[tuple[str, IntArray]]:
    """Names and [u] devices of the baselines: one device, layers in order, m-ETF, METIS.

    The first is made whatever the time.
    """
    yield "single", units.repaired(np.full(len(units), int(np.argmin(units.problem.step_devices.slowdown))))
    if not deadline.passed:
        yield "expert", units.repaired(layers_in_order(units))
    if not deadline.passed and (device := etf(units)) is not None:
        yield "m-etf", of_operations(units, device)
    yield from (("metis", device) for device in metis_starts(units, seed, deadline))


def of_operations(units: StepUnits, device: IntArray) -> IntArray:
    """[u] devices of the units from the [n] ones of their operations."""
    of_unit = np.zeros(len(units), dtype=np.int64)
    of_unit[units.unit_of] = device
    return of_unit


def metis_starts(units: StepUnits, seed: int, deadline: Deadline) -> Iterator[IntArray]:
    """[u] devices from METIS, into as many parts as there are devices and into fewer; one is made whatever the time."""
    accelerators = units.problem.accelerators or units.problem.devices
    for parts in dict.fromkeys((accelerators, max(accelerators // 2, 1))):
        several = several_parts(units.adjacency, weights(units, parts, 0.1), parts, seed)
        for drawn in several:
            yield units.repaired(numbered_along(np.arange(float(len(units))), drawn, parts))
            if deadline.passed:
                return


class MetisPlanner(PlacementPlanner[SeedConfig]):
    """The step of balanced partitions by METIS, the best of some.

    METIS knows neither directions nor bytes: parts are numbered along the graph's order, operations that may not be
    where their part is are moved, and each partition is simulated as it is.
    """

    name: ClassVar[str] = "metis"
    config_type: ClassVar[type[SeedConfig]] = SeedConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("step",)

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best of the partitions; none where none fits the memory.

        Raises:
            BadInput: pymetis is not installed.
        """
        units = StepUnits.from_problem(problem)
        scored = []
        for index, device in enumerate(metis_starts(units, self.config.seed, deadline)):
            watch(Progress(f"partition {index + 1} by METIS", index))
            scored.append((score_of(units, device), index, device))
        score, _, device = min(scored)
        return self.outcome(problem, None if score.excess_bytes > 0 else units.expand(device))


def best_start(units: StepUnits, seed: int, deadline: Deadline, watch: Watch) -> tuple[str, IntArray, StepScore]:
    """The best of the baselines: who made it, [u] devices, how good it is.

    Where none of them fits the memory a packing is one, too.
    """
    best: tuple[str, IntArray, StepScore] | None = None
    for name, device in starts(units, seed, deadline):
        watch(Progress(f"baseline {name}"))
        score = score_of(units, device)
        if best is None or score < best[2]:
            best = name, device, score
    assert best is not None  # there is always one
    if best[2].excess_bytes > 0:
        device = units.repaired(of_operations(units, packed(units.problem)))
        packing = "packing", device, score_of(units, device)
        best = min(best, packing, key=lambda one: one[2])
    return best


Moves = Callable[[Callable[[], IntArray], np.random.Generator], Iterator[IntArray | None]]
"""From what says the [u] devices at a time, and random draws, to moves without end: [u] devices after each, None for a
move that changes nothing."""


class Neighbourhood:
    """Groups of units that move together, from coarse to single ones."""

    def __init__(self, units: StepUnits, seed: int) -> None:
        self.units = units
        self._members = [_members(level) for level in levels(units, seed)]

    def moves(self, current: Callable[[], IntArray], random: np.random.Generator) -> Iterator[IntArray | None]:
        """Random moves without end; see `Moves`."""
        while True:
            yield self.move(current(), random)

    def move(self, device: IntArray, random: np.random.Generator) -> IntArray | None:
        """[u] devices after a random move; None where it changes nothing or is not allowed."""
        members, firsts = self._members[random.integers(len(self._members))]
        group = int(random.integers(firsts.size - 1))
        moved = members[firsts[group] : firsts[group + 1]]
        pivot = int(moved[random.integers(moved.size)])
        target = self._target(pivot, device, random)
        if target == device[pivot]:
            return None
        moved = moved[(device[moved] == device[pivot]) & self.units.allowed[moved, target]]
        if not moved.size:
            return None
        changed = device.copy()
        changed[moved] = target
        return changed

    def _target(self, unit: int, device: IntArray, random: np.random.Generator) -> int:
        matrix = self.units.adjacency
        near = matrix.indices[matrix.indptr[unit] : matrix.indptr[unit + 1]]
        if near.size and random.random() < 0.5:
            return int(device[near[random.integers(near.size)]])
        return int(random.integers(self.units.problem.devices))


def levels(units: StepUnits, seed: int) -> list[IntArray]:
    """[u] group of each unit, from coarse partitions to single units."""
    return [*(grouped(units, most, seed) for most in ANNEALING.levels if most < len(units)), np.arange(len(units))]


def _members(level: IntArray) -> tuple[IntArray, IntArray]:
    """The units group by group, and where each group begins and the last ends."""
    order = np.argsort(level, kind="stable")
    count = np.bincount(level)
    return order, np.concatenate([[0], np.cumsum(count[count > 0])])


def anneal(
    units: StepUnits,
    start: tuple[IntArray, StepScore],
    moves: Moves,
    total: int,
    seed: int,
    deadline: Deadline,
    watch: Watch,
) -> tuple[IntArray, StepScore]:
    """[u] devices of the best placement met, and how good it is.

    Args:
        start: [u] devices where to begin, and how good they are.
    """
    random = np.random.default_rng(seed)
    device, score = best, best_score = start
    drawn_moves = moves(lambda: device, random)
    for turn in range(total):
        if deadline.passed:
            break
        watch(Progress(f"moving operations, {best_score.value_s:.4g} s", int(1000 * turn / total), 1000))
        changed = next(drawn_moves)
        if changed is None:
            continue
        drawn = score_of(units, changed)
        if accepted(drawn, score, ANNEALING.warmth(turn / total) * best_score.value_s, random):
            device, score = changed, drawn
            if score < best_score:
                best, best_score = device, score
    return best, best_score


def accepted(drawn: StepScore, score: StepScore, warmth: float, random: np.random.Generator) -> bool:
    """Whether a search goes on from a placement that it met, `warmth` in seconds."""
    if drawn.excess_bytes != score.excess_bytes:
        return drawn.excess_bytes < score.excess_bytes
    worse_s = drawn.value_s - score.value_s
    return worse_s <= 0 or random.random() < np.exp(-worse_s / max(warmth, 1e-300))


def search_step(problem: PlacementProblem, seed: int, deadline: Deadline, watch: Watch) -> IntArray | None:
    """[n] devices of the best placement that annealing from the best baseline meets; None where none fits."""
    units = StepUnits.from_problem(problem)
    _, device, score = best_start(units, seed, deadline.part(deadline.remaining_s / 4), watch)
    moves = Neighbourhood(units, seed).moves
    total = ANNEALING.moves(units, deadline.remaining_s)
    device, score = anneal(units, (device, score), moves, total, seed, deadline, watch)
    return None if score.excess_bytes > 0 else units.expand(device)
