"""The fastest strategy under the memory of every rank, by branch and bound, with a proof on the simulated step.

    divisions        tp, cp, ep, pp, dp, micro-batch, SP       work shared evenly
      └ ranks        × ZeRO                                    bounds.closed_bound, with the emptiest schedule's memory
          └ families × schedule × virtual stages               the same with their own
              └ cuts and recomputation in pieces               relaxation: few chains, then more, then whole blocks
                  └ strategies, simulated                      completion

One queue holds all of them by their bound. The one of the least bound is replaced by what it consists of, or its bound
by a tighter one. The search ends when the least bound is within `gap` of the best strategy: no strategy of the grid is
more than that shorter. It ends, too, when what is proven cannot get tighter, as the least bound is of a family whose
bounds are spent, and twice as many strategies were simulated as the best one came after. From the first of these on
a family's first program only shows a strategy: none is solved for a tighter bound, which would prove nothing.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import combinations, count
from math import comb

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.result import TIE
from automap_models.planners import effort
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.strategies.bounds import closed_bound, least_in_flight
from automap_models.planners.strategies.chain_bounds import chain_bound
from automap_models.planners.strategies.completion import Completions, priced
from automap_models.planners.strategies.config import StrategiesConfig
from automap_models.planners.strategies.divisions import DividedModel, usual_divisions
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.planners.strategies.grid import Division, Family, Grid, Way
from automap_models.planners.strategies.guesses import guesses
from automap_models.planners.strategies.incumbent import Completion, Incumbent
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.planners.strategies.relaxation import Relaxation

DIVES = 60
"""Families that are simulated as soon as they are come upon, so that there is something to hold bounds against."""
FIRST_PRICES = 24
"""Strategies of usual divisions that are priced before anything else."""
DOMINATED = 0.1
"""Share of the gap by which a strategy may be shorter than those of a division that its own is left out for."""
GUESSED, GUESSED_DIVISIONS = 80, 300
"""Strategies that closed forms say are good, and that are simulated; and how many divisions of the least bounds they
are of."""
FAR = 1.15
"""A guess that is so many times as long as the best strategy is not simulated."""
WAITING = 0.3
"""Share of 1F1B's bubble that is added to the bound of a division, for the order in which divisions are guessed of:
other schedules have less of it."""
LISTING = 0.5
"""Share of the budget in which divisions are listed; those that are not listed by then are not searched."""
FIRST_BOUNDS, FIRST_DIVES = 200, 24
"""Divisions whose 1F1B is bounded first, and of which so many are simulated."""
REFINED = 4
"""Families of the best of these whose other cuts and recomputation are tried at once."""
REFINING = 0.1
"""Share of the time for moving layers of the best strategy at last, which has what else is left, too."""
SMALL_BUBBLE = 0.02
"""Share of a step that ranks of 1F1B wait in about; below it chains, which take milliseconds to find, wait for
the linear program."""
NEWS_S = 0.2
"""Between two pieces of news for whoever watches."""


class Level(IntEnum):
    """How tight the bound of an entry of the queue is."""

    DIVISION = 0
    RANKS = 1
    FAMILY = 2
    CHAINED = 3
    RELAXED = 4
    CHAINS = 5
    WHOLE = 6
    """By whole blocks of each rank: only simulating all of its strategies could tell more."""


@dataclass(eq=False)
class _Ranks:
    """Families that differ in nothing but schedule and virtual stages."""

    division: Division
    zero: int
    ways: Sequence[Way]
    costs: RankCosts
    recompute: list[int]
    """Kinds of it that blocks may have."""
    dives: int = 2
    """Families of it that are simulated as soon as they are come upon, until one fits."""


@dataclass(eq=False)
class _Family:
    """A family in the queue, with what its bounds are made of as soon as they are needed."""

    family: Family
    costs: FamilyCosts
    recompute: list[int]
    ranks: _Ranks | None = None
    relaxation: Relaxation | None = None
    completions: Completions | None = None


@dataclass
class SearchCounts:
    """How much was looked at: divisions and families of the grid, families by the bound that ruled them out or not."""

    divisions: int = 0
    dominated: int = 0
    """Divisions that another one is as good as in all."""
    families: int = 0
    relaxed: int = 0
    chained: int = 0
    whole: int = 0
    simulated: int = 0


@dataclass
class Search:
    """One search; `best`: so far, of all and of each schedule."""

    problem: StrategyProblem
    config: StrategiesConfig
    deadline: Deadline
    watch: Watch
    counts: SearchCounts = field(default_factory=SearchCounts)
    seen: Incumbent | None = None
    """The incumbent of another search, of which strategies have to be shorter."""
    left: float = float("inf")
    """The least bound of what was neither ruled out nor searched to the end."""

    def __post_init__(self) -> None:
        known = self.problem.costs
        self.problem = problem = replace(self.problem, known=known)
        self.pricing = known.pricing
        self.grid = Grid(problem)
        self.recompute = sorted({kind for kinds in problem.recompute_sets for kind in kinds})
        self.queue: list[tuple[float, int, Level, Division | _Ranks | _Family]] = []
        self.numbers = count()
        self.reported_s = 0.0
        self.dives, self.slack_s = DIVES, 0.0
        self.divisions: set[Division] = set()
        self.incumbent = Incumbent(self.config.gap) if self.seen is None else self.seen
        self.divided = DividedModel(self.grid, known)

    # ---- the queue

    def push(self, bound_s: float, level: Level, entry: Division | _Ranks | _Family) -> None:
        """Come to it later; what is ruled out now counts for what is proven."""
        if bound_s < self.limit_s:
            heapq.heappush(self.queue, (bound_s, next(self.numbers), level, entry))
        elif bound_s < float("inf"):
            self.left = min(self.left, bound_s)

    @property
    def best(self) -> Completion | None:
        """The best strategy so far."""
        return self.incumbent.best

    @property
    def limit_s(self) -> float:
        """What is bounded by as much need not be looked at."""
        return self.incumbent.limit_s

    def run(self) -> None:
        """Until no bound is less than the limit; then the best strategy's cuts are moved."""
        whole, self.deadline = self.deadline, self.deadline.part((1 - REFINING) * self.deadline.left_s)
        self.search()
        self.deadline = whole
        self.refine()

    def search(self) -> None:
        """The queue, from what a person would try first to its end."""
        for strategy in self.problem.start:
            self.incumbent.take(priced(self.pricing, strategy, self.problem.reserve(strategy.pp)))
        divisions = self.bounded_divisions()
        likely = sorted(divisions, key=lambda of: of[0] * (1 + WAITING * self.waiting(of[1])))
        self.price_guesses([of for _, of in likely[:GUESSED_DIVISIONS]], GUESSED)
        for bound_s, division in divisions:
            self.push(bound_s, Level.DIVISION, division)
        self.dive_first()
        while self.queue:
            bound_s, _, level, entry = heapq.heappop(self.queue)
            proven = self.left <= bound_s and self.incumbent.stale
            if bound_s >= self.limit_s or proven or self.deadline.passed:
                self.left = min(self.left, bound_s)
                break
            self.tell(bound_s)
            if isinstance(entry, Division):
                self.split(bound_s, entry)
            elif isinstance(entry, _Ranks):
                self.split_ranks(bound_s, entry)
            else:
                self.tighten(bound_s, level, entry)
        if self.slack_s:
            least_s = self.left if self.best is None else min(self.left, self.best.step_s)
            self.left = max(0.0, least_s - self.slack_s)

    def refine(self) -> None:
        """Move layers of the best strategy from stage to stage as long as that makes it shorter and there is time."""
        if self.best is None or self.best.strategy.stages == 1:
            return
        strategy = self.best.strategy
        division = Division(*(getattr(strategy, name) for name in Division._fields))
        family = Family(division, strategy.zero, Way(strategy.schedule, strategy.vp))
        costs = FamilyCosts(self.divided.costs(division, strategy.zero), self.grid.strategy(family))
        for kinds in self.problem.recompute_sets:
            completions = self.completions(_Family(family, costs, kinds))
            layers = strategy.layers or completions.balanced()
            self.incumbent.take(completions.improved(layers, float("inf"), lambda: self.deadline.passed))

    def bounded_divisions(self) -> list[tuple[float, Division]]:
        """All divisions with their bounds, after strategies that a person would try first are priced.

        Where listing them takes half of the time, the others are left out, and nothing is proven.
        """
        divisions = [division for division in self.grid.divisions() if self.grid.ways(division)]
        for layers in self.pricing.layers:
            layers.expect(division.micro_batch for division in divisions)
        usual = usual_divisions(divisions, self.problem.cluster.devices_per_node, self.problem.work.shape.experts or 1)
        self.price_guesses(usual, FIRST_PRICES)
        listing = self.deadline.part(LISTING * self.config.budget_s, effort.counted_s)
        bounded, whole = self.divided.bounded(divisions, self.recompute, lambda: listing.passed)
        if not whole:
            self.left = 0.0
        self.divisions = {division for _, division in bounded}
        self.counts.divisions += len(divisions)
        return bounded

    def simplest(self, best: Completion) -> Completion:
        """The same with ZeRO-1 in place of ZeRO-2 where that fits and takes as long: fewer frameworks have ZeRO-2."""
        if best.strategy.zero != 2 or 1 not in self.grid.zeros_of(best.strategy):
            return best
        simpler = priced(self.pricing, replace(best.strategy, zero=1), self.problem.reserve(best.strategy.pp))
        return best if simpler is None or simpler.step_s > best.step_s * (1 + TIE) else simpler

    def price_guesses(self, divisions: Sequence[Division], prices: int) -> None:
        """Simulate so many strategies at most that are probably good, with cuts that take equally long.

        Of the best ones neighbouring cuts are tried, too.
        """
        priced_ones: list[tuple[float, int, _Family]] = []
        for guess in guesses(self.grid, self.divided.costs, divisions, self.recompute)[:prices]:
            if self.deadline.passed or (self.best is not None and guess.step_s > FAR * self.best.step_s):
                break
            family = guess.family
            costs = FamilyCosts(self.divided.costs(family.division, family.zero), self.grid.strategy(family))
            for kinds in self.problem.recompute_sets:
                entry = _Family(family, costs, kinds)
                completion = self.completions(entry).best(self.completions(entry).balanced())
                self.counts.simulated += 1
                self.incumbent.take(completion)
                if completion is not None:
                    priced_ones.append((completion.step_s, len(priced_ones), entry))
        for *_, entry in sorted(priced_ones, key=lambda of: of[:2])[:REFINED]:
            if not self.deadline.passed:
                self.simulate(entry, self.completions(entry).balanced(), Level.RELAXED)

    def dive_first(self) -> None:
        """Simulate 1F1B of the divisions that are best by a bound that knows its memory.

        Without that the first strategies would be those whose bounds are the most optimistic ones.
        """
        way, entries = Way("1f1b", 1), []
        for _, number, _, division in sorted(self.queue, key=lambda of: of[:2])[:FIRST_BOUNDS]:
            if self.deadline.passed:
                return
            if not isinstance(division, Division) or way not in self.grid.ways(division):
                continue
            zeros = self.grid.zeros(division)
            zero = next((zero for zero in (1, 2) if zero in zeros), zeros[0])
            ranks = self.divided.costs(division, zero)
            family = Family(division, zero, way)
            costs = FamilyCosts(ranks, self.grid.strategy(family))
            for kinds in self.problem.recompute_sets:
                bound_s = closed_bound(ranks, kinds, self.in_flight(division, way), costs)
                entries.append((bound_s, number, _Family(family, costs, kinds)))
        entries.sort(key=lambda of: of[:2])
        for bound_s, _, entry in entries[:FIRST_DIVES]:
            if bound_s >= self.limit_s or self.deadline.passed:
                return
            self.dive(entry)

    def tell(self, bound_s: float) -> None:
        """News for whoever watches, not too often."""
        now_s = time.monotonic()
        if now_s - self.reported_s < NEWS_S:
            return
        self.reported_s = now_s
        best = "" if self.best is None else f", the best takes {self.best.step_s:.4g} s, none less than {bound_s:.4g} s"
        self.watch(Progress(f"searching {self.counts.families:,} families of strategies{best}"))

    def split(self, bound_s: float, division: Division) -> None:
        """Into the stages of ZeRO, unless another division is as good in all."""
        shorter_s = self.divided.dominated_by(division, self.divisions)
        if shorter_s <= DOMINATED * self.config.gap * bound_s:
            self.counts.dominated += 1
            self.slack_s = max(self.slack_s, shorter_s)
            return
        ways = self.grid.ways(division)
        emptiest = np.min([self.in_flight(division, way) for way in ways], axis=0)
        zeros = self.grid.zeros(division)
        for zero in [zero for zero in zeros if zero != 1 or 2 not in zeros]:  # 2 takes as long, and less memory
            costs = self.divided.costs(division, zero)
            for kinds in self.problem.recompute_sets:
                of_ranks_s = closed_bound(costs, kinds, emptiest, enough_s=self.limit_s)
                self.push(max(bound_s, of_ranks_s), Level.RANKS, _Ranks(division, zero, ways, costs, kinds))

    def waiting(self, division: Division) -> float:
        """The bubble of 1F1B, as a share of a rank's work."""
        return (division.pp - 1) * division.dp * division.micro_batch / self.problem.global_batch

    def in_flight(self, division: Division, way: Way) -> FloatArray:
        """[S] micro-batches that ranks hold at least."""
        micro_batches = self.problem.global_batch // (division.dp * division.micro_batch)
        return least_in_flight(way.schedule, division.pp, micro_batches, way.vp)

    def split_ranks(self, least_s: float, ranks: _Ranks) -> None:
        """Into families."""
        for way in ranks.ways:
            family = Family(ranks.division, ranks.zero, way)
            entry = _Family(family, FamilyCosts(ranks.costs, self.grid.strategy(family)), ranks.recompute, ranks)
            in_flight = self.in_flight(ranks.division, way)
            bound_s = closed_bound(ranks.costs, ranks.recompute, in_flight, entry.costs, self.limit_s)
            self.counts.families += 1
            self.push(max(least_s, bound_s), Level.FAMILY, entry)

    def chain(self, bound_s: float, entry: _Family) -> None:
        """Bound a family by chains, where they are longer than what ranks compute; simulate the first such families."""
        strategy, ranks = entry.costs.strategy, entry.ranks
        if strategy.pp - 1 > SMALL_BUBBLE * strategy.vp * strategy.micro_batches:
            in_flight = self.in_flight(entry.family.division, entry.family.way)
            bound_s = max(bound_s, chain_bound(entry.costs.ranks, entry.recompute, in_flight, entry.costs))
        if bound_s < self.limit_s and self.dives and ranks is not None and ranks.dives:
            self.dives -= 1
            ranks.dives = 0 if self.dive(entry) else ranks.dives - 1
        self.push(bound_s, Level.CHAINED, entry)

    def dive(self, entry: _Family, level: Level = Level.CHAINED) -> bool:
        """Whether cuts that take equally long fit; above CHAINED their neighbours are tried, too."""
        return self.simulate(entry, self.completions(entry).balanced(), level)

    def prepared(self, entry: _Family) -> tuple[Relaxation, Completions]:
        """What a family's bounds and strategies are made by."""
        if entry.relaxation is None:
            entry.relaxation = Relaxation(entry.costs, entry.recompute)
        return entry.relaxation, self.completions(entry)

    def completions(self, entry: _Family) -> Completions:
        """What a family's strategies are made by."""
        if entry.completions is None:
            entry.completions = Completions(self.pricing, entry.costs, entry.recompute, self.problem)
        return entry.completions

    def tighten(self, bound_s: float, level: Level, entry: _Family) -> None:
        """The bound of a family, or its end; what the bound's strategy suggests is simulated."""
        if level == Level.FAMILY:
            self.chain(bound_s, entry)
            return
        if level > Level.CHAINED and self.left <= bound_s:
            return  # what is proven is final, and the family has shown a strategy
        config = self.config
        relaxation, completions = self.prepared(entry)
        if level == Level.CHAINED:
            self.counts.relaxed += 1
            relaxed = relaxation.solve(0, self.limit_s)
        elif level == Level.RELAXED:
            self.counts.chained += 1
            relaxed = relaxation.solve(config.rounds, self.limit_s)
        elif level == Level.CHAINS and config.nodes and relaxation.kinds.size == 1:
            self.counts.whole += 1
            self.push(max(bound_s, relaxation.whole(config.nodes, self.limit_s)), Level.WHOLE, entry)
            return
        else:
            self.end(bound_s, entry)
            return
        if relaxed.blocks is not None:
            self.simulate(entry, completions.rounded(relaxed.blocks, relaxation.kinds), level)
        self.push(max(bound_s, relaxed.bound_s), Level(level + 1), entry)

    def simulate(self, entry: _Family, layers: tuple[int, ...], level: Level) -> bool:
        """Whether cuts fit; and where the family may have the best strategy their neighbours."""
        completions = entry.completions
        assert completions is not None
        self.counts.simulated += 1
        completion = completions.best(layers)
        self.incumbent.take(completion)
        near = completion is None or self.best is None or completion.step_s < 1.1 * self.best.step_s
        if level > Level.CHAINED and near:
            self.incumbent.take(completions.improved(layers, self.config.trials))
        return completion is not None

    def end(self, bound_s: float, entry: _Family) -> None:
        """All strategies of a family, where they are few; else its bound is all that is known."""
        completions = entry.completions
        assert completions is not None
        stages, layers = entry.costs.strategy.stages, int(entry.costs.ranks.blocks.sum())
        cuts = 1 if completions.given_layers else comb(layers + stages - 1, stages - 1)
        if cuts <= self.config.exhaustive:
            whole = True
            for composition in [completions.given_layers] if completions.given_layers else compositions(layers, stages):
                least = map(completions.least, range(stages))
                if not completions.given_layers and any(n < of for n, of in zip(composition, least, strict=True)):
                    continue
                every = completions.every(composition, self.config.exhaustive // cuts + 1)
                whole = whole and every is not None
                for choices in every or ():
                    self.incumbent.take(completions.priced(composition, choices))
                    if self.deadline.passed:
                        whole = False
                        break
            if whole:
                return
        self.left = min(self.left, bound_s)


def compositions(whole: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways in which so many parts of 0 or more add up to the whole, in order."""
    for bars in combinations(range(whole + parts - 1), parts - 1):
        ends = (-1, *bars, whole + parts - 1)
        yield tuple(ends[i + 1] - ends[i] - 1 for i in range(parts))
