"""The makespan of one step whose operations are spread over devices: a list schedule, simulated event by event.

    n operations v, D devices, C channels; a = device[v]; u → v an edge

    rank(v)      = time of v on its device + max over its readers s of (transfer to s's device, if another, + rank(s))
    device       one operation at a time; of those whose inputs are there the one of the largest rank, then number
    channel      one transfer at a time; of those waiting the one with the largest rank of its readers behind it
    transfer     an output goes once to each device that reads it, latency + bytes / bandwidth, when it is made

        device 0   ████ u ████ ░ v ░          an operation runs to its end; one that takes no time (a view, an operation
        channel         ──u→1──               fused into its readers) runs as soon as its inputs are there, and so does
        device 1               ███ w ███      a transfer that takes none

Memory of a device is that of the operations placed there, plus outputs: from the start of an operation until its last
reader on the device, and its last transfer, are done; a copy from the start of its transfer until its last reader is
done. Of things that happen at one time ends come before starts.

This is the step of Baechi (Jeon et al., SoCC 2020) and of GDP (arXiv 1910.01578) with links that take turns.

What a simulated step waited for:

t    a task: an operation or a transfer      late(t)   latest end that leaves the makespan as it is

                 min over what t's end lets begin: readers of its output on its device, the transfers of its
late(t) =        output, and the next task on its device or channel, of late(next) - time(next);
                 the makespan where there is none

slack(v) = late(v) - finish(v)               orders on devices and channels are those of the simulation (PERT)
wait(v)  = how long the last of its inputs from elsewhere came after the last one from its own device

A proven lower limit of the makespan, whatever the placement (`makespan_bound_s`):

    t(v)     least time of v on any device      head(v)  least before v begins      tail(v)  least after it ends
    w(v)     min over devices d of λ_d · time(d, v), for shares λ ≥ 0 that add up to 1

    device 0   ░ head ░██ S ██░░░░░░░      before the first operation of S can start at least min_S head passes, and
    device 1   ░░░░░░░░░██ S ██░ tail      after its last one min_S tail; between them there is Σ_S w(v) of work

Of every schedule two things are true. The inputs of v are on its device, which runs them one after another from their
heads on, or they are sent: head(v) is the least time, over who is where, until all are there (Colin and Chrétienne,
Operations Research 39(4), 1991, without copies), and the makespan at least head(v) + t(v) + tail(v). And a set S of
operations keeps the D devices busy between the first of them that can start and the last that has something behind it:
since Σ_d λ_d · busy(d) ≥ Σ_S w(v) for any λ, the makespan is at least min_S head + Σ_S w + min_S tail (the dual of the
linear program that splits operations over unequal devices; heads and tails as in Carlier's bound, EJOR 11(1), 1982).
Transfers count as on the fastest channel without a queue; memory and co-location are left out, so the limit is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import ROUNDING, FloatArray, IntArray
from automap_models.cost.step_tables import StepTables


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """One simulated step.

    Attributes:
        makespan_s: when its last operation ends.
        start_s, finish_s: [n] of each operation.
        producer: [t] the operation whose output each transfer moves.
        target: [t] the device that it moves it to.
        sent_s, received_s: [t] when it starts and when it ends.
        peak_bytes: [D] most that each device holds at a time.
    """

    makespan_s: float
    start_s: FloatArray
    finish_s: FloatArray
    producer: IntArray
    target: IntArray
    sent_s: FloatArray
    received_s: FloatArray
    peak_bytes: FloatArray


def simulate_step(tables: StepTables, assignment: IntArray) -> StepTimeline:
    """The step of one placement.

    Args:
        tables: of a problem with n operations.
        assignment: [n] device of each.
    """
    from automap_models.cost.makespan_kernel import simulate

    n = assignment.size
    start, finish, first, target, peak = simulate(tables, np.ascontiguousarray(assignment, dtype=np.int64))
    producer = np.repeat(np.arange(n), np.diff(first))
    makespan = float(finish[:n].max(initial=0.0))
    return StepTimeline(makespan, start[:n], finish[:n], producer, target, start[n:], finish[n:], peak)


def step_values(tables: StepTables, assignments: IntArray) -> tuple[FloatArray, FloatArray]:
    """Makespan and excess memory of many placements.

    Args:
        assignments: [B, n] device of each operation.

    Returns:
        [B] seconds, and [B] bytes beyond the memory, over all devices.
    """
    from automap_models.cost.makespan_kernel import simulate

    n, limit_bytes = assignments.shape[1], tables.memory_bytes * (1.0 + ROUNDING)
    values, excess = np.zeros((2, len(assignments)))
    for i, assignment in enumerate(np.ascontiguousarray(assignments, dtype=np.int64)):
        _, finish, _, _, peak = simulate(tables, assignment)
        values[i] = finish[:n].max(initial=0.0)
        excess[i] = np.where(peak > limit_bytes, peak - tables.memory_bytes, 0.0).sum()
    return values, excess


def longest_paths(
    order: IntArray, start: IntArray, readers: IntArray, time_s: FloatArray, moved_s: FloatArray
) -> FloatArray:
    """[n] seconds of the longest path from the beginning of each operation to the end.

    Args:
        order: [n] a topological order.
        start, readers: [n + 1], [e] readers of each operation, one after the other.
        time_s: [n] of each operation.
        moved_s: [n] of sending its output, where it has readers.
    """
    first, reader = start.tolist(), readers.tolist()
    task_times, moved = time_s.tolist(), moved_s.tolist()
    path = [0.0] * len(task_times)
    for v in reversed(order.tolist()):
        behind = reader[first[v] : first[v + 1]]
        path[v] = task_times[v] + (moved[v] + max([path[s] for s in behind]) if behind else 0.0)
    return np.array(path)


def heads_and_tails(tables: StepTables, time_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[n] longest paths to each operation, without it, and from it on, with it; transfers take no time.

    Args:
        tables: of a problem with n operations.
        time_s: [n] seconds of each operation.
    """
    nothing = np.zeros_like(time_s)
    head = longest_paths(tables.order[::-1], tables.inputs_start, tables.inputs, time_s, nothing) - time_s
    return head, longest_paths(tables.order, tables.readers_start, tables.readers, time_s, nothing)


