"""The orders of passes of one rank: what named schedules are made of (core.schedules draws them).

A function of (rank, S, M, vp) gives the passes of a rank: 1F1B and its kin by their warm-up, interleaved and ZB-H1 in
rounds of micro-batches over virtual stages, ZB-V and DualPipeV by the pieces in which their papers draw them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from automap_models.errors import BadInput

ActionKind = Literal["F", "B", "I", "W"]
"""Forward, whole backward, gradients of the inputs, gradients of the weights."""
FORWARD, WHOLE, INPUT, WEIGHT = 0, 1, 2, 3
"""Their numbers where schedules are arrays."""


class Action(NamedTuple):
    """One pass of one micro-batch through a virtual stage; `str` writes it as torch does, such as 3F0."""

    kind: ActionKind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[Action, ...]


def _alternate(forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int) -> list[Action]:
    """So many forward passes, then backward and forward by turns, then the backward passes that are left."""
    order = list(forwards[:warm_up])
    for backward, forward in zip(backwards, forwards[warm_up:], strict=False):
        order += (backward, forward)
    return order + list(backwards[len(forwards) - warm_up :])


def _passes(kind: ActionKind, stage: int, micro_batches: int) -> list[Action]:
    return [Action(kind, stage, m) for m in range(micro_batches)]


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


def by_warm_up(name: str) -> Callable[[int, int, int, int], list[Action]]:
    """The orders of a schedule that is its warm-up alone; `name` is a key of WARM_UPS."""

    def order(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
        forwards, backwards = _passes("F", rank, micro_batches), _passes("B", rank, micro_batches)
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


def _in_rounds(kind: ActionKind, rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """One kind of pass of a rank: R micro-batches through each of its virtual stages, from first to last or back."""
    a_round = micro_batches_per_round(ranks, micro_batches)
    chunks = range(virtual) if kind == "F" else range(virtual - 1, -1, -1)
    return [
        Action(kind, chunk * ranks + rank, m)
        for first in range(0, micro_batches, a_round)
        for chunk in chunks
        for m in range(first, first + a_round)
    ]


def interleaved(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """1F1B over the virtual stages of a rank, in rounds (Narayanan et al., 2104.04473)."""
    forwards = _in_rounds("F", rank, ranks, micro_batches, virtual)
    backwards = _in_rounds("B", rank, ranks, micro_batches, virtual)
    a_round = micro_batches_per_round(ranks, micro_batches)
    warm_up = (virtual - 1) * a_round + 2 * (ranks - 1 - rank) + 1
    return _alternate(forwards, backwards, min(len(forwards), warm_up))


def _delay_weights(order: list[Action], delay: int) -> list[Action]:
    """After each input gradient but the first ones the oldest weight gradient that is due; those left come last.

    Args:
        order: of F and I passes.
        delay: input gradients before the one that the first weight gradient follows.
    """
    due = [Action("W", stage, m) for kind, stage, m in order if kind == "I"]
    delayed, run = [], 0
    for action in order:
        delayed.append(action)
        if action.kind == "I":
            run += 1
            if run > delay:
                delayed.append(due[run - 1 - delay])
    return delayed + due[max(0, run - delay) :]


def zb_h1(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """Every rank has as many micro-batches between F and W as rank 0 has in flight with 1F1B."""
    forwards = _in_rounds("F", rank, ranks, micro_batches, virtual)
    inputs = _in_rounds("I", rank, ranks, micro_batches, virtual)
    a_round = micro_batches_per_round(ranks, micro_batches)
    warm_up = (virtual - 1) * a_round + ranks - rank
    return _delay_weights(_alternate(forwards, inputs, min(len(forwards), warm_up)), rank)


def zb_h2(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """Every rank has 2S - 1 micro-batches between F and W.

    Rank 1 of 4, 8 micro-batches:

        F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7
    """
    forwards, inputs = _passes("F", rank, micro_batches), _passes("I", rank, micro_batches)
    warm_up = _one_f_one_b_deep(rank, ranks, micro_batches)
    return _delay_weights(_alternate(forwards, inputs, warm_up), 2 * rank)


class _Chunks:
    """The order of one rank with two virtual stages in a V; each pass takes the next micro-batch of its kind."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.stages = (rank, 2 * ranks - 1 - rank)
        self.order: list[Action] = []
        self.next: Counter[tuple[ActionKind, int]] = Counter()
        self.owed: deque[Action] = deque()

    def run(self, *passes: str) -> None:
        """Run passes such as F0: forward, first virtual stage of the rank."""
        for one in passes:
            kind: ActionKind = one[0]  # type: ignore[assignment]
            chunk = int(one[1])
            counted: ActionKind = "I" if kind == "B" else kind
            action = Action(kind, self.stages[chunk], self.next[counted, chunk])
            self.next[counted, chunk] += 1
            self.order.append(action)
            if kind == "I":
                self.owed.append(action._replace(kind="W"))

    def pay(self) -> None:
        """Run the oldest weight gradient that is left, if one is."""
        if self.owed:
            self.order.append(self.owed.popleft())


def zb_v(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """As torch has it: the order of at least 2S - 1 micro-batches, of which those that there are run."""
    full = max(2 * ranks - 1, micro_batches)
    chunks = _Chunks(rank, ranks)
    chunks.run(*["F0"] * (2 * (ranks - rank) - 1), *["F1", "F0"] * rank, *["F1", "I1", "W1"] * (ranks - rank))
    while chunks.next["F", 1] < full:
        if chunks.next["F", 0] < full:
            chunks.run("F0")
        chunks.run("I0", "W0", "F1", "I1", "W1")
    chunks.run(*["I0", "I1"] * rank, *["I0", "W0"] * (ranks - rank))
    for chunk in (1, 0):
        chunks.run(*[f"W{chunk}"] * (full - chunks.next["W", chunk]))
    return [action for action in chunks.order if action.micro_batch < micro_batches]


def dualpipev(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """As torch has it: of its pairs of a forward and a backward pass the forward one runs first.

    Its last backward passes are split: those after the first half of the rank + 1 pairs B1 B0.
    """
    chunks, after = _Chunks(rank, ranks), ranks - 1 - rank
    chunks.run(*["F0"] * (2 * after), *["F0", "F1"] * (rank + 1))
    for _ in range(after):
        chunks.run("I1")
        chunks.pay()
        chunks.run("F1")
    chunks.run(*["F0", "B1", "F1", "B0"] * (micro_batches - 2 * ranks + rank + 1), *["B1", "F1", "B0"] * after)
    chunks.run(*(f"{'B' if i <= rank else 'I'}{(i + 1) % 2}" for i in range(2 * (rank + 1))))
    for _ in range(after):
        chunks.pay()
        chunks.run("I0")
    for _ in range(rank + 1):
        chunks.pay()
    return chunks.order
