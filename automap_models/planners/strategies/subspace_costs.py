"""What blocks cost on the ranks of a subspace, as sums that only grow: what lower bounds are made of.

Seconds and bytes of a stage are sums over its layers, whichever they are. What is not is replaced by less:

    sums of gradients          concave in the bytes, nothing of none: at least the chord to all of the model's
    the same beside computing  at least the share of them that never hides
    devices of several kinds   passes of the kind that takes longest for every layer; else of each pass the shortest
    what a boundary sends      the smallest of all layers
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.strategy import RECOMPUTE, Strategy
from automap_models.cost.layer_costs import LayerCosts
from automap_models.cost.stage_costs import SENDING_ALONE, StageCosting
from automap_models.cost.strategy import frozen_shares, state_bytes
from automap_models.planners import effort
from automap_models.simulate.strategy import StrategyPricing, rank_memory, transfers_s


class Ends(NamedTuple):
    """The layers before and after the blocks."""

    first: int
    last: int


class Columns(NamedTuple):
    """Layers with kinds of recomputation, n of them, of which ranks may hold any number.

    Attributes:
        times: [S, n] seconds of a step.
        state, saved: [n] bytes, and for each micro-batch in flight.
        work: [n] seconds of a micro-batch without recomputation.
        total: seconds of all blocks.
        unit: work that comes in whole pieces of so much; 0 for any.
    """

    times: FloatArray
    state: FloatArray
    saved: FloatArray
    work: FloatArray
    total: float
    unit: float


class RankCosts:
    """Costs of layers on ranks, of all subspaces that differ in nothing but their schedule and virtual stages.

    S ranks, k distinct layers, R kinds of recomputation.

    Args:
        pricing: of the model on the cluster.
        strategy: any of these subspaces.

    Attributes:
        saved, for_weights: [k, R] bytes of a layer from F to I, and from I to W.
        ends: layers before and after the blocks.
        blocks: [k] how many blocks of the model are of each layer.
        estimates, bounds: what closed_forms and bounds.degrees_bound say, by all else that it depends on.
    """

    def __init__(self, pricing: StrategyPricing, strategy: Strategy) -> None:
        effort.count(effort.RANKS)
        self.pricing, self.strategy, self.work = pricing, strategy, pricing.work
        self.of_ranks = pricing.stages(strategy)
        self.costings = list(dict.fromkeys(chain(*self.of_ranks)))
        costing = self.costings[0]
        order = self.work.order
        self.ends = Ends(order[0], order[-1])
        self.blocks = self.work.blocks
        self.saved, self.for_weights = costing.memory[..., 0], costing.memory[..., 1]
        self._columns: dict[tuple[int, ...], Columns] = {}
        self._amounts: dict[tuple[object, ...], FloatArray] = {}
        self.estimates: dict[Hashable, Sequence[tuple[float, Any]]] = {}
        self.bounds: dict[tuple[int, ...], float] = {}

    @cached_property
    def seconds(self) -> FloatArray:
        """[S, k, R] of all passes of a layer for one micro-batch."""
        if len(self.costings) == 1:
            return self._least([self.costings[0].of_layers.seconds])
        return np.asarray(self.passes.sum(axis=-1))

    @cached_property
    def alone_s(self) -> FloatArray:
        """[S, R] of all layers on one rank, those beside blocks with each kind of recomputation, too; of ranks alike
        [1, R]."""
        seconds = self.seconds[: 1 if len(self.costings) == 1 else None]
        return np.asarray(self.blocks @ seconds + seconds[:, self.ends.first] + seconds[:, self.ends.last])

    @cached_property
    def boundary(self) -> float:
        """Bytes that a virtual stage passes on, at least."""
        return float(self.costings[0].of_layers.boundary_bytes[list(self.work.order[:-1])].min())

    @cached_property
    def starts_s(self) -> tuple[float, float]:
        """Seconds of the gathering that the first virtual stage begins with, and any later one, at least."""
        hidden_s = np.min([g.of_layers.hidden_s for g in self.costings], axis=0)[list(self.work.order)]
        return float(hidden_s[0]), float(hidden_s[1:].min())

    @cached_property
    def state(self) -> FloatArray:
        """[k] bytes that a layer always holds of its training state, and of what it does not train."""
        return self._state(self.costings[0].standing_bytes)

    def _state(self, trained_bytes: Sequence[float]) -> FloatArray:
        layers = self.costings[0].of_layers
        others, of_experts = layers.parameters.T
        parts = state_bytes(self.strategy, others, of_experts, trained_bytes)
        return np.asarray(sum(parts) + layers.frozen_bytes @ frozen_shares(self.strategy))

    @cached_property
    def updating(self) -> FloatArray:
        """[k] bytes that a layer holds while it is updated."""
        costing = self.costings[0]
        copied = costing.copied_bytes * costing.updated(*costing.of_layers.parameters.T)
        return np.asarray(self._state(costing.trained_bytes) + copied)

    @property
    def updating_bytes(self) -> float:
        """Of all layers while they are updated."""
        return float(self.updating[list(self.work.order)].sum())

    @cached_property
    def room(self) -> FloatArray:
        """[S] bytes that a rank has for state and activations of its layers."""
        used = self.costings[0].runtime_bytes + (self.gathered_bytes if self.strategy.zero == 3 else 0.0)
        return np.asarray(rank_memory(self.strategy, self.pricing.cluster) - used)

    @cached_property
    def gathered_bytes(self) -> FloatArray:
        """[S] that ZeRO-3 holds gathered on each rank at least."""
        costing = self.costings[0]
        least = costing.least_gathered if self.strategy.zero == 3 else [0.0] * self.strategy.pp
        return costing.weight_bytes * np.array(least)

    @cached_property
    def gradients(self) -> FloatArray:
        """[S, k] seconds of a layer's gradients that never hide, once a step; see exposed_s."""
        return self._least([self._chords(g) * g.never_hidden for g in self.costings])

    @cached_property
    def step_seconds(self) -> FloatArray:
        """[S, k, R] seconds of a layer in a step: its passes, and its gradients that never hide."""
        return np.asarray(self.strategy.micro_batches * self.seconds + self.gradients[:, :, None])

    @cached_property
    def work_s(self) -> FloatArray:
        """[k] seconds of a layer for one micro-batch, without recomputation, on the rank that takes least."""
        return np.asarray(self.seconds[..., 0].min(axis=0))

    @cached_property
    def optimizer(self) -> FloatArray:
        """[k] seconds of a layer's update, once a step; the slowest rank's counts."""
        of_kinds = [g.optimizer_s(*g.of_layers.parameters.T) for g in self.costings]
        return np.asarray(np.max(of_kinds, axis=0) if len(of_kinds) > 1 else of_kinds[0])

    def undominated(self, recompute: Sequence[int]) -> list[int]:
        """Of some kinds of recomputation those than which no other one takes and keeps less in all blocks."""
        costs = dict.fromkeys(costing.of_layers for costing in self.costings)
        return _undominated(tuple(costs), tuple(sorted(self.costings[0].layers.blocks)), tuple(recompute))

    def columns(self, recompute: list[int], *, ends: bool) -> Columns:
        """Of blocks with each of some kinds of recomputation; or of all layers, `ends` among them."""
        key = (*recompute, ends)
        if key not in self._columns:
            counts = self.blocks + np.bincount(self.ends, minlength=self.blocks.size) if ends else self.blocks
            layers, work = np.flatnonzero(counts), self.work_s
            self._columns[key] = Columns(
                self.step_seconds[:, layers][:, :, recompute].reshape(self.strategy.pp, -1),
                np.repeat(self.state[layers], len(recompute)),
                self.saved[layers][:, recompute].ravel(),
                np.repeat(work[layers], len(recompute)),
                float(work @ counts),
                float(work[layers[0]]) if layers.size == 1 else 0.0,
            )
        return self._columns[key]

    @cached_property
    def like(self) -> list[int]:
        """[S] the first rank whose layers take as long."""
        layers = [tuple(dict.fromkeys(costing.of_layers for costing in costings)) for costings in self.of_ranks]
        return list(map(layers.index, layers))

    @cached_property
    def bytes_of(self) -> FloatArray:
        """[4, k, R] bytes of a layer: saved, kept, on hosts and temporary."""
        temporary, away = np.moveaxis(self.costings[0].of_layers.memory[..., 2:], -1, 0)
        return np.stack([self.saved, self.for_weights, away, temporary])

    def amounts(self, rank: int, layers: tuple[int, ...], begin: int, stop: int) -> FloatArray:
        """[5, blocks, R] seconds, bytes saved, kept, on hosts and temporary of a virtual stage with these layers, the
        blocks among which begin and stop there, where so many of these recompute so."""
        key = (self.like[rank], layers, begin, stop)
        if key not in self._amounts:
            none = RECOMPUTE.index("none")
            amounts = np.concatenate([self.seconds[None, rank], self.bytes_of])[:, list(layers)]
            without = amounts[:4, :, none].sum(axis=1)
            before, amounts = amounts[:, 0], amounts[:, begin:stop]
            extra = np.zeros((5, stop - begin + 1, amounts.shape[2]))
            np.cumsum(amounts[:4] - amounts[:4, :, none, None], axis=1, out=extra[:4, 1:])
            np.maximum.accumulate(amounts[4], axis=0, out=extra[4, 1:])
            if begin:  # a tower recomputes with the first block
                extra[:4, 1:] += (before[:4] - before[:4, none, None])[:, None]
                extra[4, 1:] = np.maximum(extra[4, 1:], before[4])
            extra[:4] += without[:, None, None]
            self._amounts[key] = extra
        return self._amounts[key]

    def speeds(self) -> FloatArray:
        """[S] shares of the layers with which all ranks take equally long, by what they take for all of them."""
        alone_s = self.seconds[:, list(self.work.order), 0].sum(axis=-1)
        return np.asarray((1.0 / alone_s) / (1.0 / alone_s).sum())

    @cached_property
    def passes(self) -> FloatArray:
        """[S, k, R, 3] seconds of F, I and W of a layer for one micro-batch: of each rank those of its slowest kind of
        devices, for which all others wait, where that is one kind whatever layers it has; else the least."""
        layers = {costing: costing.of_layers for costing in self.costings}
        sums = {
            one: np.append(costs.passes.sum(axis=-1), costs.hidden_s[:, None], axis=1) for one, costs in layers.items()
        }
        of_ranks = []
        for costings in self.of_ranks:
            others = ((one, [sums[other] for other in costings if other is not one]) for one in costings)
            slowest = [one for one, than in others if all((sums[one] >= other * (1 + 1e-12)).all() for other in than)]
            of_ranks.append(np.min([layers[one].passes for one in slowest or costings], axis=0))
        return np.stack(of_ranks)

    def _least(self, of_kinds: list[FloatArray]) -> FloatArray:
        """[S, …] of each rank the least over its kinds of devices."""
        if len(of_kinds) == 1:
            return np.broadcast_to(of_kinds[0], (self.strategy.pp, *of_kinds[0].shape))
        amount_of = dict(zip(self.costings, of_kinds, strict=True))
        return np.stack([np.min([amount_of[one] for one in costings], axis=0) for costings in self.of_ranks])

    @staticmethod
    def _chords(costing: StageCosting) -> FloatArray:
        """[k] of summing a layer's gradients, at least."""
        parameters, order = costing.of_layers.parameters, list(costing.work.order)
        others, of_experts = parameters[order].sum(axis=0)
        others += costing.tied
        if costing.strategy.zero == 3:
            return np.zeros(len(parameters))  # they are part of its passes
        slopes = np.zeros(2)
        if others:
            slopes[0] = costing.gradients_s(others, 0.0) / others
        if of_experts:
            slopes[1] = costing.gradients_s(0.0, of_experts) / of_experts
        return np.asarray(parameters @ slopes)

    @cached_property
    def even_update_s(self) -> float:
        """Seconds of the update where all ranks share it evenly."""
        first, last = self.ends
        update_s = float(self.optimizer @ self.blocks) + float(self.optimizer[first] + self.optimizer[last])
        return update_s / self.strategy.pp


