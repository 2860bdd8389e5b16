"""The kernels of the simulated step (cost.makespan), compiled by numba.

    n operations   0 … n-1            t transfers   n … n+t-1: operation u's are n + first[u] … n + first[u+1] - 1
    D devices      resources 0 … D-1  C channels    resources D … D+C-1; a task runs on the one that `resource` says

    operation u ──┬── transfer to device 1 ──┬── reader w        ready     what has no input left to wait for
                  │                          └── reader x        heap      of a resource: tasks that wait for it
                  └── reader v on its own device                 events    of resources: when what runs there ends

    rank[task] = task_s[task] + max over what waits for it of rank          (`_transfers`, from the last operation on)
    now        = the next end; what ends frees memory and readies others, and each touched resource starts its first

    start, finish [n + t]   seconds; source, target [t]   operation and device of a transfer; waiting [n]   inputs that
    lack; holders [n + t]   readers and transfers that still need an output or a copy; used, peak [D]   bytes

Importing numba takes half a second, so that this module is imported when the first step is simulated.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.placement import FloatArray, IntArray
from automap_models.cost.step_tables import StepTables


@jit
def _push(heap: IntArray, first: int, size: int, priority: FloatArray, task: int) -> None:
    """Put a task into the heap of `size` tasks that begins at `first`: the largest priority, then the least task."""
    slot = size
    while slot > 0:
        above = (slot - 1) // 2
        other = heap[first + above]
        if (priority[other], task) >= (priority[task], other):
            break
        heap[first + slot] = other
        slot = above
    heap[first + slot] = task


@jit
def _pop(heap: IntArray, first: int, size: int, priority: FloatArray) -> int:
    """Take the first task out of a heap of `size` tasks."""
    top = heap[first]
    last = heap[first + size - 1]
    slot = 0
    while True:
        below = 2 * slot + 1
        if below >= size - 1:
            break
        task = heap[first + below]
        if below + 1 < size - 1:
            other = heap[first + below + 1]
            if (priority[task], other) < (priority[other], task):
                below, task = below + 1, other
        if (priority[last], task) >= (priority[task], last):
            break
        heap[first + slot] = task
        slot = below
    heap[first + slot] = last
    return int(top)


@jit
def _transfers(tables: StepTables, device: IntArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Where each operation's transfers begin, their targets, [n + t] seconds and priorities of all tasks."""
    readers_start, readers, channel = tables.readers_start, tables.readers, tables.channel
    order, time_s, output_bytes = tables.order, tables.time_s, tables.output_bytes
    n, devices = device.size, time_s.shape[0]
    first = np.zeros(n + 1, dtype=np.int64)
    mark = np.full(devices, -1, dtype=np.int64)
    for u in range(n):
        first[u + 1] = first[u]
        for k in range(readers_start[u], readers_start[u + 1]):
            b = device[readers[k]]
            if b != device[u] and mark[b] != u:
                mark[b] = u
                first[u + 1] += 1
    # Backwards, so that the ranks of readers are there. Readers on one other device share a transfer, slot[device].
    total = first[n]
    target = np.zeros(total, dtype=np.int64)
    task_s, rank = np.zeros(n + total), np.zeros(n + total)
    slot = np.zeros(devices, dtype=np.int64)
    mark[:] = -1
    for i in range(n - 1, -1, -1):
        v = order[i]
        a = device[v]
        task_s[v] = time_s[a, v]
        used = first[v]
        longest = 0.0
        for k in range(readers_start[v], readers_start[v + 1]):
            s = readers[k]
            b = device[s]
            if b == a:
                longest = max(longest, rank[s])
                continue
            if mark[b] != v:
                mark[b] = v
                slot[b] = n + used
                target[used] = b
                used += 1
                c = channel[a, b]
                task_s[slot[b]] = tables.latency_s[c] + output_bytes[v] * tables.s_per_byte[c]
            rank[slot[b]] = max(rank[slot[b]], task_s[slot[b]] + rank[s])
        for t in range(first[v], first[v + 1]):
            longest = max(longest, rank[n + t])
        rank[v] = task_s[v] + longest
    return first, target, task_s, rank


