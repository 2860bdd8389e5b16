"""How long a schedule takes, and nothing else about it: of plans of stages and of strategies, by the thousand.

The rules are those of simulate.engine, which draws what happens. Passes and messages are laid out once for all times
and played by one compiled loop (simulate.play). The middle of a schedule repeats itself. So a few rounds of
micro-batches are played:

    warm-up | round | round | ending          every pass of the last round comes λ later than in the one before
    warm-up | round | round | round | … | ending          each further round adds λ

Where that does not hold yet, more rounds are played, in the end all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.passes import build_schedule
from automap_models.core.schedules import remembered, repeating_micro_batches
from automap_models.cost.overlap import TiedSum

if TYPE_CHECKING:
    from automap_models.simulate.play import ScheduleGraph


PERIOD = 12
"""Micro-batches after which the middle of a plan's schedule is held against itself."""


@remembered(lambda name, ranks, micro_batches, played, virtual, *_, messages=True: ranks * played * virtual)
def graph_of(
    name: str, ranks: int, micro_batches: int, played: int, virtual: int, a_round: int, messages: bool
) -> ScheduleGraph:
    """The nodes of a schedule of which so many micro-batches are played, in rounds of a_round.

    Raises:
        BadInput: see core.schedules.require_runnable.
    """
    from automap_models.simulate import play

    schedule = build_schedule(name, ranks, played, virtual)
    passes = np.concatenate(schedule.passes, axis=1)
    offsets = np.cumsum([0, *(of_rank.shape[1] for of_rank in schedule.passes)])
    nodes, numbers = play.lay_out(passes, offsets, np.array(schedule.rank_of), played, messages)
    early, late = play.repeated(passes, offsets, numbers, nodes, played, a_round)
    more = (micro_batches - played) // a_round
    return play.ScheduleGraph(nodes, numbers[offsets[1:] - 1], early, late, more)


def graphs_of(name: str, stages: int, micro_batches: int) -> tuple[ScheduleGraph, ScheduleGraph]:
    """The nodes of a schedule with messages, one stage a rank: of few micro-batches, and of all.

    What repeats itself every 2, 3 or 4 micro-batches does so every PERIOD.
    """
    _, a_round = repeating_micro_batches(name, stages, micro_batches)
    omitted = (micro_batches - 3 * stages - 2 * PERIOD) // PERIOD * PERIOD if a_round == 1 else 0
    full = graph_of(name, stages, micro_batches, micro_batches, 1, PERIOD, messages=True)
    if omitted <= 0:
        return full, full
    laid_out = micro_batches - omitted
    return graph_of(name, stages, micro_batches, laid_out, 1, PERIOD, messages=True), full


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

    def durations(self) -> FloatArray:
        """[1 + 7·V] as simulate.play has them."""
        forward_s, input_s, weight_s, transfer_s = self
        nothing = np.zeros_like(forward_s)
        passes = (forward_s, input_s + weight_s, input_s, weight_s, np.append(transfer_s, 0.0))
        return np.append(0.0, np.stack([*passes, nothing, nothing], axis=1))


def rank_ends(name: str, micro_batches: int, virtual: int, times: PassTimes) -> FloatArray:
    """[S] when each rank has run its last pass, seconds.

    Args:
        name: a key of core.schedules.SCHEDULES.
        micro_batches, virtual: M, vp.
        times: of one micro-batch.

    Raises:
        BadInput: see core.schedules.require_runnable.
    """
    return _played(name, micro_batches, virtual, times)[0]


def _played(
    name: str, micro_batches: int, virtual: int, times: PassTimes
) -> tuple[FloatArray, FloatArray, ScheduleGraph, int]:
    """As few micro-batches as show when the ranks end; arguments as of `rank_ends`.

    Returns:
        [S] when each rank has run its last pass, with all micro-batches; [n] when passes and messages end, with the
        micro-batches that were played; the graph of these; and R (core.schedules.repeating_micro_batches).
    """
    from automap_models.simulate import play

    ranks, messages, durations = times.forward_s.size // virtual, bool(times.transfer_s.any()), times.durations()
    played, a_round = repeating_micro_batches(name, ranks, micro_batches)
    while True:
        graph = graph_of(name, ranks, micro_batches, played, virtual, a_round, messages)
        ends = np.empty(graph.nodes.shape[1] + 1)
        play.play(graph.nodes, durations, ends)
        later_s = play.later_s(graph, ends)
        if not np.isnan(later_s):
            return ends[graph.last + 1] + later_s, ends[1:], graph, a_round
        if graph.early.size:
            played = min(micro_batches, 2 * played + (micro_batches - 2 * played) % a_round)
        else:
            played = micro_batches


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


