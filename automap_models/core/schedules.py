"""A schedule is data: for every rank of a pipeline, the fixed order of its passes.

A pipeline has S ranks and M micro-batches. A rank is the group of devices that holds one stage, or, with vp virtual
stages, vp of them. A pass is one of four actions on one micro-batch of one virtual stage:

    F   forward
    B   backward, whole: gradients of the inputs and of the weights
    I   the gradients of the inputs alone, which the stage before waits for
    W   the gradients of the weights alone, which nothing waits for before the step ends

Three schedules differ in one number, the warm-up: how many forward passes a stage runs before its first backward pass.
From then on it alternates, and it ends with the backward passes that are left. As many micro-batches as the warm-up
has are in flight on the stage at once, and it keeps their activations. Planners search under these three.

    1f1b        min(M, S - s) on stage s: as many as there are stages from s on
    1f1b-deep   min(M, 2(S - s) - 1): more micro-batches in flight, which hide transfers between stages
    gpipe       M: all forward passes before the first backward pass

3 stages, 4 micro-batches, one row a stage (F0 and B0 are the forward and backward passes of micro-batch 0):

    1f1b                          1f1b-deep                     gpipe
    F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3
    F0 F1 B0 F2 B1 F3 B2 B3       F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3
    F0 B0 F1 B1 F2 B2 F3 B3       F0 B0 F1 B1 F2 B2 F3 B3       F0 F1 F2 F3 B0 B1 B2 B3

The others hold several virtual stages on a rank, or split the backward pass, or both:

    interleaved   1F1B over vp virtual stages a rank, in rounds of micro-batches (Narayanan et al., 2104.04473)
    zb-h1         1F1B whose W passes fill the bubble at the end; no more activations than 1F1B (Qi et al., 2401.10241)
    zb-h2         the warm-up of 1f1b-deep, W passes delayed until no rank ever waits where F, I and W take equally long
    zb-v          two virtual stages a rank in a V: without bubble in the memory of 1F1B (2401.10241, section 6)
    dualpipev     two in a V, forward passes of one beside backward passes of the other (DeepSeek-V3, 2412.19437)

Virtual stages are numbered in the order of the model. Where they lie, with 3 ranks and vp = 2:

    looping   rank 0: 0, 3   rank 1: 1, 4   rank 2: 2, 5        v   rank 0: 0, 5   rank 1: 1, 4   rank 2: 2, 3

A row is an order, not a time: when a pass starts is for the simulation (simulate.engine) to say.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from automap_models.core.pass_orders import (
    WARM_UPS,
    Action,
    Order,
    by_warm_up,
    dualpipev,
    interleaved,
    micro_batches_per_round,
    zb_h1,
    zb_h2,
    zb_v,
)
from automap_models.errors import BadInput, is_of_type

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Placement = Literal["looping", "v"]


@dataclass(frozen=True)
class Schedule:
    """The order of passes of every rank.

    Attributes:
        name: a key of SCHEDULES, or any other for an order of one's own.
        orders: [S] the passes of each rank.
        micro_batches: M.
        virtual: vp, virtual stages a rank.
        placement: how virtual stages lie on ranks.

    Raises:
        BadInput: a pass is missing or stands twice, is on the wrong rank, or waits for one that comes after it.
    """

    name: str
    orders: tuple[Order, ...]
    micro_batches: int
    virtual: int = 1
    placement: Placement = "looping"

    def __post_init__(self) -> None:
        _require_complete(self)
        _ = self.turns

    @property
    def ranks(self) -> int:
        """S."""
        return len(self.orders)

    @property
    def stages(self) -> int:
        """Virtual stages S·vp."""
        return self.ranks * self.virtual

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights have passes of their own."""
        return any(action.kind == "I" for order in self.orders for action in order)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """[S·vp] the rank of each virtual stage."""
        return ranks_of_stages(self.stages, self.ranks, self.placement)

    @cached_property
    def waiting(self) -> tuple[tuple[tuple[int, ...], NDArray[np.int64]], ...]:
        """[S] virtual stages of each rank, and how many micro-batches of each wait there.

        The second is int64 [k, 2, vp]: k different moments; for B or I, and for W after I; which virtual stage.
        """
        stages = [tuple(s for s, at in enumerate(self.rank_of) if at == rank) for rank in range(self.ranks)]
        return tuple((held, _waiting(order, held)) for order, held in zip(self.orders, stages, strict=True))

    @cached_property
    def turns(self) -> tuple[tuple[int, ...], ...]:
        """[S] of each rank's passes, where they stand in one order of all passes in which none comes before its inputs.

        Of the passes that could come next a forward one does, of several the one of the first stage; else the backward
        one of the first micro-batch. Messages that get ready at the same time go in this order.

        Raises:
            BadInput: there is no such order: ranks wait for each other for ever.
        """
        return _turns(self)


