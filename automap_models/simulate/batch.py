"""The simulated step of many plans at once: what simulate.engine gives, for plans of equal S, M and schedule.

Which message a link carries first depends on the times of a plan, but in few places only. Stage s with a warm-up of w
forward passes runs its forward pass j only after its backward pass j - w, and the next stage, whose warm-up is w',
its backward pass k only after its forward pass k + w' - 1. So on the link between them

    forward messages   0 … k + w' - 1   come before backward message k,
                       k + w …          come after it,
    and only           k + w' … k + w - 1   may come before or after it: with 1F1B one message, with GPipe none.

Where these messages do not wait for one another, all numbers are sums, minima and maxima of times in a fixed order, so
that the result is a lower bound that never falls when a time rises (`any_order`).

Everything else is a fixed chain of sums and maxima. The passes are evaluated in an order that is the same for all
plans: the warm-up from the first stage to the last; then, in round k, from the last stage to the first, backward pass k
and the forward pass after it. Each number of the simulation is an array over the plans.

A stage's buckets of gradients are ready during its last backward pass, when only the message of that pass has not yet
used the link to the stage before. So they go before that message and after all others. Tied sums follow at the end.

The middle of a schedule repeats itself. Where everything in some rounds happens as much later, in each plan, as in as
many rounds before, the rounds after them do the same: they are not played, but added at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import warm_up

PERIOD = 12
"""After so many rounds the middle of a schedule is held against itself: what repeats every 2, 3 or 4 is seen, too."""
ROUNDING = 1e-12
"""Relative difference of times that counts as none."""


class _Link:
    """The links between two neighbouring stages, one of each plan; all arrays are [P].

    Attributes:
        transfer_s: seconds of a message.
        free_s: when the link is free.
        ready_s: forward message → when it gets ready, of those that have not arrived in every plan.
        arrival_s: forward message → when it arrives; of those in `done` only in the plans that these say.
        done: forward message → in which plans the link has carried it already.
        any_order: whether messages either of which may go first do not wait for one another.
    """

    def __init__(self, transfer_s: FloatArray, any_order: bool) -> None:
        self.transfer_s, self.any_order = transfer_s, any_order
        self.free_s = np.zeros_like(transfer_s)
        self.ready_s: dict[int, FloatArray] = {}
        self.arrival_s: dict[int, FloatArray] = {}
        self.done: dict[int, NDArray[np.bool_]] = {}

    def carry(self, ready_s: FloatArray) -> FloatArray:
        """When a message that is next in every plan arrives."""
        self.free_s = np.maximum(ready_s, self.free_s) + self.transfer_s
        return self.free_s

    def carry_back(self, ready_s: FloatArray, candidates: range) -> FloatArray:
        """When a backward message arrives; the candidates go before it where they are ready no later than it.

        Afterwards the first of the candidates has arrived in every plan.
        """
        if self.any_order and candidates:
            return self._carry_both(ready_s, candidates[0])
        for j in candidates:
            before = self.ready_s[j] <= ready_s
            if j in self.done:
                before &= ~self.done[j]
            arrival_s = np.maximum(self.ready_s[j], self.free_s) + self.transfer_s
            self.arrival_s[j] = np.where(before, arrival_s, self.arrival_s.get(j, 0.0))
            self.free_s = np.where(before, arrival_s, self.free_s)
            self.done[j] = before | self.done[j] if j in self.done else before
        arrival_of_back_s = self.carry(ready_s)
        if candidates:
            j = candidates[0]
            done = self.done.pop(j)
            arrival_s = np.maximum(self.ready_s.pop(j), self.free_s) + self.transfer_s
            self.arrival_s[j] = np.where(done, self.arrival_s[j], arrival_s)
            self.free_s = np.where(done, self.free_s, arrival_s)
        return arrival_of_back_s

    def _carry_both(self, ready_s: FloatArray, j: int) -> FloatArray:
        """When a backward message arrives at the earliest, whether forward message j goes before it or after it."""
        forward_s, one_s = self.ready_s.pop(j), self.transfer_s
        self.arrival_s[j] = np.maximum(forward_s, self.free_s) + one_s
        arrival_of_back_s: FloatArray = np.maximum(ready_s, self.free_s) + one_s
        both_s = np.maximum(np.minimum(ready_s, forward_s), self.free_s) + 2.0 * one_s
        self.free_s = np.maximum(both_s, np.maximum(self.arrival_s[j], arrival_of_back_s))
        return arrival_of_back_s


class _Batch:
    """The state of one simulation of P plans; stages come first in all arrays.

    Attributes:
        forward_s, backward_s: [S][P] seconds of a pass.
        links: [S-1] between the stages s and s + 1.
        free_s: [S][P] when a stage is free.
        warm_up: [S] forward passes of a stage before its first backward pass.
        micro_batches: M.
    """

    def __init__(
        self,
        times: tuple[FloatArray, FloatArray, FloatArray],
        warm_up: list[int],
        micro: int,
        any_order: bool,
    ) -> None:
        forward_s, backward_s, transfer_s = times
        self.forward_s, self.backward_s = list(forward_s), list(backward_s)
        self.links = [_Link(of_link, any_order) for of_link in transfer_s]
        self.free_s = [np.zeros(forward_s.shape[1]) for _ in warm_up]
        self.warm_up, self.micro_batches = warm_up, micro

    def forward(self, stage: int, j: int) -> None:
        """Forward pass j of a stage; what comes before it has been evaluated."""
        free_s = self.free_s[stage]
        if stage:
            free_s = np.maximum(free_s, self.links[stage - 1].arrival_s.pop(j))
        self.free_s[stage] = free_s + self.forward_s[stage]
        if stage < len(self.links):
            link = self.links[stage]
            if j < self.warm_up[stage + 1]:
                link.arrival_s[j] = link.carry(self.free_s[stage])
            else:
                link.ready_s[j] = self.free_s[stage]

    def backward(self, stage: int, arrival_s: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """When a backward pass starts and ends whose gradient arrives then; None where no other stage sends it."""
        start_s = self.free_s[stage] if arrival_s is None else np.maximum(self.free_s[stage], arrival_s)
        self.free_s[stage] = start_s + self.backward_s[stage]
        return start_s, self.free_s[stage]

    def state_s(self) -> FloatArray:
        """[n, P] all times that the next rounds depend on, of messages in their order."""
        times = list(self.free_s)
        for link in self.links:
            times += [link.free_s, *(link.ready_s[j] for j in sorted(link.ready_s))]
            for j in sorted(link.arrival_s):  # of plans in which it has not arrived there is no time
                arrival_s = link.arrival_s[j]
                times.append(np.where(link.done[j], arrival_s, link.free_s) if j in link.done else arrival_s)
        return np.stack(times)

    @property
    def marks(self) -> list[tuple[int, bytes]]:
        """Which messages each link has carried already, counted from its first one under way."""
        firsts = [min((*link.ready_s, *link.arrival_s), default=0) for link in self.links]
        return [
            (j - first, link.done[j].tobytes())
            for link, first in zip(self.links, firsts, strict=True)
            for j in sorted(link.done)
        ]

    def skip(self, rounds: int, later_s: FloatArray) -> None:
        """Add so many rounds, which make everything so much later in each plan."""
        self.free_s = [free_s + later_s for free_s in self.free_s]
        for link in self.links:
            link.free_s = link.free_s + later_s
            link.ready_s = {j + rounds: ready_s + later_s for j, ready_s in link.ready_s.items()}
            link.arrival_s = {j + rounds: arrival_s + later_s for j, arrival_s in link.arrival_s.items()}
            link.done = {j + rounds: done for j, done in link.done.items()}

    def candidates(self, link: int, k: int) -> range:
        """The forward messages of a link that may come before or after backward message k."""
        return range(self.warm_up[link + 1] + k, min(self.micro_batches, self.warm_up[link] + k))


def simulate_batch(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray,
    micro_batches: int,
    schedule: str,
    ready_s: FloatArray | None = None,
    all_reduce_s: FloatArray | None = None,
    shares_link: NDArray[np.bool_] | Sequence[Sequence[bool]] | None = None,
    tied_s: FloatArray | None = None,
    tied_stages: NDArray[np.bool_] | None = None,
    *,
    any_order: bool = False,
) -> FloatArray:
    """[P] seconds of the simulated step of P plans, each equal to `Timeline.length_s` of engine.simulate.

    Args:
        forward_s, backward_s: [P, S] of one micro-batch's passes.
        transfer_s: [P, S-1] of one micro-batch over each link, one direction.
        micro_batches: M.
        schedule: a key of `core.pass_orders.WARM_UPS`.
        ready_s, all_reduce_s: [P, S, B] of the buckets of gradients (cost.overlap.Bucket) in the order in which they
            are reduced; unused ones take 0 s. None where nothing is reduced.
        shares_link: [P, S] whether a stage's buckets use the link to the stage before; None where none does.
        tied_s: [P, T] of the sums over copies of parameters, in their order; unused ones take 0 s. None for no sums.
        tied_stages: [P, T, S] which stages take part in them.
        any_order: whether messages either of which may go first do not wait for one another: then it is a lower bound,
            which never falls when a time rises. The warm-ups of neighbouring stages may differ by 1 at most.
    """
    stages = forward_s.shape[1]
    depths = [warm_up(schedule, s, stages, micro_batches) for s in range(stages)]
    passes_s, back_s, sends_s = (np.ascontiguousarray(times.T) for times in (forward_s, backward_s, transfer_s))
    batch = _Batch((passes_s, back_s, sends_s), depths, micro_batches, any_order)
    gradients = _Gradients(ready_s, all_reduce_s, shares_link)
    for s, depth in enumerate(depths):
        for j in range(depth):
            batch.forward(s, j)
    ends_s = list(batch.free_s)
    k, before = -1, None
    while (k := k + 1) < micro_batches:
        if k % PERIOD == 0 and k < micro_batches - max(depths) - PERIOD:
            state = batch.state_s(), batch.marks
            later_s = None if before is None else _later_s(before, state)
            before = state
            if later_s is not None:
                periods = (micro_batches - max(depths) - k) // PERIOD
                batch.skip(periods * PERIOD, periods * later_s)
                k, before = k + periods * PERIOD, None
        arrival_s: FloatArray | None = None
        for s in reversed(range(stages)):
            start_s, done_s = batch.backward(s, arrival_s)
            if k == micro_batches - 1:
                ends_s[s] = gradients.reduce(s, start_s, done_s, batch.links[s - 1] if s else None)
            if s:
                arrival_s = batch.links[s - 1].carry_back(done_s, batch.candidates(s - 1, k))
            if depths[s] + k < micro_batches:
                batch.forward(s, depths[s] + k)
    of_stages_s = np.stack(ends_s)
    if tied_s is not None and tied_stages is not None:
        for sum_s, holds in zip(tied_s.T, np.moveaxis(tied_stages, 0, 2), strict=True):
            end_s = np.where(holds, of_stages_s, 0.0).max(0) + sum_s
            of_stages_s = np.where(holds, end_s, of_stages_s)
    latest_s: FloatArray = of_stages_s.max(0)
    return latest_s


def _later_s(before: tuple[FloatArray, object], after: tuple[FloatArray, object]) -> FloatArray | None:
    """[P] how much later everything happens after some rounds; None where that is not the same for all of a plan."""
    if before[1] != after[1] or before[0].shape != after[0].shape:
        return None
    later_s = after[0] - before[0]
    same = np.ptp(later_s, axis=0) <= ROUNDING * after[0].max(axis=0)
    return later_s.mean(axis=0) if same.all() else None


class _Gradients:
    """The buckets of gradients of P plans: [S, B, P] ready_s and all_reduce_s, and [S, P] whether they share a link."""

    def __init__(self, ready_s: FloatArray | None, all_reduce_s: FloatArray | None, shares_link: object) -> None:
        self.ready_s = None if ready_s is None else np.ascontiguousarray(np.moveaxis(ready_s, 0, 2))
        self.all_reduce_s = None if all_reduce_s is None else np.ascontiguousarray(np.moveaxis(all_reduce_s, 0, 2))
        self.shares_link = None if shares_link is None else np.ascontiguousarray(np.asarray(shares_link, dtype=bool).T)

    def reduce(self, stage: int, pass_s: FloatArray, done_s: FloatArray, link: _Link | None) -> FloatArray:
        """[P] when a stage has reduced its gradients.

        Args:
            pass_s, done_s: when its last backward pass starts and ends.
            link: to the stage before.
        """
        if self.ready_s is None or self.all_reduce_s is None:
            return done_s
        end_s, shares = np.zeros_like(done_s), None if self.shares_link is None else self.shares_link[stage]
        for ready_s, duration_s in zip(self.ready_s[stage], self.all_reduce_s[stage], strict=True):
            start_s = np.maximum(np.maximum(pass_s, done_s + ready_s), end_s)
            if link is not None and shares is not None:
                start_s = np.where(shares, np.maximum(start_s, link.free_s), start_s)
                link.free_s = np.where(shares, start_s + duration_s, link.free_s)
            end_s = start_s + duration_s
        return np.maximum(done_s, end_s)