@jit
def simulate(  # noqa: PLR0912, PLR0915 -- one loop over events: its state is what all parts share
    tables: StepTables, device: IntArray
) -> tuple[FloatArray, FloatArray, IntArray, IntArray, FloatArray]:
    """Start and finish of all tasks (operations, then transfers), transfers' firsts and targets, peaks of memory."""
    readers_start, readers, channel = tables.readers_start, tables.readers, tables.channel
    inputs_start, inputs = tables.inputs_start, tables.inputs
    order, live_bytes = tables.order, tables.live_bytes
    n, devices = device.size, tables.time_s.shape[0]
    first, target, task_s, rank = _transfers(tables, device)
    transfers = first[n]
    tasks, resources = n + transfers, devices + (tables.latency_s.size if tables.turns else transfers)
    source = np.zeros(transfers, dtype=np.int64)
    resource = np.zeros(tasks, dtype=np.int64)
    waiting = np.zeros(tasks, dtype=np.int64)  # inputs that an operation still lacks
    holders = np.zeros(tasks, dtype=np.int64)  # who still needs an output on its device, or a copy
    for v in range(n):
        resource[v] = device[v]
        waiting[v] = inputs_start[v + 1] - inputs_start[v]
        holders[v] = first[v + 1] - first[v]
        for t in range(first[v], first[v + 1]):
            source[t] = v
            resource[n + t] = devices + (channel[device[v], target[t]] if tables.turns else t)
        for k in range(readers_start[v], readers_start[v + 1]):
            b = device[readers[k]]
            if b == device[v]:
                holders[v] += 1
            else:
                for t in range(first[v], first[v + 1]):
                    if target[t] == b:
                        holders[n + t] += 1
                        break
    # All heaps are in one array, each with room for all tasks of its resource.
    heap_first = np.zeros(resources + 1, dtype=np.int64)
    for task in range(tasks):
        heap_first[resource[task] + 1] += 1
    for r in range(resources):
        heap_first[r + 1] += heap_first[r]
    heap, size = np.zeros(tasks, dtype=np.int64), np.zeros(resources, dtype=np.int64)
    running = np.full(resources, -1, dtype=np.int64)
    event_key = np.zeros(resources)  # minus the time at which what runs on a resource ends
    events, event_count = np.zeros(resources, dtype=np.int64), 0
    start, finish = np.zeros(tasks), np.zeros(tasks)
    used = np.zeros(devices)
    for v in range(n):
        used[device[v]] += tables.held_bytes[v]
    peak = used.copy()
    ready, ready_count = np.zeros(tasks, dtype=np.int64), 0
    ended, ended_count = np.zeros(tasks, dtype=np.int64), 0
    touched, touched_count = np.zeros(resources, dtype=np.int64), 0
    is_touched = np.zeros(resources, dtype=np.bool_)
    for i in range(n):
        if waiting[order[i]] == 0:
            ready[ready_count] = order[i]
            ready_count += 1
    now = 0.0
    while True:
        # First everything that ends now, and what takes no time, which may ready more; only then does anything start:
        # a resource chooses among all that is ready at this time.
        while ended_count > 0 or ready_count > 0:
            while ready_count > 0:
                ready_count -= 1
                task = ready[ready_count]
                if task_s[task] == 0.0:
                    start[task] = now
                    place = device[task] if task < n else target[task - n]
                    used[place] += live_bytes[task] if task < n else live_bytes[source[task - n]]
                    peak[place] = max(peak[place], used[place])
                    ended[ended_count] = task
                    ended_count += 1
                    continue
                if tables.by_arrival:
                    rank[task] = -now
                r = resource[task]
                _push(heap, heap_first[r], size[r], rank, task)
                size[r] += 1
                if not is_touched[r]:
                    is_touched[r] = True
                    touched[touched_count] = r
                    touched_count += 1
            if ended_count == 0:
                continue
            ended_count -= 1
            task = ended[ended_count]
            finish[task] = now
            u = task if task < n else source[task - n]
            place = device[u] if task < n else target[task - n]
            if task < n:
                for k in range(inputs_start[u], inputs_start[u + 1]):  # what it read may go
                    p = inputs[k]
                    holder = p
                    if device[p] != place:
                        for t in range(first[p], first[p + 1]):
                            if target[t] == place:
                                holder = n + t
                                break
                    holders[holder] -= 1
                    if holders[holder] == 0:
                        used[place] -= live_bytes[p]
                if holders[u] == 0:
                    used[place] -= live_bytes[u]
                for t in range(first[u], first[u + 1]):
                    ready[ready_count] = n + t
                    ready_count += 1
            else:
                holders[u] -= 1
                if holders[u] == 0:
                    used[device[u]] -= live_bytes[u]
            for k in range(readers_start[u], readers_start[u + 1]):
                s = readers[k]
                if device[s] == place:
                    waiting[s] -= 1
                    if waiting[s] == 0:
                        ready[ready_count] = s
                        ready_count += 1
        while touched_count > 0:
            touched_count -= 1
            r = touched[touched_count]
            is_touched[r] = False
            if running[r] >= 0 or size[r] == 0:
                continue
            task = _pop(heap, heap_first[r], size[r], rank)
            size[r] -= 1
            running[r] = task
            start[task] = now
            place = device[task] if task < n else target[task - n]
            used[place] += live_bytes[task] if task < n else live_bytes[source[task - n]]
            peak[place] = max(peak[place], used[place])
            event_key[r] = -(now + task_s[task])
            _push(events, 0, event_count, event_key, r)
            event_count += 1
        if event_count == 0:
            break
        now = -event_key[events[0]]  # all that end at the same time do so before anything starts
        while event_count > 0 and -event_key[events[0]] == now:
            r = _pop(events, 0, event_count, event_key)
            event_count -= 1
            ended[ended_count] = running[r]
            ended_count += 1
            running[r] = -1
            if not is_touched[r]:
                is_touched[r] = True
                touched[touched_count] = r
                touched_count += 1
    return start, finish, first, target, peak


