"""Moves from plan to plan, each judged by its step under a schedule or by its length L; compiled by numba.

Rows of neighbouring stages are shifted in turns, until no shift leads to a shorter step:

    stages       |   0   |   1   |   2   |   3   |
    shifted      |   0    |   1   |   2   |  3   |        stages 1 to 3 begin later, all by as much: what stage 0 gets
                                                          stage 3 gives; a single one as well

Neighbours get longer or shorter by boundaries, by devices, or by both. What a move leads to is looked at in three
steps, and most end at one of the first two:

    does it fit, and is    ──▶   lower bound      ──▶   the step itself
    M·u below the best?          (least_step)           (simulate.play)

A shorter plan is moved on from at once. The length L (cost-model.md) is a closed form, and needs no bound.

    s, count     a stage, of S                          low, high    stages low … high - 1 begin elsewhere than before
    by           so many boundaries or devices later    index        of a block of stages, single ones first, then two
                                                                     neighbours, …

    route[0, s] + by, route[1, s] + by_device    for s in low … high - 1; only stages low - 2 … high get other times,
                                                 as neighbours send to them and share links with them
    trial, draft: see Search

Times of stages that stay as they are do not depend on others, which is why a move works out a few of them anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.planners.staged.stage_arrays import RATE, C, StageArrays
from automap_models.planners.staged.stage_kernel import (
    BOUNDARY,
    DEVICE,
    SLACK,
    filled,
    least_step,
    pipeline_length,
    sum_copies,
)
from automap_models.simulate.play import KINDS, ScheduleGraph, stage_ends, updated

BOUND = 0.4
"""A lower bound takes S² times as long as so many passes of the simulator."""


class Search(NamedTuple):
    """A search from plan to shorter plan.

    Attributes:
        few, full: the schedule as the player takes it (simulate.rounds.graphs_of); no nodes are for the length L.
        route, times: [3, S+1] and [1 + 7·S] the best plan so far (stage_kernel), and what its stages take
            (simulate.play).
        trial, draft: of the plan that is looked at.
        room, ends: of the player, and [S] when the stages of the plan looked at last end.
        taken: [1] how many passes of the simulator take as long as the search did by now, at most.
    """

    stages: StageArrays
    few: ScheduleGraph
    full: ScheduleGraph
    route: IntArray
    times: FloatArray
    trial: IntArray
    draft: FloatArray
    room: FloatArray
    ends: FloatArray
    taken: FloatArray


def search_from(stages: StageArrays, graphs: tuple[ScheduleGraph, ScheduleGraph], start: IntArray) -> Search:
    """A search that has not begun, with nothing in `times`."""
    times, room = np.zeros((2, 1 + KINDS * stages.stages)), np.empty(graphs[1].nodes.shape[1] + 1)
    ends, taken = np.empty(stages.stages), np.zeros(1)
    return Search(stages, *graphs, start.copy(), times[0], start.copy(), times[1], room, ends, taken)


def step_of(stages: StageArrays, graphs: tuple[ScheduleGraph, ScheduleGraph], route: IntArray) -> float:
    """The step of a route in the best shardings; inf where it does not fit."""
    nowhere = np.zeros(1, dtype=np.int64)
    return moved_on(stages, graphs, route, np.inf, nowhere, nowhere, 0.0)[0]


def moved_on(
    stages: StageArrays,
    graphs: tuple[ScheduleGraph, ScheduleGraph],
    start: IntArray,
    limit_s: float,
    by_boundary: IntArray,
    by_device: IntArray,
    most: float,
) -> tuple[float, IntArray, float]:
    """Where moves lead from a route, [3, S+1].

    Args:
        start: boundaries and devices where its stages begin, and the end.
        by_boundary, by_device: how far stages begin beside where they do, after a shift.
        most: passes of the simulator that it may take about.

    Returns:
        The step and the route; inf where nothing is shorter than the limit. And how many passes it took about.
    """
    search = search_from(stages, graphs, start)
    step_s = searched(search, limit_s, by_boundary, by_device, most)
    return step_s, search.route, float(search.taken[0])


@jit
def searched(search: Search, limit_s: float, by_boundary: IntArray, by_device: IntArray, most: float) -> float:
    """The step of the route that moves lead to, which becomes the search's; see `moved_on`."""
    count = search.stages.in_flight.size
    best = min(limit_s, judged(search, 0, count, True, limit_s))
    last, turn, blocks = 0, 0, count * (count - 1) // 2
    # Ends when every block was shifted in vain since the last plan that was shorter.
    while turn - last < blocks and search.taken[0] < most:
        before, index = best, turn % blocks
        turn += 1
        best = shift(search, index, by_boundary, by_device, best, best < limit_s)
        if best < before:
            last = turn
    return best if best < limit_s else np.inf


