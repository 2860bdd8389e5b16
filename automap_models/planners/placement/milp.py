"""Integer programs for placements: any, contiguous as published, or contiguous with devices in an order.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4. Each planner
returns its best plan with a proven bound, at its deadline at the latest. Without one, searches and CP-SAT stop after so
much work, which they count, so that the plan does not depend on what else the machine does; SCIP has half a minute.

A planner states its program, takes plans of heuristics to start from, and lets solvers take turns; each solver starts
from what the ones before it know. CP-SAT and SCIP complement each other: CP-SAT is
good where devices have an order, SCIP is good where a relaxation is, and best once it knows which value to beat.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from automap_models.core.contraction import contract
from automap_models.core.placement import FloatArray, IntArray, PlacementPlan, PlacementProblem
from automap_models.cost.placement import PlacementCost, placement_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import SILENT, Deadline, OutOfTime, Progress, Watch
from automap_models.planners.placement.heuristics import GreedyPlanner
from automap_models.planners.placement.latency_program import LatencyProgram, latency_program
from automap_models.planners.placement.local_search import Effort, LocalSearchPlanner, improve_latency
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.program import Answer, Program, Solver, solve_program
from automap_models.planners.placement.throughput_program import (
    ThroughputProgram,
    UnitTimes,
    contiguous_program,
    free_program,
    ordered_program,
)

START_SHARE = 0.1
"""The part of the time that each heuristic gets that makes a plan to start from."""
OPTIMAL_GAP = 1e-6
"""A plan is called optimal when its value is above the bound by no more than this share."""
TICKS = {"cp-sat": 1e9, "scip": 100.0}
"""Solver → the best known value in its unit of time. CP-SAT's ticks are whole: rounding n times down costs the bound
n · 1e-9 of the value. SCIP's tolerances are absolute."""


class Formulation(Protocol):
    """A program, and how its columns and plans translate."""

    @property
    def program(self) -> Program:
        """What a solver gets."""

    def plan(self, columns: FloatArray) -> PlacementPlan:
        """What a solution decides."""

    def hint(self, plan: PlacementPlan) -> dict[int, int]:
        """Values of some columns that mean the plan."""


State = Callable[[float, float, bool, Deadline], Formulation]
"""Seconds a tick, the largest value wanted in ticks, whether ticks are whole, when to stop → the program."""


@dataclass(frozen=True)
class Turn:
    """A solver's turn, and which share of the time that is left, or of its work, it gets."""

    solver: Solver
    share: float