def _waiting(order: Order, stages: tuple[int, ...]) -> NDArray[np.int64]:
    """See Schedule.waiting."""
    import numpy as np  # here, because the commands' help reads this module and is to be fast

    change = {"F": (1, 0), "B": (-1, 0), "I": (-1, 1), "W": (0, -1)}
    column = {stage: i for i, stage in enumerate(stages)}
    counts = np.zeros((len(order) + 1, 2, len(stages)), dtype=np.int64)
    for position, (kind, stage, _) in enumerate(order):
        counts[position + 1, :, column[stage]] = change[kind]
    return np.unique(np.cumsum(counts, axis=0), axis=0)


def rank_of(stage: int, ranks: int, placement: Placement) -> int:
    """The rank of a virtual stage."""
    lap, rank = divmod(stage, ranks)
    return ranks - 1 - rank if placement == "v" and lap % 2 else rank


@lru_cache(maxsize=4096)
def ranks_of_stages(stages: int, ranks: int, placement: Placement) -> tuple[int, ...]:
    """[V] the rank of each virtual stage."""
    return tuple(rank_of(stage, ranks, placement) for stage in range(stages))


def _require_complete(schedule: Schedule) -> None:
    """Every micro-batch passes every virtual stage once forward and once backward, on its rank."""

    def refuse(what: str) -> BadInput:
        return BadInput(f"schedule {schedule.name}: {what}", where="`orders`", do="give every pass once, on its rank")

    stages, micro_batches = schedule.stages, schedule.micro_batches
    count = {kind: [0] * (stages * micro_batches) for kind in ("F", "B", "I", "W")}
    for rank, order in enumerate(schedule.orders):
        for action in order:
            kind, stage, micro_batch = action
            if not (0 <= stage < stages and 0 <= micro_batch < micro_batches):
                raise refuse(f"there is no pass {action}")
            if schedule.rank_of[stage] != rank:
                raise refuse(f"pass {action} is on rank {rank}, its stage on rank {schedule.rank_of[stage]}")
            count[kind][stage * micro_batches + micro_batch] += 1
    for i, counts in enumerate(zip(count["F"], count["B"], count["I"], count["W"], strict=True)):
        if counts not in ((1, 1, 0, 0), (1, 0, 1, 1)):
            forward, whole, inputs, weights = counts
            kinds = f"{forward} F, {whole} B, {inputs} I and {weights} W"
            stage, micro_batch = divmod(i, micro_batches)
            raise refuse(f"micro-batch {micro_batch} has {kinds} on virtual stage {stage}")


