"""Integer programs for placements: any, contiguous as published, or contiguous with devices in an order.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4. Each planner
returns its best plan with a proven bound, at its deadline at the latest. Without one, searches and CP-SAT stop after so
much work, which they count, so that the plan does not depend on what else the machine does.

A planner states its program, takes plans of heuristics to start from, and lets CP-SAT go on from the best of them.
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
from automap_models.planners.placement.local_search import (
    Effort,
    LocalSearchConfig,
    LocalSearchPlanner,
    improve_latency,
)
from automap_models.planners.placement.planner import Outcome, PlacementPlanner, SeedConfig
from automap_models.planners.placement.program import TICKS, Answer, Program, solve_program
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


class Formulation(Protocol):
    """A program, and how its columns and plans translate."""

    @property
    def program(self) -> Program:
        """What a solver gets."""

    def plan(self, columns: FloatArray) -> PlacementPlan:
        """What a solution decides."""

    def hint(self, plan: PlacementPlan) -> dict[int, int]:
        """Values of some columns that mean the plan."""


State = Callable[[float, Deadline], Formulation]
"""Seconds a tick, when to stop → the program, in which no value above TICKS is wanted."""


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


@dataclass(frozen=True)
class ProgramConfig(SeedConfig):
    """The configuration of a planner that solves a program.

    Attributes:
        work_s: CP-SAT's deterministic seconds without a deadline (program.solve_program); twice as many for throughput
            without contiguity, where a proof takes longer.
    """

    work_s: float = 15.0


class ProgramPlanner(PlacementPlanner[ProgramConfig]):
    """States a program, makes plans to start from and lets CP-SAT look for a better one."""

    config_type: ClassVar[type[ProgramConfig]] = ProgramConfig

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best plan, its bound and whether it is optimal; none where none fits, or none was met in time.

        Raises:
            BadInput: the program is not for such a problem, or OR-tools is not installed.
        """
        state = self.state(problem)
        starts = self.starting_plans(problem, deadline, watch)
        work_s = self.work_s(problem) if np.isinf(deadline.left_s) else np.inf
        known = solved(problem, state, starts, deadline, watch, work_s=work_s, seed=self.config.seed)
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

    def work_s(self, problem: PlacementProblem) -> float:
        """Deterministic seconds of the solver, without a deadline."""
        return self.config.work_s

    @abstractmethod
    def state(self, problem: PlacementProblem) -> State:
        """Writes the program down."""


class MilpPlanner(ProgramPlanner):
    """Throughput: any placement, contiguous or not (§4.1). Latency: `pieces` subgraphs an accelerator (§4.2)."""

    name: ClassVar[str] = "milp"

    def heuristics(self) -> list[PlacementPlanner[Any]]:
        """Both for throughput and for latency."""
        return [GreedyPlanner(), LocalSearchPlanner(LocalSearchConfig(self.config.seed))]

    def work_s(self, problem: PlacementProblem) -> float:
        """Twice as many for throughput."""
        return self.config.work_s * (2.0 if problem.objective == "throughput" else 1.0)

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


def solved(
    problem: PlacementProblem,
    state: State,
    starts: Sequence[PlacementPlan],
    deadline: Deadline,
    watch: Watch,
    *,
    work_s: float,
    seed: int,
) -> Known:
    """The best plan and the bound that CP-SAT proves; Ctrl-C ends the search early.

    Args:
        problem: to be solved.
        state: writes the program down.
        starts: plans that it allows.
        deadline: when to stop.
        watch: is told when the solver begins.
        work_s: deterministic seconds after which to stop, too.
        seed: of the solver's random draws.
    """
    known = _best(problem, starts)
    if known.closed or deadline.passed:
        return known
    watch(Progress("solving an integer program by CP-SAT"))
    upper_s = known.value_s if known.plan else _everything_s(problem)
    tick_s = upper_s / TICKS or 1.0
    try:
        stated = state(tick_s, deadline)
        hint = stated.hint(known.plan) if known.plan else {}
        answer = solve_program(stated.program, deadline, hint, work_s=work_s, seed=seed)
    except (KeyboardInterrupt, OutOfTime):
        return known
    return _learnt(problem, stated, answer, known, tick_s, upper_s)


def _best(problem: PlacementProblem, plans: Sequence[PlacementPlan]) -> Known:
    """The best of some plans, or that nothing is known."""
    known = [Known(plan, placement_cost(problem, plan)) for plan in plans]
    fitting = [candidate for candidate in known if candidate.cost is not None and candidate.cost.feasible]
    return min(fitting, key=lambda candidate: candidate.value_s, default=Known())


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
            random, effort = np.random.default_rng(seed), Effort(deadline.part(share_s), LocalSearchConfig().work)
            yield PlacementPlan("", units.expand(improve_latency(problem, units, start, random, effort)))
        if splits:
            return


def _require_throughput(problem: PlacementProblem, planner: str) -> None:
    if problem.objective != "throughput":
        raise BadInput("is for throughput only", where=f"planner {planner}", do="use planner milp for latency")


def _free(problem: PlacementProblem, tick_s: float, deadline: Deadline) -> ThroughputProgram:
    return free_program(problem, UnitTimes.of(problem, _classes(problem), tick_s), TICKS, deadline)


def _contiguous(problem: PlacementProblem, tick_s: float, deadline: Deadline) -> ThroughputProgram:
    return contiguous_program(problem, UnitTimes.of(problem, _classes(problem), tick_s), TICKS, deadline)


def _ordered(problem: PlacementProblem, tick_s: float, deadline: Deadline) -> ThroughputProgram:
    units = contract(problem, lossless=True)
    return ordered_program(problem, UnitTimes.of(problem, units.unit_of, tick_s), units.order, TICKS, deadline)


def _latency(problem: PlacementProblem, tick_s: float, deadline: Deadline) -> LatencyProgram:
    return latency_program(problem, tick_s, TICKS, deadline)


def _classes(problem: PlacementProblem) -> IntArray:
    """[n] classes without gaps."""
    return np.unique(problem.graph.classes, return_inverse=True)[1].astype(np.int64)
