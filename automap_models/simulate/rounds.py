"""How long a schedule takes, and nothing else about it: for prices of strategies by the thousand.

The rules are those of simulate.engine but for links: each direction of a link carries its own messages, one at a time,
in the order in which the sender computes them, as InfiniBand and NVLink do. So no step is longer than with the engine,
whose links carry one message in either direction, and without messages they are equal.

Passes and messages are laid out once for all times, each after those that it waits for; one loop over them is the
whole simulation. The middle of a schedule repeats itself. So a few rounds of micro-batches are played:

    warm-up | round | round | ending          every pass of the last round comes λ later than in the one before
    warm-up | round | round | round | … | ending          each further round adds λ

Where that does not hold yet, more rounds are played, in the end all of them.
"""

from __future__ import annotations

from functools import cache, lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import is_compiled
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.pass_tables import IntArray, pass_table
from automap_models.core.schedules import repeating_micro_batches

TOLERANCE = 1e-9
"""Relative difference of times that counts as none."""


@cache
def loops() -> ModuleType:
    """What lays out schedules and plays them: compiled loops where numba is installed, which takes time to import."""
    from automap_models.simulate import rounds_kernel, rounds_lists

    return rounds_kernel if is_compiled(rounds_kernel.play) else rounds_lists


def compile_loops() -> None:
    """Have all loops over schedules compiled: half a second, or ten where numba has not kept them from before.

    To be called before processor time is counted that a search may take.
    """
    for name, virtual in (("1f1b", 1), ("zb-v", 2), ("dualpipev", 2)):
        stages = 2 * virtual
        second = np.ones(stages)
        longest_chains(name, 2 * stages, virtual, PassTimes(second, second, second, second[1:]))
        _ = pass_table(name, 2, 2 * stages, virtual).fullest


class _Layout(NamedTuple):
    """The passes and messages of a schedule, n of them, each after those that it waits for.

    Attributes:
        nodes: [4, n], see simulate.rounds_kernel.
        last: [S] the last pass of each rank.
        early, late: passes and those a round later, of the last round of every rank's steady phase; empty where it is
            too short to say.
    """

    nodes: IntArray
    last: IntArray
    early: IntArray
    late: IntArray


@lru_cache(maxsize=1024)
def _layout(name: str, ranks: int, micro_batches: int, virtual: int, a_round: int, messages: bool) -> _Layout:
    from automap_models.simulate import rounds_kernel

    table = pass_table(name, ranks, micro_batches, virtual)
    passes = np.concatenate(table.orders, axis=1)
    offsets = np.concatenate([[0], np.cumsum([order.shape[1] for order in table.orders])])
    nodes, numbers = loops().lay_out(passes, offsets, table.rank_of, micro_batches, messages)
    early, late = rounds_kernel.repeated(passes, offsets, numbers, micro_batches, a_round)
    return _Layout(np.ascontiguousarray(nodes), numbers[offsets[1:] - 1], early, late)


class PassTimes(NamedTuple):
    """Seconds of one micro-batch in V virtual stages.

    Attributes:
        forward_s, input_s, weight_s: [V] of its passes; a whole backward pass is both of the last.
        transfer_s: [V-1] of a message between neighbouring virtual stages, one direction.
    """

    forward_s: FloatArray
    input_s: FloatArray
    weight_s: FloatArray
    transfer_s: FloatArray


def rank_ends(name: str, micro_batches: int, virtual: int, times: PassTimes) -> FloatArray:
    """[S] when each rank has run its last pass, seconds.

    Args:
        name: a key of core.schedules.SCHEDULES.
        micro_batches, virtual: M, vp.
        times: of one micro-batch.

    Raises:
        BadInput: see core.schedules.require_runnable.
    """
    return _played(name, micro_batches, virtual, times).of_ranks


