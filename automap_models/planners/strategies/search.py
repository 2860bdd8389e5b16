"""The fastest strategy under the memory of every rank, by branch and bound, with a proof on the simulated step.

    degrees          tp, cp, ep, pp, dp, micro-batch, SP       work shared evenly                  split_degrees
      └ ranks        × ZeRO                                    bounds.closed_bound, with the       split_ranks
          │                                                    emptiest schedule's memory
          └ subspaces × schedule × virtual stages              the same with their own             split_ranks
              └ cuts and recomputation in pieces               relaxation: few chains, then more,  relax, lengthen,
                  │                                            then whole blocks                   integer
                  └ strategies, simulated                      completion                          enumerate_strategies

One queue holds all of them by their bound. The one of the least bound is replaced by what it consists of, or its bound
by a tighter one. The search ends when the least bound is within `gap` of the best strategy: no strategy of the grid is
more than that shorter. It ends, too, when the best one came long ago and the proof will get no further: twice as many
strategies were simulated by then, and the least bound is of a subspace whose bounds are spent; or four times as many,
and the least bound rises so slowly that the time will be up before it is within `gap`. Once the bounds of a subspace
are spent, the first program of any other one only shows a strategy: none is solved for a tighter bound, which would
prove nothing.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations, count, takewhile
from math import comb, gcd

import numpy as np

from automap_models.core.framework import Degrees
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.result import TIE
from automap_models.core.strategy import Strategy
from automap_models.planners import effort
from automap_models.planners.base import Deadline, Progress, Watch
from automap_models.planners.strategies.bounds import closed_bound, degrees_bound, has_room, least_in_flight
from automap_models.planners.strategies.closed_forms import estimated_subspaces
from automap_models.planners.strategies.completion import Completion, Completions, Incumbent, priced
from automap_models.planners.strategies.grid import (
    Grid,
    ScheduleChoice,
    Subspace,
    divisors,
    neighbours,
    oddities,
    usual_degrees,
)
from automap_models.planners.strategies.problem import GROUPS, StrategiesConfig, StrategyProblem
from automap_models.planners.strategies.relaxation import Relaxation, Relaxed
from automap_models.planners.strategies.subspace_costs import RankCosts, SubspaceCosts

Explore = Callable[[float], None]
"""What is done about an entry of the queue, of such a bound, when it has the least one."""


LISTED = 125
"""Sets of degrees that are bounded for each guess: all of 2,048 devices for 80 guesses."""
TRIED = 4
"""Times as many guesses, simulated while none fits: where memory is short, estimates say of many that they do."""


@dataclass(eq=False)
class Node:
    """A subspace in the tree, with what its bounds and strategies are made of as soon as that is needed."""

    problem: StrategyProblem
    costs: SubspaceCosts
    recompute: list[int]
    """Kinds of it that blocks may have."""

    @cached_property
    def relaxation(self) -> Relaxation:
        """What its bounds are made by."""
        return Relaxation(self.costs, self.recompute)

    @cached_property
    def completions(self) -> Completions:
        """What its strategies are made by."""
        return Completions(self.costs, self.recompute, self.problem)


@dataclass
class SearchCounts:
    """How much was looked at: degrees and subspaces of the grid, subspaces by the bound that ruled them out or not."""

    divisions: int = 0
    families: int = 0
    relaxed: int = 0
    chained: int = 0
    whole: int = 0
    simulated: int = 0


@dataclass
class Search:
    """One search of the strategies of a problem."""

    problem: StrategyProblem
    config: StrategiesConfig
    deadline: Deadline
    watch: Watch
    counts: SearchCounts = field(default_factory=SearchCounts)
    former: Incumbent | None = None
    """The incumbent of another search, of which strategies have to be shorter."""
    open_s: float = float("inf")
    """The least bound of what was neither ruled out nor searched to the end."""

    def __post_init__(self) -> None:
        shared, self.grid = self.problem.costs, Grid(self.problem)
        self.pricing, self.recompute = shared.pricing, self.problem.recompute
        self.queue: list[tuple[float, int, Explore]] = []
        self.numbers = count()
        self.reported_s = 0.0
        self.begun_s = effort.counted_s()
        self.bounds_s: list[tuple[float, float]] = []  # counted seconds of the search, least bound
        self.entered: set[RankCosts] = set()
        initial = Incumbent(self.config.gap, self.config.patience, self.problem.below_s)
        self.incumbent = initial if self.former is None else self.former
        self.costs = partial(self.grid.costs, shared)

    @property
    def best(self) -> Completion | None:
        """The best strategy so far."""
        return self.incumbent.best

    @property
    def limit_s(self) -> float:
        """What is bounded by as much need not be looked at."""
        return self.incumbent.limit_s

    def near(self, step_s: float) -> bool:
        """Whether so long a strategy may become the best one by other cuts."""
        return step_s < self.config.far * self.incumbent.least_s

    def run(self) -> None:
        """Until no bound is less than the limit; then the best strategy's cuts are moved."""
        # A fifth of the time is for moving layers of the best strategy: the queue would take all of it for its proof.
        everything, self.deadline = self.deadline, self.deadline.part(0.8 * self.deadline.remaining_s)
        self.search()
        self.deadline = everything
        self.refine()

    # ---- the queue

    def push(self, bound_s: float, explore: Explore) -> None:
        """Come to it later; what is ruled out now counts for what is proven."""
        if bound_s < self.limit_s:
            heapq.heappush(self.queue, (bound_s, next(self.numbers), explore))
        elif bound_s < float("inf"):
            self.open_s = min(self.open_s, bound_s)

    def search(self) -> None:
        """The queue, from what closed forms say is good to its end."""
        for strategy in self.problem.start[1:]:
            self.incumbent.take(priced(self.pricing, strategy, self.problem.reserve(strategy.pp)))
        for strategy in self.problem.start[:1]:
            self.descend(strategy)
        degree_sets = self.bounded_degrees()
        # A share of 1F1B's bubble, of which other schedules have less.
        likely = sorted(degree_sets, key=lambda entry: entry[0] * (1 + 0.3 * self.waiting(entry[1])))
        many = 4 * self.config.guesses * self.config.refined  # estimates see memory, which these bounds do not
        for first in range(0, len(likely), many) if many else ():
            if self.price_estimates([entry for _, entry in likely[first : first + many]], self.config.guesses):
                break
        self.descend()
        for bound_s, degrees in degree_sets:
            self.push(bound_s, partial(self.split_degrees, degrees))
        if self.open_s == 0.0 and not self.config.rounds:  # nothing would be proven, and nothing is solved
            return
        while self.queue:
            bound_s, _, explore = heapq.heappop(self.queue)
            proven = self.open_s <= bound_s and self.incumbent.stale(2)
            hopeless = self.too_slow(bound_s) and self.incumbent.stale(4)
            if bound_s >= self.limit_s or proven or hopeless or self.deadline.passed:
                self.open_s = min(self.open_s, bound_s)
                break
            self.tell(bound_s)
            explore(bound_s)

    def too_slow(self, bound_s: float) -> bool:
        """Whether the least bound, which rises by about as much whenever the effort doubles, will not come to the limit
        in time."""
        spent_s = effort.counted_s() - self.begun_s
        self.bounds_s.append((spent_s, bound_s))
        half = bisect_right(self.bounds_s, (0.5 * spent_s, float("inf"))) - 1
        rise_s = bound_s - self.bounds_s[half][1]
        if half < 0 or rise_s <= 0:  # the queue is young, or the bound is about to rise
            return False
        doublings = (self.limit_s - bound_s) / rise_s
        return bool(spent_s * (2.0 ** min(doublings, 60.0) - 1.0) > self.deadline.remaining_s)

    def tell(self, bound_s: float) -> None:
        """News for whoever watches, at most every fifth of a second."""
        now_s = time.monotonic()
        if now_s - self.reported_s < 0.2:
            return
        self.reported_s = now_s
        best = "" if self.best is None else f", the best takes {self.best.step_s:.4g} s, none less than {bound_s:.4g} s"
        self.watch(Progress(f"searching {self.counts.families:,} subspaces of strategies{best}"))

    # ---- from sets of degrees to subspaces

    def bounded_degrees(self) -> list[tuple[float, Degrees]]:
        """All divisions with their bounds, after some that a person would try: short searches come to no others.

        Where listing them takes half of the time, or they are many for so few guesses, the oddest ones are left out,
        and nothing is proven.
        """
        per_node, shape = self.problem.cluster.devices_per_node, self.problem.work.shape
        degree_sets = [degrees for degrees in self.grid.degree_sets() if self.grid.schedules(degrees)]
        degree_sets.sort(key=lambda degrees: oddities(degrees, per_node, shape.sequence))
        self.counts.divisions += len(degree_sets)
        usual = usual_degrees(degree_sets, per_node, shape.experts or 1)
        if len(degree_sets) > (most := LISTED * (1 + self.config.guesses)):
            degree_sets, self.open_s = degree_sets[:most], 0.0
        for layers in self.pricing.layers:
            layers.expect(degree_sets, self.grid.some_strategy)
        self.price_estimates(usual, self.config.guesses // 4)
        listing = self.deadline.part(0.5 * self.config.budget_s, effort.counted_s)
        bounded: list[tuple[float, Degrees]] = []
        room: dict[tuple[Degrees, bool], bool] = {}  # of degrees with their smallest micro-batch, or with a single one
        for degrees in degree_sets:
            if listing.passed:
                self.open_s = 0.0
                break
            samples = degrees.pp * degrees.dp * degrees.micro_batch  # of a single one gradients may replace activations
            alike = degrees._replace(micro_batch=1), samples == self.problem.global_batch
            if alike not in room:
                # ZeRO-3 divides more, but gathers: of a model of few blocks ZeRO-2 may hold less.
                most, reserve = self.grid.zeros(degrees)[:-3:-1], self.problem.reserve(degrees.pp)
                room[alike] = any(has_room(self.costs(degrees, zero), self.recompute, reserve) for zero in most)
            if not room[alike]:
                continue
            costs = self.costs(degrees, self.grid.zeros(degrees)[0])
            bounded.append((degrees_bound(costs, self.recompute), degrees))
        return bounded

    def split_degrees(self, degrees: Degrees, bound_s: float) -> None:
        """Into the stages of ZeRO."""
        choices, reserve = self.grid.schedules(degrees), self.problem.reserve(degrees.pp)
        emptiest = np.min([self.in_flight(degrees, choice) for choice in choices], axis=0)
        zeros = self.grid.zeros(degrees)
        for zero in [zero for zero in zeros if zero != 1 or 2 not in zeros]:  # 2 takes as long, and less memory
            costs = self.costs(degrees, zero)
            for kinds in self.recompute_sets(costs):
                of_ranks_s = closed_bound(costs, kinds, emptiest, None, self.limit_s, reserve)
                subspaces = [Subspace(degrees, zero, choice) for choice in choices]
                self.push(max(bound_s, of_ranks_s), partial(self.split_ranks, subspaces, costs, kinds))

    def recompute_sets(self, costs: RankCosts) -> list[list[int]]:
        """Those of the problem whose kinds no other one is better than in everything."""
        return self.problem.recompute_sets(costs.undominated(self.recompute), costs.strategy.pp)

    def waiting(self, degrees: Degrees) -> float:
        """The bubble of 1F1B, as a share of a rank's work."""
        return (degrees.pp - 1) * degrees.dp * degrees.micro_batch / self.problem.global_batch

    def in_flight(self, degrees: Degrees, choice: ScheduleChoice) -> FloatArray:
        """[S] micro-batches that ranks hold at least."""
        micro_batches = self.problem.global_batch // (degrees.dp * degrees.micro_batch)
        return least_in_flight(choice.schedule, degrees.pp, micro_batches, choice.vp)

    def node(self, subspace: Subspace, kinds: list[int]) -> Node:
        """A family whose blocks may have these kinds of recomputation."""
        ranks, reserve = self.costs(subspace.degrees, subspace.zero), self.problem.reserve(subspace.degrees.pp)
        costs = SubspaceCosts(ranks, self.grid.strategy(subspace), reserve)
        return Node(self.problem, costs, ranks.undominated(kinds))

    def split_ranks(self, subspaces: Sequence[Subspace], costs: RankCosts, kinds: list[int], least_s: float) -> None:
        """Into families, which differ in nothing but schedule and virtual stages."""
        reserve = self.problem.reserve(costs.strategy.pp)
        for subspace in subspaces:
            of_subspace = SubspaceCosts(costs, self.grid.strategy(subspace), reserve)
            in_flight = self.in_flight(subspace.degrees, subspace.choice)
            bound_s = closed_bound(costs, kinds, in_flight, of_subspace, self.limit_s)
            self.counts.families += 1
            self.push(max(least_s, bound_s), partial(self.relax, Node(self.problem, of_subspace, kinds)))

    # ---- subspaces

    def relax(self, node: Node, bound_s: float) -> None:
        """Simulate a subspace, if it is the first one of its ranks: short searches and comparisons live on these. Then
        bound it by its program of few chains, and show a strategy of that."""
        ranks = node.costs.ranks
        programs = self.config.rounds > 0
        # Schedules of the same ranks come one after the other: one of them shows about where they all are.
        if ranks not in self.entered and (len(self.entered) < self.config.guesses or not programs):
            self.entered.add(ranks)
            self.simulate(node, node.completions.balanced())
        if bound_s >= self.limit_s or not programs:
            self.open_s = min(self.open_s, bound_s)
            return
        self.counts.relaxed += 1
        relaxed = node.relaxation.solve(0, self.limit_s)
        self.round_off(node, relaxed, neighbours=False)
        self.push(max(bound_s, relaxed.bound_s), partial(self.lengthen, node))

    def lengthen(self, node: Node, bound_s: float) -> None:
        """Bound a subspace by chains that its solutions ask for; nothing where what is proven is final."""
        # Where a subspace of as little a bound was left open, a tighter bound proves nothing any more.
        if bound_s < self.open_s:
            self.counts.chained += 1
            relaxed = node.relaxation.solve(self.config.rounds, self.limit_s)
            self.round_off(node, relaxed, neighbours=True)
            self.push(max(bound_s, relaxed.bound_s), partial(self.integer, node))

    def integer(self, node: Node, bound_s: float) -> None:
        """Bound a subspace by whole blocks on each rank, where all of them are alike."""
        if self.config.nodes and node.relaxation.kinds.size == 1 and bound_s < self.open_s:
            self.counts.whole += 1
            bound_s = max(bound_s, node.relaxation.integer(self.config.nodes, self.limit_s))
            self.push(bound_s, partial(self.enumerate_strategies, node))
        else:
            self.enumerate_strategies(node, bound_s)

    def enumerate_strategies(self, node: Node, bound_s: float) -> None:
        """Price all strategies of a subspace where they are few; else its bound is all that is proven."""
        if bound_s < self.open_s and not self._enumerated(node.completions):
            self.open_s = bound_s

    def _enumerated(self, completions: Completions) -> bool:
        stages, layers = completions.strategy.stages, completions.blocks.size
        cuts = 1 if completions.given_layers else comb(layers + stages - 1, stages - 1)
        if cuts > self.config.exhaustive:
            return False
        least = [completions.least(stage) for stage in range(stages)]
        complete = True
        for composition in [completions.given_layers] if completions.given_layers else compositions(layers, least):
            every = completions.every(composition, self.config.exhaustive // cuts + 1)
            complete = complete and every is not None
            for choices in every or ():
                self.incumbent.take(completions.priced(composition, choices))
                if self.deadline.passed:
                    return False
        return complete

    # ---- strategies

    def price_estimates(self, degree_sets: Sequence[Degrees], prices: int) -> bool:
        """Simulate so many strategies that are probably good, with cuts that take equally long, or more until one fits,
        and neighbours of the best. Whether any fits."""
        nodes: list[tuple[float, int, Node]] = []
        estimating = self.deadline.part(0.5 * self.deadline.remaining_s)
        in_time = takewhile(lambda _: not estimating.passed, degree_sets)
        likely = estimated_subspaces(self.grid, self.costs, in_time, self.recompute)
        for number, (estimate_s, subspace) in enumerate(likely[: TRIED * prices]):
            if (number >= prices and nodes) or self.deadline.passed or not self.near(estimate_s):
                break
            node = self.node(subspace, self.recompute)
            completion = self.simulate(node, node.completions.balanced())
            if completion is not None:
                nodes.append((completion.step_s, len(nodes), node))
        for step_s, _, node in sorted(nodes, key=lambda entry: entry[:2])[: self.config.refined]:
            if self.near(step_s) and not self.deadline.passed:
                self.improve(node, node.completions.balanced())
        return bool(nodes)

    def simulate(self, node: Node, layers: tuple[int, ...]) -> Completion | None:
        """The strategy with these cuts, if one fits."""
        self.counts.simulated += 1
        completion = node.completions.best(layers)
        self.incumbent.take(completion)
        return completion

    def round_off(self, node: Node, relaxed: Relaxed, *, neighbours: bool) -> None:
        """The strategy nearest to a program's solution; and where it may be the best one neighbouring cuts."""
        if relaxed.blocks is not None:
            layers = node.completions.rounded(relaxed.blocks, node.relaxation.kinds)
            completion = self.simulate(node, layers)
            if neighbours and (completion is None or self.near(completion.step_s)):
                self.improve(node, layers)

    def improve(self, node: Node, layers: tuple[int, ...]) -> None:
        """Try neighbouring cuts."""
        self.incumbent.take(node.completions.improved(layers, self.config.trials))

    def descend(self, start: Strategy | None = None) -> None:
        """From a strategy, or from the best one, to the shortest of its neighbours, as long as one is shorter.

        A strategy of another problem has its neighbours in this one all the same, and may be none of it itself.
        """
        if start is None and self.best is not None and not self.near(self.best.step_s):
            return
        best, visited = self.best if start is None else None, set[Subspace]()
        strategy = start if best is None else best.strategy
        while strategy is not None and not self.deadline.passed:
            former, origin = best, strategy
            for subspace in neighbours(self.problem, origin):
                if subspace in visited or self.deadline.passed:
                    continue
                visited.add(subspace)
                for completion in self.beside(subspace, origin):
                    self.incumbent.take(completion)
                    if completion is not None and (best is None or completion.step_s < best.step_s * (1 - TIE)):
                        best = completion
            shorter = best is not None and best is not former and self.near(best.step_s)
            strategy = best.strategy if best is not None and shorter else None

    def beside(self, subspace: Subspace, origin: Strategy) -> Iterator[Completion | None]:
        """Strategies of a family with the cuts of another strategy, where it has as many stages, or with its own."""
        self.counts.simulated += 1
        completions = self.node(subspace, self.recompute).completions
        same = origin.layers is not None and len(origin.layers) == completions.strategy.stages
        layers = origin.layers if same and completions.given_layers is None else completions.balanced()
        assert layers is not None
        yield completions.best(layers)
        if not self.problem.recompute_alike:
            yield from completions.alike(layers)

    def refine(self) -> None:
        """Move layers of the best strategy from stage to stage as long as that makes it shorter and there is time, and
        go on to neighbours of what that comes to."""
        former_s = float("inf")
        while self.best is not None and self.best.step_s < former_s and not self.deadline.passed:
            if not self.near(self.best.step_s):
                return
            former_s = self.best.step_s
            self.descend()
            if self.best.strategy.stages > 1:
                self.move_layers()
            self.group_ranks()

    def move_layers(self) -> None:
        """Of the best strategy, from stage to stage as long as that makes it shorter and there is time."""
        assert self.best is not None
        strategy = self.best.strategy
        degrees = Degrees(*(getattr(strategy, name) for name in Degrees._fields))
        subspace = Subspace(degrees, strategy.zero, ScheduleChoice(strategy.schedule, strategy.vp))
        completions = self.node(subspace, self.recompute).completions
        layers = strategy.layers or completions.balanced()
        self.incumbent.take(completions.improved(layers, float("inf"), lambda: self.deadline.passed))

    def group_ranks(self) -> None:
        """Let ZeRO of the best strategy divide within groups of ranks that fill whole nodes, for half a per cent or
        more."""
        assert self.best is not None
        limit_s = self.best.step_s * (1 - 0.005)
        best, within, per_node = self.best.strategy, self.problem.within, self.problem.cluster.devices_per_node
        given = "dp_replicate" in self.problem.fixed or GROUPS in self.problem.without
        for groups in divisors(gcd(best.dp, best.expert_data)) if best.zero and not given else ():
            fills = best.devices // (best.pp * groups) % per_node == 0
            if 1 < groups < best.shards and fills and (within is None or within.replicate_objection(groups) is None):
                grouped = priced(self.pricing, replace(best, dp_replicate=groups), self.problem.reserve(best.pp))
                self.incumbent.take(grouped if grouped is not None and grouped.step_s <= limit_s else None)

    def simplest(self, best: Completion) -> Completion:
        """The same with ZeRO-1 in place of ZeRO-2 where that fits and takes as long: fewer frameworks have ZeRO-2."""
        if best.strategy.zero != 2 or 1 not in self.grid.zeros_of(best.strategy):
            return best
        simpler = priced(self.pricing, replace(best.strategy, zero=1), self.problem.reserve(best.strategy.pp))
        return best if simpler is None or simpler.step_s > best.step_s * (1 + TIE) else simpler


def compositions(total: int, least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways in which parts of these numbers or more add up to a total, in order."""
    spare = total - sum(least) + len(least) - 1
    for bars in combinations(range(spare), len(least) - 1) if spare >= 0 else ():
        ends = (-1, *bars, spare)
        yield tuple(ends[i + 1] - ends[i] - 1 + extra for i, extra in enumerate(least))
