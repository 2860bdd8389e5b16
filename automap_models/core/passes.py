"""The order of passes of every rank: an array, from which thousands of strategies are priced, that prints itself.

This is where orders of passes come from: 1F1B and its kin by their warm-up, interleaved and ZB-H1 in rounds of
micro-batches over virtual stages, ZB-V and DualPipeV by the pieces in which their papers draw them.

    passes   [3, n] of a rank: kind (core.schedules), virtual stage and micro-batch of each of its passes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.dag import topological_order
from automap_models.core.schedules import (
    BACKWARD,
    DEFAULT_SCHEDULE,
    FORWARD,
    INPUT,
    SCHEDULES,
    WARM_UPS,
    WEIGHT,
    Placement,
    micro_batches_per_round,
    ranks_of_stages,
    remembered,
    require_few_passes,
    require_runnable,
    schedule_family,
)

ActionKind = Literal["F", "B", "I", "W"]
"""Forward, whole backward, gradients of the inputs, gradients of the weights."""
KINDS: tuple[ActionKind, ...] = ("F", "B", "I", "W")
IntArray = NDArray[np.int64]
_INPUTS = {"F": (("F", -1),), "B": (("F", 0), ("B", 1)), "I": (("F", 0), ("B", 1)), "W": (("B", 0),)}
"""Kind of a pass → the kinds of passes that make its inputs, and how many stages behind its own they are."""
_CHANGES = np.array([[1, 0], [-1, 0], [-1, 1], [0, -1]])
"""[4, 2] by how much a pass of each kind changes what waits for B or I, and what waits for W after I."""


class Action(NamedTuple):
    """One pass of one micro-batch through a virtual stage; `str` writes it as torch does, such as 3F0."""

    kind: ActionKind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[Action, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The order of passes of every rank.

    Attributes:
        name: a key of SCHEDULES.
        passes: [S] arrays [3, n], see the module.
        micro_batches: M.
        virtual: vp, virtual stages a rank.
        placement: how virtual stages lie on ranks.
    """

    name: str
    passes: tuple[IntArray, ...]
    micro_batches: int
    virtual: int = 1
    placement: Placement = "looping"

    def __str__(self) -> str:
        """A row a rank, its passes apart by commas, as torch's `_load_csv` reads them."""
        rows = (of_rank.T.tolist() for of_rank in self.passes)
        return "".join(",".join(f"{stage}{KINDS[kind]}{m}" for kind, stage, m in row) + "\n" for row in rows)

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """[S] the passes of each rank, as people read and devices run them."""
        return tuple(
            tuple(Action(KINDS[kind], stage, m) for kind, stage, m in rank_passes.T.tolist())
            for rank_passes in self.passes
        )

    @property
    def ranks(self) -> int:
        """S."""
        return len(self.passes)

    @property
    def stages(self) -> int:
        """Virtual stages S·vp."""
        return self.ranks * self.virtual

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights have passes of their own."""
        return any((kinds == INPUT).any() for kinds, *_ in self.passes)

    @cached_property
    def rank_of(self) -> tuple[int, ...]:
        """[S·vp] the rank of each virtual stage."""
        return ranks_of_stages(self.stages, self.ranks, self.placement)

    @cached_property
    def in_turn(self) -> Order:
        """All passes, in one order in which none comes before the one before it on its rank, or before its inputs.

        Of the passes that could come next a forward one does, of several the one of the first stage; else the backward
        one of the first micro-batch.
        """
        actions = [action for order in self.orders for action in order]
        makers: dict[tuple[str, int, int], int] = {
            ("B" if kind == "I" else kind, stage, m): i for i, (kind, stage, m) in enumerate(actions)
        }
        readers: list[list[int]] = [[] for _ in actions]
        for i, (kind, stage, m) in enumerate(actions):
            if i and self.rank_of[actions[i - 1].stage] == self.rank_of[stage]:
                readers[i - 1].append(i)
            for maker, following in _INPUTS[kind]:
                if (maker, stage + following, m) in makers:
                    readers[makers[maker, stage + following, m]].append(i)
        turns = topological_order(
            readers, [(False, stage, m) if kind == "F" else (True, m, -stage) for kind, stage, m in actions]
        )
        return tuple(actions[i] for i in turns)

    @cached_property
    def _fullest(self) -> dict[int, tuple[tuple[int, ...], IntArray]]:
        return {}

    def fullest_of(self, rank: int) -> tuple[tuple[int, ...], IntArray]:
        """Virtual stages of a rank, and int64 [m, 2, vp] how many micro-batches of each wait there: for B or I, and for
        W after I. The m moments are those that no other has more of everything than, the ones of most in all first.
        """
        if rank not in self._fullest:
            stages = np.flatnonzero(np.equal(self.rank_of, rank))
            self._fullest[rank] = tuple(stages.tolist()), _fullest(self.passes[rank], stages)
        return self._fullest[rank]

    @property
    def fullest(self) -> list[tuple[tuple[int, ...], IntArray]]:
        """[S] the same of each rank."""
        return list(map(self.fullest_of, range(self.ranks)))

    @cached_property
    def _moments(self) -> tuple[IntArray, NDArray[np.float64], IntArray]:
        """[n, vp] the virtual stages and [n, 2, vp] the numbers of all moments in `fullest`, rank by rank; [S] where
        those of each begin."""
        fullest = self.fullest
        stages = [np.broadcast_to(counts, (len(waiting), len(counts))) for counts, waiting in fullest]
        begin = np.cumsum([0, *(len(waiting) for _, waiting in fullest)])[:-1]
        waiting = np.concatenate([waiting for _, waiting in fullest]).astype(np.float64)
        return np.concatenate(stages), waiting, begin

    def most_held(self, saved: Sequence[float], for_weights: Sequence[float]) -> tuple[float, ...]:
        """[S] the most bytes that a rank holds at once for passes that are still to come.

        Args:
            saved: [V] bytes that a virtual stage saves of a micro-batch from F until B or I.
            for_weights: [V] what of it a virtual stage keeps from I until W, for the gradients of the weights.
        """
        stages, waiting, begin = self._moments
        nbytes = np.array([saved, for_weights], dtype=np.float64).take(stages, axis=1)  # [2, n, vp]
        return tuple(np.maximum.reduceat(np.einsum("npv,pnv->n", waiting, nbytes), begin).tolist())


@remembered(lambda name, ranks, micro_batches, virtual=None: ranks * micro_batches * (virtual or 2))
def build_schedule(name: str | None, ranks: int, micro_batches: int, virtual: int | None = None) -> Schedule:
    """The schedule of that name for S ranks, M micro-batches and vp virtual stages a rank.

    Args:
        name: a key of SCHEDULES; None is what frameworks run unless they are told otherwise.
        ranks: S.
        micro_batches: M.
        virtual: vp; None is what the schedule has, 1 where it may have any.

    Raises:
        BadInput: see `require_runnable`; or it has more than MOST_PASSES.
    """
    name = name or DEFAULT_SCHEDULE
    virtual = schedule_family(name).virtual or 1 if virtual is None else virtual
    require_runnable(name, ranks, micro_batches, virtual)
    require_few_passes(name, ranks * virtual, micro_batches)
    placement = SCHEDULES[name].placement
    if placement == "v":
        pieces = _zb_v if name == "zb-v" else _dualpipev
        passes = [_on_v(pieces(rank, ranks, micro_batches), rank, ranks, micro_batches) for rank in range(ranks)]
    else:
        passes = [_in_rounds(name, rank, ranks, micro_batches, virtual) for rank in range(ranks)]
    return Schedule(name, tuple(passes), micro_batches, virtual, placement)


def _in_rounds(name: str, rank: int, ranks: int, micro_batches: int, virtual: int) -> IntArray:
    """So many forward passes, the warm-up, then backward and forward by turns, then the backward passes that are left.

    Each takes a round of micro-batches through the virtual stages of the rank, from first to last or back. With split
    backward passes the gradients of weights come a delay later than those of inputs, each right after one of these;
    those left come last. Rank 1 of 4 with ZB-H2, 8 micro-batches, warm-up 5, delay 2:

        F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7

    ZB-H1 delays them by as many micro-batches as rank 0 has more in flight with 1F1B; with ZB-H2 every rank has 2S - 1
    between F and W.
    """
    a_round, delay = micro_batches, -1
    if name in WARM_UPS:
        warm_up = WARM_UPS[name](rank, ranks, micro_batches)
    elif name == "zb-h2":
        warm_up, delay = 2 * (ranks - rank) - 1, 2 * rank
    else:
        a_round = micro_batches_per_round(ranks, micro_batches)
        warm_up = (virtual - 1) * a_round + (2 * (ranks - 1 - rank) + 1 if name == "interleaved" else ranks - rank)
        delay = rank if name == "zb-h1" else -1
    number = np.arange(micro_batches * virtual)
    part, rest = np.divmod(number, a_round * virtual)
    chunk, m = rest // a_round, part * a_round + rest % a_round
    there, back = chunk * ranks + rank, (virtual - 1 - chunk) * ranks + rank

    def passes(kind: int, stages: IntArray) -> IntArray:
        return np.stack([np.full_like(number, kind), stages, m])

    # when passes come: the backward one of a number at 3 times it, those of weights and forward ones right behind one
    kinds = [(passes(FORWARD, there), 3 * (number - min(warm_up, number.size)) + 2)]
    kinds.append((passes(BACKWARD if delay < 0 else INPUT, back), 3 * number))
    if delay >= 0:
        kinds.append((passes(WEIGHT, back), 3 * (number + delay) + 1))
    order = np.concatenate([of_kind for of_kind, _ in kinds], axis=1)
    return order[:, np.argsort(np.concatenate([when for _, when in kinds]))]


def _zb_v(rank: int, ranks: int, micro_batches: int) -> str:
    """As torch has it: the order of at least 2S - 1 micro-batches, of which those that there are run."""
    full, after = max(2 * ranks - 1, micro_batches), ranks - 1 - rank
    warm_up = "F0" * (2 * after + 1) + "F1F0" * rank + "F1I1W1" * (after + 1)
    steady = "F0I0W0F1I1W1" * (full - ranks - after) + "I0W0F1I1W1" * after
    return warm_up + steady + "I0I1" * rank + "I0W0" * (after + 1) + "W1" * rank + "W0" * rank


def _dualpipev(rank: int, ranks: int, micro_batches: int) -> str:
    """As torch has it: of its pairs of a forward and a backward pass the forward one runs first.

    Its last backward passes are split: those after the first half of the rank + 1 pairs B1 B0.
    """
    after = ranks - 1 - rank
    warm_up = "F0" * (2 * after) + "F0F1" * (rank + 1) + "I1W1F1" * after
    steady = "F0B1F1B0" * (micro_batches - ranks - after) + "B1F1B0" * after
    split = [(i + 1) % 2 for i in range(rank + 1, 2 * (rank + 1))]
    ending = "".join(f"B{(i + 1) % 2}" for i in range(rank + 1)) + "".join(f"I{chunk}" for chunk in split)
    due = [*split, *[0] * after]  # the virtual stages whose gradients of weights are left, the oldest first
    ending += "".join(f"W{chunk}I0" for chunk in due[:after]) + "".join(f"W{chunk}" for chunk in due[after:])
    return warm_up + steady + ending


def _on_v(passes: str, rank: int, ranks: int, micro_batches: int) -> IntArray:
    """The order of a rank with two virtual stages in a V, of the micro-batches that there are.

    Args:
        passes: such as F0: forward, first virtual stage of the rank; each takes the next micro-batch of its kind, a
            whole backward pass as those of the inputs do.
    """
    letters, digits = np.frombuffer(passes.encode(), np.uint8).reshape(-1, 2).T.astype(np.int64)
    kinds, chunks = np.zeros_like(letters), digits - ord("0")
    for kind, letter in enumerate(KINDS):
        kinds[letters == ord(letter)] = kind
    m = np.zeros_like(kinds)
    for chunk in range(2):
        forward, inputs, weights = ((kinds == kind) & (chunks == chunk) for kind in (FORWARD, INPUT, WEIGHT))
        backward = inputs | ((kinds == BACKWARD) & (chunks == chunk))
        m[forward], m[backward] = np.arange(forward.sum()), np.arange(backward.sum())
        m[weights] = m[inputs]
    stages = np.where(chunks == 0, rank, 2 * ranks - 1 - rank)
    return np.stack([kinds, stages, m])[:, m < micro_batches]


def _fullest(order: IntArray, stages: IntArray) -> IntArray:
    """[m, 2, vp] see Schedule.fullest_of; `stages`, [vp], are those of the rank, ascending."""
    kinds, columns = order[0], np.searchsorted(stages, order[1])
    changes = np.zeros((kinds.size, 2, stages.size), np.int64)
    changes[np.arange(kinds.size), :, columns] = _CHANGES[kinds]
    grows = (kinds == FORWARD) | (kinds == INPUT)
    frees_next = np.append(kinds[1:] != FORWARD, True)  # only the moment before something is freed can be the fullest
    moments = np.cumsum(changes, axis=0)[grows & frees_next].reshape(-1, 2 * stages.size).T
    moments = moments[:, np.lexsort((*moments[::-1], -moments.sum(axis=0)))]
    moments = moments[:, np.append(True, (moments[:, 1:] != moments[:, :-1]).any(axis=0))]
    totals = moments.sum(axis=0)
    most = int(np.count_nonzero(totals == totals[0]))  # of different moments none covers another one of as many
    emptier = moments[:, most:]
    covers = reduce(np.logical_and, map(np.greater_equal.outer, moments, emptier))
    fullest = np.append(np.full(most, True), np.count_nonzero(covers, axis=0) == 1)  # each covers itself
    return np.asarray(moments[:, fullest].T.reshape(-1, 2, stages.size))
