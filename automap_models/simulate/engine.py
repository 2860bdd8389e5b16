"""Discrete-event simulation of one global batch: ranks and links are resources (cost-model.md, "Simulation").

A rank runs the passes of its stage, or of its virtual stages, in the fixed order of its schedule (core.schedules).
From one rank to another there is one link, and one back; each carries one message at a time, in the order in which the
rank that sends runs the passes that they are the results of. A pass starts when the rank is free and its input has
arrived; what goes to another virtual stage of the same rank is there at once. The gradients of a stage are reduced
once the last pass that adds to them, a backward or a weight-gradient pass, has ended, but for what of that goes on
beside it (cost.overlap). Stages that hold the same parameters sum the gradients of these when all of their ranks have
reduced theirs. Then each updates its parameters.

So what happens does not depend on who asks first: simulate.play gives the same step by one loop.

`1f1b` on two stages with two micro-batches, one column a second; forward and backward take 1 s, a transfer 3 s:

    stage 0   F0 F1 .. .. .. .. .. .. .. B0 .. .. B1
    link →    .. F0 F0 F0 F1 F1 F1
    link ←    .. .. .. .. .. .. B0 B0 B0 B1 B1 B1
    stage 1   .. .. .. .. F0 B0 .. F1 B1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple

from automap_models.core.passes import Action, ActionKind, Schedule
from automap_models.core.profile import FloatArray
from automap_models.cost.overlap import TiedSum
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
    "update",
]
"""What occupies a rank (passes, all-reduce, tied-sum, update) or the link from one rank to another (the sends)."""
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
        resource: the rank of a pass, an all-reduce, an update, or of a tied sum, which has an interval for each of its
            stages; of a send the link (`link_from`).
        micro_batch: for which micro-batch; the last one of what comes once a step.
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

    @property
    def is_send(self) -> bool:
        """Whether it occupies a link."""
        return self.kind.startswith("send")


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


class _Run:
    """The state of one simulation of a schedule with S ranks and V = S·vp virtual stages.

    Attributes:
        duration: kind of action → [V] seconds of a pass.
        transfer: [V-1] seconds of a message between neighbouring stages.
        reduces: [V] seconds of the all-reduce of each stage, and what of them comes after its last pass.
        last_gradient: [V] the last pass that adds to a stage's gradients.
        rank_free, ring_free: [S] when each is free for a pass, and for an all-reduce.
        reduced: [V] when the gradients of each stage are reduced.
        link_free: link → when it is free.
        arrived: (backward, stage, micro-batch) → when its input is there.
        intervals: what happened so far.
    """

    def __init__(
        self,
        schedule: Schedule,
        duration: dict[ActionKind, list[float]],
        transfer: list[float],
        reduces: Sequence[tuple[float, float]],
    ) -> None:
        self.schedule, self.duration, self.transfer = schedule, duration, transfer
        self.reduces, self.rank_of = reduces, schedule.rank_of
        self.last_gradient = {action.stage: action for order in schedule.orders for action in order}
        self.rank_free, self.ring_free = [0.0] * schedule.ranks, [0.0] * schedule.ranks
        self.reduced = [0.0] * schedule.stages
        self.link_free: dict[int, float] = defaultdict(float)
        self.arrived: dict[tuple[bool, int, int], float] = {}
        self.intervals: list[Interval] = []

    def run(self) -> None:
        """Run all passes, each of which finds when its inputs arrive; the first stage's are there."""
        for action in self.schedule.in_turn:
            kind, stage, micro_batch = action
            rank = self.rank_of[stage]
            ready = 0.0 if kind == "W" else self.arrived.get((kind != "F", stage, micro_batch), 0.0)
            start = max(self.rank_free[rank], ready)
            self.rank_free[rank] = end = start + self.duration[kind][stage]
            self._occupy(PASS_KINDS[kind], rank, action, start, end)
            if action is self.last_gradient[stage]:
                self._reduce(action, end)
            if kind != "W":
                self._hand_on(action, end)

    def _occupy(self, kind: PassKind, resource: int, action: Action, start: float, end: float) -> None:
        chunk = action.stage // self.schedule.ranks
        self.intervals.append(Interval(kind, resource, action.micro_batch, start, end, chunk))

    def _hand_on(self, action: Action, end: float) -> None:
        """Hand on what a pass has computed: over a link, or at once to a stage of the same rank."""
        kind, stage, micro_batch = action
        back = kind != "F"
        if not back and stage == self.schedule.stages - 1:
            self.arrived[True, stage, micro_batch] = end
        elif not (back and stage == 0):
            receiver = stage - 1 if back else stage + 1
            self.arrived[back, receiver, micro_batch] = self._sent(action, receiver, end)

    def _sent(self, action: Action, receiver: int, ready: float) -> float:
        """When a message arrives; the link carries it as soon as it is ready and those before it have arrived."""
        link = link_from(self.rank_of[action.stage], self.rank_of[receiver])
        if link is None:
            return ready
        start = max(ready, self.link_free[link])
        self.link_free[link] = end = start + self.transfer[min(action.stage, receiver)]
        self._occupy("send-forward" if action.kind == "F" else "send-backward", link, action, start, end)
        return end

    def _reduce(self, action: Action, pass_end: float) -> None:
        """Reduce the gradients of a stage, whose last pass that is."""
        stage, rank = action.stage, self.rank_of[action.stage]
        all_reduce_s, late_s = self.reduces[stage]
        end = max(pass_end + late_s, self.ring_free[rank] + all_reduce_s)
        self.reduced[stage] = self.ring_free[rank] = end
        self._occupy("all-reduce", rank, action, end - all_reduce_s, end)

    def sum_tied(self, tied: Sequence[TiedSum]) -> None:
        """The sums over copies of parameters, one after the other, when everything else has been run."""
        for stages, sum_s, _ in tied:
            start = max(self.reduced[stage] for stage in stages)
            for stage in stages:
                self.reduced[stage] = start + sum_s
                self._occupy("tied-sum", self.rank_of[stage], self.last_gradient[stage], start, start + sum_s)

    def update(self, update_s: Sequence[float]) -> None:
        """Update the parameters of all stages."""
        for stage, own_s in enumerate(update_s):
            if own_s:
                start = self.reduced[stage]
                self._occupy("update", self.rank_of[stage], self.last_gradient[stage], start, start + own_s)