CP_SAT_ONLY = (Turn("cp-sat", 1.0),)
"""Programs with contiguity, latency among them: CP-SAT proves more than SCIP, and sooner."""
SCIP_LAST = (Turn("cp-sat", 0.15), Turn("scip", 1.0))
"""Programs without contiguity: SCIP proves them once it knows a good plan."""


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a problem: the best plan, its cost, and a bound below which no plan is."""

    plan: PlacementPlan | None = None
    cost: PlacementCost | None = None
    bound_s: float = 0.0

    @property
    def value_s(self) -> float:
        """Of the plan; infinite without one."""
        return math.inf if self.cost is None else self.cost.value_s

    @property
    def closed(self) -> bool:
        """Whether the plan is proven to be the best, or that there is none."""
        return self.bound_s >= self.value_s * (1.0 - OPTIMAL_GAP)


class ProgramPlanner(PlacementPlanner[SeedConfig]):
    """States a program, makes plans to start from and lets solvers take their turns."""

    config_type: ClassVar[type[SeedConfig]] = SeedConfig

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best plan, its bound and whether it is optimal; none where none fits, or none was met in time.

        Raises:
            BadInput: the program is not for such a problem, or OR-tools is not installed.
        """
        state = self.state(problem)
        starts = self.starting_plans(problem, deadline, watch)
        known = solve_in_turns(
            problem, state, starts, self.turns(problem), deadline=deadline, watch=watch, seed=self.config.seed
        )
        if known.plan is None:
            return Outcome(bound_s=known.bound_s, reason=_without_plan(known))
        plan = replace(known.plan, planner=self.name)
        return Outcome(plan, known.cost, bound_s=known.bound_s, optimal=known.closed)

    def starting_plans(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> list[PlacementPlan]:
        """Plans of heuristics that the program allows; each heuristic gets START_SHARE of the time."""
        share_s = START_SHARE * deadline.left_s
        starts: list[PlacementPlan] = []
        for planner in self.heuristics():
            watch(Progress(f"planning by {planner.name} to start from"))
            starts += _plans(planner, problem, deadline.part(share_s))
        if problem.objective == "latency":
            watch(Progress("splitting for throughput to start from"))
            starts += _throughput_splits(problem, deadline, share_s, self.config.seed)
        return starts

    def heuristics(self) -> list[PlacementPlanner[Any]]:
        """The planners whose plans the program allows."""
        return [planner for planner in _contiguous_planners() if planner.name == "linear"]

    def turns(self, problem: PlacementProblem) -> Sequence[Turn]:
        """Which solver gets how long."""
        return CP_SAT_ONLY

    @abstractmethod
    def state(self, problem: PlacementProblem) -> State:
        """Writes the program down."""


class MilpPlanner(ProgramPlanner):
    """Throughput: any placement, contiguous or not (§4.1). Latency: `pieces` subgraphs an accelerator (§4.2)."""

    name: ClassVar[str] = "milp"

    def heuristics(self) -> list[PlacementPlanner[Any]]:
        """Both for throughput and for latency."""
        return [GreedyPlanner(), LocalSearchPlanner(self.config)]

    def turns(self, problem: PlacementProblem) -> Sequence[Turn]:
        """Throughput has a relaxation for SCIP to start from."""
        return SCIP_LAST if problem.objective == "throughput" else CP_SAT_ONLY

    def state(self, problem: PlacementProblem) -> State:
        """The program of the objective."""
        return partial(_latency, problem) if problem.objective == "latency" else partial(_free, problem)


class MilpContiguousPlanner(ProgramPlanner):
    """Throughput: each device's forward nodes contiguous, as published.

    Two devices may still depend on each other both ways, so that the optimum can be below that of `ideals`.
    """

    name: ClassVar[str] = "milp-contiguous"

    def state(self, problem: PlacementProblem) -> State:
        """The program.

        Raises:
            BadInput: the objective is latency.
        """
        _require_throughput(problem, self.name)
        return partial(_contiguous, problem)


class MilpOrderedPlanner(ProgramPlanner):
    """Throughput: devices in an order that no edge of the forward pass leads back in: the problem of `ideals`."""

    name: ClassVar[str] = "milp-ordered"

    def state(self, problem: PlacementProblem) -> State:
        """The program.

        Raises:
            BadInput: the objective is latency.
        """
        _require_throughput(problem, self.name)
        return partial(_ordered, problem)


def solve_in_turns(
    problem: PlacementProblem,
    state: State,
    starts: Sequence[PlacementPlan],
    turns: Sequence[Turn],
    *,
    deadline: Deadline,
    watch: Watch,
    seed: int,
) -> Known:
    """The best plan and the bound that solvers prove; Ctrl-C ends the search early.

    Args:
        problem: to be solved.
        state: writes the program down.
        starts: plans that it allows.
        turns: of the solvers.
        deadline: of all turns together.
        watch: is told whose turn it is.
        seed: of the solvers' random draws.
    """
    known = _best(problem, starts)
    for index, turn in enumerate(turns):
        if known.closed or deadline.passed:
            break
        watch(Progress(f"solving an integer program by {turn.solver}", index, len(turns)))
        try:
            known, interrupted = _take_turn(problem, state, turn, known, deadline, seed)
        except (KeyboardInterrupt, OutOfTime):
            break
        if interrupted:
            break
    return known


def _best(problem: PlacementProblem, plans: Sequence[PlacementPlan]) -> Known:
    """The best of some plans, or that nothing is known."""
    known = [Known(plan, placement_cost(problem, plan)) for plan in plans]
    fitting = [candidate for candidate in known if candidate.cost is not None and candidate.cost.feasible]
    return min(fitting, key=lambda candidate: candidate.value_s, default=Known())


def _take_turn(
    problem: PlacementProblem, state: State, turn: Turn, known: Known, deadline: Deadline, seed: int
) -> tuple[Known, bool]:
    """What is known after a solver's turn, and whether Ctrl-C ended it.

    Raises:
        OutOfTime: the time was up before the program was written down.
    """
    share = deadline.part(turn.share * deadline.left_s)
    upper_s = known.value_s if known.plan else _everything_s(problem)
    ticks = TICKS[turn.solver]
    tick_s = upper_s / ticks or 1.0
    stated = state(tick_s, ticks, turn.solver == "cp-sat", share)
    hint = stated.hint(known.plan) if known.plan else {}
    answer = solve_program(stated.program, turn.solver, share, hint, seed, turn.share)
    return _learnt(problem, stated, answer, known, tick_s, upper_s), answer.interrupted


def _learnt(
    problem: PlacementProblem, stated: Formulation, answer: Answer, known: Known, tick_s: float, upper_s: float
) -> Known:
    """The better plan and the better bound of two; a solution that only rounding made valid is none."""
    bound_s = max(known.bound_s, min(answer.bound * tick_s, upper_s if known.plan else math.inf))
    solutions = [] if answer.columns is None else [stated.plan(answer.columns)]
    best = min(known, _best(problem, solutions), key=lambda candidate: candidate.value_s)
    return replace(best, bound_s=min(bound_s, best.value_s))


def _everything_s(problem: PlacementProblem) -> float:
    """No plan's value is larger: everything one after the other, where it is slow, each output received everywhere."""
    graph, receivers = problem.graph, problem.accelerators * problem.pieces
    return float(np.maximum(graph.accelerator_s, graph.cpu_s).sum() + graph.transfer_s.sum() * (1 + receivers))


def _without_plan(known: Known) -> Infeasible:
    if known.closed:
        return Infeasible(
            "no placement fits the memory: that is proven",
            where="integer program",
            do="try more devices or more memory",
        )
    return Infeasible(
        "no placement was found in time, nor a proof that there is none",
        where="integer program",
        do="try a longer `time_limit_s`, more devices or more memory",
    )


def _contiguous_planners() -> Iterator[PlacementPlanner[Any]]:
    """`ideals` and `linear`, the better one first."""
    from automap_models.planners.placement.ideals import IdealsPlanner, LinearPlanner

    yield IdealsPlanner()
    yield LinearPlanner()


def _plans(planner: PlacementPlanner[Any], problem: PlacementProblem, deadline: Deadline) -> list[PlacementPlan]:
    """The plan of a heuristic, or none if it has none."""
    try:
        plan = planner.search(problem, deadline, SILENT).plan
    except BadInput:
        return []
    return [] if plan is None else [plan]


def _throughput_splits(
    problem: PlacementProblem, deadline: Deadline, share_s: float, seed: int
) -> Iterator[PlacementPlan]:
    """For latency: the best contiguous split for throughput, as it is and after single moves."""
    pipeline = replace(problem, objective="throughput", pieces=1)
    for planner in _contiguous_planners():
        splits = _plans(planner, pipeline, deadline.part(share_s))
        for split in splits:
            yield split
            units = contract(problem)
            start = split.assignment[np.unique(units.unit_of, return_index=True)[1]]
            random, effort = np.random.default_rng(seed), Effort(deadline.part(share_s))
            yield PlacementPlan("", units.expand(improve_latency(problem, units, start, random, effort)))
        if splits:
            return


def _require_throughput(problem: PlacementProblem, planner: str) -> None:
    if problem.objective != "throughput":
        raise BadInput("is for throughput only", where=f"planner {planner}", do="use planner milp for latency")


def _free(problem: PlacementProblem, tick_s: float, upper: float, whole: bool, deadline: Deadline) -> ThroughputProgram:
    times = UnitTimes.of(problem, _classes(problem), tick_s, whole=whole)
    return free_program(problem, times, upper, deadline)


def _contiguous(
    problem: PlacementProblem, tick_s: float, upper: float, whole: bool, deadline: Deadline
) -> ThroughputProgram:
    times = UnitTimes.of(problem, _classes(problem), tick_s, whole=whole)
    return contiguous_program(problem, times, upper, deadline)


def _ordered(
    problem: PlacementProblem, tick_s: float, upper: float, whole: bool, deadline: Deadline
) -> ThroughputProgram:
    units = contract(problem, lossless=True)
    times = UnitTimes.of(problem, units.unit_of, tick_s, whole=whole)
    return ordered_program(problem, times, units.order, upper, deadline)


def _latency(problem: PlacementProblem, tick_s: float, upper: float, whole: bool, deadline: Deadline) -> LatencyProgram:
    return latency_program(problem, tick_s, upper, whole=whole, deadline=deadline)


def _classes(problem: PlacementProblem) -> IntArray:
    """[n] classes without gaps."""
    return np.unique(problem.graph.classes, return_inverse=True)[1].astype(np.int64)