def _turns(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """See Schedule.turns. A rank stands in the queue from when the inputs of its next pass are there."""
    orders, last, micro_batches = schedule.orders, schedule.stages - 1, schedule.micro_batches
    turns: list[list[int]] = [[] for _ in orders]
    forward, backward = [False] * (last + 1) * micro_batches, [False] * (last + 1) * micro_batches
    queue: list[tuple[bool, int, int, int]] = []
    queued = [False] * schedule.ranks
    turn, looking = 0, list(range(schedule.ranks))
    while looking:
        for rank in looking:
            position = len(turns[rank])
            if queued[rank] or position == len(orders[rank]):
                continue
            kind, stage, m = orders[rank][position]
            at = stage * micro_batches + m
            if kind == "F":
                ready = stage == 0 or forward[at - micro_batches]
            elif kind == "W":
                ready = backward[at]
            else:
                ready = forward[at] and (stage == last or backward[at + micro_batches])
            if ready:
                queued[rank] = True
                heapq.heappush(queue, (False, stage, m, rank) if kind == "F" else (True, m, -stage, rank))
        looking = []
        if queue:
            back, *_, rank = heapq.heappop(queue)
            kind, stage, m = orders[rank][len(turns[rank])]
            turns[rank].append(turn)
            turn, queued[rank], looking = turn + 1, False, [rank]
            receiver = stage - 1 if back else stage + 1
            if kind != "W":
                (backward if back else forward)[stage * micro_batches + m] = True
                if 0 <= receiver <= last:
                    looking.append(schedule.rank_of[receiver])
    for rank, order in enumerate(orders):
        if len(turns[rank]) < len(order):
            what = f"schedule {schedule.name}: rank {rank} waits for ever before {order[len(turns[rank])]}"
            raise BadInput(what, where="`orders`", do="let no pass wait for one that comes after it")
    return tuple(map(tuple, turns))


class _Family(NamedTuple):
    """What a named schedule is made of.

    Attributes:
        order: function of (rank, S, M, vp) → the passes of a rank.
        placement: how its virtual stages lie on ranks.
        virtual: its number of virtual stages a rank; None is any.
    """

    order: Callable[[int, int, int, int], list[Action]]
    placement: Placement = "looping"
    virtual: int | None = 1


SCHEDULES: dict[str, _Family] = {
    **{name: _Family(by_warm_up(name)) for name in WARM_UPS},
    "interleaved": _Family(interleaved, virtual=None),
    "zb-h1": _Family(zb_h1, virtual=None),
    "zb-h2": _Family(zb_h2),
    "zb-v": _Family(zb_v, "v", 2),
    "dualpipev": _Family(dualpipev, "v", 2),
}
"""All schedules by name."""


DEFAULT_SCHEDULE = "1f1b"
"""What frameworks run unless they are told otherwise."""
MOST_PASSES = 2_000_000
"""Forward passes of a schedule that is laid out; more is a slip of the pen."""
ROUNDS_SHOWN = 3
"""Rounds of S micro-batches that `repeating_micro_batches` keeps, one more where ranks run in rounds; the warm-up of
all schedules is shorter than two."""
DEFAULT_MIN_GAIN = 0.02
"""How much shorter, relatively, a plan has to be for each step that it is harder to run than a simpler one."""


def require_schedule(name: str) -> str:
    """The name itself.

    Raises:
        BadInput: planners search under no such schedule.
    """
    if name not in WARM_UPS:
        what, do = f"unknown schedule {name!r}", f"choose from {', '.join(WARM_UPS)}"
        if name in SCHEDULES:
            what = f"no plan is made for schedule {name!r}"
        raise BadInput(what, where="`schedule`", do=do)
    return name


def require_gain(min_gain: float) -> None:
    """Refuse what is no share.

    Raises:
        BadInput: it is below 0 or above 1, or no number.
    """
    if not isinstance(min_gain, (int, float)):
        raise BadInput(is_of_type(min_gain), where="`min_gain`", do="give a share from 0 to 1, such as 0.005")
    if not 0.0 <= min_gain <= 1.0:
        raise BadInput(f"a gain of {min_gain:g}", where="`min_gain`", do="give a share from 0 to 1, such as 0.005")


def warm_up(name: str | None, stage: int, stages: int, micro_batches: int) -> int:
    """Forward passes of a stage before its first backward pass; without a schedule those of 1F1B.

    Args:
        name: a key of WARM_UPS, or None.
        stage: counted from 0.
        stages: S.
        micro_batches: M.
    """
    return WARM_UPS[name or DEFAULT_SCHEDULE](stage, stages, micro_batches)


def require_runnable(name: str, ranks: int, micro_batches: int, virtual: int) -> None:
    """Refuse numbers that a schedule does not run; see `build_schedule`.

    Raises:
        BadInput: there is no such schedule, it does not run so many micro-batches or virtual stages, or has more than
            MOST_PASSES that do not repeat themselves.
    """
    if name not in SCHEDULES:
        raise BadInput(f"unknown schedule {name!r}", where="`schedule`", do=f"choose from {', '.join(SCHEDULES)}")
    for where, count in (("`ranks`", ranks), ("`micro_batches`", micro_batches), ("`virtual`", virtual)):
        if count < 1:
            raise BadInput(f"{count} is no number of them", where=where, do="give at least 1")
    family = SCHEDULES[name]
    if family.virtual not in (None, virtual):
        what = f"schedule {name} with {virtual} virtual stage(s) a rank"
        raise BadInput(what, where="`virtual`", do=f"give {family.virtual}")
    if family.virtual is None:
        micro_batches_per_round(ranks, micro_batches)
    if name == "dualpipev" and micro_batches < 2 * ranks:
        what = f"schedule {name} with {micro_batches} micro-batches on {ranks} ranks"
        raise BadInput(what, where="`micro_batches`", do=f"give at least {2 * ranks}, one a virtual stage")
    shown, _ = repeating_micro_batches(name, ranks, micro_batches, virtual)
    if ranks * virtual * shown > MOST_PASSES:
        require_few_passes(name, ranks * virtual, micro_batches)


def require_few_passes(name: str, stages: int, micro_batches: int) -> None:
    """Refuse what has more than MOST_PASSES.

    Raises:
        BadInput: it has.
    """
    if stages * micro_batches > MOST_PASSES:
        what = f"schedule {name} with {micro_batches} micro-batches through {stages} stages"
        raise BadInput(what, where="`micro_batches`", do=f"give at most {MOST_PASSES // stages}")


def repeating_micro_batches(name: str, ranks: int, micro_batches: int, virtual: int) -> tuple[int, int]:
    """(M', R): M' of the M micro-batches show all of a schedule, whose middle repeats itself every R micro-batches.

        M    warm-up | steady … steady … steady … steady | ending
        M'   warm-up | steady … steady | ending               M - M' is a multiple of R

    With M' a rank already holds as much as with M. They are M where there is no such middle: with GPipe, and in rounds
    of other than S micro-batches.

    Args:
        name: a key of SCHEDULES.
        ranks, micro_batches, virtual: S, M, vp; see `require_runnable`.
    """
    in_rounds = SCHEDULES[name].virtual is None
    if name == "gpipe" or (in_rounds and micro_batches % ranks):
        return micro_batches, micro_batches
    a_round = ranks if in_rounds else 1
    skipped = max(0, micro_batches - (ROUNDS_SHOWN + in_rounds) * ranks) // a_round * a_round
    return micro_batches - skipped, a_round


@lru_cache(maxsize=256)
def build_schedule(name: str, ranks: int, micro_batches: int, virtual: int | None = None) -> Schedule:
    """The schedule of that name for S ranks, M micro-batches and vp virtual stages a rank.

    Args:
        name: a key of SCHEDULES.
        ranks: S.
        micro_batches: M.
        virtual: vp; None is what the schedule has, 1 where it may have any.

    Raises:
        BadInput: see `require_runnable`; or it has more than MOST_PASSES.
    """
    if virtual is None:
        virtual = (SCHEDULES[name].virtual if name in SCHEDULES else 1) or 1
    require_runnable(name, ranks, micro_batches, virtual)
    require_few_passes(name, ranks * virtual, micro_batches)
    family = SCHEDULES[name]
    orders = tuple(tuple(family.order(rank, ranks, micro_batches, virtual)) for rank in range(ranks))
    return Schedule(name, orders, micro_batches, virtual, family.placement)


def most_held(
    schedule: Schedule, saved: Sequence[float] | None = None, kept: Sequence[float] = ()
) -> tuple[float, ...]:
    """[S] the most that a rank holds at once for passes that are still to come, counted from its order.

    Without arguments it is the number of micro-batches of virtual stages whose activations wait for their backward
    pass; with bytes it is bytes, in which a V or a loop may have stages of different sizes on a rank.

    Args:
        schedule: of S ranks with vp virtual stages each.
        saved: [S·vp] what a virtual stage saves of a micro-batch from F until B or I; None is 1 each.
        kept: [S·vp] what of it a virtual stage keeps from I until W, for the gradients of the weights; empty is 0 each.
    """
    import numpy as np

    saved = [1.0] * schedule.stages if saved is None else saved
    kept = kept if len(kept) else [0.0] * schedule.stages
    held = np.array([saved, kept], dtype=np.float64)
    return tuple(
        float((waiting * held[:, list(stages)]).sum(axis=(1, 2)).max()) for stages, waiting in schedule.waiting
    )
