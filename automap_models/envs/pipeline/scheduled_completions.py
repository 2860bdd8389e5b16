"""What actions lead to under a schedule: completed by cost-to-go tables, judged by the simulator.

The tables (envs.pipeline.cost_to_go) hold plans that are short by the length L. What such a plan takes under a schedule
the simulator says: a rollout of the tables' policy (Tesauro & Galperin 1996), for which no table of the schedule's own
is needed. For a state and an action, with q stages complete:

    | complete stages | current stage, k, a' | rest: through the tables from the points and units around (k, a') |

Behind a cut k several a' around the devices that the stage's computation deserves are tried. Most of these plans are
weeded out by an estimate, a few are simulated (simulate.play), and the shortest counts. The estimate is a
micro-batch's way through all stages and back, and M - 1 times the longest steady round: under 1F1B stages s … e, which
hold one micro-batch more the earlier they are, pass e - s + 1 of them in Σu + 2Σx between them at best.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.compiled import jit
from automap_models.envs.pipeline.cost_to_go import CostToGo, devices_per_unit
from automap_models.envs.pipeline.encoding import SENT
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.envs.pipeline.objective import alike, warm_ups
from automap_models.envs.pipeline.stage_kernel import (
    DEVICES,
    MICRO,
    PER_NODE,
    RATIO,
    SAMPLES,
    STAGES,
    from_start,
    numbers_of,
    stage_times,
)
from automap_models.envs.pipeline.table_kernel import transfer
from automap_models.simulate.play import KINDS, Layout, put_ending, put_stage, stage_ends
from automap_models.simulate.rounds import layouts_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
SIMULATED = 3
"""Plans of an action that are simulated."""
UNIT = SAMPLES + 1
"""A further column of a problem's numbers: devices of a unit of its tables."""


def scheduled_values(
    problems: Problems, tables: CostToGo, owner: Tensor, states: Partial, actions: Tensor, schedule: str
) -> Tensor:
    """[n, T] log(ideal / step) of the best plan tried for each action of a state; -∞ where none fits.

    Args:
        problems: B of them.
        tables: theirs.
        owner: int64 [n] which problem a state is of.
        states: n of them, all of which cut points, or all of which cut devices.
        actions: int64 [n, T] points, or devices less one; below 0 there is none.
        schedule: one of envs.pipeline.objective.OBJECTIVES that is a schedule.
    """
    scaled, values = problems.scaled(), np.full(actions.shape, -np.inf)
    depth = warm_ups(schedule, problems.stages, problems.micro_batches, states.cuts.shape[1] + 1)
    given = (
        from_start(scaled.arrays),
        np.hstack([numbers_of(scaled), devices_per_unit(scaled, tables.units).view(-1, 1).numpy().astype(np.float64)]),
        depth.numpy(),
        tables.points.numpy(),
        tables.end.numpy().astype(np.int64),
        tables.stop.numpy().astype(np.int64),
    )
    for stages, micro, rows in alike(problems.stages[owner], problems.micro_batches[owner]):
        own, cuts, firsts, some = (of.numpy()[rows] for of in (owner, states.cuts, states.device_cuts, actions))
        rewards, layouts = np.full(some.shape, -np.inf), layouts_of(schedule, stages, micro)
        _values(*given, own, cuts, firsts, some, int(states.step[0]), schedule == "gpipe", *layouts, rewards)
        values[rows] = rewards
    return torch.from_numpy(values).float()


@jit
def _follow(
    points: Integers,
    end: Integers,
    stop: Integers,
    q: int,
    k: int,
    u: int,
    given: Floats,
    cuts: Integers,
    firsts: Integers,
) -> bool:
    """Fill in the stages behind stage q from a place (k, u) of the tables; whether they can be.

    Args:
        points, end, stop: a problem's tables (cost_to_go.CostToGo).
        given: its numbers.
        cuts, firsts: [S+1] last point of each stage, from -1, and its first device; known up to the end of stage q.
    """
    stages, devices, unit = int(given[STAGES]), int(given[DEVICES]), int(given[UNIT])
    for s in range(q + 1, stages - 1):
        left = stages - s
        to, until = end[left - 2, k, u], stop[left - 2, k, u]
        if points[to] <= cuts[s] or until <= firsts[s] or until > devices - (left - 1):
            return False
        cuts[s + 1], firsts[s + 1] = points[to], until
        k, u = to, until // unit
        if u >= end.shape[2]:
            return False
    return bool(cuts[stages - 1] < cuts[stages])


@jit
def _times(arrays: Floats, given: Floats, depth: Integers, cuts: Integers, firsts: Integers, times: Floats) -> bool:
    """The times of a complete plan, in units of the ideal length; whether it fits the memory.

    Args:
        arrays: [5, P+1] prefix sums, with A itself, from the start of the model.
        times: [4, S] to be filled: forward and backward passes, messages, and how long after the last backward pass
            gradients are reduced.
    """
    per_node, ratio, samples = np.float32(given[PER_NODE]), np.float32(given[RATIO]), np.float32(given[SAMPLES])
    for s in range(int(given[STAGES])):
        i, j, first, end = cuts[s] + 1, cuts[s + 1] + 1, firsts[s], firsts[s + 1]
        times[0, s], times[1, s], reduce, state, stash = stage_times(arrays, given, i, j, first, end)
        if state + depth[s] * stash > 1.0:
            return False
        a, e = np.float32(first), np.float32(end)
        times[2, s] = 0.0
        if j + 1 < arrays.shape[1]:
            times[2, s] = arrays[SENT, j] * transfer(a, e, np.float32(firsts[s + 2]), per_node, ratio, samples)
        times[3, s] = max(reduce - times[1, s], 0.0)
    return True