class _Played(NamedTuple):
    """A schedule that was played.

    Attributes:
        of_ranks: [S] when each rank has run its last pass, with all micro-batches.
        ends: [n] when passes and messages end, with the micro-batches that were played.
        layout: of these.
        micro_batches, a_round: played, and of a round; see core.schedules.repeating_micro_batches.
    """

    of_ranks: FloatArray
    ends: FloatArray
    layout: _Layout
    micro_batches: int
    a_round: int


def _played(name: str, micro_batches: int, virtual: int, times: PassTimes) -> _Played:
    """As few micro-batches as show when the ranks end; arguments as of `rank_ends`."""
    forward_s, input_s, weight_s, transfer_s = times
    ranks, messages = forward_s.size // virtual, bool(transfer_s.any())
    passes = np.stack([forward_s, input_s + weight_s, input_s, weight_s], axis=1)
    durations = np.concatenate([passes.ravel(), transfer_s])
    played, a_round = repeating_micro_batches(name, ranks, micro_batches, virtual)
    while True:
        layout = _layout(name, ranks, played, virtual, a_round, messages)
        ends = loops().play(layout.nodes, durations)
        of_ranks: FloatArray = ends[layout.last]
        if played == micro_batches:
            return _Played(of_ranks, ends, layout, played, a_round)
        if not layout.early.size:
            played = micro_batches
            continue
        later_s = ends[layout.late] - ends[layout.early]
        if np.ptp(later_s) <= TOLERANCE * of_ranks.max():
            of_ranks = of_ranks + float(later_s.mean()) * ((micro_batches - played) // a_round)
            return _Played(of_ranks, ends, layout, played, a_round)
        played = min(micro_batches, 2 * played + (micro_batches - 2 * played) % a_round)


class Chain(NamedTuple):
    """Passes and messages each of which waits for the one before it: no order of times makes the rank end earlier.

    Attributes:
        passes: [3, V] how many F, I and W of each virtual stage are among them; a whole backward pass is an I and a W.
        messages: [V-1] how many between neighbouring virtual stages.
        rank: whose last pass is the last of them.
    """

    passes: FloatArray
    messages: FloatArray
    rank: int

    def seconds(self, times: PassTimes) -> float:
        """How long they take together."""
        return float((self.passes * np.stack(times[:3])).sum() + self.messages @ times.transfer_s)

    def from_first_pass(self) -> Chain:
        """The same from the first pass of its rank on; there is one virtual stage a rank.

        A chain that ends on a rank has come through all ranks before it, so that no count falls below 0.
        """
        passes, messages = self.passes.copy(), self.messages.copy()
        passes[0, : self.rank] -= 1.0
        messages[: self.rank] -= 1.0
        return Chain(passes, messages, self.rank)


def longest_chains(name: str, micro_batches: int, virtual: int, times: PassTimes) -> tuple[FloatArray, list[Chain]]:
    """[S] as `rank_ends`, and for each rank the chain that makes it end then; arguments as of `rank_ends`.

    A chain is one whatever passes take, so that with other times no rank ends before its chain does. Of a schedule of
    which a few rounds were played, the chain goes through a round once more for each round that was not:

        warm-up · a pass … the same pass of the next round … ending      ← between these two

    A rank whose chain has no such pair has none.
    """
    from automap_models.simulate.rounds_kernel import chain_counts

    played = _played(name, micro_batches, virtual, times)
    stages, layout = times.forward_s.size, played.layout
    added = (micro_batches - played.micro_batches) // played.a_round
    chains = []
    for rank, end_s in enumerate(played.of_ranks.tolist()):
        last = int(layout.last[rank])
        counts, complete = chain_counts(layout.nodes, played.ends, last, 5 * stages - 1, added, played.a_round)
        if not complete:
            continue
        whole, inputs = counts[1 : 4 * stages : 4], counts[2 : 4 * stages : 4]
        passes = np.stack([counts[0 : 4 * stages : 4], whole + inputs, whole + counts[3 : 4 * stages : 4]])
        chain = Chain(passes, counts[4 * stages :], rank)
        if abs(chain.seconds(times) - end_s) <= 1e-6 * end_s:
            chains.append(chain)
    return played.of_ranks, chains
