"""All plans of a problem that may be shorter than a limit, stage by stage from the first one; compiled by numba.

    stage 0 ──▶ each end of it that may be ──▶ stage 1 ──▶ …  ──▶ the last stage: the plan is simulated (move_kernel)
                the one first before which           a plan that is shorter lowers the limit
                plans take least

What comes before a place is known and what comes behind it is at its least (step_bounds), so that most ends of a stage
lead to no plan below the limit: the bound is plan_kernel.least_step, with the least round trip in place of that of the
stages which are not there yet, and the least length behind what the first micro-batch takes up to there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.pass_orders import FORWARD
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.beam_kernel import reduced_s, state_bytes, weights_bytes
from automap_models.planners.staged.costs import LENGTH_ROUNDING
from automap_models.planners.staged.move_kernel import Search, judged, search_from
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, C, F, H, W, plain_stages
from automap_models.planners.staged.plan_kernel import holds_work, least_copies_s, least_step, message_s
from automap_models.planners.staged.scheduled_stages import scheduled_stages
from automap_models.planners.staged.step_bounds import LENGTH, SLACK, TRIP, StepBounds
from automap_models.simulate.play import KINDS, MESSAGE, put_ending, put_stage


def shortest_below(
    problem: StagedProblem, places: IntArray | None, limit_s: float, deadline: Deadline
) -> tuple[StagedPlan | None, float]:
    """The shortest plan found below a limit, and a step that no plan falls below: the limit where there is none.

    Args:
        problem: of several stages, with compiled moves (improve.has_moves).
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
    plain, boundary = plain_stages(problem, places)
    start = np.zeros((2, problem.stages + 1), dtype=np.int64)
    start[:, -1] = boundary.size - 1, plain.devices
    search = search_from(plain, scheduled_stages(problem, boundary), start)
    most, shorter_s = min(deadline.left_s / effort.BRANCHES.unit_s, 1e15), limit_s * (1.0 - LENGTH_ROUNDING)
    step_s, taken = branched(search, bounds.messages, rest, shorter_s, bounds.equal, most)
    effort.count(effort.BRANCHES, taken)
    least_s = bounds.least_of(rest, problem.stages) if taken > most else np.inf
    if not step_s < shorter_s:
        return None, min(least_s, limit_s)
    cuts, devices = tuple((boundary[search.route[0, 1:-1]] - 1).tolist()), tuple(search.route[1, 1:-1].tolist())
    plan = StagedPlan(cuts, devices, problem.micro_batches, "auto", problem.grid.to_points(cuts))
    return plan, min(least_s, float(step_s))


class Ends(NamedTuple):
    """Where each stage of the trial may end, [S] lists of them.

    Attributes:
        places, least: [S, n, 2] boundary and device, and [S, n] what plans that go on there take at least.
        number: [S] how many there are of each stage.
    """

    places: IntArray
    least: FloatArray
    number: IntArray


@jit
def branched(
    search: Search, messages: FloatArray, rest: FloatArray, limit_s: float, equal: int, most: float
) -> tuple[float, float]:
    """The step of the shortest plan below a limit, which becomes the search's route; and how many ends were looked at.

    Args:
        messages, rest: see step_bounds.least_rests.
        equal: devices of each stage, 0 for any number.
        most: ends to look at, after which it stops.
    """
    plain, trial, count = search.plain, search.trial, search.plain.held.size
    room = (plain.parts.size - 1) * (plain.sums.shape[1] - 1)
    ends = Ends(np.empty((count, room, 2), np.int64), np.empty((count, room)), np.zeros(count, np.int64))
    limit_s, taken = go_on(search, 0, messages, rest, limit_s, equal, ends)
    depth = 0
    while depth >= 0 and taken <= most:
        best = -1
        for at in range(ends.number[depth]):
            if ends.least[depth, at] < limit_s and (best < 0 or ends.least[depth, at] < ends.least[depth, best]):
                best = at
        if best < 0:
            depth -= 1
            continue
        ends.least[depth, best] = np.inf
        trial[0, depth + 1], trial[1, depth + 1] = ends.places[depth, best, 0], ends.places[depth, best, 1]
        arrived(search, depth, trial[1, depth + 1])
        placed(search, depth, reduced_s(plain, trial[1, depth], trial[1, depth + 1]), 0.0)
        depth += 1
        limit_s, more = go_on(search, depth, messages, rest, limit_s, equal, ends)
        taken += more
    return limit_s, taken


