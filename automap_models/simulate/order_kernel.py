"""The simulated step of plans whose ranks run passes in any fixed order: simulate.engine without a timeline, compiled.

simulate.step_kernel knows the schedules that are their warm-up alone, where it is clear beforehand in what order almost
everything happens. Of several virtual stages a rank it is not: the last rank sends to the first one, over a link on
which other messages go. So this is the event queue of simulate.engine itself: ranks run as far as their inputs are
there, then what waits for a link and got ready first has it.

    a rank runs ──► messages, and gradients after the last pass that adds to them ──► queue, by when they got ready
         ▲                                                                              │
         └───────────────────────── the message arrives ◄──────── its link carries it ◄─┘

Backward passes are whole, and a stage's gradients are one bucket.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.core.pass_orders import FORWARD, WHOLE
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import build_schedule
from automap_models.errors import BadInput
from automap_models.simulate.engine import link_between

IntArray = NDArray[np.int64]
NOWHERE = -1
"""The link between two virtual stages of one rank."""
GRADIENTS = 2
"""Waits for a link, beside the results of FORWARD and WHOLE passes."""
Job = tuple[float, int, int, int, int, int]
"""What waits for a link: when it got ready, the turn of the pass that it is the result of, -1 for gradients, which go
before the message of that pass, what it is, its virtual stage and its micro-batch."""


class PassOrder(NamedTuple):
    """A schedule of S ranks and V virtual stages, for loops that are compiled.

    Attributes:
        passes: [5, n] kinds (pass_orders), virtual stages, micro-batches and turns (Schedule.turns) of the passes, rank
            by rank, and 1 where it is the last one of its virtual stage.
        offsets: [S+1] where those of each rank begin.
        rank_of: [V] of virtual stages.
        links: [V-1] which link carries what goes between two virtual stages.
    """

    passes: IntArray
    offsets: IntArray
    rank_of: IntArray
    links: IntArray


@lru_cache(maxsize=4096)
def pass_order(name: str, ranks: int, micro_batches: int, virtual: int) -> PassOrder:
    """The schedule of that name for S ranks, M micro-batches and vp virtual stages a rank.

    Raises:
        BadInput: see core.schedules.build_schedule; or it splits its backward passes.
    """
    schedule = build_schedule(name, ranks, micro_batches, virtual)
    if schedule.splits_backward:
        do = "take one that does not"
        raise BadInput(f"schedule {name} splits the backward pass", where="`schedule`", do=do)
    columns = []
    for order, turns in zip(schedule.orders, schedule.turns, strict=True):
        last = {action.stage: position for position, action in enumerate(order)}
        columns += [
            (FORWARD if kind == "F" else WHOLE, stage, m, turn, int(position == last[stage]))
            for position, ((kind, stage, m), turn) in enumerate(zip(order, turns, strict=True))
        ]
    links = [link_between(*ends) for ends in pairwise(schedule.rank_of)]
    return PassOrder(
        np.ascontiguousarray(np.array(columns, dtype=np.int64).T),
        np.cumsum([0, *map(len, schedule.orders)], dtype=np.int64),
        np.array(schedule.rank_of, dtype=np.int64),
        np.array([NOWHERE if link is None else link for link in links], dtype=np.int64),
    )


@jit
def _advance(
    rank: int,
    passes: IntArray,
    offsets: IntArray,
    links: IntArray,
    times: FloatArray,
    ready_s: FloatArray,
    all_reduce_s: FloatArray,
    place: IntArray,
    free: FloatArray,
    arrived: FloatArray,
    waiting: list[Job],
) -> None:
    """Run passes of a rank as long as their inputs are there; arguments as below, and the state of `simulated_step`."""
    while place[rank] < offsets[rank + 1]:
        kind, stage, m, turn, last = passes[:, place[rank]]
        back = 0 if kind == FORWARD else 1
        if arrived[back, stage, m] == np.inf:
            return
        start = max(free[rank], arrived[back, stage, m])
        end = free[rank] = start + times[back, stage]
        if last and all_reduce_s[stage] > 0.0:
            heappush(waiting, (max(start, end + ready_s[stage]), turn, -1, GRADIENTS, stage, m))
        place[rank] += 1
        to = stage - 1 if back else stage + 1
        if to == arrived.shape[1]:
            arrived[1, stage, m] = end
        elif to >= 0 and links[min(stage, to)] == NOWHERE:
            arrived[back, to, m] = end
        elif to >= 0:
            heappush(waiting, (end, turn, 0, kind, stage, m))


@jit
def simulated_step(
    passes: IntArray,
    offsets: IntArray,
    rank_of: IntArray,
    links: IntArray,
    micro_batches: int,
    times: FloatArray,
    ready_s: FloatArray,
    all_reduce_s: FloatArray,
    shares_link: NDArray[np.bool_],
) -> float:
    """Seconds of the simulated step of one plan: `Timeline.length_s` of simulate.engine.

    Args:
        passes, offsets, rank_of, links: the PassOrder.
        micro_batches: M.
        times: [3, V] of forward passes, backward passes and the messages after each virtual stage.
        ready_s, all_reduce_s: [V] of each virtual stage's gradients: when they are there, counted from the end of its
            last backward pass, and how long reducing them takes; 0 where there is nothing to reduce.
        shares_link: [V] whether that uses the link to the virtual stage before.
    """
    ranks = offsets.size - 1
    free, link_free, ring_free = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    place = offsets[:-1].copy()
    arrived = np.full((2, rank_of.size, micro_batches), np.inf)  # inputs of forward and backward passes
    arrived[0, 0] = 0.0
    waiting = [(0.0, 0, 0, 0, 0, 0)]  # says what its entries are; nothing waits yet
    waiting.pop()
    given = (passes, offsets, links, times, ready_s, all_reduce_s, place, free, arrived)
    for rank in range(ranks):
        _advance(rank, *given, waiting)
    while len(waiting) > 0:
        ready, _, _, kind, stage, m = heappop(waiting)
        own, to = rank_of[stage], stage + 1 if kind == FORWARD else stage - 1
        if kind == GRADIENTS:
            ring_free[own] = max(ready, ring_free[own])
            link = links[to] if stage and shares_link[stage] else NOWHERE
            if link != NOWHERE:
                ring_free[own] = link_free[link] = max(ring_free[own], link_free[link]) + all_reduce_s[stage]
            else:
                ring_free[own] += all_reduce_s[stage]
            continue
        link = links[min(stage, to)]
        link_free[link] = max(ready, link_free[link]) + times[2, min(stage, to)]
        arrived[0 if kind == FORWARD else 1, to, m] = link_free[link]
        _advance(rank_of[to], *given, waiting)
    step: float = max(free.max(), ring_free.max())
    return step
