"""Strategies whose stages are all alike: what a person would try first, priced before anything else is searched.

    division × schedule and virtual stages     bounded by work shared evenly, then by chains of equal stages
      └ × ZeRO × recomputation                 priced: of each stage of ZeRO the least recomputation that fits

Those of the least bound come first, so that the best one of all comes early. The sweep ends when no bound is less than
the best strategy, or after so many prices: what it comes to does not depend on how fast the machine is.

Without it a search that its budget ended was behind what the sweep finds, on 64 H100 by 2 % for llama3-70b.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.result import TIE
from automap_models.core.strategy import RECOMPUTE, Strategy
from automap_models.planners.strategies.bounds import fullest_moments, usual_chains
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.planners.strategies.grid import Division, Family, Grid, Way
from automap_models.planners.strategies.incumbent import Completion, Incumbent
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.strategy import StrategyPricing, rank_memory, step_seconds

UNEVEN = ("layers", "recompute_blocks")
"""Fields with which stages are not alike."""


@dataclass(frozen=True, eq=False)
class _Entry:
    """Strategies of a division; where there is none, all ways and all stages of ZeRO."""

    division: Division
    costs: RankCosts
    way: Way | None = None
    zero: int | None = None


class Sweep:
    """The strategies of a grid whose stages are all alike.

    Args:
        problem: whose fixed fields and reserve hold.
        grid: of it.
        pricing: of the model on the cluster.
        recompute: kinds of recomputation that blocks may have.
        incumbent: the best strategy so far.

    Attributes:
        prices: strategies that were priced.
        families: of those that fit, by their step.
    """

    def __init__(
        self,
        problem: StrategyProblem,
        grid: Grid,
        pricing: StrategyPricing,
        recompute: Sequence[int],
        incumbent: Incumbent,
    ) -> None:
        self.problem, self.grid, self.pricing, self.incumbent = problem, grid, pricing, incumbent
        self.recompute = [] if any(name in problem.fixed for name in UNEVEN) else list(recompute)
        if isinstance(problem.fixed.get("recompute"), tuple):
            self.recompute = []
        self.layers = problem.work.shape.layers
        self.blocks = problem.work.order[1:-1]
        self.queue: list[tuple[float, int, _Entry]] = []
        self.numbers = count()
        self.of_zeros: dict[tuple[Division, int], RankCosts] = {}
        self.prices = 0
        self.families: dict[Family, float] = {}

    def run(self, divisions: Iterable[tuple[float, Division, RankCosts]], prices: int) -> None:
        """Price strategies of divisions, which come with their bounds, so many at most."""
        if not self.recompute:
            return
        for bound_s, division, costs in divisions:
            self.push(bound_s, _Entry(division, costs))
        while self.queue and self.prices < prices:
            bound_s, _, entry = heapq.heappop(self.queue)
            if bound_s >= self.limit_s:
                return
            if entry.zero is not None:
                self.price(entry)
            elif entry.way is not None:
                self.split(bound_s, entry)
            else:
                for way in self.grid.ways(entry.division):
                    if self.layers % (entry.division.pp * way.vp) == 0:
                        of_way = replace(entry, way=way)
                        self.push(max(bound_s, float(self.bounds(of_way)[self.recompute].min())), of_way)

    def push(self, bound_s: float, entry: _Entry) -> None:
        """Come to it later, where it may be the best."""
        if bound_s < self.limit_s:
            heapq.heappush(self.queue, (bound_s, next(self.numbers), entry))

    def split(self, bound_s: float, entry: _Entry) -> None:
        """Into the stages of ZeRO with which something fits."""
        for zero in self.grid.zeros(entry.division):
            of_zero = replace(entry, zero=zero, costs=self.rank_costs(entry.division, zero))
            kinds = self.fitting(of_zero)
            if kinds:
                self.push(max(bound_s, float(self.family_bounds(of_zero)[kinds].min())), of_zero)

    def bounds(self, entry: _Entry, family: FamilyCosts | None = None) -> FloatArray:
        """[R] no strategy of equal stages with such recomputation is shorter, of the family if there is one."""
        costs, counts, chains = entry.costs, self.counts(entry), usual_chains(*self.schedule(entry))
        rank_of, ends = np.array(chains.rank_of), ((0, costs.ends.first), (-1, costs.ends.last))
        times = np.einsum("vk,vkjp->jpv", counts, costs.passes[rank_of])
        for stage, layer in ends:
            times[..., stage] += costs.passes[rank_of[stage], layer, 0]
        shared = entry.division.dp * entry.division.cp
        once_s: float | FloatArray = costs.even_update_s / (1 if family else shared)
        if family is not None:
            times[:, :2] += family.sends
            times[:, 0] += family.starts
            gradients = np.einsum("vk,vk->v", counts, costs.gradients[rank_of])
            for stage, layer in ends:
                gradients[stage] += costs.gradients[rank_of[stage], layer]
            of_ranks = np.bincount(rank_of, gradients)
            once_s = once_s + family.tied_s + chains.messages @ family.messages + of_ranks[chains.ranks]
        seconds = times.reshape(len(RECOMPUTE), -1) @ chains.counts.reshape(len(chains.counts), -1).T
        return np.asarray((seconds + once_s).max(axis=1))

    def fitting(self, entry: _Entry) -> list[int]:
        """Kinds of recomputation with which the memory of equal stages may hold what there is."""
        costs, counts = entry.costs, self.counts(entry)
        saved, kept = counts @ costs.saved, counts @ costs.kept
        state, room = counts @ costs.state, costs.room.copy()
        for stage, layer in ((0, costs.ends.first), (-1, costs.ends.last)):
            saved[stage] += costs.saved[layer, 0]
            kept[stage] += costs.kept[layer, 0]
            state[stage] += costs.state[layer]
        held = np.zeros((len(room), len(RECOMPUTE)))
        for rank, (stages, moments) in enumerate(fullest_moments(*self.schedule(entry))):
            own = list(stages)
            activations = moments[:, 0] @ saved[own] + moments[:, 1] @ kept[own]
            held[rank] = state[own].sum() + activations.max(axis=0)
        fits = np.asarray((held <= room[:, None]).all(axis=0))
        return [kind for kind in self.recompute if fits[kind]]

    def counts(self, entry: _Entry) -> FloatArray:
        """[V, k] how many blocks of each distinct layer a virtual stage has."""
        assert entry.way is not None
        return _equal_counts(self.blocks, entry.division.pp * entry.way.vp, entry.costs.blocks.size)

    def schedule(self, entry: _Entry) -> tuple[str, int, int, int]:
        """Its name, ranks, micro-batches of a rank of data parallelism, and virtual stages."""
        assert entry.way is not None
        d = entry.division
        micro_batches = self.problem.global_batch // (d.dp * d.micro_batch)
        return entry.way.schedule, d.pp, micro_batches, entry.way.vp

    def rank_costs(self, division: Division, zero: int) -> RankCosts:
        """Of a stage of ZeRO, whatever the way."""
        if (division, zero) not in self.of_zeros:
            strategy = self.grid.strategy(Family(division, zero, self.grid.ways(division)[0]))
            self.of_zeros[division, zero] = RankCosts(self.pricing, strategy, self.problem.reserve_bytes)
        return self.of_zeros[division, zero]

    def price(self, entry: _Entry) -> None:
        """The strategy with the least recomputation that fits."""
        assert entry.way is not None and entry.zero is not None
        family, bounds = Family(entry.division, entry.zero, entry.way), self.family_bounds(entry)
        for kind in self.fitting(entry):
            if bounds[kind] >= self.limit_s or self.take(family, kind):
                return

    def family_bounds(self, entry: _Entry) -> FloatArray:
        """[R] the same with what its stage of ZeRO and its messages take."""
        assert entry.way is not None and entry.zero is not None
        strategy = self.grid.strategy(Family(entry.division, entry.zero, entry.way))
        return self.bounds(entry, FamilyCosts(entry.costs, strategy))

    @property
    def limit_s(self) -> float:
        """Of the best strategy so far: what is bounded by as much is not better."""
        best = self.incumbent.best
        return float("inf") if best is None else best.step_s * (1 - TIE)

    def take(self, family: Family, kind: int) -> bool:
        """Whether a strategy fits; the best one is kept."""
        strategy = self.grid.strategy(family, recompute=RECOMPUTE[kind])
        self.prices += 1
        completion = priced(self.pricing, strategy, self.problem.reserve_bytes)
        if completion is None:
            return False
        self.families[family] = completion.step_s
        self.incumbent.take(completion)
        return True


def priced(pricing: StrategyPricing, strategy: Strategy, reserve_bytes: float) -> Completion | None:
    """The step of a strategy; None where it does not fit."""
    costs = pricing.costs(strategy)
    held = np.array([memory.total for memory in costs.memory])
    if (held > rank_memory(strategy, pricing.cluster) - reserve_bytes).any():
        return None
    return Completion(strategy, step_seconds(strategy, costs))


@lru_cache(maxsize=256)
def _equal_counts(blocks: tuple[int, ...], stages: int, kinds: int) -> FloatArray:
    """[V, k] how many blocks of each distinct layer each of so many equal stages has."""
    counts = np.zeros((stages, kinds))
    np.add.at(counts, (np.repeat(np.arange(stages), len(blocks) // stages), np.array(blocks)), 1.0)
    return counts