@dataclass(frozen=True, eq=False)
class StepSlack:
    """What the operations of a step waited for.

    Attributes:
        slack_s: [n] how much later each operation could end; see the module.
        wait_s: [n] see the module; 0 where no input came from elsewhere.
        delays: [e] whether an edge's transfer was the last input to come and made its reader wait.
    """

    slack_s: FloatArray
    wait_s: FloatArray
    delays: FloatArray


def step_slack(tables: StepTables, assignment: IntArray, timeline: StepTimeline) -> StepSlack:
    """What the operations of a simulated step waited for.

    Args:
        tables: of a problem with n operations and e edges.
        assignment: [n] device of each operation.
        timeline: of that placement.
    """
    from automap_models.cost.makespan_kernel import slacks

    n = assignment.size
    position = np.empty(n, dtype=np.int64)
    position[tables.order] = np.arange(n)
    first = np.searchsorted(timeline.producer, np.arange(n + 1))  # producers ascend
    start = np.concatenate([timeline.start_s, timeline.sent_s])
    finish = np.concatenate([timeline.finish_s, timeline.received_s])
    place = np.concatenate([2 * position, 2 * position[timeline.producer] + 1])
    begun = np.lexsort((place, start))
    return StepSlack(*slacks(tables, assignment, begun, start, finish, first, timeline.producer, timeline.target))


def makespan_bound_s(tables: StepTables) -> float:
    """Seconds that no placement's step is shorter than."""
    if not tables.order.size:
        return 0.0
    least, weight, sent = tables.time_s.min(axis=0), _weights(tables.time_s), np.full(tables.order.size, np.inf)
    for channel in np.unique(tables.channel[tables.channel >= 0]):
        sent = np.minimum(sent, tables.latency_s[channel] + tables.output_bytes * tables.s_per_byte[channel])
    head = _least_delays(tables.order, tables.inputs_start, tables.inputs, least, sent[tables.inputs])
    outputs = np.repeat(sent, np.diff(tables.readers_start))
    tail = _least_delays(tables.order[::-1], tables.readers_start, tables.readers, least, outputs)
    best = max(float((head + least + tail).max()), float(weight.sum()))
    for low in _thresholds(head):
        late = head >= low
        for behind in _thresholds(tail[late]):
            chosen = late & (tail >= behind)
            if chosen.any():
                best = max(best, float(head[chosen].min() + weight[chosen].sum() + tail[chosen].min()))
    return best * (1.0 - 1e-12)  # sums in another order than the simulator's


def _least_delays(
    order: IntArray, start: IntArray, others: IntArray, time_s: FloatArray, sent_s: FloatArray
) -> FloatArray:
    """[n] least seconds until all [e] others of an operation are done on its device, or are sent in `sent_s`."""
    first, near, times, sent = start.tolist(), others.tolist(), time_s.tolist(), sent_s.tolist()
    delay = [0.0] * len(times)
    for v in order.tolist():
        tasks = [(delay[near[edge]], times[near[edge]], sent[edge]) for edge in range(first[v], first[v + 1])]
        tasks.sort(key=sum, reverse=True)  # those that would be there last are on the device
        few, most = 0, len(tasks)
        while few < most:
            count = (few + most) // 2
            few, most = (few, count) if _one_by_one(tasks[:count]) >= sum(tasks[count]) else (count + 1, most)
        delay[v] = min(_one_by_one(tasks[:few]), sum(tasks[few - 1]) if few else 0.0)
    return np.array(delay)


def _one_by_one(tasks: Sequence[tuple[float, float, float]]) -> float:
    """When a device has run tasks that may begin at some time and take some."""
    end = 0.0
    for begin, time, _ in sorted(tasks):
        end = max(end, begin) + time
    return end


def _weights(time_s: FloatArray, steps: int = 300) -> FloatArray:
    """[n] w(v) for the best shares met: equal ones of equal devices, else by multiplicative steps from these.

    Any shares give a valid limit.
    """
    rows, copies = np.unique(time_s, axis=0, return_counts=True)
    if len(rows) == 1:
        return np.asarray(rows[0] / copies[0])
    usable = np.isfinite(rows)
    filled = np.where(usable, rows, 0.0)
    speed = 1.0 / np.maximum(filled.sum(axis=1), 1e-300)
    share = speed / (speed * copies).sum()  # of one device of each row
    best, best_total = np.zeros(rows.shape[1]), -1.0
    for step in range(steps):
        scaled = np.where(usable, filled * share[:, None], np.inf)
        choice = scaled.argmin(axis=0)
        weight = scaled[choice, np.arange(choice.size)]
        total = float(weight.sum())
        if total > best_total:
            best, best_total = weight, total
        load = np.bincount(choice, weights=filled[choice, np.arange(choice.size)], minlength=len(rows)) / copies
        share = share * np.exp(0.5 / np.sqrt(1.0 + step) * (load / max(float(load.max()), 1e-300) - 1.0))
        share /= (share * copies).sum()
    return best


def _thresholds(values: FloatArray, levels: int = 24) -> FloatArray:
    return np.unique(np.quantile(values, np.linspace(0.0, 1.0, levels, endpoint=False), method="lower"))
