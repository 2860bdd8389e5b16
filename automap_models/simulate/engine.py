"""Discrete-event simulation of one global batch: stages and links are resources (cost-model.md, "Simulation").

A stage runs its passes in the fixed order of its schedule. Between two neighbouring stages there is one link, which
carries one message at a time in either direction, in the order in which the messages get ready; of two that get ready
at the same time the forward one goes first. A pass starts when the stage is free and its input has arrived. A stage's
gradients are reduced in buckets (cost.overlap), one after the other, each as soon as its last backward pass has come so
far; where they use the link to the stage before, they take turns with the messages on it. Without buckets one
all-reduce starts after the stage's last pass. Stages that hold the same parameters sum the gradients of these when all
of them have reduced theirs.

`1f1b` on two stages with two micro-batches, one column a second; forward and backward take 1 s, a transfer 3 s:

    stage 0   F0 F1 .. .. .. .. .. .. .. .. B0 .. .. B1
    link      .. F0 F0 F0 F1 F1 F1 B0 B0 B0 B1 B1 B1
    stage 1   .. .. .. .. F0 B0 .. F1 B1
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import Op, schedule
from automap_models.cost.overlap import Bucket, TiedSum

PassKind = Literal["forward", "backward", "send-forward", "send-backward", "all-reduce", "tied-sum"]
"""What occupies a stage (forward, backward, all-reduce, tied-sum) or the link between two stages (the sends)."""


@dataclass(frozen=True)
class Interval:
    """When something occupies a stage or a link.

    Attributes:
        kind: what it is.
        resource: the stage of a pass, of an all-reduce, or of a tied sum, which has an interval for each of its stages;
            s of a send over the link between the stages s and s + 1.
        micro_batch: for which micro-batch; the last one of an all-reduce, of which a stage has one a bucket, and of a
            tied sum.
        start_s, end_s: seconds from the start of the global batch.
    """

    kind: PassKind
    resource: int
    micro_batch: int
    start_s: float
    end_s: float


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


class _Job(NamedTuple):
    """What waits for links: a message between two stages, or a bucket of gradients; ordered by when it got ready.

    Attributes:
        ready_s: when.
        turn: orders equal times (`_Run._turn`).
        resource: the link of a message, the stage of a bucket.
        duration_s: how long it takes.
        op: which pass of which micro-batch it is the result of; None of a bucket.
    """

    ready_s: float
    turn: tuple[int, int, int]
    resource: int
    duration_s: float
    op: Op | None


class _Run:
    """The state of one simulation.

    Attributes:
        duration: [2][S] seconds of a forward and of a backward pass.
        transfer: [S-1] seconds of a message over each link.
        buckets: [S] of each stage.
        shares_link: [S] whether these use the link to the stage before.
        orders: [S][2M] passes of each stage.
        warm_up: [S] forward passes of each stage before its first backward pass.
        next_op: [S] how many of them each stage has run.
        stage_free, link_free, ring_free: [S], [S-1], [S] when each is free.
        arrival: (stage, pass) → when its input is there.
        waiting: queue of messages and buckets.
        intervals: what happened so far.
    """

    def __init__(
        self,
        forward_s: FloatArray,
        backward_s: FloatArray,
        transfer_s: FloatArray,
        buckets: Sequence[Sequence[Bucket]],
        shares_link: Sequence[bool],
        orders: tuple[tuple[Op, ...], ...],
    ) -> None:
        self.stages = len(orders)
        self.duration = ([float(v) for v in forward_s], [float(v) for v in backward_s])
        self.transfer = [float(v) for v in transfer_s]
        self.buckets, self.shares_link = buckets, shares_link
        self.orders = orders
        self.warm_up = [next(i for i, op in enumerate(order) if op.backward) for order in orders]
        self.next_op = [0] * self.stages
        self.stage_free, self.ring_free = [0.0] * self.stages, [0.0] * self.stages
        self.link_free = [0.0] * (self.stages - 1)
        self.arrival: dict[tuple[int, Op], float] = {}
        self.waiting: list[_Job] = []
        self.intervals: list[Interval] = []

    def run(self) -> None:
        """Advance stages as far as their inputs allow, then serve what waits for a link and got ready first."""
        for op in self.orders[0]:
            if not op.backward:
                self.arrival[0, op] = 0.0
        for stage in range(self.stages):
            self._advance(stage)
        while self.waiting:
            job = heapq.heappop(self.waiting)
            if job.op is None:
                self._reduce(job)
            else:
                self._send(job, job.op)

    def _advance(self, stage: int) -> None:
        order = self.orders[stage]
        while self.next_op[stage] < len(order):
            op = order[self.next_op[stage]]
            ready = self.arrival.get((stage, op))
            if ready is None:
                return
            start = max(self.stage_free[stage], ready)
            end = start + self.duration[op.backward][stage]
            self.stage_free[stage] = end
            self.next_op[stage] += 1
            kind: PassKind = "backward" if op.backward else "forward"
            self.intervals.append(Interval(kind, stage, op.micro_batch, start, end))
            if self.next_op[stage] == len(order):
                last, row, count = op.micro_batch, self.stages - 1 - stage, len(self.buckets[stage])
                for i, bucket in enumerate(self.buckets[stage]):
                    ready = max(start, end + bucket.ready_s)
                    job = _Job(ready, (last, row, i - count), stage, bucket.all_reduce_s, None)
                    heapq.heappush(self.waiting, job)
            self._finished(stage, op, end)

    def _turn(self, stage: int, op: Op) -> tuple[int, int, int]:
        """Where a pass stands in an order of all passes in which none comes before what it needs.

        First come the passes of the warm-up, stage by stage. In round k follow, from the last stage to the first, the
        backward pass of micro-batch k and the forward pass after it. So passes that take no time at all keep messages
        in order, too, and on a link a forward message goes before the backward one that is ready at the same time.
        """
        if op.backward:
            return op.micro_batch, self.stages - 1 - stage, 0
        after = op.micro_batch - self.warm_up[stage]
        return (-1, stage, op.micro_batch) if after < 0 else (after, self.stages - 1 - stage, 1)

    def _finished(self, stage: int, op: Op, end: float) -> None:
        if not op.backward and stage == self.stages - 1:
            self.arrival[stage, Op(True, op.micro_batch)] = end
        elif not (op.backward and stage == 0):
            link = stage - 1 if op.backward else stage
            heapq.heappush(self.waiting, _Job(end, self._turn(stage, op), link, self.transfer[link], op))

    def _send(self, job: _Job, op: Op) -> None:
        link = job.resource
        start = max(job.ready_s, self.link_free[link])
        end = self.link_free[link] = start + job.duration_s
        kind: PassKind = "send-backward" if op.backward else "send-forward"
        self.intervals.append(Interval(kind, link, op.micro_batch, start, end))
        receiver = link if op.backward else link + 1
        self.arrival[receiver, op] = end
        self._advance(receiver)

    def _reduce(self, job: _Job) -> None:
        stage = job.resource
        start = max(job.ready_s, self.ring_free[stage])
        if self.shares_link[stage]:
            start = max(start, self.link_free[stage - 1])
            self.link_free[stage - 1] = start + job.duration_s
        end = self.ring_free[stage] = start + job.duration_s
        last = self.orders[stage][-1].micro_batch
        self.intervals.append(Interval("all-reduce", stage, last, start, end))

    def sum_tied(self, tied: Sequence[TiedSum]) -> None:
        """The sums over copies of parameters, one after the other, when everything else has been run."""
        done = [max(free) for free in zip(self.stage_free, self.ring_free, strict=True)]
        for stages, sum_s, _ in tied:
            start = max(done[stage] for stage in stages)
            for stage in stages:
                done[stage] = start + sum_s
                last = self.orders[stage][-1].micro_batch
                self.intervals.append(Interval("tied-sum", stage, last, start, start + sum_s))


def simulate(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray,
    all_reduce_s: FloatArray,
    micro_batches: int,
    schedule_name: str,
    buckets: Sequence[Sequence[Bucket]] = (),
    shares_link: Sequence[bool] = (),
    tied: Sequence[TiedSum] = (),
) -> Timeline:
    """Run one global batch under a schedule.

    Its length is when the last pass, the last all-reduce and the last tied sum end.

    Args:
        forward_s, backward_s: [S] seconds of one micro-batch's passes.
        transfer_s: [S-1] seconds of one micro-batch over each link, one direction.
        all_reduce_s: [S] seconds, of stages without buckets.
        micro_batches: M.
        schedule_name: a key of `schedules.SCHEDULES`.
        buckets: [S] the gradients of each stage as they are reduced; without any one all-reduce follows its last pass.
        shares_link: [S] whether a stage's buckets use the link to the stage before.
        tied: sums over the copies of parameters, in their order.
    """
    stages = forward_s.size
    buckets = buckets or [(Bucket(0.0, float(reduce_s)),) for reduce_s in all_reduce_s]
    shares_link = shares_link or [False] * stages
    run = _Run(forward_s, backward_s, transfer_s, buckets, shares_link, schedule(schedule_name, stages, micro_batches))
    run.run()
    run.sum_tied(tied)
    intervals = sorted(run.intervals, key=lambda i: (i.start_s, i.resource, i.kind, i.micro_batch))
    return Timeline(schedule_name, tuple(intervals), max(interval.end_s for interval in intervals))
