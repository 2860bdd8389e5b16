"""Zero-bubble orders made for given times, after the heuristic of Qi et al. (2401.10241, section 3.1).

ZB-H2 (core.schedules) leaves no bubble where F, I and W passes take equally long, and some where they do not. Here a
rank decides pass by pass what comes next, by when its inputs arrive and by what it may hold:

    rank 0   F0 F1 F2 F3 .. .. I0 F4 I1 W0 I2 …
                         └1──┘          └2┘
    1   no input has arrived and no W is due: it waits
    2   the next input arrives late: it runs a W meanwhile

A rank that is free runs, of what it can, the first of these:

    I   whose gradient has arrived
    F   whose input has arrived, where what the rank holds stays within the limit; unless the next I arrives very soon
    W   where the limit keeps it from an F, where no I is left, where the next input arrives late, or where this rank
        has waited for longer than any other one

How soon is very soon and how late is late are shares of an F and of a W. All combinations of PATIENCE and GAPS are
tried, and ZB-H1 and ZB-H2 where they fit. The order wins whose longest rank is shortest, from its first pass to its
last one: the time of a step where ranks do not wait for one another before they update their weights, as the paper has
it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from automap_models.core.pass_orders import Action, ActionKind
from automap_models.core.profile import FloatArray
from automap_models.core.schedules import Schedule, build_schedule, most_held
from automap_models.errors import BadInput
from automap_models.simulate.engine import simulate

PATIENCE = (0.0, 0.1, 0.25, 0.5)
"""Shares of a forward pass for which a rank waits for an I rather than to run an F."""
GAPS = (0.0, 0.5, 1.0)
"""Shares of a W that a rank would have to wait otherwise for it to run the W."""
ROUNDING = 1e-9


def zero_bubble_schedule(
    forward_s: FloatArray,
    backward_s: FloatArray,
    weight_s: FloatArray,
    transfer_s: FloatArray,
    micro_batches: int,
    limit: float | None = None,
    kept: float = 1.0,
) -> Schedule:
    """An order for these times in which ranks wait little, within the memory of so many micro-batches.

    Args:
        forward_s, backward_s: [S] seconds of one micro-batch's passes; the backward pass is the whole one.
        weight_s: [S] what of the backward pass the gradients of the weights take.
        transfer_s: [S-1] seconds of one micro-batch between neighbouring ranks.
        micro_batches: M.
        limit: activations of micro-batches that a rank may hold; None is 2S, the schedule ZB-2p. S gives ZB-1p.
        kept: share of a micro-batch's activations that a rank keeps from I until W.

    Raises:
        BadInput: times of different numbers of stages, a weight gradient that takes longer than its backward pass, a
            limit below 1, or a share that is none.
    """
    ranks = forward_s.size
    if not backward_s.size == weight_s.size == transfer_s.size + 1 == ranks:
        what = f"forward passes of {ranks} stages, but other times of other numbers"
        raise BadInput(what, where="`backward_s`", do="give times of each stage, and of a transfer between each two")
    inputs_s = backward_s - weight_s
    if min(forward_s.min(), inputs_s.min(), weight_s.min(), transfer_s.min(initial=0.0)) < 0:
        raise BadInput("a pass takes less than no time", where="`weight_s`", do="give times of 0 s or more")
    if micro_batches < 1:
        raise BadInput(f"{micro_batches} micro-batches", where="`micro_batches`", do="give at least 1")
    limit = 2.0 * ranks if limit is None else limit
    if not limit >= 1.0:
        raise BadInput(f"a limit of {limit:g} micro-batches", where="`limit`", do="give at least 1")
    if not 0.0 <= kept <= 1.0:
        raise BadInput(f"a share of {kept:g}", where="`kept`", do="give a share from 0 to 1")

    def longest_s(schedule: Schedule) -> float:
        none = np.zeros(ranks)
        return simulate(forward_s, backward_s, transfer_s, none, schedule, weight_s=weight_s).longest_rank[0]

    times = (forward_s.tolist(), inputs_s.tolist(), weight_s.tolist(), transfer_s.tolist())
    runs = [_Greedy(*times, micro_batches, limit, kept).run(*rule) for rule in product(PATIENCE, GAPS)]
    greedy = min(runs, key=_Greedy.longest_s).orders
    candidates = [Schedule("greedy", tuple(map(tuple, greedy)), micro_batches)]
    best = min([*candidates, *_handcrafted(ranks, micro_batches, limit, kept)], key=longest_s)
    return Schedule(f"zb-{limit / ranks:g}p", best.orders, micro_batches)


def _handcrafted(ranks: int, micro_batches: int, limit: float, kept: float) -> Iterator[Schedule]:
    """ZB-H1 and ZB-H2 where they hold no more than the limit."""
    for name, plain in (("zb-h1", micro_batches % max(1, micro_batches // ranks) == 0), ("zb-h2", True)):
        if plain:
            schedule = build_schedule(name, ranks, micro_batches)
            if max(most_held(schedule, kept=[kept] * ranks)) <= limit + ROUNDING:
                yield schedule


class _Greedy:
    """Ranks that decide pass by pass; transfers take their time and never wait for one another.

    Attributes:
        duration: kind of action → [S] seconds.
        transfer: [S-1] seconds.
        limit, kept: see `zero_bubble_schedule`.
        next: kind of action → [S] the micro-batch of a rank's next pass of that kind.
        arrived: kind of action, F or I → [S] when the inputs of its passes arrive, of those that are on their way.
        free: [S] when a rank has run what it runs now.
        waited: [S] seconds that a rank has waited since its first pass.
        orders: [S] what it has run.
        waking: queue of (time, rank): when a rank looks what it can run.
    """

    def __init__(
        self,
        forward: list[float],
        inputs: list[float],
        weights: list[float],
        transfer: list[float],
        micro_batches: int,
        limit: float,
        kept: float,
    ) -> None:
        ranks = len(forward)
        self.duration: dict[ActionKind, list[float]] = {"F": forward, "I": inputs, "W": weights}
        self.transfer, self.micro_batches, self.limit, self.kept = transfer, micro_batches, limit, kept
        self.next: dict[ActionKind, list[int]] = {kind: [0] * ranks for kind in self.duration}
        self.arrived: dict[ActionKind, list[list[float]]] = {kind: [[] for _ in forward] for kind in ("F", "I")}
        self.arrived["F"][0] = [0.0] * micro_batches
        self.free, self.waited = [0.0] * ranks, [0.0] * ranks
        self.orders: list[list[Action]] = [[] for _ in forward]
        self.waking = [(0.0, 0)]

    def run(self, patience: float, gap: float) -> _Greedy:
        """Itself, with the orders that follow from one pair of shares."""
        while self.waking:
            now, rank = heapq.heappop(self.waking)
            if now < self.free[rank]:
                continue  # it looks again when it is free
            kind = self._choice(rank, now, patience, gap)
            if kind is not None:
                self._pass(rank, kind, now)
                continue
            look = min(
                (at for at in (self._arrival("F", rank), self._arrival("I", rank)) if at > now), default=math.inf
            )
            if look < math.inf:
                heapq.heappush(self.waking, (look, rank))
        return self

    def longest_s(self) -> float:
        """What the rank takes that takes longest, from its first pass to its last one."""
        busy = (sum(times) * self.micro_batches for times in zip(*self.duration.values(), strict=True))
        return max(map(sum, zip(busy, self.waited, strict=True)))

    def _arrival(self, kind: ActionKind, rank: int) -> float:
        """When the input of a rank's next pass of a kind arrives; infinite where it is not yet on its way."""
        arrived, position = self.arrived[kind][rank], self.next[kind][rank]
        return arrived[position] if position < len(arrived) else math.inf

    def _choice(self, rank: int, now: float, patience: float, gap: float) -> ActionKind | None:
        """What a free rank runs; None to wait."""
        forwards, inputs, weights = (self.next[kind][rank] for kind in ("F", "I", "W"))
        next_forward, next_input = self._arrival("F", rank), self._arrival("I", rank)
        held = forwards - inputs + self.kept * (inputs - weights)
        full = held + 1.0 > self.limit + ROUNDING
        if next_input <= now:
            return "I"
        if next_forward <= now and not full and next_input >= now + patience * self.duration["F"][rank]:
            return "F"
        if weights == inputs:
            return None
        wait = min(next_input, math.inf if full else next_forward) - now
        late = wait >= gap * self.duration["W"][rank] or self.waited[rank] + wait > max(self.waited)
        return "W" if late or inputs == self.micro_batches or (full and next_forward <= now) else None

    def _pass(self, rank: int, kind: ActionKind, now: float) -> None:
        """Run a rank's next pass of a kind, and hand on what it computes."""
        if self.orders[rank]:
            self.waited[rank] += now - self.free[rank]
        self.orders[rank].append(Action(kind, rank, self.next[kind][rank]))
        self.next[kind][rank] += 1
        end = self.free[rank] = now + self.duration[kind][rank]
        heapq.heappush(self.waking, (end, rank))
        if kind == "F" and rank == len(self.free) - 1:
            self.arrived["I"][rank].append(end)
        elif kind == "F" or (kind == "I" and rank):
            other, link = (rank + 1, rank) if kind == "F" else (rank - 1, rank - 1)
            arrival = end + self.transfer[link]
            self.arrived[kind][other].append(arrival)
            for look in (now, arrival):  # now, because it may decide otherwise where it knows what is on its way
                heapq.heappush(self.waking, (max(look, self.free[other]), other))
