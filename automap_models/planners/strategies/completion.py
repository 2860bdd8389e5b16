"""Cuts and recomputation of a subspace: from pieces of blocks to strategies, priced by the simulator.

pieces of blocks          3.4 | 2.9 | 2.7      of the relaxation
cuts                      4   | 3   | 2        where the work before a boundary is nearest to theirs
recomputation of a rank   the shortest passes with which its memory holds them
neighbouring cuts         3 | 3 | 3, 4 | 2 | 3, …   as long as the step gets shorter

The incumbent is the best strategy of a search so far, with the best ones of each sort on the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise, product
from math import prod

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.result import TIE
from automap_models.core.strategy import Recompute, Strategy
from automap_models.cost.strategy import laid_out
from automap_models.planners import effort
from automap_models.planners.strategies.chain_bounds import passes_laid_out
from automap_models.planners.strategies.fitting import shortest_choices
from automap_models.planners.strategies.problem import NONE, OFFLOAD, UNEQUAL, StrategyProblem, steps_of
from automap_models.planners.strategies.subspace_costs import SubspaceCosts
from automap_models.simulate.strategy import StrategyPricing

Choice = tuple[int, int]
"""Of a virtual stage: kind of recomputation, and of how many blocks, its first ones."""
Layers = tuple[int, ...]
"""Of a virtual stage, as of ModelWork.layers, in their order."""
Table = tuple[list[Choice], FloatArray, FloatArray, float]
"""Of a virtual stage: n choices, their [4, n] seconds, bytes saved, kept and temporary, [n] bytes on hosts; bytes of
its training state."""


@dataclass(frozen=True)
class Completion:
    """A strategy that fits, its step, bytes of the fullest device, and the cluster, whose groups are in an order."""

    strategy: Strategy
    step_s: float
    held_bytes: float = 0.0
    cluster: Cluster | None = None


@dataclass
class Incumbent:
    """The best strategy of a search so far.

    Attributes:
        gap: share of the step by which another strategy may be shorter at most when the search ends.
        patience: strategies after which a search may give up.
        below_s: what steps have to be shorter than.
        best: None before any was found.
        trials: strategies that were taken or were not better.
        best_after: how many it had been when the best one came.
        of_sorts: the shortest strategy of each sort (`sort_of`), with which a search with fewer choices can begin.
    """

    gap: float
    patience: int
    below_s: float = float("inf")
    best: Completion | None = None
    trials: int = 0
    best_after: int = 0
    of_sorts: dict[Hashable, Completion] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """What is bounded by as much need not be looked at."""
        return self.least_s * (1 - self.gap if self.gap else 1 - TIE)

    @property
    def least_s(self) -> float:
        """What has to be undercut."""
        return self.below_s if self.best is None else min(self.best.step_s, self.below_s)

    def take(self, completion: Completion | None) -> None:
        """Keep it where it is shorter."""
        self.trials += 1
        if completion is None:
            return
        sort = sort_of(completion.strategy)
        if sort not in self.of_sorts or completion.step_s < self.of_sorts[sort].step_s:
            self.of_sorts[sort] = completion
        if self.best is None or completion.step_s < self.best.step_s:
            self.best, self.best_after = completion, self.trials

    def stale(self, times: int) -> bool:
        """Whether so many times as many strategies came as the best one came after."""
        return self.trials >= max(self.patience, times * self.best_after)


def sort_of(strategy: Strategy) -> Hashable:
    """Which choices a strategy makes."""
    s = strategy
    degrees = (s.tp > 1, s.cp > 1, s.pp > 1)
    recomputes = s.recompute != "none"
    plain = (s.schedule, s.vp) == ("1f1b", 1)
    return (*degrees, recomputes, s.zero, s.sequence_parallel, s.layers is None, plain, steps_of(s))


class Completions:
    """The strategies of a subspace.

    Args:
        costs: of the subspace.
        recompute: kinds of recomputation that blocks may have.
        problem: whose fixed fields and reserve hold.
    """

    def __init__(self, costs: SubspaceCosts, recompute: list[int], problem: StrategyProblem) -> None:
        ranks, self.costs, self.strategy, self.recompute = costs.ranks, costs, costs.strategy, recompute
        self.pricing, self.problem, self.fixed = ranks.pricing, problem, problem.fixed
        self.order = np.array(ranks.work.order)
        self.blocks = self.order[1:-1]
        self.seconds = ranks.seconds
        self._tables: dict[tuple[Hashable, ...], Table] = {}
        self._completions: dict[tuple[int, ...], Completion | None] = {}
        self._of_ranks: dict[tuple[Hashable, ...], list[Choice] | None] = {}
        seconds = self.seconds.min(axis=0)[self.blocks].sum(axis=0)
        sets = problem.recompute_sets(recompute, self.strategy.pp)
        self.sets = sorted(sets, key=lambda kinds: float(seconds[kinds[-1]]))  # the shortest first
        self.schedule = laid_out(self.strategy)
        by_rank = np.argsort(self.schedule.rank_of, kind="stable")
        self.places = np.argsort(by_rank).tolist()  # of virtual stages, among those of all ranks

    @property
    def given_layers(self) -> tuple[int, ...] | None:
        """Cuts that are fixed."""
        if UNEQUAL in self.problem.without:
            return (self.blocks.size // self.strategy.stages,) * self.strategy.stages
        return self.fixed.get("layers")

    # ---- cuts

    def rounded(self, pieces: FloatArray, kinds: IntArray) -> tuple[int, ...]:
        """[V] layers of each virtual stage, for [V, kinds, R'] pieces of blocks."""
        unit = self.seconds[:, :, NONE].min(axis=0)
        return self._cut(np.cumsum(pieces.sum(axis=2) @ unit[kinds])[:-1])

    def balanced(self) -> tuple[int, ...]:
        """[V] layers of virtual stages that take about equally long, without recomputation."""
        stages, seconds = self.strategy.stages, self.seconds[:, :, NONE].min(axis=0)[self.order]
        ends = np.arange(1, stages) / stages
        if len(self.costs.costings) > 1:
            of_stages = self.costs.ranks.speeds()[self.costs.rank_of]
            ends = np.cumsum(of_stages)[:-1] / of_stages.sum()
        return self._cut(ends * seconds.sum() - seconds[0])

    def _cut(self, ends_s: FloatArray) -> tuple[int, ...]:
        """[V] layers between the boundaries before which blocks take nearest to [V-1] seconds, moved until no virtual
        stage has fewer than it needs."""
        if self.given_layers is not None:
            return self.given_layers
        before = np.concatenate([[0.0], np.cumsum(self.seconds[:, :, NONE].min(axis=0)[self.blocks])])
        bounds = [0, *np.abs(before[None, :] - ends_s[:, None]).argmin(axis=1).tolist(), self.blocks.size]
        stages = self.strategy.stages
        for i in range(1, stages):
            bounds[i] = max(bounds[i], bounds[i - 1] + self.least(i - 1))
        for i in range(stages - 1, 0, -1):
            bounds[i] = min(bounds[i], bounds[i + 1] - self.least(i))
        return tuple(stop - begin for begin, stop in pairwise(bounds))

    def least(self, stage: int) -> int:
        """Blocks that a virtual stage has at least: at the ends of the model none, where these hold parameters."""
        inner = self.problem.within is not None and self.problem.within.cuts == "inner blocks"
        read = self.pricing.work.shape.tower_layers or 0
        if stage == 0 and read:
            return min(read, self.blocks.size)
        if inner or stage not in (0, self.strategy.stages - 1):
            return 1
        costs, layer = self.costs.costings[0].of_layers, self.order[0 if stage == 0 else -1]
        return int(not costs.parameters[layer].any() and not costs.frozen_bytes[layer].any())

    def best(self, layers: tuple[int, ...]) -> Completion | None:
        """The strategy with these cuts whose ranks recompute as little as their memory asks for; None if none fits."""
        if layers not in self._completions:
            chosen = self._recomputation(layers)
            self._completions[layers] = None if chosen is None else self.priced(layers, chosen)
        return self._completions[layers]

    def improved(
        self, layers: tuple[int, ...], trials: float, late: Callable[[], bool] = lambda: False
    ) -> Completion | None:
        """The best after so many trials of moving a layer from one virtual stage to another, or when it is late."""
        best = self.best(layers)
        improving = self.given_layers is None
        while improving and trials > 0:
            improving = False
            for moved in self._moves(layers):
                if moved in self._completions:
                    continue
                trials -= 1
                trial = self.best(moved)
                if trial is not None and (best is None or trial.step_s < best.step_s * (1 - 1e-9)):
                    best, layers, improving = trial, moved, True
                if improving or trials <= 0 or late():
                    break
        return best

    def _moves(self, layers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Neighbouring cuts; first those that unload the longest stages, and load the shortest ones."""
        ranks, of_stages = self.costs.rank_of.tolist(), map(list, self._of_stages(layers))
        stage_s = [self.seconds[rank, v, NONE].sum() for rank, v in zip(ranks, of_stages, strict=True)]
        order = np.argsort(-np.array(stage_s), kind="stable").tolist()
        for source in order:
            for target in reversed(order):
                if source != target and layers[source] > self.least(source):
                    moved = list(layers)
                    moved[source] -= 1
                    moved[target] += 1
                    yield tuple(moved)

    def _of_stages(self, layers: tuple[int, ...]) -> list[Layers]:
        """[V] the layers of each virtual stage, those before and after the blocks among them."""
        order = self.costs.ranks.work.order
        bounds = [0, *accumulate(layers[1:-1], initial=1 + layers[0]), len(order)] if layers[1:] else [0, len(order)]
        return [order[begin:stop] for begin, stop in pairwise(bounds)]

    # ---- recomputation

    def alike(self, layers: tuple[int, ...]) -> Iterator[Completion | None]:
        """The strategies with these cuts all of whose blocks recompute the same, as far as that is open."""
        if not {"recompute", "recompute_blocks"} & set(self.fixed):
            for kind in self.recompute:
                yield self.priced(layers, [(kind, count if kind != NONE else 0) for count in layers])

    def priced(self, layers: tuple[int, ...], choices: Sequence[Choice]) -> Completion | None:
        """The step of a strategy; None where it does not fit."""
        strategy = self._strategy(layers, choices)
        return priced(self.pricing, strategy, self.problem.reserve(strategy.pp))

    def _strategy(self, layers: tuple[int, ...], choices: Sequence[Choice]) -> Strategy:
        """With what is uniform written as such."""
        kinds = tuple(self.costs.ranks.work.kinds[kind] if blocks else "none" for kind, blocks in choices)
        partial = any(0 < blocks < count for (_, blocks), count in zip(choices, layers, strict=True))
        filled = {kind for kind, count in zip(kinds, layers, strict=True) if count}
        recompute: Recompute | tuple[Recompute, ...] = kinds
        if len(filled) <= 1:
            recompute = filled.pop() if filled else "none"
        blocks = tuple(blocks for _, blocks in choices) if partial else None
        return replace(
            self.strategy,
            layers=None if len(set(layers)) == 1 and "layers" not in self.fixed else layers,
            recompute=self.fixed.get("recompute", recompute),
            recompute_blocks=self.fixed.get("recompute_blocks", blocks),
        )

    def choices(self, stage: int, count: int, recompute: Sequence[int]) -> list[Choice]:
        """All that a virtual stage of so many layers may recompute, nothing first."""
        fixed, blocks = self.fixed.get("recompute"), self.fixed.get("recompute_blocks")
        if fixed is not None:
            kind = self.costs.ranks.work.kind(fixed[stage] if isinstance(fixed, tuple) else fixed)
            return [(kind, blocks[stage] if blocks is not None else count if kind != NONE else 0)]
        if blocks is not None:
            return [(kind, blocks[stage]) for kind in recompute]
        if self.problem.recompute_alike:
            parts = {NONE: [0]} if self.problem.within is None else {NONE: [0], OFFLOAD: range(1, count)}
            return [(kind, n) for kind in recompute for n in parts.get(kind, [count])]
        return [(NONE, 0), *((kind, n) for kind in recompute if kind != NONE for n in range(1, count + 1))]

    def every(self, layers: tuple[int, ...], limit: int) -> Iterator[tuple[Choice, ...]] | None:
        """All recomputation of a strategy with these cuts; None where it is more than so many."""
        of_stages = [self.choices(stage, count, self.recompute) for stage, count in enumerate(layers)]
        if float(np.prod([len(stage_choices) for stage_choices in of_stages])) > limit:
            return None
        return product(*of_stages)

    def _recomputation(self, layers: tuple[int, ...]) -> list[Choice] | None:
        """[V] of each virtual stage: the shortest that fits its rank, or nearly; None where nothing does."""
        of_stages = self._of_stages(layers)
        return next(filter(None, (self._fitting(of_stages, kinds) for kinds in self.sets)), None)

    def _fitting(self, of_stages: Sequence[Layers], recompute: Sequence[int]) -> list[Choice] | None:
        """The same of some kinds."""
        chosen, kinds = list[Choice](), tuple(recompute)
        for rank in range(self.strategy.pp):
            of_rank = [of_stages[stage] for stage in self.schedule.fullest_of(rank)[0]]
            key = (rank, kinds, *of_rank)  # a move changes two virtual stages
            if key not in self._of_ranks:
                self._of_ranks[key] = self._of_rank(rank, of_rank, recompute)
            fitting = self._of_ranks[key]
            if fitting is None:
                return None
            chosen += fitting
        return [chosen[place] for place in self.places]

    def _of_rank(self, rank: int, of_stages: Sequence[Layers], recompute: Sequence[int]) -> list[Choice] | None:
        """The same of one rank, whose virtual stages have these layers."""
        stages, moments = self.schedule.fullest_of(rank)
        tables = [self._table(rank, *stage, recompute) for stage in zip(stages, of_stages, strict=True)]
        counts = [len(choices) for choices, *_ in tables]
        effort.count(effort.FITTING)
        effort.count(effort.TRIALS, min(float(prod(counts)), float(sum(counts)) ** 2) * len(moments))
        logits = self.costs.costings[0].logits_bytes if self.strategy.stages - 1 in stages else 0.0
        room = float(self.costs.room[rank]) + logits - self._gathered_bytes(rank, of_stages)
        room -= sum(state for *_, state in tables)
        amounts = np.zeros((len(stages), 4, max(counts)))
        for row, (choices, of_stage, *_) in zip(amounts, tables, strict=True):
            row[:, : len(choices)] = of_stage
        if OFFLOAD in recompute or self.costs.costings[0].host is not None:
            hosts = self._host_room(of_stages) / len(stages)
            for row, (choices, _, away, _), most in zip(amounts, tables, moments[:, 0].max(axis=0), strict=True):
                row[3, : len(choices)][away * most > hosts] = np.inf
        fitting = shortest_choices(np.array(counts), amounts, moments.astype(np.float64), room, logits).tolist()
        return None if fitting[0] < 0 else [choices[i] for (choices, *_), i in zip(tables, fitting, strict=True)]

    def _table(self, rank: int, stage: int, layers: Layers, recompute: Sequence[int]) -> Table:
        """Of a virtual stage; those of many ranks and stages are alike."""
        given = {"recompute", "recompute_blocks"} & set(self.fixed)
        begin, stop = int(stage == 0), len(layers) - (stage == self.strategy.stages - 1)
        key = (stage if given else begin, stop, self.costs.ranks.like[rank], layers, *recompute)
        if key not in self._tables:
            choices = self.choices(stage, stop - begin, recompute)
            amounts = self.costs.ranks.amounts(rank, layers, begin, stop)[:, *np.array(choices).T[::-1]]
            state = float(self.costs.ranks.state[list(layers)].sum())
            self._tables[key] = choices, amounts[[0, 1, 2, 4]], amounts[3], state
        return self._tables[key]

    def _host_room(self, of_stages: Sequence[Layers]) -> float:
        """Bytes of its host that a device has for blocks, beside what lies there of the parameters of these layers."""
        costing = self.costs.costings[0]
        parameters = costing.of_layers.parameters[list(chain(*of_stages))].sum(axis=0)
        used, share = costing.on_host(parameters.tolist(), 1.0)
        return share - used

    def _gathered_bytes(self, rank: int, of_stages: Sequence[Layers]) -> float:
        """What ZeRO-3 holds gathered on a rank whose virtual stages have these layers, beyond the least that it may."""
        if self.strategy.zero < 3:
            return 0.0
        costing = self.costs.costings[0]
        parameters = costing.gathered_parameters([list(layers) for layers in of_stages])
        return costing.weight_bytes * parameters - float(self.costs.ranks.gathered_bytes[rank])


def priced(pricing: StrategyPricing, strategy: Strategy, reserve: FloatArray) -> Completion | None:
    """The step of a strategy; None where it does not fit."""
    effort.count(effort.PRICE, passes_laid_out(strategy))
    step_s, nbytes, limits = pricing.price(strategy)
    fits = bool((nbytes <= limits - reserve).all())
    return Completion(strategy, step_s, float(nbytes.max()), pricing.cluster) if fits else None
