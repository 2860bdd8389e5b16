"""Strategies whose stages are alike: what a person would try first, priced before anything else is searched.

Stages have equally many layers, or where that cannot be, as many as make them take equally long, ends included.
All recompute the same.

    division × schedule and virtual stages     bounded by work shared evenly, then by chains of equal stages
      └ × ZeRO × recomputation                 priced: of each stage of ZeRO the least recomputation that fits

Those of the least bound come first, so that the best one of all comes early. The sweep ends when no bound is less than
the best strategy, or after so much work or time.

Without it a search that its budget ended was behind what the sweep finds, on 64 H100 by 2 % for llama3-70b.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.result import TIE
from automap_models.core.schedules import repeating_micro_batches
from automap_models.core.strategy import RECOMPUTE, Strategy
from automap_models.planners import effort
from automap_models.planners.strategies.bounds import fullest_moments, passes_laid_out, usual_chains
from automap_models.planners.strategies.cuts import balanced_cuts
from automap_models.planners.strategies.divisions import DividedModel
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.planners.strategies.grid import Division, Family, Way
from automap_models.planners.strategies.incumbent import Completion, Incumbent
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.simulate.strategy import StrategyPricing, rank_memory, step_seconds

UNEVEN = ("layers", "recompute_blocks")
"""Fields with which stages are not alike."""
WAITING = 0.3
"""Share of 1F1B's bubble that is added to the bound of a division, for the order in which divisions come: other
schedules have less of it."""
Late = Callable[[], bool]


def never() -> bool:
    """There is time for all."""
    return False


@dataclass(frozen=True, eq=False)
class _Entry:
    """Strategies of a division; where there is none, all ways and all stages of ZeRO."""

    division: Division
    way: Way | None = None
    layers: tuple[int, ...] = ()
    zero: int | None = None


class Sweep:
    """The strategies of a grid whose stages are all alike.

    Args:
        problem: whose fixed fields and reserve hold.
        divided: costs of the divisions of its grid.
        incumbent: the best strategy so far.

    Attributes:
        prices: strategies that were priced.
        passes: forward and backward, of the schedules that were laid out.
        families: of those that fit, by their step.
    """

    def __init__(
        self,
        problem: StrategyProblem,
        divided: DividedModel,
        incumbent: Incumbent,
    ) -> None:
        self.problem, self.divided, self.incumbent = problem, divided, incumbent
        self.grid, self.pricing = divided.grid, divided.pricing
        kinds = sorted({kind for kinds in problem.recompute_sets for kind in kinds})
        self.recompute = [] if any(name in problem.fixed for name in UNEVEN) else kinds
        if isinstance(problem.fixed.get("recompute"), tuple):
            self.recompute = []
        self.layers = problem.work.shape.layers
        self.blocks = problem.work.order[1:-1]
        self.queue: list[tuple[float, int, float, _Entry]] = []
        self.numbers = count()
        self.of_zeros: dict[tuple[Division, int], RankCosts] = {}
        self.laid_out: dict[tuple[str, int, int, int], bool] = {}
        self.prices = self.passes = 0
        self.families: dict[Family, float] = {}

    def run(self, divisions: Iterable[tuple[float, Division]], prices: int, passes: int, late: Late = never) -> None:
        """Price strategies of divisions, which come with their bounds: so many at most, of schedules of so many passes.

        Divisions come in the order of their bounds and of what 1F1B would wait for.
        """
        if not self.recompute:
            return
        ordered = sorted((bound_s * (1 + WAITING * self.waiting(of)), bound_s, of) for bound_s, of in divisions)
        for rank, bound_s, division in ordered:
            self.push(bound_s, _Entry(division), rank)
        while self.queue and self.prices < prices and not late():
            _, _, bound_s, entry = heapq.heappop(self.queue)
            effort.count(effort.EQUAL)
            if bound_s >= self.limit_s:
                continue
            if entry.zero is not None:
                self.price(entry)
            elif entry.way is not None:
                self.split(bound_s, entry)
            else:
                for way in self.grid.ways(entry.division):
                    if not self.lay_out(entry.division, way, passes):
                        continue
                    for layers in self.cuts(entry, entry.division.pp * way.vp):
                        of_way = replace(entry, way=way, layers=layers)
                        self.push(max(bound_s, float(self.bounds(of_way)[self.recompute].min())), of_way)

    def push(self, bound_s: float, entry: _Entry, rank: float | None = None) -> None:
        """Come to it later, where it may be the best: in the order of its bound, or as is said."""
        if bound_s < self.limit_s:
            heapq.heappush(self.queue, (bound_s if rank is None else rank, next(self.numbers), bound_s, entry))

    def micro_batches(self, division: Division) -> int:
        """M."""
        return self.problem.global_batch // (division.dp * division.micro_batch)

    def waiting(self, division: Division) -> float:
        """The bubble of 1F1B, as a share of a rank's work."""
        return (division.pp - 1) / self.micro_batches(division)

    def costs(self, entry: _Entry) -> RankCosts:
        """Of its stage of ZeRO, or where none is chosen of any."""
        zero = self.grid.zeros(entry.division)[0] if entry.zero is None else entry.zero
        return self.rank_costs(entry.division, zero)

    def lay_out(self, division: Division, way: Way, most: int) -> bool:
        """Whether the schedule may be laid out: all others and it have so many passes at most."""
        shape = (way.schedule, division.pp, self.micro_batches(division), way.vp)
        if shape not in self.laid_out:
            shown, _ = repeating_micro_batches(*shape)
            passes = 2 * division.pp * way.vp * shown
            self.laid_out[shape] = self.passes + passes <= most
            self.passes += passes * self.laid_out[shape]
        return self.laid_out[shape]

    def split(self, bound_s: float, entry: _Entry) -> None:
        """Into the stages of ZeRO with which something fits."""
        for zero in self.grid.zeros(entry.division):
            of_zero = replace(entry, zero=zero)
            kinds = self.fitting(of_zero)
            if kinds:
                self.push(max(bound_s, float(self.family_bounds(of_zero)[kinds].min())), of_zero)

    def bounds(self, entry: _Entry, family: FamilyCosts | None = None) -> FloatArray:
        """[R] no strategy of equal stages with such recomputation is shorter, of the family if there is one."""
        costs, counts, chains = self.costs(entry), self.counts(entry), usual_chains(*self.schedule(entry))
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
        costs, counts = self.costs(entry), self.counts(entry)
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

    def cuts(self, entry: _Entry, stages: int) -> list[tuple[int, ...]]:
        """Layers of each virtual stage: equally many, or as many as take equally long."""
        whole, odd = divmod(self.layers, stages)
        if not odd:
            return [(whole,) * stages]
        if self.problem.equal_layers:
            return []
        balanced = balanced_cuts(self.costs(entry), self.blocks, stages)
        within = self.problem.within
        inner = balanced if within is not None and within.cuts == "inner blocks" else balanced[1:-1]
        return [balanced] if all(inner) else []

    def counts(self, entry: _Entry) -> FloatArray:
        """[V, k] how many blocks of each distinct layer a virtual stage has."""
        return _counts(self.blocks, entry.layers, len(self.problem.work.layers))

    def schedule(self, entry: _Entry) -> tuple[str, int, int, int]:
        """Its name, ranks, micro-batches of a rank of data parallelism, and virtual stages."""
        assert entry.way is not None
        d = entry.division
        return entry.way.schedule, d.pp, self.micro_batches(d), entry.way.vp

    def rank_costs(self, division: Division, zero: int) -> RankCosts:
        """Of a stage of ZeRO, whatever the way."""
        if (division, zero) not in self.of_zeros:
            self.of_zeros[division, zero] = self.divided.costs(division, zero)
        return self.of_zeros[division, zero]

    def price(self, entry: _Entry) -> None:
        """The strategy with the least recomputation that fits."""
        assert entry.way is not None and entry.zero is not None
        family, bounds = Family(entry.division, entry.zero, entry.way), self.family_bounds(entry)
        for kind in self.fitting(entry):
            if bounds[kind] >= self.limit_s or self.take(family, entry.layers, kind):
                return

    def family_bounds(self, entry: _Entry) -> FloatArray:
        """[R] the same with what its stage of ZeRO and its messages take."""
        assert entry.way is not None and entry.zero is not None
        strategy = self.grid.strategy(Family(entry.division, entry.zero, entry.way))
        return self.bounds(entry, FamilyCosts(self.costs(entry), strategy))

    @property
    def limit_s(self) -> float:
        """Of the best strategy so far: what is bounded by as much is not better."""
        best = self.incumbent.best
        return float("inf") if best is None else best.step_s * (1 - TIE)

    def take(self, family: Family, layers: tuple[int, ...], kind: int) -> bool:
        """Whether a strategy fits; the best one is kept."""
        uneven = {"layers": layers} if len(set(layers)) > 1 else {}
        strategy = self.grid.strategy(family, recompute=RECOMPUTE[kind], **uneven)
        self.prices += 1
        completion = priced(self.pricing, strategy, self.problem.reserve(strategy.pp))
        if completion is None:
            return False
        self.families[family] = min(completion.step_s, self.families.get(family, float("inf")))
        self.incumbent.take(completion)
        return True


def priced(pricing: StrategyPricing, strategy: Strategy, reserve: FloatArray) -> Completion | None:
    """The step of a strategy; None where it does not fit."""
    effort.count(effort.PRICE, passes_laid_out(strategy))
    costs = pricing.costs(strategy)
    held = np.array([memory.total for memory in costs.memory])
    if (held > rank_memory(strategy, pricing.cluster) - reserve).any():
        return None
    return Completion(strategy, step_seconds(strategy, costs), float(held.max()))


@lru_cache(maxsize=256)
def _counts(blocks: tuple[int, ...], layers: tuple[int, ...], kinds: int) -> FloatArray:
    """[V, k] how many blocks of each distinct layer each virtual stage of so many layers has."""
    counts = np.zeros((len(layers), kinds))
    np.add.at(counts, (np.repeat(np.arange(len(layers)), layers), np.array(blocks)), 1.0)
    return counts
