"""Discrete-event simulation: stages and links are resources (cost-model.md, "Simulation").

A stage runs its passes in its schedule's fixed order; a link is one half-duplex queue per boundary,
served in the order in which messages get ready.
"""

from __future__ import annotations

import heapq

from automap_models.core.profile import FloatArray
from automap_models.simulate.schedules import Op, schedule
from automap_models.simulate.timeline import Interval, Kind, Timeline


class _Run:
    """The state of one simulation."""

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
            kind: Kind = "backward" if op.backward else "forward"
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
        kind: Kind = "send-backward" if backward else "send-forward"
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
    """Run one global batch under a schedule of `schedules.SCHEDULES`.

    The length is the largest over stages of the end of its last backward plus its all-reduce.
    """
    run = _Run(forward_s, backward_s, transfer_s, schedule(schedule_name, forward_s.size, micro_batches))
    run.run()
    reduces = [
        Interval("all-reduce", stage, micro_batches - 1, free, free + float(all_reduce_s[stage]))
        for stage, free in enumerate(run.stage_free)
    ]
    intervals = sorted([*run.intervals, *reduces], key=lambda i: (i.start_s, i.resource, i.kind, i.micro_batch))
    return Timeline(schedule_name, tuple(intervals), max(reduce.end_s for reduce in reduces))