@jit
def shift(search: Search, index: int, by_boundary: IntArray, by_device: IntArray, best: float, has_plan: bool) -> float:
    """Shift where some neighbouring stages begin; from each shorter plan on to the next.

    Args:
        best: step of the best plan so far, or a limit.
        has_plan: whether that is the route's, which then fits and has its times.

    Returns:
        The step of the route in the end.
    """
    stages, route, trial = search.stages, search.route, search.trial
    count = stages.in_flight.size
    low, high = block(index, count)
    for by in by_boundary:
        for by_devices in by_device:
            # A trial that was given up may have new times anywhere: each move sets out from the best plan again.
            put_plan(route, search.times, trial, search.draft)
            if not shifted(route, low, high, by, by_devices, trial):
                continue
            # The two stages whose sizes a shift changes are looked at before anything is worked out.
            if not (may_be(stages, trial, low - 1, best) and may_be(stages, trial, high - 1, best)):
                continue
            first, stop = 0, count
            if has_plan:
                first, stop = max(low - 2, 0), min(high + 1, count)
            step_s = judged(search, first, stop, True, best * (1.0 - SLACK))
            if step_s < best:
                best, has_plan = step_s, True
    return best


@jit
def block(index: int, count: int) -> tuple[int, int]:
    """The first of some neighbouring stages behind stage 0, and the one after the last; single ones come first."""
    size = 1
    while index >= count - size:
        index -= count - size
        size += 1
    return index + 1, index + 1 + size


@jit
def shifted(route: IntArray, low: int, high: int, by_boundary: int, by_device: int, trial: IntArray) -> bool:
    """Begin stages low … high - 1 so much later; whether that is anything, and leaves no stage without any."""
    if by_boundary == 0 and by_device == 0:
        return False
    for row, by in ((0, by_boundary), (1, by_device)):
        if route[row, low] + by <= route[row, low - 1] or route[row, high - 1] + by >= route[row, high]:
            return False
    for s in range(low, high):
        trial[0, s], trial[1, s] = route[0, s] + by_boundary, route[1, s] + by_device
    return True


@jit
def may_be(stages: StageArrays, route: IntArray, s: int, limit_s: float) -> bool:
    """Whether a stage of a route can be part of a shorter plan: M·u < step, where devices share nothing."""
    i, k, a, q = route[BOUNDARY, s], route[BOUNDARY, s + 1], route[DEVICE, s], route[DEVICE, s + 1]
    if stages.kind.shape[0] > 1:
        return True
    compute = stages.micro_batches * (stages.sums[0, C, k] - stages.sums[0, C, i])
    return bool(stages.kind[0, a, q] >= 0 and compute < limit_s * stages.speeds[0, a, q, RATE])


@jit
def judged(search: Search, low: int, high: int, choose: bool, limit_s: float) -> float:
    """The step of the plan that is looked at, which becomes the search's if it is shorter than the limit; else inf.

    Args:
        low, high: stages whose times, in the draft, are not those of the plan; others are.
    """
    stages, draft, count = search.stages, search.draft, search.stages.in_flight.size
    if not filled(stages, search.trial, low, high, choose, limit_s, draft):
        return np.inf
    search.taken[0] += BOUND * count * count
    if search.full.nodes.shape[1] == 0:
        step_s = pipeline_length(stages, draft, count - 1, 0.0, 0.0, -np.inf, 0.0)
    # In S² steps, where the player takes S·M: most moves end here.
    elif least_step(stages, draft, count, 0.0) >= limit_s:
        return np.inf
    else:
        step_s = simulated(search, limit_s)
    if step_s >= limit_s:
        return np.inf
    put_plan(search.trial, draft, search.route, search.times)
    return step_s


@jit
def simulated(search: Search, limit_s: float) -> float:
    """The step of the plan that is looked at; where it is no shorter than the limit, without sums of tied gradients."""
    stages, draft = search.stages, search.draft
    search.taken[0] += stages.in_flight.size * stages.micro_batches
    step_s = stage_ends(search.few, search.full, draft, search.room, search.ends)
    if step_s < limit_s and stages.tied_until.shape[0]:
        for p in range(stages.tied_until.shape[0]):
            sum_copies(stages, search.trial, p, search.ends)
        step_s = updated(draft, search.ends)
    return step_s


@jit
def put_plan(route: IntArray, times: FloatArray, to_route: IntArray, to_times: FloatArray) -> None:
    """Write a plan and what its stages take over another one; `into[:] = route` takes numba seconds to compile."""
    for s in range(route.shape[1]):
        for row in range(3):
            to_route[row, s] = route[row, s]
    for i in range(times.size):
        to_times[i] = times[i]
