"""Refinement: cuts moved by single instructions, off the grid, under the length L or a schedule's simulated length.

Under L the label setting of the exact planner looks at all plans at once whose every cut lies a power of two of
instructions, and at most a few devices, from where it is (staged.exact); it goes on from the best of them until there
is no better one. Where a plan is not proven to be the best on the grid, a better one may be far from it: a local search
over all instructions (staged.local_search) follows, on large problems comes first. A simulated length has no such
recursion: there it is one move at a time, the moves that promise the least L first. Both stop at their deadline with
the best plan so far; a plan never gets worse. A refinement that comes to its end before that gives the same plan
everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, span_and_length
from automap_models.planners.base import Deadline, OutOfTime
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.search import StagedSearch, is_large
from automap_models.planners.staged.stage_tables import StageTables, stage_tables
from automap_models.simulate.engine import simulate


@dataclass(frozen=True, eq=False)
class ManyCosts:
    """Costs of P plans; see cost.staged.StagedCost.

    Attributes:
        forward_s, backward_s, all_reduce_s: [P, S].
        transfer_s: [P, S-1].
        span_s, length_s: [P] T and L.
        feasible: [P] whether every stage fits the device memory.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    all_reduce_s: FloatArray
    span_s: FloatArray
    length_s: FloatArray
    feasible: NDArray[np.bool_]


def many_costs(tables: StageTables, boundaries: IntArray, device_cuts: IntArray) -> ManyCosts:
    """Cost of P structurally valid plans.

    Args:
        tables: of the problem.
        boundaries: [P, S-1] index of the boundary after each stage but the last.
        device_cuts: [P, S-1].
    """
    k = np.pad(boundaries, ((0, 0), (1, 1)), constant_values=((0, 0), (0, tables.end)))
    d = np.pad(device_cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, tables.replicas_in_all)))
    replicas = np.diff(d)
    forward = np.diff(tables.F[k]) / replicas
    backward = np.diff(tables.C[k]) / replicas - forward
    all_reduce = tables.devices.all_reduce[d[:, :-1], d[:, 1:]] * np.diff(tables.W[k])
    transfer = tables.A[boundaries] * _transfer_s_per_byte(tables, d)
    span, length, _ = span_and_length(forward.T, backward.T, transfer.T, all_reduce.T, tables.micro_batches)
    stage = range(tables.stages)
    fits = [tables.fits(s, k[:, s], k[:, s + 1], replicas[:, s]) for s in stage]
    return ManyCosts(forward, backward, transfer, all_reduce, span, length, np.logical_and.reduce(fits))


def _transfer_s_per_byte(tables: StageTables, d: IntArray) -> FloatArray:
    """[P, S-1] over each boundary; the few different neighbourhoods of device cuts are looked up once each."""
    triples = np.stack((d[:, :-2], d[:, 1:-1], d[:, 2:]), axis=-1)
    kinds, which = np.unique(triples.reshape(-1, 3), axis=0, return_inverse=True)
    rates = np.array([tables.devices.transfer[q][a, e - q - 1] for a, q, e in kinds.tolist()])
    looked_up: FloatArray = rates[which.reshape(triples.shape[:2])]
    return looked_up


CELLS = 2
"""How far a cut moves at most in one step, in points of the grid."""
DEVICES = 2
"""How far a device cut moves at most in one step."""


def objective_s(cost: StagedCost, micro_batches: int, schedule: str | None) -> float:
    """What refinement makes small: the length L, or the simulated length under a schedule, of a plan of that cost."""
    if schedule is None:
        return cost.length_s
    return simulate(*cost.as_tuple(), micro_batches, schedule).length_s


def refine(
    problem: StagedProblem,
    plan: StagedPlan,
    deadline: Deadline,
    schedule: str | None = None,
    before_proof: StagedPlan | None = None,
    *,
    proven: bool = False,
    costs: Costs | None = None,
) -> StagedPlan:
    """A plan no worse than those given, of the maker of the one that it comes from.

    Args:
        problem: what the plan solves.
        plan: one that fits the memory.
        deadline: when to stop.
        schedule: None for the length L, or the schedule whose simulated length counts.
        before_proof: another plan that fits, longer but perhaps shorter as simulated.
        proven: whether no plan on the grid is shorter, so that only those near it off the grid can be.
        costs: of this problem's plans, as far as they are known.
    """
    if plan.stages == 1:
        return plan
    costs = Costs(problem) if costs is None else costs
    best = _under_length(costs, plan, deadline, far=not proven and schedule is None)
    if schedule is None:
        return best
    starts = [plan, best] if before_proof is None else [plan, best, before_proof]
    rated = [(objective_s(costs(start), start.micro_batches, schedule), start) for start in starts]
    least_s, start = min(rated, key=lambda pair: pair[0])
    return _under_schedule(costs, start, least_s, deadline, schedule)


