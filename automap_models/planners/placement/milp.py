"""Integer programs for placements: any, contiguous as published, or contiguous with devices in an order.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4. Each returns
its best plan with a proven bound, after options.time_limit_s at the latest (DEFAULT_TIME_LIMIT_S without).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import contract
from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.core.placement_graph import IntArray
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import PlacementPlanner, PlannerOptions
from automap_models.planners.deadline import Deadline
from automap_models.planners.placement.latency_program import LatencyProgram, latency_program
from automap_models.planners.placement.local_search import improve_latency
from automap_models.planners.placement.program_search import State, Turn, search
from automap_models.planners.placement.throughput_program import (
    ThroughputProgram,
    UnitTimes,
    contiguous_program,
    free_program,
    ordered_program,
)
from automap_models.planners.registry import make_planner

DEFAULT_TIME_LIMIT_S = 30.0
"""For a program without options.time_limit_s."""
START_SHARE = 0.1
"""The part of the time limit that each heuristic gets that finds a plan to start from."""

CP_SAT_ONLY = (Turn("cp-sat", 1.0),)
"""Programs with contiguity, latency among them: CP-SAT proves more than HiGHS, and sooner."""
HIGHS_LAST = (Turn("cp-sat", 0.15), Turn("highs", 0.35), Turn("highs", 1.0))
"""Programs without contiguity: HiGHS proves them once it knows a good plan, and starts anew when it found a better."""


class ProgramPlanner(PlacementPlanner):
    """States a program, finds plans to start from and lets solvers take their turns."""

    starts: ClassVar[Sequence[str]] = ("linear",)

    def plan(self, problem: PlacementProblem) -> PlacementPlan:
        """The best plan found, its bound and whether it is optimal.

        Raises:
            Infeasible: nothing fits the memory, or nothing that does was found in time.
            BadInput: the program is not for such a problem, or OR-tools is not installed.
        """
        state, deadline = self.state(problem), Deadline(self._limit_s)
        starts, turns = self.starting_plans(problem), self._turns(problem)
        best = search(problem, state, starts, turns, time_limit_s=deadline.left_s, seed=self.options.seed)
        return replace(best, planner=self.name)

    def starting_plans(self, problem: PlacementProblem) -> list[PlacementPlan]:
        """Plans of heuristics that the program allows."""
        share_s = START_SHARE * self._limit_s
        options = PlannerOptions(time_limit_s=share_s, seed=self.options.seed)
        starts = [plan for name in self.starts for plan in _plans(name, options, problem)]
        if problem.objective == "latency":
            starts += _throughput_splits(problem, options, share_s)
        return starts

    @property
    def _limit_s(self) -> float:
        return DEFAULT_TIME_LIMIT_S if self.options.time_limit_s is None else self.options.time_limit_s

    def _turns(self, problem: PlacementProblem) -> Sequence[Turn]:
        """Which solver gets how long."""
        return CP_SAT_ONLY

    @abstractmethod
    def state(self, problem: PlacementProblem) -> State:
        """Writes the program down."""


def _plans(name: str, options: PlannerOptions, problem: PlacementProblem) -> list[PlacementPlan]:
    """The plan of a heuristic, or none if it has none."""
    try:
        return [make_planner(name, options, "placement").plan(problem)]
    except (BadInput, Infeasible):
        return []


def _throughput_splits(problem: PlacementProblem, options: PlannerOptions, limit_s: float) -> list[PlacementPlan]:
    """For latency: the best contiguous split for throughput, as it is and after single moves."""
    pipeline = replace(problem, objective="throughput", pieces=1)
    splits = _plans("ideals", options, pipeline) or _plans("linear", options, pipeline)
    units = contract(problem)
    first = np.unique(units.unit_of, return_index=True)[1]
    found = list(splits)
    for split in splits:
        start, random = split.assignment[first], np.random.default_rng(options.seed)
        device = improve_latency(problem, units, start, random, Deadline(limit_s), moves=None)
        found.append(PlacementPlan(split.planner, units.expand(device)))
    return [replace(plan, bound_s=None, status="feasible") for plan in found]


class MilpPlanner(ProgramPlanner):
    """Throughput: any placement, contiguous or not (§4.1). Latency: `pieces` subgraphs an accelerator (§4.2)."""

    name: ClassVar[str] = "milp"
    starts: ClassVar[Sequence[str]] = ("greedy", "local-search")

    def _turns(self, problem: PlacementProblem) -> Sequence[Turn]:
        return HIGHS_LAST if problem.objective == "throughput" else CP_SAT_ONLY

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


def _require_throughput(problem: PlacementProblem, planner: str) -> None:
    if problem.objective != "throughput":
        raise BadInput("is for throughput only", where=f"planner {planner}", do="use planner milp for latency")


def _free(problem: PlacementProblem, tick_s: float, upper: float, whole: bool) -> ThroughputProgram:
    return free_program(problem, UnitTimes.of(problem, _classes(problem), tick_s, whole=whole), upper)


def _contiguous(problem: PlacementProblem, tick_s: float, upper: float, whole: bool) -> ThroughputProgram:
    return contiguous_program(problem, UnitTimes.of(problem, _classes(problem), tick_s, whole=whole), upper)


def _ordered(problem: PlacementProblem, tick_s: float, upper: float, whole: bool) -> ThroughputProgram:
    units = contract(problem, lossless=True)
    return ordered_program(problem, UnitTimes.of(problem, units.unit_of, tick_s, whole=whole), units.order, upper)


def _latency(problem: PlacementProblem, tick_s: float, upper: float, whole: bool) -> LatencyProgram:
    return latency_program(problem, tick_s, upper, whole=whole)


def _classes(problem: PlacementProblem) -> IntArray:
    """[n] classes without gaps."""
    return np.unique(problem.graph.classes, return_inverse=True)[1].astype(np.int64)
