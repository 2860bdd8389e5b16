"""The orders of passes of one rank: what named schedules are made of (core.schedules draws them).

A function of (rank, S, M, vp) gives the passes of a rank: 1F1B and its kin by their warm-up, interleaved and ZB-H1 in
rounds of micro-batches over virtual stages, ZB-V and DualPipeV by the pieces in which their papers draw them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from automap_models.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Passes = NDArray[np.int64]
    """[n, 3] the passes of a rank in their order: the number of the kind in KINDS, virtual stage, micro-batch."""

ActionKind = Literal["F", "B", "I", "W"]
"""Forward, whole backward, gradients of the inputs, gradients of the weights."""
KINDS: tuple[ActionKind, ...] = ("F", "B", "I", "W")
FORWARD, WHOLE, INPUT, WEIGHT = range(len(KINDS))


class Action(NamedTuple):
    """One pass of one micro-batch through a virtual stage; `str` writes it as torch does, such as 3F0."""

    kind: ActionKind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[Action, ...]


def actions_of(passes: Passes) -> Order:
    """The same passes, each with its name."""
    return tuple(Action(KINDS[kind], stage, micro_batch) for kind, stage, micro_batch in passes.tolist())


def passes_of(order: Order) -> Passes:
    """The same passes as numbers."""
    import numpy as np  # here, as everywhere in this module, because the commands' help reads it and is to be fast

    numbers = [(KINDS.index(kind), stage, micro_batch) for kind, stage, micro_batch in order]
    return np.array(numbers, dtype=np.int64).reshape(-1, 3)


def _alternate(forwards: Passes, backwards: Passes, warm_up: int) -> Passes:
    """So many forward passes, then backward and forward by turns, then the backward passes that are left."""
    import numpy as np

    turns = len(forwards) - warm_up
    by_turns = np.stack([backwards[:turns], forwards[warm_up:]], axis=1).reshape(-1, 3)
    return np.concatenate([forwards[:warm_up], by_turns, backwards[turns:]])


def _passes(kind: int, stage: int, micro_batches: int) -> Passes:
    import numpy as np

    passes = np.empty((micro_batches, 3), dtype=np.int64)
    passes[:, 0], passes[:, 1], passes[:, 2] = kind, stage, np.arange(micro_batches)
    return passes


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> int:
    return min(micro_batches, stages - stage)


def _one_f_one_b_deep(stage: int, stages: int, micro_batches: int) -> int:
    return min(micro_batches, 2 * (stages - stage) - 1)


def _gpipe(stage: int, stages: int, micro_batches: int) -> int:
    return micro_batches


WARM_UPS: dict[str, Callable[[int, int, int], int]] = {
    "1f1b": _one_f_one_b,
    "1f1b-deep": _one_f_one_b_deep,
    "gpipe": _gpipe,
}
"""The schedules that are their warm-up alone, which planners search under, by name: function of (stage, stages,
micro_batches) → the stage's warm-up, which is also the number of micro-batches whose activations it holds at once."""


