"""Discrete-event simulation of one global batch: stages and links are resources (cost-model.md, "Simulation").

A stage runs its passes in the fixed order of its schedule. Between two neighbouring stages there is one link, which
carries one message at a time in either direction, in the order in which the messages get ready. A pass starts when the
stage is free and its input has arrived; a stage's all-reduce starts after its last pass.

`1f1b` on two stages with two micro-batches, one column a second; forward and backward take 1 s, a transfer 3 s:

    stage 0   F0 F1 .. .. .. .. .. .. .. .. B0 .. .. B1
    link      .. F0 F0 F0 F1 F1 F1 B0 B0 B0 B1 B1 B1
    stage 1   .. .. .. .. F0 B0 .. F1 B1
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

from automap_models.core.profile import FloatArray
from automap_models.simulate.schedules import Op, schedule

PassKind = Literal["forward", "backward", "send-forward", "send-backward", "all-reduce"]
"""What occupies a stage (forward, backward, all-reduce) or the link between two stages (the sends)."""


@dataclass(frozen=True)
class Interval:
    """When something occupies a stage or a link.

    Attributes:
        kind: what it is.
        resource: the stage of a pass or an all-reduce; s of a send over the link between the stages s and s + 1.
        micro_batch: for which micro-batch; of an all-reduce the last one.
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


class _Run:
    """The state of one simulation.

    Attributes:
        duration: [2][S] seconds of a forward and of a backward pass.
        transfer: [S-1] seconds of a message over each link.
        orders: [S][2M] passes of each stage.
        next_op: [S] how many of them each stage has run.
        stage_free, link_free: [S], [S-1] when each is free.
        arrival: (stage, pass) → when its input is there.
        sends: queue of messages (ready, number, link, micro-batch, backward); the number keeps equal times in order.
        intervals: what happened so far.
    """

    def __init__(
        self, forward_s: FloatArray, backward_s: FloatArray, transfer_s: FloatArray, orders: tuple[tuple[Op, ...], ...]
    ) -> None:
        self.stages = len(orders)
        self.duration = ([float(v) for v in forward_s], [float(v) for v in backward_s])
        self.transfer = [float(v) for v in transfer_s]
        self.orders = orders
        self.next_op = [0] * self.stages
        self.stage_free = [0.0] * self.stages
        self.link_free = [0.0] * (self.stages - 1)
        self.arrival: dict[tuple[int, Op], float] = {}
        self.sends: list[tuple[float, int, int, int, bool]] = []
        self.sequence = 0
        self.intervals: list[Interval] = []

    def run(self) -> None:
        """Advance stages as far as their inputs allow, then serve the message that is ready first."""
        for op in self.orders[0]:
            if not op.backward:
                self.arrival[0, op] = 0.0
        for stage in range(self.stages):
            self._advance(stage)
        while self.sends:
            self._serve_link()

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
            self._finished(stage, op, end)

    def _finished(self, stage: int, op: Op, end: float) -> None:
        if not op.backward and stage == self.stages - 1:
            self.arrival[stage, Op(True, op.micro_batch)] = end
        elif not (op.backward and stage == 0):
            self.sequence += 1
            link = stage - 1 if op.backward else stage
            heapq.heappush(self.sends, (end, self.sequence, link, op.micro_batch, op.backward))

    def _serve_link(self) -> None:
        ready, _, link, micro_batch, backward = heapq.heappop(self.sends)
        start = max(ready, self.link_free[link])
        end = start + self.transfer[link]
        self.link_free[link] = end
        kind: PassKind = "send-backward" if backward else "send-forward"
        self.intervals.append(Interval(kind, link, micro_batch, start, end))
        receiver = link if backward else link + 1
        self.arrival[receiver, Op(backward, micro_batch)] = end
        self._advance(receiver)


def simulate(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray,
    all_reduce_s: FloatArray,
    micro_batches: int,
    schedule_name: str,
) -> Timeline:
    """Run one global batch under a schedule.

    The length is the largest over stages of the end of its last backward pass plus its all-reduce.

    Args:
        forward_s, backward_s: [S] seconds of one micro-batch's passes.
        transfer_s: [S-1] seconds of one micro-batch over each link, one direction.
        all_reduce_s: [S] seconds.
        micro_batches: M.
        schedule_name: a key of `schedules.SCHEDULES`.
    """
    run = _Run(forward_s, backward_s, transfer_s, schedule(schedule_name, forward_s.size, micro_batches))
    run.run()
    reduces = [
        Interval("all-reduce", stage, micro_batches - 1, free, free + float(all_reduce_s[stage]))
        for stage, free in enumerate(run.stage_free)
    ]
    intervals = sorted([*run.intervals, *reduces], key=lambda i: (i.start_s, i.resource, i.kind, i.micro_batch))
    return Timeline(schedule_name, tuple(intervals), max(reduce.end_s for reduce in reduces))
