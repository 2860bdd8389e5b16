"""The fastest strategy under the memory of every rank, by branch and bound, with a proof on the simulated step.

    divisions        tp, cp, ep, pp, dp, micro-batch, SP       work shared evenly
      └ ranks        × ZeRO                                    bounds.closed_bound, with the emptiest schedule's memory
          └ families × schedule × virtual stages               the same with their own
              └ cuts and recomputation in pieces               relaxation: few chains, then more, then whole blocks
                  └ strategies, simulated                      completion

One queue holds all of them by their bound. The one of the least bound is replaced by what it consists of, or its bound
by a tighter one. The search ends when the least bound is within `gap` of the best strategy: no strategy of the grid is
more than that shorter.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import combinations, count
from math import comb
from typing import Any, ClassVar

import numpy as np

from automap_models.core.estimate import Estimate
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.result import TIE, Bound, Result, Status
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.strategies.bounds import (
    allowed_recompute,
    closed_bound,
    division_bound,
    least_in_flight,
)
from automap_models.planners.strategies.completion import Completion, Completions
from automap_models.planners.strategies.family_costs import FamilyCosts, RankCosts
from automap_models.planners.strategies.grid import Division, Family, Grid, Way
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.planners.strategies.relaxation import Relaxation
from automap_models.simulate.strategy import StrategyPricing, require_device

DIVES = 60
"""Families that are simulated as soon as they are come upon, so that there is something to hold bounds against."""
FIRST_BOUNDS, FIRST_DIVES = 2000, 24
"""Divisions whose 1F1B is bounded first, and of which so many are simulated."""
NEWS_S = 0.2
"""Between two pieces of news for whoever watches."""


@dataclass(frozen=True)
class StrategiesConfig:
    """How far to search.

    Attributes:
        gap: share of the step by which another strategy may be shorter at most when the search ends; 0 is to the end.
        rounds: of chains that become rows of a family's linear program.
        trials: neighbouring cuts that are simulated of a family that may have the best strategy.
        whole_s: seconds that a program of whole blocks may take; 0 solves none.
        exhaustive: strategies of a family up to which all of them are simulated where bounds do not rule it out.
        budget_s: seconds of computing after which the search ends with the gap that it has reached.
    """

    gap: float = 0.01
    rounds: int = 6
    trials: int = 24
    whole_s: float = 0.5
    exhaustive: int = 200
    budget_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.gap < 1.0:
            raise BadInput(f"a gap of {self.gap:g}", where="`gap`", do="give a share from 0 to 1, such as 0.01")


class Level(IntEnum):
    """How tight the bound of an entry of the queue is."""

    DIVISION = 0
    RANKS = 1
    FAMILY = 2
    RELAXED = 3
    CHAINS = 4
    WHOLE = 5
    """Only simulating all of its strategies could tell more."""


@dataclass(eq=False)
class _Ranks:
    """Families that differ in nothing but schedule and virtual stages."""

    division: Division
    zero: int
    ways: Sequence[Way]
    costs: RankCosts


@dataclass(eq=False)
class _Family:
    """A family in the queue, with what its bounds are made of as soon as they are needed."""

    family: Family
    costs: FamilyCosts
    relaxation: Relaxation | None = None
    completions: Completions | None = None


@dataclass
class SearchCounts:
    """How much was looked at: divisions and families of the grid, families by the bound that ruled them out or not."""

    divisions: int = 0
    families: int = 0
    relaxed: int = 0
    chained: int = 0
    whole: int = 0
    simulated: int = 0


@dataclass
class _Search:
    """One search; `best`: so far, of all and of each schedule."""

    problem: StrategyProblem
    config: StrategiesConfig
    deadline: Deadline
    watch: Watch
    best: Completion | None = None
    counts: SearchCounts = field(default_factory=SearchCounts)
    left: float = float("inf")
    """The least bound of what was neither ruled out nor searched to the end."""

    def __post_init__(self) -> None:
        problem = self.problem
        self.pricing = StrategyPricing(problem.work, problem.cluster, problem.device, problem.runtime, problem.kinds)
        self.grid = Grid(problem)
        self.recompute = allowed_recompute(problem.fixed.get("recompute"))
        self.queue: list[tuple[float, int, Level, Division | _Ranks | _Family]] = []
        self.numbers = count()
        self.told_s = 0.0
        self.dives = DIVES

    # ---- the queue

    def push(self, bound_s: float, level: Level, entry: Division | _Ranks | _Family) -> None:
        if bound_s < self.limit_s:
            heapq.heappush(self.queue, (bound_s, next(self.numbers), level, entry))
        elif bound_s < float("inf"):
            self.left = min(self.left, bound_s)

    @property
    def limit_s(self) -> float:
        """What is bounded by as much need not be looked at."""
        if self.best is None:
            return float("inf")
        gap = self.config.gap
        return self.best.step_s * (1 - gap if gap else 1 - TIE)

    def run(self) -> None:
        """Until no bound is less than the limit."""
        for division in self.grid.divisions():
            ways = self.grid.ways(division)
            if self.deadline.passed:
                self.left = 0.0
                return
            if not ways:
                continue
            self.counts.divisions += 1
            costs = self.rank_costs(division, self.grid.zeros(division)[0], ways)
            self.push(division_bound(costs, self.recompute), Level.DIVISION, division)
        self.dive_first()
        while self.queue:
            bound_s, _, level, entry = heapq.heappop(self.queue)
            if bound_s >= self.limit_s or self.deadline.passed:
                self.left = min(self.left, bound_s)
                break
            self.tell(bound_s)
            if isinstance(entry, Division):
                self.split(entry)
            elif isinstance(entry, _Ranks):
                self.split_ranks(bound_s, entry)
            else:
                self.tighten(bound_s, level, entry)

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
            zero = 1 if 1 in zeros else zeros[0]
            ranks = self.rank_costs(division, zero, [way])
            family = Family(division, zero, way)
            costs = FamilyCosts(ranks, self.grid.strategy(family))
            bound_s = closed_bound(ranks, self.recompute, self.in_flight(division, way), costs)
            entries.append((bound_s, number, _Family(family, costs)))
        entries.sort(key=lambda of: of[:2])
        for bound_s, _, entry in entries[:FIRST_DIVES]:
            if bound_s >= self.limit_s or self.deadline.passed:
                return
            self.dive(entry)

    def rank_costs(self, division: Division, zero: int, ways: Sequence[Way]) -> RankCosts:
        strategy = self.grid.strategy(Family(division, zero, ways[0]))
        return RankCosts(self.pricing, strategy, self.problem.reserve_bytes)

    def tell(self, bound_s: float) -> None:
        now_s = time.monotonic()
        if now_s - self.told_s < NEWS_S:
            return
        self.told_s = now_s
        best = "" if self.best is None else f", the best takes {self.best.step_s:.4g} s, none less than {bound_s:.4g} s"
        self.watch(Progress(f"searching {self.counts.families:,} families of strategies{best}"))

    def split(self, division: Division) -> None:
        """Into the stages of ZeRO."""
        ways = self.grid.ways(division)
        emptiest = np.min([self.in_flight(division, way) for way in ways], axis=0)
        for zero in self.grid.zeros(division):
            costs = self.rank_costs(division, zero, ways)
            bound_s = closed_bound(costs, self.recompute, emptiest)
            self.push(bound_s, Level.RANKS, _Ranks(division, zero, ways, costs))

    def in_flight(self, division: Division, way: Way) -> FloatArray:
        micro_batches = self.problem.global_batch // (division.dp * division.micro_batch)
        return least_in_flight(way.schedule, division.pp, micro_batches, way.vp)

    def split_ranks(self, least_s: float, ranks: _Ranks) -> None:
        """Into families, of which the ones of the least bounds are simulated at once until one fits."""
        entries = []
        for way in ranks.ways:
            family = Family(ranks.division, ranks.zero, way)
            entry = _Family(family, FamilyCosts(ranks.costs, self.grid.strategy(family)))
            bound_s = closed_bound(ranks.costs, self.recompute, self.in_flight(ranks.division, way), entry.costs)
            self.counts.families += 1
            entries.append((max(least_s, bound_s), way, entry))
        entries.sort(key=lambda of: of[:2])
        for bound_s, _, entry in entries[:2]:
            if self.dives and bound_s < self.limit_s:
                self.dives -= 1
                if self.dive(entry):
                    break
        for bound_s, _, entry in entries:
            self.push(bound_s, Level.FAMILY, entry)

    def dive(self, entry: _Family) -> bool:
        """Whether the first cuts that suggest themselves fit."""
        relaxation, completions = self.prepared(entry)
        relaxed = relaxation.solve(0, self.limit_s)
        if relaxed.blocks is None or relaxed.bound_s >= self.limit_s:
            return False
        return self.simulate(entry, completions.rounded(relaxed.blocks, relaxation.kinds), Level.FAMILY)

    def prepared(self, entry: _Family) -> tuple[Relaxation, Completions]:
        """What a family's bounds and strategies are made by."""
        if entry.relaxation is None or entry.completions is None:
            problem = self.problem
            entry.relaxation = Relaxation(entry.costs, self.recompute)
            entry.completions = Completions(self.pricing, entry.costs, self.recompute, problem)
        return entry.relaxation, entry.completions

    def tighten(self, bound_s: float, level: Level, entry: _Family) -> None:
        """The bound of a family, or its end; what the bound's strategy suggests is simulated."""
        config = self.config
        relaxation, completions = self.prepared(entry)
        if level == Level.FAMILY:
            self.counts.relaxed += 1
            relaxed = relaxation.solve(0, self.limit_s)
        elif level == Level.RELAXED:
            self.counts.chained += 1
            relaxed = relaxation.solve(config.rounds, self.limit_s)
        elif level == Level.CHAINS and config.whole_s and entry.costs.strategy.stages > 1:
            self.counts.whole += 1
            relaxed = relaxation.whole(config.whole_s)
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
        self.take(completion)
        near = completion is None or self.best is None or completion.step_s < 1.1 * self.best.step_s
        if level > Level.FAMILY and near:
            self.take(completions.improved(layers, self.config.trials))
        return completion is not None

    def take(self, completion: Completion | None) -> None:
        if completion is not None and (self.best is None or completion.step_s < self.best.step_s):
            self.best = completion

    def end(self, bound_s: float, entry: _Family) -> None:
        """All strategies of a family, where they are few; else its bound is all that is known."""
        completions = entry.completions
        assert completions is not None
        stages, layers = entry.costs.strategy.stages, int(entry.costs.ranks.blocks.sum())
        cuts = 1 if completions.given_layers else comb(layers + stages - 1, stages - 1)
        if cuts <= self.config.exhaustive:
            whole = True
            for composition in [completions.given_layers] if completions.given_layers else compositions(layers, stages):
                if not completions.given_layers and not all(composition[1:-1]):
                    continue
                every = completions.every(composition, self.config.exhaustive // cuts + 1)
                whole = whole and every is not None
                for choices in every or ():
                    self.take(completions.priced(composition, choices))
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


class StrategiesPlanner(Planner[StrategyProblem, Strategy, StrategiesConfig]):
    """The fastest strategy of a grid, and how much shorter any other can be at most."""

    name: ClassVar[str] = "strategies"
    config_type: ClassVar[type[StrategiesConfig]] = StrategiesConfig

    def solve(
        self, problem: StrategyProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[StrategyProblem, Strategy]:
        """See Planner. `cost` is the Estimate; `bound` is of its step; facts: SearchCounts by name.

        Raises:
            BadInput: a fixed field contradicts the model, the cluster or another one, or the device has no constants.
        """
        begun_s = time.perf_counter()
        require_searchable(problem)
        watch(Progress("dividing the model and the cluster"))
        search = _Search(problem, self.config, deadline.part(self.config.budget_s, time.process_time), watch)
        search.run()
        left_s, best = search.left, search.best
        taken_s, facts = time.perf_counter() - begun_s, dict(vars(search.counts))
        if best is None:
            status: Status = "infeasible" if left_s == float("inf") else "stopped"
            return Result(problem, None, None, status, facts=facts, taken_s=taken_s, reason=_reason(problem, status))
        estimate: Estimate = search.pricing.estimate(best.strategy)
        bound_s = min(left_s, best.step_s)
        optimal = bound_s >= best.step_s * (1 - TIE)
        bound = Bound(best.step_s if optimal else bound_s, "exact" if optimal else "relaxation") if bound_s else None
        return Result(
            problem,
            best.strategy,
            estimate,
            "optimal" if optimal else "feasible",
            bound,
            facts=facts,
            taken_s=taken_s,
        )


def _reason(problem: StrategyProblem, status: Status) -> Infeasible:
    where = f"{problem.work.shape.name} on cluster {problem.cluster.name}"
    if status == "stopped":
        return Infeasible("no strategy was found in the time given", where=where, do="give more time")
    what = f"no strategy of {problem.global_batch} samples fits the memory of {problem.cluster.memory / 1e9:g} GB"
    return Infeasible(what, where=where, do="fix fewer fields, or give more devices")


def require_searchable(problem: StrategyProblem) -> None:
    """Refuse a problem before anything is searched.

    Raises:
        BadInput: a device has no constants of training steps, or no peak for the precision; or no number of devices or
            samples goes together with the fields that are fixed: says which two contradict one another.
    """
    strategy = Strategy(micro_batch=1, global_batch=1, precision=problem.precision)
    for kind in problem.kinds.values() or (problem.device,):
        require_device(kind, strategy)
    if not _any_family(problem, problem.fixed):
        names = [name for name in problem.fixed if name not in ("precision", "recompute", "recompute_blocks")]
        for size in range(1, len(names) + 1):
            for chosen in combinations(names, size):
                if not _any_family(problem, {name: problem.fixed[name] for name in chosen}):
                    given = " and ".join(f"{name} {problem.fixed[name]}" for name in chosen)
                    of = f"{problem.work.shape.name} with {problem.global_batch} samples on cluster"
                    what = f"no strategy of {of} {problem.cluster.name} ({problem.cluster.devices} devices) has {given}"
                    raise BadInput(what, where=f"`{chosen[-1]}`", do="change one of them, or leave it open")
        raise BadInput("no strategy divides it", where="`global_batch`", do="give other samples or other layers")


def _any_family(problem: StrategyProblem, fixed: Mapping[str, Any]) -> bool:
    grid = Grid(replace(problem, fixed=fixed))
    return any(grid.ways(division) for division in grid.divisions())