def longest_chains(
    name: str, micro_batches: int, virtual: int, times: PassTimes
) -> tuple[FloatArray, Callable[[int], Chain | None]]:
    """[S] as `rank_ends`, and of any rank the chain that makes it end then; arguments as of `rank_ends`.

    A chain is one whatever passes take, so that with other times no rank ends before its chain does. Of a schedule of
    which a few rounds were played, the chain goes through a round once more for each round that was not:

        warm-up · a pass … the same pass of the next round … ending      ← between these two

    A rank whose chain has no such pair has none.
    """
    from automap_models.simulate.play import KINDS, MESSAGE, chain_counts

    of_ranks, ends, graph, a_round = _played(name, micro_batches, virtual, times)
    kinds = 1 + KINDS * times.forward_s.size

    def chain(rank: int) -> Chain | None:
        end_s = float(of_ranks[rank])
        last = int(graph.last[rank])
        counts, complete = chain_counts(graph.nodes, ends, last, kinds, graph.more, a_round)
        forward, both, inputs, weights = (of_kind := counts[1:].reshape(-1, KINDS).T)[:4]
        longest = Chain(np.stack([forward, both + inputs, both + weights]), of_kind[MESSAGE, :-1], rank)
        return longest if complete and abs(longest.seconds(times) - end_s) <= 1e-6 * end_s else None

    return of_ranks, chain


class PlanTimes(NamedTuple):
    """What the stages of P plans take, one stage a rank.

    Attributes:
        forward_s, backward_s: [P, S] of one micro-batch's passes.
        transfer_s: [P, S-1] of one micro-batch over each boundary, one direction.
        late_s: [P, S] what of the all-reduce of a stage's gradients comes after its last pass (cost.overlap.exposed_s).
        update_s: [P, S] of its parameters.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    late_s: FloatArray
    update_s: FloatArray

    def durations(self) -> FloatArray:
        """[P, 1 + 7·S] as simulate.play has them."""
        nothing, messages = np.zeros_like(self.forward_s), np.pad(self.transfer_s, ((0, 0), (0, 1)))
        passes = (self.forward_s, self.backward_s, nothing, nothing)
        kinds = np.stack([*passes, messages, self.late_s, self.update_s], axis=2)
        return np.pad(kinds.reshape(len(kinds), -1), ((0, 0), (1, 0)))


def plan_steps(
    name: str, micro_batches: int, times: PlanTimes, tied_s: FloatArray, holders: NDArray[np.bool_]
) -> FloatArray:
    """[P] the steps of P plans: when all stages have summed their gradients and updated their parameters.

    Args:
        name: a key of core.schedules.SCHEDULES with one virtual stage a rank and whole backward passes.
        micro_batches: M.
        times: of the plans.
        tied_s, holders: [P, T] seconds of the sums over copies of parameters, in their order, and [P, T, S] the stages
            that hold them; unused ones take 0 s.
    """
    from automap_models.simulate import play

    ends: FloatArray = play.steps(*graphs_of(name, times.forward_s.shape[1], micro_batches), times.durations())
    for sum_s, holds in zip(tied_s.T, np.moveaxis(holders, 1, 0), strict=True):
        end_s = np.where(holds, ends, 0.0).max(axis=1, initial=0.0) + sum_s
        ends = np.where(holds, end_s[:, None], ends)
    return np.asarray((ends + times.update_s).max(axis=1))


def tied_arrays(tied: Sequence[TiedSum], stages: int) -> tuple[FloatArray, NDArray[np.bool_]]:
    """[1, T] seconds and [1, T, S] holders of a single plan's sums, as of `stage_ends`."""
    holders = np.zeros((1, len(tied), stages), dtype=bool)
    for row, tie in zip(holders[0], tied, strict=True):
        row[list(tie.stages)] = True
    return np.array([[tie.sum_s for tie in tied]]), holders
