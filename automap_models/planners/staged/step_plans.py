"""Plans for the simulated step under a schedule, in milliseconds: tables for the length L, then compiled moves.

    tables for L ──▶ their plans by the step ──┬──▶ moves from the best, as far as they lead ──▶ moves from the others,
    (table_plans)                              │    (move_kernel)                                 below the best step
                         plans of a network ───┘

A plan that is short by L is mostly near one whose step is short, and the moves find that one. A network that was
trained for the step has plans in other valleys; they come from the caller. Nothing is proven. Work is counted, not
timed, so that a plan is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.staged.local_search import powers_of_two
from automap_models.planners.staged.move_kernel import moved_on, step_of
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages, plain_stages
from automap_models.planners.staged.plan_batch import PlanBatch
from automap_models.planners.staged.scheduled_stages import ScheduledStages, scheduled_stages
from automap_models.planners.staged.stage_tables import StageTables
from automap_models.planners.staged.table_plans import Look, best_routes

LOOKS: tuple[tuple[float, tuple[Look, ...]], ...] = (
    (32, (Look(48, 32), Look(48, 32, 0.3), Look(48, 32, 3.0))),
    (256, (Look(32, 32), Look(64, 64))),
    (np.inf, (Look(32, 32),)),
)
"""Most devices → the tables that such a problem is looked at by; moves mend more in the time of finer ones."""
STARTS = 2
"""Times as many plans as a beam has are what moves set out from: nearer the optimum than with a descent of the lower
bound as a further start, in the same time (benchmarks/results/scheduled_policy.md)."""
ROUTES = 2
"""Times as many plans by tables are looked at as moves set out from."""
BOUNDARIES, DEVICES = 32, 8
"""How far a stage is shifted at most at once."""
PARTS = ((8, 16), (np.inf, 8))
"""Most stages → at how many boundaries and devices a stage is divided, at most."""
PASSES = 8e5
"""Of the simulator, in all, about: some 25 ms."""


def step_plan(
    problem: StagedProblem, beam: int, reach: int, planner: str, beside: Sequence[StagedPlan] = ()
) -> StagedPlan:
    """The plan with the shortest step found; one that does not fit where none was found that does.

    Args:
        problem: of several stages on equal nodes, with a schedule.
        beam: of it and STARTS depends from how many plans of the tables moves set out; reach: as table_plans has it.
        planner: name of who plans.
        beside: other plans on its grid from which moves set out, too.
    """
    plain, boundary = plain_stages(problem)
    own = scheduled_stages(problem, boundary)
    looks = next(looks for most, looks in LOOKS if plain.devices <= most)
    starts = STARTS * beam
    routes = best_routes(plain, float(problem.samples or 0), ROUTES * starts, reach, looks)
    chosen = np.argsort([step_of(plain, own, route) for route in routes], kind="stable")[:starts].tolist()
    others = [_route_of(plan, boundary, plain.devices) for plan in beside]
    route = _shortest(plain, own, [*(routes[i] for i in chosen), *others])
    return _plan_of(problem, route, boundary, planner)


def moved_plan(problem: StagedProblem, plans: Sequence[StagedPlan]) -> StagedPlan:
    """The plan with the shortest step that moves from some others lead to; one that does not fit where none does.

    Args:
        problem: of several stages on equal nodes, with a schedule.
        plans: one or more on its grid.
    """
    plain, boundary = plain_stages(problem)
    routes = [_route_of(plan, boundary, plain.devices) for plan in plans]
    route = _shortest(plain, scheduled_stages(problem, boundary), routes)
    return _plan_of(problem, route, boundary, plans[0].planner)


def _plan_of(problem: StagedProblem, route: IntArray, boundary: IntArray, planner: str) -> StagedPlan:
    cuts = tuple((boundary[route[0, 1:-1]] - 1).tolist())
    devices = tuple(route[1, 1:-1].tolist())
    return StagedPlan(cuts, devices, problem.micro_batches, planner, problem.grid.to_points(cuts))


def _route_of(plan: StagedPlan, boundary: IntArray, devices: int) -> IntArray:
    """[2, S+1] where the stages of a plan that cuts at some of these boundaries begin."""
    begins = np.searchsorted(boundary, np.array(plan.cuts, dtype=np.int64) + 1)
    return np.array([[0, *begins.tolist(), len(boundary) - 1], [0, *plan.device_cuts, devices]], dtype=np.int64)


def _shortest(plain: PlainStages, own: ScheduledStages, starts: Sequence[IntArray]) -> IntArray:
    """The route with the shortest step that moves from these lead to, the best first; the first where none fits."""
    steps = np.array([step_of(plain, own, route) for route in starts])
    best_s, best, left = np.inf, starts[0], PASSES
    for start in np.argsort(steps, kind="stable").tolist():
        if left <= 0.0:
            break
        offsets = near(BOUNDARIES), near(DEVICES)
        step_s, route, taken = moved_on(plain, own, starts[start], best_s, *offsets, parts_of(plain), left)
        left -= taken
        if step_s < best_s:
            best_s, best = step_s, route
    effort.count(effort.MOVES, PASSES - left)
    return best


def moved_batch(
    problem: StagedProblem,
    tables: StageTables,
    plain: PlainStages,
    start: PlanBatch,
    by_boundary: IntArray,
    seconds: float,
) -> PlanBatch:
    """Where moves lead from a single plan; that plan where nothing is shorter.

    Args:
        problem, tables, plain: with a schedule, on equal devices.
        by_boundary: how far stages are shifted, ascending; and as far the other way.
        seconds: counted, that this may take.
    """
    own, both = scheduled_stages(problem, tables.boundary), np.concatenate(([0], by_boundary, -by_boundary))
    begin = np.zeros((2, 1), dtype=np.int64)
    route = np.concatenate((begin, np.concatenate((start.k, start.q))), axis=1)
    most = seconds / effort.MOVES.unit_s
    _, shorter, taken = moved_on(plain, own, route, np.inf, both, near(DEVICES), parts_of(plain), most)
    effort.count(effort.MOVES, taken)
    return PlanBatch(shorter[:1, 1:], shorter[1:, 1:], start.sharding)


def parts_of(plain: PlainStages) -> int:
    """At how many boundaries and devices a stage is divided."""
    return next(parts for most, parts in PARTS if plain.stages <= most)


def near(most: int) -> IntArray:
    """0 and the powers of two up to so many, in both directions, the smallest first."""
    offsets = powers_of_two(most)
    return offsets[np.argsort(np.abs(offsets), kind="stable")]