@jit
def go_on(
    search: Search, s: int, messages: FloatArray, rest: FloatArray, limit_s: float, equal: int, ends: Ends
) -> tuple[float, float]:
    """List where stage s of the trial may end; where one stage is left behind it, simulate the plans instead.

    Returns:
        The limit, lower where a plan is shorter; and how many ends were looked at.
    """
    plain, trial, count = search.plain, search.trial, search.plain.held.size
    devices, m, behind, taken = plain.parts.size - 1, plain.sums.shape[1] - 1, search.plain.held.size - 2 - s, 0.0
    i, a = trial[0, s], trial[1, s]
    ends.number[s] = 0
    for q in range(a + 1, devices - behind):
        if q - a > plain.most_replicas or (equal and q - a != equal):
            continue
        speed, ring, ahead = plain.speeds[q - a], reduced_s(plain, a, q), arrived(search, s, q)
        for k in range(i + 1, m - behind):
            if plain.micro_batches * (plain.sums[C, k] - plain.sums[C, i]) >= (limit_s - ahead) * speed:
                break
            x = messages[a, q] * plain.sums[A, k]
            later = ahead + (plain.sums[F, k] - plain.sums[F, i]) / speed + x + rest[q, k, LENGTH, behind]
            taken += 0.1  # of what a look at the stage takes
            if later * (1.0 - SLACK) >= limit_s:
                continue
            taken += 1.0
            trial[0, s + 1], trial[1, s + 1] = k, q
            bound_s = max(later, placed(search, s, ring, 2.0 * x + rest[q, k, TRIP, behind]))
            if bound_s * (1.0 - SLACK) >= limit_s:
                continue
            if behind:
                at = ends.number[s]
                ends.places[s, at, 0], ends.places[s, at, 1], ends.least[s, at] = k, q, bound_s
                ends.number[s] += 1
            else:
                trial[0, count], trial[1, count] = m, devices
                taken += count
                limit_s = min(limit_s, judged(search, 0, count, limit_s))
    return limit_s, taken


@jit
def arrived(search: Search, s: int, q: int) -> float:
    """When stage s of the trial begins, if it ends before device q: only then it is known what its input takes."""
    plain, route, times, ahead = search.plain, search.trial, search.times, 0.0
    if s:
        message = message_s(plain, search.tied.samples, route[1, s - 1], route[1, s], q)
        times[1 + KINDS * (s - 1) + MESSAGE] = message * plain.sums[A, route[0, s]]
    for t in range(s):
        ahead += times[1 + KINDS * t + FORWARD] + times[1 + KINDS * t + MESSAGE]
    return ahead


@jit
def placed(search: Search, s: int, ring: float, trip: float) -> float:
    """What plans that begin with the first stages of the trial, up to s, take at least; inf where s does not fit.

    Args:
        ring: seconds per byte of its all-reduce.
        trip: to and from what comes behind it, and through that, at least.
    """
    plain, route, times = search.plain, search.trial, search.times
    i, k, a, q = route[0, s], route[0, s + 1], route[1, s], route[1, s + 1]
    nbytes, both = weights_bytes(plain, i, k), plain.sums[C, k] - plain.sums[C, i]
    if not holds_work(plain, both, plain.sums[W, k] - plain.sums[W, i]):
        return np.inf
    stash = plain.held[s] * (plain.sums[H, k] - plain.sums[H, i]) / plain.parts[q - a]
    if state_bytes(plain, i, k) + stash > plain.memory:
        return np.inf
    speed = plain.speeds[q - a]
    forward = (plain.sums[F, k] - plain.sums[F, i]) / speed
    backward, reduce = both / speed - forward, ring * nbytes
    put_stage(times, s, forward, backward, 0.0)
    late = reduce - plain.overlap * min(reduce, backward) + least_copies_s(plain, search.tied, i, k, a, q)
    put_ending(times, s, late, plain.update_s * nbytes)
    return least_step(plain, times, s + 1, trip)
