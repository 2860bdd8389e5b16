"""Local search: one unit to another device at a time, always the best such move, from many starts.

As the published baseline does it (Tarnawski et al., NeurIPS 2020: random starts, best single reassignment until there
is none), on colour classes with cycles fused (core.contraction), and further: among placements with the same slowest
device the evener one counts as better, and from the best local optimum some units are thrown about at random and the
search goes on (iterated local search). Devices may depend on each other both ways: the placements need not be
contiguous, so that they can be better than the best contiguous one.

What every move of one unit to another device would lead to is known at once. A net, an output with the units that write
and read it, loads every accelerator that holds some but not all of its units. A move of a unit from a to b changes how
many of them a and b hold, and nothing elsewhere; the loads after all m·D moves are two products with the sparse
incidence matrix of units and nets.

For latency see latency_search; for a step it is annealing from the best baseline (step_search).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.placement import (
    ROUNDING,
    BoolArray,
    FloatArray,
    IntArray,
    Objective,
    PlacementProblem,
)
from automap_models.core.result import TIE
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.placement.ideals import plan_along_line
from automap_models.planners.placement.latency_search import Effort, search_latency, supported_devices
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.step_search import search_step


@dataclass(frozen=True)
class Score:
    """How good a placement is; compared in this order.

    Attributes:
        excess: bytes beyond the limit, over all accelerators, relative to the limit.
        value_s: the objective.
        unevenness: Σ of squared loads: of two placements with the same slowest device, the evener one leads further.
    """

    excess: float
    value_s: float
    unevenness: float

    def better_than(self, other: Score) -> bool:
        """Whether it is, beyond rounding."""
        for mine, theirs in (
            (self.excess, other.excess),
            (self.value_s, other.value_s),
            (self.unevenness, other.unevenness),
        ):
            if abs(mine - theirs) > TIE * abs(theirs):
                return mine < theirs
        return False


class Loads:
    """A placement of m units on D devices for throughput, and what a move would make of it.

    With `split_passes` there are two channels, forward and backward, and the value is the sum of their slowest
    devices' loads; otherwise one channel holds both passes.

    Attributes:
        device: [m] device of each unit.
    """

    def __init__(self, problem: PlacementProblem, units: Contraction, device: IntArray) -> None:
        from scipy.sparse import csr_array

        self.problem, self.units, self.device = problem, units, device.copy()
        is_accelerator = np.arange(problem.devices) < problem.accelerators
        self._accelerator: BoolArray = is_accelerator
        channel = units.net_pass if problem.split_passes else np.zeros_like(units.net_pass)
        self._channels = 2 if problem.split_passes else 1
        times = [units.accelerator_s, units.cpu_s]
        if not problem.split_passes:
            times = [both.sum(axis=0, keepdims=True) for both in times]
        self._time_s = np.where(is_accelerator[None, None, :], times[0][:, :, None], times[1][:, :, None])  # [C, m, D]
        self._size = np.diff(units.net_start)
        self._net = np.repeat(np.arange(self._size.size), self._size)
        self._weights = [
            csr_array(
                (
                    np.where(channel[self._net] == c, units.net_s[self._net], 0.0),
                    (units.net_units, np.arange(self._net.size)),
                ),
                shape=(len(units), self._net.size),
            )
            for c in range(self._channels)
        ]
        self._net_channel = channel
        self._limit = problem.memory_bytes * (1.0 + ROUNDING)
        self._count()

    def _count(self) -> None:
        """Everything that follows from `device`."""
        m, devices = len(self.units), self.problem.devices
        self._pin_counts = np.zeros((self._size.size, devices), dtype=np.int64)
        np.add.at(self._pin_counts, (self._net, self.device[self.units.net_units]), 1)
        pays = (self._pin_counts > 0) & (self._pin_counts < self._size[:, None]) & self._accelerator
        self._transfer_s = np.stack(
            [(self.units.net_s * (self._net_channel == c)) @ pays for c in range(self._channels)]
        )
        self._compute_s = np.zeros((self._channels, devices))
        for c in range(self._channels):
            np.add.at(self._compute_s[c], self.device, self._time_s[c, np.arange(m), self.device])
        self._memory: FloatArray = np.zeros(devices)
        np.add.at(self._memory, self.device, self.units.memory_bytes)

    @property
    def work(self) -> float:
        """What weighing all moves once costs, see LocalSearchConfig."""
        return float(self._net.size * self.problem.devices)

    def score(self) -> Score:
        """Of the placement as it is."""
        loads = self._busy(self._compute_s, self._transfer_s)
        excess = float(self._beyond(self._memory).sum())
        return Score(excess, float(loads.max(axis=1).sum()), float((loads**2).sum()))

    def move(self, unit: int, device: int) -> None:
        """Put a unit on another device."""
        self.device[unit] = device
        self._count()

    def best_move(self, allowed: BoolArray) -> tuple[int, int, Score] | None:
        """Unit, device and resulting score of the best move; None if none is allowed.

        Args:
            allowed: [m, D] moves to choose from; a unit's own device does not count.
        """
        excess, value, unevenness = self._after_moves()
        is_home = np.arange(self.problem.devices)[None, :] == self.device[:, None]
        score = np.where(allowed & ~is_home, excess, np.inf)
        if not np.isfinite(score).any():
            return None
        tied = score <= score.min() * (1.0 + TIE)
        value = np.where(tied, value, np.inf)
        tied = value <= value.min() * (1.0 + TIE)
        best = int(np.where(tied, unevenness, np.inf).argmin())
        unit, device = divmod(best, self.problem.devices)
        return unit, device, Score(*(float(scores[unit, device]) for scores in (excess, value, unevenness)))

    def _after_moves(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """[m, D] excess, value and unevenness after each move; nonsense where a unit already is."""
        home, member = self.device, self.units.net_units
        net_pins = self._pin_counts[self._net, home[member]]
        leaves = (net_pins > 1).astype(np.float64) - (net_pins < self._size[self._net])
        there = self._pin_counts[self._net]
        enters = (there + 1 < self._size[self._net][:, None]).astype(np.float64) - (there > 0)
        rows = np.arange(len(self.units))
        from_s, to_s = [], []
        for c, weight in enumerate(self._weights):
            load_s = self._transfer_s[c, home] + self._accelerator[home] * (weight @ leaves)
            entered = self._transfer_s[c] + self._accelerator * (weight @ enters)
            from_s.append(self._busy(self._compute_s[c, home] - self._time_s[c, rows, home], load_s))
            to_s.append(self._busy(self._compute_s[c] + self._time_s[c], entered))
        source, target = np.stack(from_s)[:, :, None], np.stack(to_s)
        loads = self._busy(self._compute_s, self._transfer_s)
        others = np.stack([_largest_but(row)[home] for row in loads])
        value = np.maximum(np.maximum(source, target), others).sum(axis=0)
        squares = (loads**2).sum(axis=0)
        change = (source**2 + target**2).sum(axis=0) - squares[home][:, None] - squares[None, :]
        return self._excess_after(), value, squares.sum() + change

    def _excess_after(self) -> FloatArray:
        home, size = self.device, self.units.memory_bytes
        now = self._beyond(self._memory)
        excess = self._beyond(self._memory[home] - size, home)
        entered = self._beyond(self._memory[None, :] + size[:, None])
        after: FloatArray = now.sum() - now[home][:, None] - now[None, :] + excess[:, None] + entered
        return np.where(after > TIE, after, 0.0)

    def _beyond(self, memory: FloatArray, device: IntArray | None = None) -> FloatArray:
        """Bytes beyond the limit of an accelerator, relative to the limit; the last axis is that of the devices."""
        limited = self._accelerator if device is None else self._accelerator[device]
        beyond: FloatArray = np.where(limited, np.maximum(memory - self._limit, 0.0), 0.0) / max(self._limit, 1.0)
        return beyond

    def _busy(self, compute: FloatArray, transfer: FloatArray) -> FloatArray:
        both: FloatArray = np.maximum(compute, transfer) if self.problem.communication == "max" else compute + transfer
        return both


def _largest_but(loads: FloatArray) -> FloatArray:
    """[D, D] largest of the loads without those of two devices; 0 if there is no third."""
    devices = loads.size
    top = np.argsort(-loads, kind="stable")[:3]
    largest = np.zeros((devices, devices))
    a, b = np.arange(devices)[:, None], np.arange(devices)[None, :]
    for device in top[::-1]:
        largest = np.where((a != device) & (b != device), loads[device], largest)
    return largest


@dataclass(frozen=True)
class LocalSearchConfig(SeedConfig):
    """The configuration of `local-search`.

    Attributes:
        starts: random ones, after the best placement along a line.
        kicks: times that the best placement is thrown about.
        kicked: share of the units that then go to random devices, at least two.
        work: moves weighed in all without a deadline, each counted once for every net that the moved unit is in: about
            ten seconds on the largest graphs, more than small ones can use up.
        latency_moves: moves looked at for latency without a deadline; each costs an evaluation of the whole placement.
    """

    starts: int = 10
    kicks: int = 100
    kicked: float = 0.05
    work: float = 2e8
    latency_moves: int = 4000


class LocalSearchPlanner(PlacementPlanner[LocalSearchConfig]):
    """Single moves from random starts, for so much work without a deadline, else until it."""

    name: ClassVar[str] = "local-search"
    config_type: ClassVar[type[LocalSearchConfig]] = LocalSearchConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("throughput", "latency", "step")

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best local optimum; none where none of those that it reached fits the memory."""
        if problem.objective == "step":
            return self.outcome(problem, search_step(problem, self.config.seed, deadline, watch))
        units = contract(problem)
        if problem.objective == "latency":
            moves, seed = self.config.latency_moves, self.config.seed
            device = search_latency(problem, units, moves, seed, deadline, watch)
        else:
            device = search_throughput(problem, units, self.config, deadline, watch)
        return self.outcome(problem, None if device is None else units.expand(device))