def by_warm_up(name: str) -> Callable[[int, int, int, int], Passes]:
    """The orders of a schedule that is its warm-up alone; `name` is a key of WARM_UPS."""

    def order(rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
        forwards, backwards = _passes(FORWARD, rank, micro_batches), _passes(WHOLE, rank, micro_batches)
        return _alternate(forwards, backwards, WARM_UPS[name](rank, ranks, micro_batches))

    return order


def micro_batches_per_round(ranks: int, micro_batches: int) -> int:
    """R: that go through a virtual stage before the rank turns to its next one, as torch has it: S where S divides M.

    Raises:
        BadInput: M micro-batches do not make equal rounds of S or more.
    """
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        what = f"{micro_batches} micro-batches do not make {rounds} equal rounds on {ranks} ranks"
        raise BadInput(what, where="`micro_batches`", do=f"give a multiple of {ranks}, or of {rounds}")
    return micro_batches // rounds


def _in_rounds(kind: int, rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
    """One kind of pass of a rank: R micro-batches through each of its virtual stages, from first to last or back."""
    import numpy as np

    a_round = micro_batches_per_round(ranks, micro_batches)
    stages = np.arange(virtual)[:: 1 if kind == FORWARD else -1] * ranks + rank
    passes = np.empty((micro_batches // a_round, virtual, a_round, 3), dtype=np.int64)
    passes[..., 0], passes[..., 1] = kind, stages[:, None]
    passes[..., 2] = np.arange(micro_batches).reshape(-1, 1, a_round)
    return passes.reshape(-1, 3)


def interleaved(rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
    """1F1B over the virtual stages of a rank, in rounds (Narayanan et al., 2104.04473)."""
    forwards = _in_rounds(FORWARD, rank, ranks, micro_batches, virtual)
    backwards = _in_rounds(WHOLE, rank, ranks, micro_batches, virtual)
    a_round = micro_batches_per_round(ranks, micro_batches)
    warm_up = (virtual - 1) * a_round + 2 * (ranks - 1 - rank) + 1
    return _alternate(forwards, backwards, min(len(forwards), warm_up))


def _delay_weights(order: Passes, delay: int) -> Passes:
    """After each input gradient but the first ones the oldest weight gradient that is due; those left come last.

    Args:
        order: of F and I passes.
        delay: input gradients before the one that the first weight gradient follows.
    """
    import numpy as np

    places = np.flatnonzero(order[:, 0] == INPUT)
    due = order[places]
    due[:, 0] = WEIGHT
    follows = places[delay:] + 1
    return np.concatenate([np.insert(order, follows, due[: follows.size], axis=0), due[follows.size :]])


def zb_h1(rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
    """Every rank has as many micro-batches between F and W as rank 0 has in flight with 1F1B."""
    forwards = _in_rounds(FORWARD, rank, ranks, micro_batches, virtual)
    inputs = _in_rounds(INPUT, rank, ranks, micro_batches, virtual)
    a_round = micro_batches_per_round(ranks, micro_batches)
    warm_up = (virtual - 1) * a_round + ranks - rank
    return _delay_weights(_alternate(forwards, inputs, min(len(forwards), warm_up)), rank)


def zb_h2(rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
    """Every rank has 2S - 1 micro-batches between F and W.

    Rank 1 of 4, 8 micro-batches:

        F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7
    """
    forwards, inputs = _passes(FORWARD, rank, micro_batches), _passes(INPUT, rank, micro_batches)
    warm_up = _one_f_one_b_deep(rank, ranks, micro_batches)
    return _delay_weights(_alternate(forwards, inputs, warm_up), 2 * rank)


def _in_v(rank: int, ranks: int, kinds: list[str]) -> Passes:
    """The order of a rank with two virtual stages in a V, from passes such as F0: forward, its first virtual stage.

    A forward or a backward pass takes the next micro-batch of its virtual stage. So does a weight gradient; one that
    names no stage, W?, is the one that has been due for longest.
    """
    import numpy as np

    letters = np.frombuffer("".join(kinds).encode(), dtype=np.uint8).reshape(-1, 2)
    number_of = np.zeros(256, dtype=np.int64)
    number_of[[ord(kind) for kind in KINDS]] = range(len(KINDS))
    kind, chunk = number_of[letters[:, 0]], letters[:, 1].astype(np.int64) - ord("0")
    oldest, due = letters[:, 1] == ord("?"), np.flatnonzero(kind == INPUT)
    micro_batches = np.zeros(kind.size, dtype=np.int64)
    for of_kind in (kind == FORWARD, (kind == WHOLE) | (kind == INPUT), kind == WEIGHT):
        for of_chunk in (0, 1):
            places = np.flatnonzero(of_kind & (chunk == of_chunk))
            micro_batches[places] = np.arange(places.size)
    due = due[: int(oldest.sum())]
    chunk[oldest], micro_batches[oldest] = chunk[due], micro_batches[due]
    stages = np.where(chunk == 0, rank, 2 * ranks - 1 - rank)
    return np.stack([kind, stages, micro_batches], axis=1)


def zb_v(rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
    """As torch has it: the order of at least 2S - 1 micro-batches, of which those that there are run."""
    full, after = max(2 * ranks - 1, micro_batches), ranks - rank
    begin = ["F0"] * (2 * after - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * after
    turn = ["I0", "W0", "F1", "I1", "W1"]
    steady = ["F0", *turn] * (full - rank - 2 * after + 1) + turn * (after - 1)
    ending = ["I0", "I1"] * rank + ["I0", "W0"] * after
    weights = [one for one in begin + steady + ending if one[0] == "W"]
    left = [f"W{chunk}" for chunk in (1, 0) for _ in range(full - weights.count(f"W{chunk}"))]
    order = _in_v(rank, ranks, begin + steady + ending + left)
    return order[order[:, 2] < micro_batches]


def dualpipev(rank: int, ranks: int, micro_batches: int, virtual: int) -> Passes:
    """As torch has it: of its pairs of a forward and a backward pass the forward one runs first.

    Its last backward passes are split: those after the first half of the rank + 1 pairs B1 B0.
    """
    after = ranks - 1 - rank
    order = ["F0"] * (2 * after) + ["F0", "F1"] * (rank + 1) + ["I1", "W?", "F1"] * after
    order += ["F0", "B1", "F1", "B0"] * (micro_batches - 2 * ranks + rank + 1) + ["B1", "F1", "B0"] * after
    split = [f"{'B' if i <= rank else 'I'}{(i + 1) % 2}" for i in range(2 * (rank + 1))]
    order += split
    due = sum(one[0] == "I" for one in split)
    for _ in range(after):  # a weight gradient is run where one is due
        order += ["W?", "I0"] if due else ["I0"]
        due += 0 if due else 1
    return _in_v(rank, ranks, order + ["W?"] * min(due, rank + 1))