@jit
def slacks(  # noqa: PLR0912 -- one walk over the schedule
    tables: StepTables,
    device: IntArray,
    begun: IntArray,
    start: FloatArray,
    finish: FloatArray,
    first: IntArray,
    source: IntArray,
    target: IntArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[n] slack, [n] wait and [e] whether an edge held its reader up; `begun` has the tasks in order of their start."""
    n, devices = device.size, tables.time_s.shape[0]
    readers_start, readers, channel = tables.readers_start, tables.readers, tables.channel
    end = 0.0
    for v in range(n):
        end = max(end, finish[v])
    latest = np.full(start.size, end)  # start without harm; first of what follows, then of the task itself
    follower = np.full(devices + tables.latency_s.size, end)
    slack, wait, held_up = np.zeros(n), np.zeros(n), np.zeros(readers.size)
    same, other = np.zeros(n), np.zeros(n)  # when the last input from its own device, and from another, was there
    for i in range(begun.size - 1, -1, -1):  # what follows a task begins later, and is done before it here
        task = begun[i]
        u = task if task < n else source[task - n]
        place = device[u] if task < n else target[task - n]
        resource = place if task < n else devices + channel[device[u], place]
        late = end
        if finish[task] > start[task] and (task < n or tables.turns):  # else it occupies nothing, and has no follower
            late = follower[resource]
        for k in range(readers_start[u], readers_start[u + 1]):
            s = readers[k]
            if device[s] == place:
                late = min(late, latest[s])
                if task < n:
                    same[s] = max(same[s], finish[task])
                else:
                    other[s] = max(other[s], finish[task])
        if task < n:
            for t in range(first[u], first[u + 1]):
                late = min(late, latest[n + t])
            slack[u] = late - finish[task]
        latest[task] = late - (finish[task] - start[task])
        if finish[task] > start[task]:
            follower[resource] = latest[task]
    for v in range(n):
        wait[v] = max(0.0, other[v] - same[v])
    for t in range(source.size):
        u = source[t]
        for k in range(readers_start[u], readers_start[u + 1]):
            s = readers[k]
            if device[s] == target[t] and wait[s] > 0.0 and finish[n + t] == other[s]:
                held_up[k] = 1.0
    return slack, wait, held_up
