"""Discrete-event simulation of one global batch: ranks and links are resources (cost-model.md, "Simulation").

A rank runs the passes of its stage, or of its virtual stages, in the fixed order of its schedule (core.schedules).
Between two ranks there is one link, which carries one message at a time in either direction, in the order in which the
messages get ready; of two that get ready at the same time the forward one goes first. A pass starts when the rank is
free and its input has arrived; what goes to another virtual stage of the same rank is there at once. The gradients of a
stage are reduced in buckets (cost.overlap), one after the other, each as soon as the last pass that adds to them, a
backward or a weight-gradient pass, has come so far; where they use the link to the stage before, they take turns with
the messages on it. Without buckets one all-reduce starts after that pass. Stages that hold the same parameters sum the
gradients of these when all of their ranks have reduced theirs.

`1f1b` on two stages with two micro-batches, one column a second; forward and backward take 1 s, a transfer 3 s:

    stage 0   F0 F1 .. .. .. .. .. .. .. .. B0 .. .. B1
    link      .. F0 F0 F0 F1 F1 F1 B0 B0 B0 B1 B1 B1
    stage 1   .. .. .. .. F0 B0 .. F1 B1
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from automap_models.core.pass_orders import Action, ActionKind
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import Schedule
from automap_models.cost.overlap import Bucket, TiedSum
from automap_models.errors import BadInput

PassKind = Literal[
    "forward",
    "backward",
    "input-gradient",
    "weight-gradient",
    "send-forward",
    "send-backward",
    "all-reduce",
    "tied-sum",
]
"""What occupies a rank (passes, all-reduce, tied-sum) or the link between two ranks (the sends)."""
PASS_KINDS: dict[ActionKind, PassKind] = {
    "F": "forward",
    "B": "backward",
    "I": "input-gradient",
    "W": "weight-gradient",
}


class Interval(NamedTuple):
    """When something occupies a rank or a link.

    Attributes:
        kind: what it is.
        resource: the rank of a pass, of an all-reduce, or of a tied sum, which has an interval for each of its stages;
            s of a send over the link between the ranks s and s + 1, of which the last one is to rank 0.
        micro_batch: for which micro-batch; the last one of an all-reduce, of which a stage has one a bucket, and of a
            tied sum.
        start_s, end_s: seconds from the start of the global batch.
        chunk: which virtual stage of the rank it is for, counted from 0 in the order of the model; of a send, which one
            of the rank that sends.
    """

    kind: PassKind
    resource: int
    micro_batch: int
    start_s: float
    end_s: float
    chunk: int = 0


@dataclass(frozen=True)
class Timeline:
    """What a simulation of one global batch gives.

    Attributes:
        schedule: the schedule's name.
        intervals: all of them, in order of their start.
        length_s: when the last one ends, seconds.
    """

    schedule: str
    intervals: tuple[Interval, ...]
    length_s: float

    @cached_property
    def longest_rank(self) -> tuple[float, float]:
        """Of the rank that takes longest: seconds from its first pass to the end of its last one, and of its passes."""
        spans: dict[int, tuple[float, float, float]] = {}
        for i in self.intervals:
            if i.kind in PASS_KINDS.values():
                start_s, end_s, busy_s = spans.get(i.resource, (i.start_s, i.end_s, 0.0))
                spans[i.resource] = (start_s, max(end_s, i.end_s), busy_s + i.end_s - i.start_s)
        return max((end_s - start_s, busy_s) for start_s, end_s, busy_s in spans.values())

    @property
    def bubble_rate(self) -> float:
        """Share of its time that the rank waits that takes longest, as in Qi et al. (2401.10241, section 5.3)."""
        taken_s, busy_s = self.longest_rank
        return 1.0 - busy_s / taken_s if taken_s else 0.0


class _Job(NamedTuple):
    """What waits for links: a message between two stages, or a bucket of gradients; ordered by when it got ready.

    Attributes:
        ready_s: when.
        turn: orders equal times: the turn of the pass that it is the result of, and below 0 for what goes before the
            message of that pass.
        stage: the virtual stage that it comes from.
        duration_s: how long it takes.
        action: the pass that a message is the result of; None of a bucket.
    """

    ready_s: float
    turn: tuple[int, int]
    stage: int
    duration_s: float
    action: Action | None


class _Run:
    """The state of one simulation of a schedule with S ranks and V = S·vp virtual stages.

    Attributes:
        duration: kind of action → [V] seconds of a pass.
        transfer: [V-1] seconds of a message between neighbouring stages.
        links: [V-1] which link carries it; None where both stages are on one rank.
        buckets: [V] of each stage.
        shares_link: [V] whether these use the link to the stage before, where that is on another rank.
        last_gradient: [V] the last pass that adds to a stage's gradients.
        next_action: [S] how many passes a rank has run.
        rank_free, link_free, ring_free: [S] when each is free.
        arrived: (backward, stage, micro-batch) → when its input is there.
        waiting: queue of messages and buckets.
        intervals: what happened so far.
    """

    def __init__(
        self,
        schedule: Schedule,
        duration: dict[ActionKind, list[float]],
        transfer: list[float],
        buckets: Sequence[Sequence[Bucket]],
        shares_link: Sequence[bool],
    ) -> None:
        self.schedule, self.duration, self.transfer = schedule, duration, transfer
        self.buckets, self.shares_link = buckets, shares_link
        self.rank_of, self.turns = schedule.rank_of, schedule.turns
        self.links = [link_between(*ends) for ends in pairwise(self.rank_of)]
        self.last_gradient = {action.stage: action for order in schedule.orders for action in order}
        ranks = schedule.ranks
        self.next_action = [0] * ranks
        self.rank_free, self.link_free, self.ring_free = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks
        self.arrived: dict[tuple[bool, int, int], float] = {}
        self.waiting: list[_Job] = []
        self.intervals: list[Interval] = []

    def run(self) -> None:
        """Advance ranks as far as their inputs allow, then serve what waits for a link and got ready first."""
        for micro_batch in range(self.schedule.micro_batches):
            self.arrived[False, 0, micro_batch] = 0.0
        for rank in range(self.schedule.ranks):
            self._advance(rank)
        while self.waiting:
            job = heapq.heappop(self.waiting)
            if job.action is None:
                self._reduce(job)
            else:
                self._send(job, job.action)

    def _advance(self, rank: int) -> None:
        """Run passes of a rank as long as their inputs are there."""
        order, turns, position, free = (
            self.schedule.orders[rank],
            self.turns[rank],
            self.next_action[rank],
            self.rank_free[rank],
        )
        while position < len(order):
            action = order[position]
            kind, stage, micro_batch = action
            ready = 0.0 if kind == "W" else self.arrived.get((kind != "F", stage, micro_batch))
            if ready is None:
                break
            start = max(free, ready)
            free = start + self.duration[kind][stage]
            turn = turns[position]
            position += 1
            self._occupy(PASS_KINDS[kind], rank, stage, micro_batch, start, free)
            if action is self.last_gradient[stage]:
                count = len(self.buckets[stage])
                for i, bucket in enumerate(self.buckets[stage]):
                    job = _Job(max(start, free + bucket.ready_s), (turn, i - count), stage, bucket.all_reduce_s, None)
                    heapq.heappush(self.waiting, job)
            if kind != "W":
                self._finished(action, turn, free)
        self.next_action[rank], self.rank_free[rank] = position, free

    def _occupy(self, kind: PassKind, resource: int, stage: int, micro_batch: int, start: float, end: float) -> None:
        self.intervals.append(Interval(kind, resource, micro_batch, start, end, stage // self.schedule.ranks))

    def _finished(self, action: Action, turn: int, end: float) -> None:
        """Hand on what a pass has computed: over a link, or at once to a stage of the same rank."""
        kind, stage, micro_batch = action
        back = kind != "F"
        if not back and stage == self.schedule.stages - 1:
            self.arrived[True, stage, micro_batch] = end
        elif not (back and stage == 0):
            boundary = stage - 1 if back else stage
            if self.links[boundary] is None:
                self.arrived[back, stage - 1 if back else stage + 1, micro_batch] = end
            else:
                heapq.heappush(self.waiting, _Job(end, (turn, 0), stage, self.transfer[boundary], action))

    def _send(self, job: _Job, action: Action) -> None:
        back = action.kind != "F"
        boundary, receiver = (job.stage - 1, job.stage - 1) if back else (job.stage, job.stage + 1)
        link = self.links[boundary]
        assert link is not None  # or else it would have arrived at once
        start = max(job.ready_s, self.link_free[link])
        end = self.link_free[link] = start + job.duration_s
        kind: PassKind = "send-backward" if back else "send-forward"
        self._occupy(kind, link, job.stage, action.micro_batch, start, end)
        self.arrived[back, receiver, action.micro_batch] = end
        self._advance(self.rank_of[receiver])

    def _reduce(self, job: _Job) -> None:
        rank = self.rank_of[job.stage]
        start = max(job.ready_s, self.ring_free[rank])
        link = self.links[job.stage - 1] if self.shares_link[job.stage] else None
        if link is not None:
            start = max(start, self.link_free[link])
            self.link_free[link] = start + job.duration_s
        end = self.ring_free[rank] = start + job.duration_s
        self._occupy("all-reduce", rank, job.stage, self.last_gradient[job.stage].micro_batch, start, end)

    def sum_tied(self, tied: Sequence[TiedSum]) -> None:
        """The sums over copies of parameters, one after the other, when everything else has been run."""
        done = [max(free) for free in zip(self.rank_free, self.ring_free, strict=True)]
        for stages, sum_s, _ in tied:
            start = max(done[self.rank_of[stage]] for stage in stages)
            for stage in stages:
                rank, last = self.rank_of[stage], self.last_gradient[stage].micro_batch
                done[rank] = start + sum_s
                self._occupy("tied-sum", rank, stage, last, start, start + sum_s)


def link_between(rank: int, other: int) -> int | None:
    """The link between the ranks of two neighbouring stages; rank and rank + 1, or the last one and rank 0."""
    if rank == other:
        return None
    return min(rank, other) if abs(rank - other) == 1 else max(rank, other)


def simulate(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray,
    all_reduce_s: FloatArray,
    schedule: Schedule,
    buckets: Sequence[Sequence[Bucket]] = (),
    shares_link: Sequence[bool] = (),
    tied: Sequence[TiedSum] = (),
    weight_s: FloatArray | None = None,
) -> Timeline:
    """Run one global batch under a schedule with V virtual stages, one a rank unless it has more.

    Its length is when the last pass, the last all-reduce and the last tied sum end.

    Args:
        forward_s, backward_s: [V] seconds of one micro-batch's passes; the backward pass is the whole one.
        transfer_s: [V-1] seconds of one micro-batch over each link, one direction.
        all_reduce_s: [V] seconds, of stages without buckets.
        schedule: see core.schedules.build_schedule.
        buckets: [V] the gradients of each stage as they are reduced; without any one all-reduce follows its last pass.
        shares_link: [V] whether a stage's buckets use the link to the stage before.
        tied: sums over the copies of parameters, in their order.
        weight_s: [V] what of the backward pass the gradients of the weights take; for schedules that split it.

    Raises:
        BadInput: times of another number of stages, or a schedule that splits the backward pass without `weight_s`.
    """
    stages = schedule.stages
    if not forward_s.size == backward_s.size == transfer_s.size + 1 == stages:
        what = f"times of {forward_s.size} stages for a schedule of {stages}"
        raise BadInput(what, where="`forward_s`", do="give as many as the schedule has virtual stages")
    duration: dict[ActionKind, list[float]] = {"F": forward_s.tolist(), "B": backward_s.tolist()}
    if weight_s is not None:
        duration |= {"I": (backward_s - weight_s).tolist(), "W": weight_s.tolist()}
    elif schedule.splits_backward:
        what = f"schedule {schedule.name} splits the backward pass"
        raise BadInput(what, where="`weight_s`", do="give what the gradients of the weights take")
    buckets = buckets or [(Bucket(0.0, float(reduce_s)),) for reduce_s in all_reduce_s]
    run = _Run(schedule, duration, transfer_s.tolist(), buckets, shares_link or [False] * stages)
    run.run()
    run.sum_tied(tied)
    intervals = sorted(run.intervals, key=attrgetter("start_s", "resource", "kind", "micro_batch", "chunk"))
    return Timeline(schedule.name, tuple(intervals), max(interval.end_s for interval in intervals))
