"""A placement program solved by several solvers in turn, each starting from what the ones before it found and proved.

CP-SAT and HiGHS complement each other (benchmarks/placement_programs.py): CP-SAT takes a plan as a hint and is good
where devices have an order, HiGHS is good where a relaxation is, and best once it knows what it has to beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.core.placement_graph import FloatArray
from automap_models.cost.placement import placement_cost
from automap_models.errors import Infeasible
from automap_models.planners.deadline import Deadline
from automap_models.planners.placement.cp_sat import solve_cp_sat
from automap_models.planners.placement.program import Answer, Program
from automap_models.planners.placement.program_highs import solve_highs

OPTIMAL_GAP = 1e-6
"""A plan is called optimal when its value is above the bound by no more than this share."""
CP_SAT_TICKS = 1e9
"""The best known value in CP-SAT's whole ticks: rounding n times down costs the bound n · 1e-9 of it."""
HIGHS_TICKS = 100.0
"""The same for HiGHS, whose tolerances are absolute."""
EARLY = 0.1
"""A solver that stops without a proof and with this share of its time left was told to, by Ctrl-C."""

Solver = Literal["cp-sat", "highs"]


class Formulation(Protocol):
    """A program, and how its columns and plans translate."""

    @property
    def program(self) -> Program:
        """What a solver gets."""

    def plan(self, columns: FloatArray) -> PlacementPlan:
        """What a solution decides."""

    def hint(self, plan: PlacementPlan) -> dict[int, int]:
        """Values of some columns that mean the plan."""


State = Callable[[float, float, bool], Formulation]
"""Seconds a tick, the largest value wanted in ticks, whether ticks are whole → the program."""


@dataclass(frozen=True)
class Turn:
    """A solver's turn, and which share of the time that is left it gets."""

    solver: Solver
    share: float


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a problem: the best plan, its value, and a bound below which no plan is."""

    plan: PlacementPlan | None
    value_s: float
    bound_s: float = 0.0

    @property
    def closed(self) -> bool:
        """Whether nothing is left to find."""
        return self.bound_s >= self.value_s * (1.0 - OPTIMAL_GAP)


def search(
    problem: PlacementProblem,
    state: State,
    starts: Sequence[PlacementPlan],
    turns: Sequence[Turn],
    *,
    time_limit_s: float,
    seed: int,
) -> PlacementPlan:
    """The best plan found, with the bound proven; Ctrl-C ends the search early.

    Args:
        problem: to be solved.
        state: writes the program down.
        starts: plans that it allows.
        turns: of the solvers.
        time_limit_s: for all turns together.
        seed: of the solvers' random draws.

    Raises:
        Infeasible: there is no plan, or none was found in that time.
    """
    known, deadline = _best(problem, starts), Deadline(time_limit_s)
    for turn in turns:
        if known.closed or deadline.passed:
            break
        try:
            known, interrupted = _take_turn(problem, state, turn, known, turn.share * deadline.left_s, seed)
        except KeyboardInterrupt:
            break
        if interrupted:
            break
    return _answer(known)


def _best(problem: PlacementProblem, plans: Sequence[PlacementPlan]) -> Known:
    """The best of some plans, or that nothing but a bound of all sums is known."""
    costs = [placement_cost(problem, plan) for plan in plans]
    known = [Known(plan, cost.value_s) for plan, cost in zip(plans, costs, strict=True) if cost.feasible]
    return min(known, key=lambda k: k.value_s, default=Known(None, math.inf))


def _take_turn(
    problem: PlacementProblem, state: State, turn: Turn, known: Known, limit_s: float, seed: int
) -> tuple[Known, bool]:
    """What is known after a solver's turn, and whether it stopped before its time without a proof."""
    clock = Deadline(limit_s)
    upper_s = known.value_s if known.plan else _everything_s(problem)
    ticks = CP_SAT_TICKS if turn.solver == "cp-sat" else HIGHS_TICKS
    tick_s = upper_s / ticks or 1.0
    stated = state(tick_s, ticks, turn.solver == "cp-sat")
    if turn.solver == "cp-sat":
        hint = stated.hint(known.plan) if known.plan else {}
        answer = solve_cp_sat(stated.program, clock.left_s, hint, seed)
    else:
        answer = solve_highs(stated.program, clock.left_s)
    learnt = _learnt(problem, stated, answer, known, tick_s, upper_s)
    return learnt, not learnt.closed and clock.left_s > EARLY * limit_s


def _learnt(
    problem: PlacementProblem, stated: Formulation, answer: Answer, known: Known, tick_s: float, upper_s: float
) -> Known:
    """The better plan and the better bound of two; a solution that only rounding made valid is none."""
    bound_s = max(known.bound_s, min(answer.bound * tick_s, upper_s if known.plan else math.inf))
    found = [] if answer.columns is None else [stated.plan(answer.columns)]
    best = min(known, _best(problem, found), key=lambda k: k.value_s)
    return replace(best, bound_s=min(bound_s, best.value_s))


def _everything_s(problem: PlacementProblem) -> float:
    """No plan's value is larger: everything one after the other, where it is slow, each output received everywhere."""
    graph, receivers = problem.graph, problem.accelerators * problem.pieces
    return float(np.maximum(graph.accelerator_s, graph.cpu_s).sum() + graph.transfer_s.sum() * (1 + receivers))


def _answer(known: Known) -> PlacementPlan:
    if known.plan is not None:
        return replace(known.plan, bound_s=known.bound_s, status="optimal" if known.closed else "feasible")
    if known.closed:
        raise Infeasible(
            "no placement fits the memory: that is proven",
            where="integer program",
            do="try more devices or more memory",
        )
    raise Infeasible(
        "no placement was found in time, nor a proof that there is none",
        where="integer program",
        do="try a longer --time-limit, more devices or more memory",
    )