@jit
def _estimate(times: Floats, stages: int, micro: float, gpipe: bool) -> float:
    """About what a plan takes; see the module."""
    through, round_s, back, reduce = 0.0, 0.0, 0.0, 0.0
    for s in range(stages):
        reduce = max(reduce, times[3, s] - back)
        back += times[1, s] + times[2, s]
        through += times[0, s] + times[1, s] + 2.0 * times[2, s]
        window = 0.0
        for e in range(s, stages):
            window += times[0, e] + times[1, e]
            round_s = max(round_s, window / (e - s + 1.0))
            if gpipe:
                break
            window += 2.0 * times[2, e]
        round_s = max(round_s, times[2, s])
    return through + (micro - 1.0) * round_s + reduce


@jit
def _shortlist(
    arrays: Floats,
    given: Floats,
    depth: Integers,
    points: Integers,
    end: Integers,
    stop: Integers,
    q: int,
    low: int,
    high: int,
    gpipe: bool,
    cuts: Integers,
    firsts: Integers,
    shortest: Floats,
    best: Floats,
) -> None:
    """The plans that fit with the smallest estimates, of those that end stage q at its cut and a device low … high.

    Args:
        arrays, given, depth, points, end, stop, cuts, firsts: as above, of one problem and state.
        shortest, best: [SIMULATED] their estimates, inf where there are fewer, and [SIMULATED, 4, S] their times.
    """
    stages, unit, times = int(given[STAGES]), int(given[UNIT]), np.zeros(best.shape[1:])
    left, cut = stages - 1 - q, cuts[q + 1]
    behind = min(np.searchsorted(points, cut), len(points) - 1)
    before = behind if points[behind] == cut else max(behind - 1, 0)
    shortest[:] = np.inf
    for first in range(low, high + 1):
        if low < first < high and first % unit:
            continue
        firsts[q + 1] = first
        for way in range(4 if left > 1 else 1):
            k, u = (before if way < 2 else behind), min(first // unit + way % 2, end.shape[2] - 1)
            if (way >= 2 and before == behind) or (way % 2 and first % unit == 0):
                continue  # that was tried
            if not _follow(points, end, stop, q, k, u, given, cuts, firsts):
                continue
            if _times(arrays, given, depth, cuts, firsts, times):
                estimate, worst = _estimate(times, stages, given[MICRO], gpipe), shortest.argmax()
                if estimate < shortest[worst]:
                    shortest[worst], best[worst] = estimate, times


@jit
def _values(
    arrays: Floats,
    given: Floats,
    depth: Integers,
    points: Integers,
    end: Integers,
    stop: Integers,
    owner: Integers,
    state_cuts: Integers,
    state_firsts: Integers,
    actions: Integers,
    step: int,
    gpipe: bool,
    few: Layout,
    whole: Layout,
    values: Floats,
) -> None:
    """See scheduled_values; all problems' numbers, tables and depths; of states of problems of one schedule, S and M,
    which have made `step` decisions.

    Args:
        few, whole: the schedule (simulate.rounds.layouts_of).
    """
    width, q = depth.shape[1], step // 2
    room, ends, durations = np.empty(whole.nodes.shape[1] + 1), np.empty(width), np.zeros(1 + KINDS * width)
    cuts, firsts = np.zeros(width + 2, dtype=np.int64), np.zeros(width + 2, dtype=np.int64)
    estimates, best = np.zeros(SIMULATED), np.zeros((SIMULATED, 4, width))
    for n in range(len(owner)):
        b = owner[n]
        stages, devices = int(given[b, STAGES]), int(given[b, DEVICES])
        cuts[0], firsts[0] = -1, 0
        for s in range(q):
            cuts[s + 1], firsts[s + 1] = state_cuts[n, s], state_firsts[n, s]
        cuts[stages], firsts[stages] = arrays.shape[2] - 2, devices
        for t in range(actions.shape[1]):
            if actions[n, t] < 0:
                continue
            low, high = actions[n, t] + 1, actions[n, t] + 1
            if step % 2 == 0:
                low, high = firsts[q] + 1, devices - (stages - 1 - q)
            cuts[q + 1] = actions[n, t] if step % 2 == 0 else state_cuts[n, q]
            own = (arrays[b], given[b], depth[b], points[b], end[b], stop[b])
            _shortlist(*own, q, low, high, gpipe, cuts, firsts, estimates, best)
            for m in range(SIMULATED):
                if estimates[m] < np.inf:
                    forward, backward, messages, late = best[m]
                    for s in range(stages):
                        put_stage(durations, s, forward[s], backward[s], messages[s])
                        put_ending(durations, s, late[s], 0.0)
                    values[n, t] = max(values[n, t], -np.log(stage_ends(few, whole, durations, room, ends)))