def link_from(rank: int, to: int) -> int | None:
    """The link from a rank to another one, of which it has a stage's neighbour: 2·s from rank s to s + 1, 2·s + 1 back.

    From the last rank to rank 0 it is the number that would lead to a further rank. None to the rank itself.
    """
    if rank == to:
        return None
    if abs(rank - to) == 1:
        return 2 * min(rank, to) + (to < rank)
    return 2 * max(rank, to) + (rank < to)


def simulate(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray,
    all_reduce_s: FloatArray,
    schedule: Schedule,
    exposed_s: FloatArray | None = None,
    update_s: FloatArray | None = None,
    tied: Sequence[TiedSum] = (),
    weight_s: FloatArray | None = None,
) -> Timeline:
    """Run one global batch under a schedule with V virtual stages, one a rank unless it has more.

    Its length is when the last pass, the last all-reduce, the last tied sum and the last update end.

    Args:
        forward_s, backward_s: [V] seconds of one micro-batch's passes; the backward pass is the whole one.
        transfer_s: [V-1] seconds of one micro-batch over each link, one direction.
        all_reduce_s: [V] seconds.
        schedule: see core.passes.build_schedule.
        exposed_s: [V] what of them comes after the last pass of a stage; None is all of them.
        update_s: [V] of the parameters; None takes no time.
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
    late_s = all_reduce_s if exposed_s is None else exposed_s
    run = _Run(schedule, duration, transfer_s.tolist(), list(zip(all_reduce_s.tolist(), late_s.tolist(), strict=True)))
    run.run()
    run.sum_tied(tied)
    run.update([] if update_s is None else update_s.tolist())
    intervals = sorted(run.intervals, key=attrgetter("start_s", "resource", "kind", "micro_batch", "chunk"))
    return Timeline(schedule.name, tuple(intervals), max(interval.end_s for interval in intervals))