def _offsets(problem: StagedProblem) -> list[int]:
    """Powers of two up to CELLS cells of the grid, the largest first."""
    most = max(CELLS * len(problem.profile) // problem.granularity, 1)
    return [1 << j for j in range(most.bit_length() - 1, -1, -1)]


def _under_length(costs: Costs, plan: StagedPlan, deadline: Deadline, *, far: bool) -> StagedPlan:
    """The shortest plan that a search around the plan, then around what that finds, and so on, comes to.

    Args:
        far: whether a local search comes in between.
    """
    problem, near = costs.problem, plan
    search = StagedSearch(problem, deadline, costs(plan).step_s, costs)
    try:
        if not (far and is_large(problem)):
            near = _closest(search, near)
        if far:
            before = search.step_s
            search.improve_widely(stage_tables(problem, np.arange(len(problem.profile) - 1)), near)
            if search.step_s < before or is_large(problem):
                _closest(search, search.best or near)
    except OutOfTime:
        pass
    return plan if search.best is None else replace(search.best, planner=plan.planner)


def _closest(search: StagedSearch, near: StagedPlan) -> StagedPlan:
    """The plan around which, in powers of two of instructions, there is no shorter one.

    Raises:
        OutOfTime: the deadline has passed; the search's best is what was found by then.
    """
    problem = search.problem
    offsets = _offsets(problem)
    steps = np.array([0, *offsets, *(-offset for offset in offsets)])
    while True:
        places = np.unique(np.add.outer(np.array(near.cuts), steps))
        tables = stage_tables(problem, places[(places >= 0) & (places < len(problem.profile) - 1)])
        before = search.step_s
        search.improve_around(tables, near, (len(offsets), DEVICES))
        near = search.best or near
        if search.step_s == before:
            return near


def _under_schedule(costs: Costs, plan: StagedPlan, own_s: float, deadline: Deadline, schedule: str) -> StagedPlan:
    """The plan that no single move makes shorter as simulated, or the best one when the time is up.

    Args:
        own_s: the plan's simulated length.
    """
    problem = costs.problem
    tables = stage_tables(problem, np.arange(len(problem.profile) - 1))
    offsets = _offsets(problem)
    best_s, best = own_s, np.array([[cut + 1 for cut in plan.cuts], plan.device_cuts])
    seen = {best.tobytes()}
    while not deadline.passed:
        moved = _moves(best, offsets, len(problem.profile), problem.cluster.devices)
        better = _first_shorter(tables, moved, best_s, deadline, schedule, seen)
        if better is None:
            break
        best, best_s = better
    cuts, device_cuts = tuple((best[0] - 1).tolist()), tuple(best[1].tolist())
    if (cuts, device_cuts) == (plan.cuts, plan.device_cuts):
        return plan
    moved_plan = replace(plan, cuts=cuts, device_cuts=device_cuts, coarse_cuts=problem.grid.to_points(cuts))
    # The moves were rated by prefix sums: the cost model itself has the last word.
    moved_s = objective_s(costs(moved_plan), plan.micro_batches, schedule)
    return moved_plan if moved_s < own_s else plan


def _first_shorter(
    tables: StageTables, moved: IntArray, best_s: float, deadline: Deadline, schedule: str, seen: set[bytes]
) -> tuple[IntArray, float] | None:
    """The first of the moved plans, by L, whose simulated length is shorter, and that length; None if none is.

    No schedule is shorter than the span T: plans whose span is longer are not simulated.
    """
    costs = many_costs(tables, moved[:, 0], moved[:, 1])
    order = np.argsort(costs.length_s, kind="stable")
    for j in order[(costs.feasible & (costs.span_s < best_s))[order]].tolist():
        if moved[j].tobytes() in seen:
            continue
        if deadline.passed:
            return None
        seen.add(moved[j].tobytes())
        times = (costs.forward_s[j], costs.backward_s[j], costs.transfer_s[j], costs.all_reduce_s[j])
        length_s = simulate(*times, tables.micro_batches, schedule).length_s
        if length_s < best_s * (1.0 - LENGTH_ROUNDING):
            return moved[j], length_s
    return None


def _moves(at: IntArray, offsets: list[int], n: int, devices: int) -> IntArray:
    """[P, 2, S-1] boundaries and device cuts after moving one cut, one device cut, or one of each.

    Args:
        at: [2, S-1] boundaries and device cuts.
        offsets: how far a cut may move.
        n, devices: instructions and devices in all.
    """
    by = np.array([0, *offsets, *(-offset for offset in offsets)])
    device_by = np.arange(-DEVICES, DEVICES + 1)
    axes = np.meshgrid(np.arange(at.shape[1]), by, device_by, indexing="ij")
    which, step, device_step = (axis.ravel() for axis in axes)
    moved, row = np.repeat(at[None], which.size, axis=0), np.arange(which.size)
    moved[row, 0, which] += step
    moved[row, 1, which] += device_step
    inside = (moved[:, :, 0] > 0) & (moved[:, :, -1] < np.array([n, devices]))
    increasing = (np.diff(moved, axis=2) > 0).all(axis=2)
    return moved[(inside & increasing).all(axis=1)]