def search_throughput(
    problem: PlacementProblem, units: Contraction, config: LocalSearchConfig, deadline: Deadline, watch: Watch
) -> IntArray | None:
    """[m] devices of the units in the best local optimum reached, memory first; None if it does not fit the memory."""
    allowed, effort = supported_devices(problem, units), Effort(deadline, config.work)
    random = np.random.default_rng(config.seed)
    best, best_score = None, None
    turns = config.starts + 1 + config.kicks
    for turn in range(turns):
        watch(Progress(f"local search from start {turn + 1} of {turns}", turn, turns))
        if best is None or turn <= config.starts:
            start = _start(turn, problem, units, allowed, random)
        else:
            some = random.random(best.size) < max(config.kicked, 2.0 / best.size)
            start = np.where(some, _random(allowed, random), best)
        if start is not None:
            device, score = _local_optimum(Loads(problem, units, start), allowed, effort)
            if best_score is None or score.better_than(best_score):
                best, best_score = device, score
        if effort.spent:
            break
    return None if best_score is None or best_score.excess > 0 else best


def _local_optimum(loads: Loads, allowed: BoolArray, effort: Effort) -> tuple[IntArray, Score]:
    """[m] devices in the local optimum that best moves of those allowed, [m, D], lead to, and its score."""
    score = loads.score()
    while not effort.spent:
        effort.spend(loads.work)
        move = loads.best_move(allowed)
        if move is None or not move[2].better_than(score):
            break
        loads.move(*move[:2])
        score = move[2]
    return loads.device, score


def _start(
    turn: int, problem: PlacementProblem, units: Contraction, allowed: BoolArray, random: np.random.Generator
) -> IntArray | None:
    """The best placement along a line first, then random ones, on accelerators wherever these can be used."""
    if turn == 0:
        line = plan_along_line(problem)
        return None if line is None else line.assignment[np.unique(units.unit_of, return_index=True)[1]]
    wanted = allowed & (np.arange(problem.devices) < problem.accelerators)
    return _random(np.where(wanted.any(axis=1, keepdims=True), wanted, allowed), random)


def _random(allowed: BoolArray, random: np.random.Generator) -> IntArray:
    """[m] a random device of those allowed for each unit."""
    drawn: IntArray = np.where(allowed, random.random(allowed.shape), -1.0).argmax(axis=1)
    return drawn
