"""All plans of a problem that may be shorter than a limit, stage by stage from the first one; compiled by numba.

    stage 0 ──▶ each end of it that may be ──▶ stage 1 ──▶ …  ──▶ the last stage: the plan is judged (move_kernel)
                the one first before which           a plan that is shorter lowers the limit
                plans take least

What comes before a place is known and what comes behind it is at its least (step_bounds), so that most ends of a stage
lead to no plan below the limit. Under a schedule the bound is stage_kernel.least_step, with the least round trip in
place of that of the stages which are not there yet, by the length L `pipeline_length`; and in any case the least length
behind what the first micro-batch takes up to there.

    0 ─── stages before s ───┬── stage s ──┬─ x ─┬─ `behind` stages and the last one ── m
    ahead: known             i, a   j      k, q  rest[q, k, ·, behind]: at its least

    s, depth     the stage whose end is looked for       ends         where each stage may end, by how little plans take
    i, a         boundary and device where it begins     messages     [D+1, D+1] seconds per byte at least (step_bounds)
    k, q, j      where it ends, and its sharding         rest         [D+1, m+1, 4, lanes] (step_bounds.least_rests)

    bound = max(ahead + f + x + rest[LENGTH], least_step of stages 0 … s with 2·x + rest[TRIP] behind them)

Ends are kept with their bounds and the least is gone into first, so that the limit falls early; a list is as long as
there are places (`room`), so that nothing is allocated on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import FORWARD
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.improve import graphs, plan_of
from automap_models.planners.staged.move_kernel import Search, judged, search_from
from automap_models.planners.staged.stage_arrays import RATE, START, C, stage_arrays
from automap_models.planners.staged.stage_kernel import (
    BOUNDARY,
    DEVICE,
    SHARDING,
    SLACK,
    ending_s,
    fits,
    holds_work,
    least_copies_s,
    least_step,
    message_s,
    pipeline_length,
    stage_s,
)
from automap_models.planners.staged.step_bounds import EXPOSED, LENGTH, SPAN, TRIP, StepBounds
from automap_models.simulate.play import KINDS, MESSAGE, put_stage

NOT_BEGUN, DONE = -1, -2
"""In place of a stage."""
CHUNK = 2e6
"""Ends that are looked at before the clock is."""


def shortest_below(
    problem: StagedProblem, places: IntArray | None, limit_s: float, deadline: Deadline, planner: str
) -> tuple[StagedPlan | None, float]:
    """The shortest plan found below a limit, and a step that no plan falls below: the limit where there is none.

    Args:
        places: instructions after which it may be cut; None for those of its grid.
        limit_s: only steps that are shorter by more than LENGTH_ROUNDING, relatively, are of interest.
        deadline: when to stop; evaluations are counted (planners.effort).

    Returns:
        The plan, and the bound: the plan's step to rounding where the search came to its end.
    """
    bounds = StepBounds([problem], places)
    rest = bounds.rest(limit_s, deadline)
    if rest is None:
        return None, 0.0
    stages, boundary = stage_arrays(problem, places)
    start = np.zeros((3, problem.stages + 1), dtype=np.int64)
    start[BOUNDARY, -1], start[DEVICE, -1] = stages.last, stages.devices
    search = search_from(stages, graphs(problem), start)
    room = stages.devices * stages.last * len(stages.kind)
    ends = Ends(
        np.empty((problem.stages, room, 3), np.int64),
        np.empty((problem.stages, room)),
        np.zeros(problem.stages, np.int64),
        np.full(1, NOT_BEGUN),
    )
    shorter_s = step_s = limit_s * (1.0 - LENGTH_ROUNDING)
    while ends.depth[0] != DONE and not deadline.passed:
        most = min(deadline.remaining_s / effort.BRANCHES.unit_s, CHUNK)
        step_s, taken = branched(search, bounds.messages, rest, step_s, most, ends)
        effort.count(effort.BRANCHES, taken)
    least_s = np.inf
    if ends.depth[0] != DONE:  # every plan that is left goes on at one of the ends
        open_s = [ends.least[s, : ends.number[s]].min(initial=np.inf) for s in range(ends.depth[0] + 1)]
        least_s = max(bounds.least_of(rest, problem.stages), float(min(open_s, default=0.0)) * (1.0 - SLACK))
    if not step_s < shorter_s:
        return None, min(least_s, limit_s)
    return plan_of(problem, search.route, boundary, planner), min(least_s, float(step_s))


class Ends(NamedTuple):
    """Where each stage of the trial may end, [S] lists of them.

    Attributes:
        places, least: [S, n, 3] boundary, device and the sharding of the stage, and [S, n] what plans that go on there
            take at least.
        number: [S] how many there are of each stage.
        depth: [1] the stage whose end is looked for next; or NOT_BEGUN, or DONE.
    """

    places: IntArray
    least: FloatArray
    number: IntArray
    depth: IntArray


@jit
def branched(
    search: Search, messages: FloatArray, rest: FloatArray, limit_s: float, most: float, ends: Ends
) -> tuple[float, float]:
    """The step of the shortest plan below a limit, which becomes the search's route; and how many ends were looked at.

    Args:
        most: ends to look at, after which it stops; it may be called again.
    """
    trial, depth, taken = search.trial, ends.depth[0], 0.0
    if depth == NOT_BEGUN:
        depth = 0
        limit_s, taken = go_on(search, 0, messages, rest, limit_s, ends)
    while depth >= 0 and taken <= most:
        # The most promising end first, so that the limit falls early; ends that it has fallen below are passed over.
        best = -1
        for end in range(ends.number[depth]):
            if ends.least[depth, end] < limit_s and (best < 0 or ends.least[depth, end] < ends.least[depth, best]):
                best = end
        if best < 0:
            depth -= 1
            continue
        # Gone into once: the row keeps its place, so that nothing has to be moved.
        ends.least[depth, best] = np.inf
        trial[BOUNDARY, depth + 1], trial[DEVICE, depth + 1] = ends.places[depth, best, 0], ends.places[depth, best, 1]
        trial[SHARDING, depth] = ends.places[depth, best, 2]
        arrived(search, depth)
        placed(search, depth)
        depth += 1
        limit_s, more = go_on(search, depth, messages, rest, limit_s, ends)
        taken += more
    ends.depth[0] = DONE if depth < 0 else depth
    return limit_s, taken


@jit
def go_on(
    search: Search, s: int, messages: FloatArray, rest: FloatArray, limit_s: float, ends: Ends
) -> tuple[float, float]:
    """List where stage s of the trial may end; where one stage is left behind it, simulate the plans instead.

    Returns:
        The limit, lower where a plan is shorter; and how many ends were looked at.
    """
    stages, trial, count = search.stages, search.trial, search.stages.in_flight.size
    devices, m, behind, taken = messages.shape[0] - 1, stages.crossing.size - 1, count - 2 - s, 0.0
    i, a, rounds = trial[BOUNDARY, s], trial[DEVICE, s], stages.micro_batches
    ends.number[s] = 0
    for q in range(a + 1, devices - behind):
        for j in range(stages.kind.shape[0]):
            kind, rate = stages.kind[j, a, q], stages.speeds[j, a, q, RATE]
            if kind < 0:
                continue
            # Devices first: with them it is settled what the message into the stage takes, for every end k of it.
            trial[DEVICE, s + 1], trial[SHARDING, s] = q, j
            ahead = arrived(search, s)
            for k in range(i + 1, m - behind):
                work = (stages.sums[kind, C, k] - stages.sums[kind, C, i]) / rate
                work += stages.sums[kind, START, k] - stages.sums[kind, START, i]
                # Work only grows with k, so that no later end stays below the limit either.
                if rounds * work >= limit_s - ahead:
                    break
                x = messages[a, q] * stages.crossing[k]
                forward = stage_s(stages, j, i, k, a, q)[0]
                # Four numbers that are there already rule out most ends; what follows takes ten times as long.
                later = ahead + forward + x + rest[q, k, LENGTH, behind]
                taken += 0.1  # of what a look at the stage takes
                if later * (1.0 - SLACK) >= limit_s:
                    continue
                taken += 1.0
                trial[BOUNDARY, s + 1] = k
                if not placed(search, s):
                    continue
                if search.full.nodes.shape[1]:
                    bound_s = least_step(stages, search.times, s + 1, 2.0 * x + rest[q, k, TRIP, behind])
                else:
                    span, exposed = rest[q, k, SPAN, behind], rest[q, k, EXPOSED, behind]
                    bound_s = pipeline_length(stages, search.times, s, x, span, exposed, rest[q, k, LENGTH, behind])
                bound_s = max(later, bound_s)
                if bound_s * (1.0 - SLACK) >= limit_s:
                    continue
                if behind:
                    end = ends.number[s]
                    ends.places[s, end, 0], ends.places[s, end, 1], ends.places[s, end, 2] = k, q, j
                    ends.least[s, end] = bound_s
                    ends.number[s] += 1
                    continue
                trial[BOUNDARY, count], trial[DEVICE, count] = m, devices
                for last in range(stages.kind.shape[0]):
                    trial[SHARDING, s + 1] = last
                    taken += count
                    limit_s = min(limit_s, judged(search, 0, count, False, limit_s))
    return limit_s, taken


@jit
def arrived(search: Search, s: int) -> float:
    """When stage s of the trial begins: only with its devices it is known what its input takes."""
    stages, times, ahead = search.stages, search.times, 0.0
    if s:
        message = message_s(stages, search.trial, s - 1) * stages.crossing[search.trial[BOUNDARY, s]]
        times[1 + KINDS * (s - 1) + MESSAGE] = message
    for t in range(s):
        ahead += times[1 + KINDS * t + FORWARD] + times[1 + KINDS * t + MESSAGE]
    return ahead


@jit
def placed(search: Search, s: int) -> bool:
    """Work out what stage s of the trial takes; whether it fits."""
    stages, route, times = search.stages, search.trial, search.times
    i, k, j = route[BOUNDARY, s], route[BOUNDARY, s + 1], route[SHARDING, s]
    a, q = route[DEVICE, s], route[DEVICE, s + 1]
    if not (holds_work(stages, i, k) and fits(stages, route, s, j)):
        return False
    forward, backward = stage_s(stages, j, i, k, a, q)
    late, update = ending_s(stages, j, i, k, a, q, backward)
    if search.full.nodes.shape[1]:
        late += least_copies_s(stages, stages.kind[j, a, q], i, k, a, q)
    put_stage(times, s, forward, backward, late, update)
    return True