class SubspaceCosts:
    """Costs of a subspace: of its ranks, and of its V virtual stages.

    Args:
        ranks: costs that it shares with other subspaces.
        strategy: any of the subspace.
        reserve: [S] bytes of each device that are left free.

    Attributes:
        rank_of: [V] the rank of each virtual stage.
        room: [S] bytes that a rank has for state and activations of its layers.
        update_room: [S] the same while they are updated.
        sends: [2, V] seconds in which a virtual stage sends, forward and backward, at least.
        messages: [V-1] seconds of a message beside passes, at least.
        starts: [V] seconds of the gathering that a virtual stage begins with, at least.
        tied_s: of the sum over a word embedding that the ends of the pipeline hold.
    """

    def __init__(self, ranks: RankCosts, strategy: Strategy, reserve: FloatArray | float = 0.0) -> None:
        effort.count(effort.SUBSPACE, strategy.stages)
        self.ranks, self.strategy = ranks, strategy
        of_ranks = ranks.pricing.stages(strategy, ranks.of_ranks)
        self.costings = list(dict.fromkeys(chain(*of_ranks)))
        costing = self.costings[0]
        self.rank_of: IntArray = np.array(costing.rank_of)
        tied = costing.tied if costing.tied_apart else 0.0
        self.room = ranks.room - reserve
        tied_state = sum(state_bytes(strategy, tied, 0.0, costing.trained_bytes))
        self.room[self.rank_of[-1]] -= ranks.costings[0].logits_bytes + tied_state
        self.update_room = ranks.room + ranks.gathered_bytes - reserve
        self.update_room[self.rank_of[-1]] -= tied_state
        self.tied_s = max(k.tied_s for k in self.costings)
        stages, boundary = strategy.stages, ranks.boundary
        sent_s = {}
        for kind in self.costings:
            of_messages = {message: kind.transfer_s(message, boundary) for message in set(kind.groups.messages)}
            sent_s[kind] = [of_messages[message] for message in kind.groups.messages]
        sent = transfers_s(of_ranks, sent_s)
        self.sends, self.messages = np.zeros((2, stages)), sent
        if strategy.schedule in SENDING_ALONE and stages > 1:
            self.sends[0, :-1] = self.sends[1, 1:] = sent
            self.messages = np.zeros(stages - 1)
        self.starts = np.full(stages, ranks.starts_s[1])
        self.starts[0] = ranks.starts_s[0]


@lru_cache(maxsize=1024)
def _undominated(layers: tuple[LayerCosts, ...], blocks: tuple[int, ...], recompute: tuple[int, ...]) -> list[int]:
    amounts = [
        part[list(blocks)][:, recompute].swapaxes(0, 1) for costs in layers for part in (costs.passes, costs.memory)
    ]
    of_kinds = np.concatenate([part.reshape(len(recompute), -1) for part in amounts], axis=1)
    less = (of_kinds[:, None] <= of_kinds[None]).all(axis=2)  # [R, R] whether one is no more than another
    better = (less & (~less.T | np.tri(len(recompute), k=-1, dtype=np.bool_).T)).any(axis=0)  # of two equals the first
    return [recompute[i] for i in np.flatnonzero(~better).tolist()]
