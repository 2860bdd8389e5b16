"""Cuts and recomputation of a family: from pieces of blocks to strategies, priced by the simulator.

pieces of blocks          3.4 | 2.9 | 2.7      of the relaxation
cuts                      4   | 3   | 2        where the work before a boundary is nearest to theirs
recomputation of a rank   the shortest passes with which its memory holds them
neighbouring cuts         3 | 3 | 3, 4 | 2 | 3, …   as long as the step gets shorter
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.pass_tables import pass_table
from automap_models.core.schedules import repeating_micro_batches
from automap_models.core.strategy import RECOMPUTE, Recompute, Strategy
from automap_models.cost.strategy import gathered_bytes
from automap_models.planners import effort
from automap_models.planners.strategies.chain_bounds import passes_laid_out
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.planners.strategies.fitting_kernel import fill_choices, shortest_choices
from automap_models.planners.strategies.incumbent import Completion
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.strategy import StrategyPricing, rank_memory, step_seconds

NONE = RECOMPUTE.index("none")
Choice = tuple[int, int]
"""Of a virtual stage: kind of recomputation, and of how many blocks, its first ones."""


class Completions:
    """The strategies of a family.

    Args:
        pricing: of the model on the cluster.
        costs: of the family.
        recompute: kinds of recomputation that blocks may have.
        problem: whose fixed fields and reserve hold.
    """

    def __init__(
        self,
        pricing: StrategyPricing,
        costs: FamilyCosts,
        recompute: list[int],
        problem: StrategyProblem,
    ) -> None:
        self.pricing, self.costs, self.strategy, self.recompute = pricing, costs, costs.strategy, recompute
        self.fixed, self.equal_layers, self.within = problem.fixed, problem.equal_layers, problem.within
        self.own = rank_memory(self.strategy, pricing.cluster) - problem.reserve(self.strategy.pp)
        self.blocks = np.array(pricing.work.order[1:-1])
        self.seconds = np.ascontiguousarray(costs.ranks.passes.sum(axis=-1))  # [S, k, R]
        temporary = costs.of_groups[0].of_layers.memory[..., 2]
        self.bytes_of = np.stack([costs.ranks.saved, costs.ranks.kept, temporary])
        self._choices: dict[tuple[int, int], tuple[list[Choice], IntArray, IntArray]] = {}
        self._priced: dict[tuple[int, ...], Completion | None] = {}
        self._of_ranks: dict[tuple[int, tuple[bytes, ...]], list[Choice] | None] = {}
        shown, _ = repeating_micro_batches(*self._schedule())
        name, ranks, _, vp = self._schedule()
        self.waiting = pass_table(name, ranks, shown, vp).fullest
        self.passes = shown * ranks * vp

    def _schedule(self) -> tuple[str, int, int, int]:
        s = self.strategy
        return s.schedule, s.pp, s.micro_batches, s.vp

    @property
    def given_layers(self) -> tuple[int, ...] | None:
        """Cuts that are fixed."""
        if self.equal_layers:
            return (self.blocks.size // self.strategy.stages,) * self.strategy.stages
        return self.fixed.get("layers")

    # ---- cuts

    def rounded(self, pieces: FloatArray, kinds: IntArray) -> tuple[int, ...]:
        """[V] whole layers of each virtual stage, for [V, kinds, R'] pieces."""
        if self.given_layers is not None:
            return self.given_layers
        unit = self.seconds[:, :, NONE].min(axis=0)
        before = np.concatenate([[0.0], np.cumsum(unit[self.blocks])])
        ends = np.cumsum(pieces.sum(axis=2) @ unit[kinds])[:-1]
        return self._filled([0, *np.abs(before[None, :] - ends[:, None]).argmin(axis=1).tolist(), self.blocks.size])

    def balanced(self) -> tuple[int, ...]:
        """[V] whole layers of virtual stages that take about equally long."""
        if self.given_layers is not None:
            return self.given_layers
        cuts = balanced_cuts(self.costs.ranks, self.blocks.tolist(), self.strategy.stages)
        return self._filled([0, *np.cumsum(cuts).tolist()])

    def _filled(self, bounds: list[int]) -> tuple[int, ...]:
        """[V] layers between bounds that are moved until no virtual stage has fewer than it needs."""
        stages = self.strategy.stages
        for i in range(1, stages):
            bounds[i] = max(bounds[i], bounds[i - 1] + self.least(i - 1))
        for i in range(stages - 1, 0, -1):
            bounds[i] = min(bounds[i], bounds[i + 1] - self.least(i))
        return tuple(np.diff(bounds).tolist())

    def least(self, stage: int) -> int:
        """Blocks that a virtual stage has at least."""
        inner = self.within is not None and self.within.cuts == "inner blocks"
        return int(inner or stage not in (0, self.strategy.stages - 1))

    def best(self, layers: tuple[int, ...]) -> Completion | None:
        """The strategy with these cuts whose ranks recompute as little as their memory asks for; None if none fits."""
        if layers not in self._priced:
            chosen = self._recomputation(layers)
            self._priced[layers] = None if chosen is None else self.priced(layers, chosen)
        return self._priced[layers]

    def improved(
        self, layers: tuple[int, ...], trials: float, late: Callable[[], bool] = lambda: False
    ) -> Completion | None:
        """The best after so many trials of moving a layer from one virtual stage to another, or when it is late."""
        best = self.best(layers)
        if self.given_layers is not None or self.strategy.stages == 1:
            return best
        while trials > 0:
            current = best.strategy.layers if best is not None else layers
            shorter = None
            for moved in self._moves(current or layers):
                if moved in self._priced:
                    continue
                trials -= 1
                trial = self.best(moved)
                if trial is not None and (best is None or trial.step_s < best.step_s * (1 - 1e-9)):
                    shorter = trial
                    break
                if trials <= 0 or late():
                    trials = 0
                    break
            if shorter is None:
                break
            best = shorter
        return best

    def _moves(self, layers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Neighbouring cuts; first those that unload the longest stages, and load the shortest ones."""
        begin = np.concatenate([[0], np.cumsum(layers)])
        stage_s = np.zeros(len(layers))
        for stage, rank in enumerate(self.costs.rank_of.tolist()):
            own = self.blocks[begin[stage] : begin[stage + 1]]
            stage_s[stage] = self.seconds[rank, own, NONE].sum()
        for stage, layer in ((0, self.costs.ranks.ends.first), (-1, self.costs.ranks.ends.last)):
            stage_s[stage] += self.seconds[self.costs.rank_of[stage], layer, NONE]
        order = np.argsort(-stage_s, kind="stable").tolist()
        for source in order:
            for target in reversed(order):
                if source != target and layers[source] > self.least(source):
                    moved = list(layers)
                    moved[source] -= 1
                    moved[target] += 1
                    yield tuple(moved)

    # ---- recomputation

    def priced(self, layers: tuple[int, ...], choices: Sequence[Choice]) -> Completion | None:
        """The step of a strategy; None where it does not fit."""
        effort.count(effort.PRICE, self.passes)
        strategy = self._strategy(layers, choices)
        costs = self.pricing.costs(strategy)
        held = np.array([memory.total for memory in costs.memory])
        if (held > self.own).any():
            return None
        return Completion(strategy, step_seconds(strategy, costs), float(held.max()))

    def _strategy(self, layers: tuple[int, ...], choices: Sequence[Choice]) -> Strategy:
        """With what is uniform written as such."""
        kinds = tuple(RECOMPUTE[kind] if blocks else "none" for kind, blocks in choices)
        partial = any(0 < blocks < count for (_, blocks), count in zip(choices, layers, strict=True))
        filled = {kind for kind, count in zip(kinds, layers, strict=True) if count}
        recompute: Recompute | tuple[Recompute, ...] = kinds
        if len(filled) <= 1:
            recompute = filled.pop() if filled else "none"
        blocks = tuple(blocks for _, blocks in choices) if partial else None
        if "recompute" in self.fixed:
            recompute = self.fixed["recompute"]
        if "recompute_blocks" in self.fixed:
            blocks = self.fixed["recompute_blocks"]
        return replace(
            self.strategy,
            layers=None if len(set(layers)) == 1 and "layers" not in self.fixed else layers,
            recompute=recompute,
            recompute_blocks=blocks,
        )

    def choices(self, stage: int, count: int) -> list[Choice]:
        """All that a virtual stage of so many layers may recompute, nothing first."""
        fixed, blocks = self.fixed.get("recompute"), self.fixed.get("recompute_blocks")
        if fixed is not None:
            kind = RECOMPUTE.index(fixed[stage] if isinstance(fixed, tuple) else fixed)
            return [(kind, blocks[stage] if blocks is not None else count if kind != NONE else 0)]
        if blocks is not None:
            return [(kind, blocks[stage]) for kind in self.recompute]
        if self.within is not None and self.within.recompute_alike:
            return [(kind, count if kind != NONE else 0) for kind in self.recompute]
        return [(NONE, 0), *((kind, n) for kind in self.recompute if kind != NONE for n in range(1, count + 1))]

    def every(self, layers: tuple[int, ...], limit: int) -> Iterator[tuple[Choice, ...]] | None:
        """All recomputation of a strategy with these cuts; None where it is more than so many."""
        of_stages = [self.choices(stage, count) for stage, count in enumerate(layers)]
        if float(np.prod([len(of) for of in of_stages])) > limit:
            return None
        return product(*of_stages)

    def _recomputation(self, layers: tuple[int, ...]) -> list[Choice] | None:
        """[V] of each virtual stage: the shortest that fits its rank, or nearly; None where nothing does."""
        chosen: list[Choice] = [(NONE, 0)] * len(layers)
        begin = np.concatenate([[0], np.cumsum(layers)])
        for rank, (stages, _) in enumerate(self.waiting):
            own = [self.blocks[begin[stage] : begin[stage + 1]] for stage in stages]
            key = (rank, tuple(blocks.tobytes() for blocks in own))  # a move changes two virtual stages
            if key not in self._of_ranks:
                self._of_ranks[key] = self._of_rank(rank, own)
            fitting = self._of_ranks[key]
            if fitting is None:
                return None
            for stage, choice in zip(stages, fitting, strict=True):
                chosen[stage] = choice
        return chosen

    def _of_rank(self, rank: int, own: Sequence[IntArray]) -> list[Choice] | None:
        """The same of one rank, whose virtual stages have these blocks."""
        stages, moments = self.waiting[rank]
        listed = [self._listed(stage, blocks.size) for stage, blocks in zip(stages, own, strict=True)]
        counts = np.array([len(choices) for choices, _, _ in listed])
        effort.count(effort.FITTING)
        ways = float(np.prod(counts, dtype=np.float64))
        effort.count(effort.TRIALS, min(ways, float(counts.sum()) ** 2) * len(moments))
        tables = np.zeros((len(stages), 4, counts.max()))
        room, needed = self._room(rank, stages)
        room -= self._gathered_bytes(rank, own)
        for table, stage, blocks, (_, kinds, recomputed) in zip(tables, stages, own, listed, strict=True):
            room -= self._state(stage, blocks)
            table[:3] += self._ends(stage, rank)
            fill_choices(blocks, kinds, recomputed, self.seconds[rank], self.bytes_of, table)
        fitting = shortest_choices(counts, tables, moments.astype(np.float64), room, needed).tolist()
        if fitting[0] < 0:
            return None
        return [choices[i] for (choices, *_), i in zip(listed, fitting, strict=True)]

    def _listed(self, stage: int, count: int) -> tuple[list[Choice], IntArray, IntArray]:
        """The choices of a virtual stage of so many layers, and kinds and blocks of each as arrays."""
        key = (stage if {"recompute", "recompute_blocks"} & set(self.fixed) else -1, count)
        if key not in self._choices:
            choices = self.choices(stage, count)
            kinds, blocks = np.array(choices, dtype=np.int64).T
            self._choices[key] = choices, np.ascontiguousarray(kinds), np.ascontiguousarray(blocks)
        return self._choices[key]

    def _of_ends(self, stage: int) -> list[int]:
        """The layers of a virtual stage that are no blocks."""
        first, last = self.costs.ranks.ends
        return [first] * (stage == 0) + [last] * (stage == self.strategy.stages - 1)

    def _state(self, stage: int, own: IntArray) -> float:
        """Bytes of training state of a virtual stage with such blocks."""
        state = self.costs.ranks.state
        return float(state[own].sum()) + sum(float(state[layer]) for layer in self._of_ends(stage))

    def _ends(self, stage: int, rank: int) -> FloatArray:
        """[3, 1] seconds, bytes saved and bytes kept of the layers of a virtual stage that are no blocks."""
        ends = np.zeros((3, 1))
        for layer in self._of_ends(stage):
            ends[:, 0] += self.seconds[rank, layer, NONE], *self.bytes_of[:2, layer, NONE]
        return ends

    def _gathered_bytes(self, rank: int, own: Sequence[IntArray]) -> float:
        """What ZeRO-3 holds gathered on a rank whose virtual stages have these blocks, beyond the least that it may."""
        if self.strategy.zero < 3:
            return 0.0
        first, last = self.costs.ranks.ends
        stages = [of.tolist() for of in own]
        if rank == self.costs.rank_of[0]:
            stages[0] = [first, *stages[0]]
        if rank == self.costs.rank_of[-1]:
            stages[-1] = [*stages[-1], last]
        parameters = self.costs.of_groups[0].gathered_parameters(stages)
        return gathered_bytes(self.strategy, parameters) - float(self.costs.ranks.gathered_bytes[rank])

    def _room(self, rank: int, stages: Sequence[int]) -> tuple[float, float]:
        """Bytes of a rank for state, activations and what is temporary; and what of the latter it needs anyway."""
        costs, costing = self.costs, self.costs.of_groups[0]
        has_end = self.strategy.stages - 1 in stages
        logits = costing.logits_bytes if has_end else 0.0
        return float(costs.room[rank]) + logits, logits


def priced(pricing: StrategyPricing, strategy: Strategy, reserve: FloatArray) -> Completion | None:
    """The step of a strategy; None where it does not fit."""
    effort.count(effort.PRICE, passes_laid_out(strategy))
    costs = pricing.costs(strategy)
    held = np.array([memory.total for memory in costs.memory])
    if (held > rank_memory(strategy, pricing.cluster) - reserve).any():
        return None
    return Completion(strategy, step_seconds(strategy, costs), float(held.max()))


def balanced_cuts(costs: RankCosts, blocks: Sequence[int], stages: int) -> tuple[int, ...]:
    """[V] blocks of each virtual stage: each boundary is where the seconds before it are nearest to an equal share.

    Virtual stages may come out empty.

    Args:
        costs: of the ranks; seconds are those without recomputation on the fastest rank.
        blocks: the layer of each block, in order.
        stages: V.
    """
    seconds: FloatArray = costs.passes[:, :, 0].sum(axis=-1).min(axis=0)
    first, last = seconds[list(costs.ends)]
    before = np.concatenate([[0.0], np.cumsum(seconds[list(blocks)])])
    share = (first + before[-1] + last) / stages
    places = np.abs(before[None, :] - (np.arange(1, stages)[:, None] * share - first)).argmin(axis=1)
    return tuple(stop - begin for begin, stop in pairwise([0, *places.tolist(), len(blocks)]))
