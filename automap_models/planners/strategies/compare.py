"""What each choice of a strategy buys, each kind of parallelism, and each piece of memory: the best strategies without.

All of these are searches of their own, shorter than the one for the best strategy. What any of them comes upon goes
into one pool, from which the answer is chosen and all rows of the report are:

    pool     the best strategy of each sort of every search, of frameworks first
    chosen   of the pool that which asks least (charged_s), of those that a framework trains where one is
    rows     of the pool the shortest with a choice less, of a kind, in less memory

A search begins beside the chosen strategy, with its own degrees where it has them. A round of searches may come upon
what asks less: that is chosen then, and another round begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from automap_models.core.estimate import Estimate
from automap_models.core.framework import Limits, ModelFacts
from automap_models.core.result import TIE, Result
from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.strategy import Strategy
from automap_models.core.units import listed
from automap_models.cost.profile_layers import ProfileWork
from automap_models.errors import BadInput
from automap_models.planners import effort
from automap_models.planners.base import SILENT, Deadline, Progress, Watch
from automap_models.planners.strategies.completion import Completion
from automap_models.planners.strategies.grid import Grid
from automap_models.planners.strategies.planner import StrategiesPlanner, is_trained
from automap_models.planners.strategies.problem import (
    INSTALLED,
    PARALLEL,
    STEPS,
    UNEQUAL,
    StrategiesConfig,
    StrategyProblem,
    charged_s,
    steps_of,
)

StrategyResult = Result[StrategyProblem, Strategy]
KINDS = {"tp": "tensor", "cp": "context", "pp": "pipeline"}
"""Degree of a strategy → the kind of parallelism."""
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "with all-to-all": {"dispatcher": "alltoall"},
    "with all images on every device": {"tower_tp": None},
    "without recomputation": {"recompute": "none"},
    "without ZeRO": {"zero": 0},
    "with ZeRO over all ranks": {"dp_replicate": 1},
    "without sequence parallelism": {"sequence_parallel": False},
    "with equal cuts": {"layers": None},
    "with plain 1F1B": {"schedule": "1f1b", "vp": 1},
}
"""What is said of a strategy without a choice → the fields that it then has."""
DEGREES = ("tp", "cp", "ep", "pp", "dp")
NOTHING = frozenset[str]()
GUESSES = 40
"""Of searches of what each framework trains, at most; half as many of shorter ones."""
NO_FRAMEWORK = "a framework that runs it"
"""What a strategy needs that none trains, beside problem.STEPS."""


@dataclass(frozen=True)
class Alternative:
    """The best strategy with a choice less, or of one kind.

    Attributes:
        name: what it does without, or what it is, in words.
        estimate: of the best strategy that was found; None where none was.
        ruled_out: whether it is proven that none fits, where none was found.
        instead: the kind than which none of this one was found to be shorter; empty where there is an estimate.
        requires: what it needs beyond the best one, where it is shorter or without one of its choices.
    """

    name: str
    estimate: Estimate | None
    ruled_out: bool = False
    instead: str = ""
    requires: tuple[str, ...] = ()


class Comparisons:
    """Searches beside that of a result, and the pool of what they come upon.

    Args:
        result: of the search for the best strategy.
        config: of that search.
        watch: who is told.
        budget_s: counted, of all comparisons together; None is a quarter of that search's.
        frameworks: that train strategies, by name, the preferred ones first; none where nobody asks.
        min_gain: see problem.charged_s.

    Attributes:
        pool: of the problem; each strategy fits.
        beyond: what searches without the limits of the problem came upon that it does not have.
        chosen: of the pool.
    """

    def __init__(
        self,
        result: StrategyResult,
        config: StrategiesConfig,
        watch: Watch = SILENT,
        budget_s: float | None = None,
        frameworks: Mapping[str, Limits] | None = None,
        min_gain: float = DEFAULT_MIN_GAIN,
    ) -> None:
        self.result, self.problem, self.watch, self.min_gain = result, result.problem, watch, min_gain
        competing = result.problem.within is None and frameworks is not None
        self.frameworks = _distinct(frameworks or {}, result.problem.work.facts) if competing else {}
        self.budget_s = 0.25 * config.budget_s if budget_s is None else budget_s
        self.longer = replace(config, gap=max(config.gap, 0.02), guesses=min(config.guesses, GUESSES))
        self.short = replace(self.longer, guesses=self.longer.guesses // 2, budget_s=self.budget_s / 32)
        self.deadline = Deadline(self.budget_s, effort.counted_s)
        self._infeasible: dict[object, bool] = {}
        self._trained: dict[Strategy, tuple[str, ...]] = {}
        initial = Completion(result.required_plan(), result.cost.step_s, result.cost.peak_memory, self.problem.cluster)
        self.pool, self.beyond, self.chosen = [initial, *result.search_log], list[Completion](), initial

    @property
    def best(self) -> Strategy:
        """The chosen strategy."""
        return self.chosen.strategy

    def estimate(self, completion: Completion) -> Estimate:
        """The price of a strategy, with the order of nodes that it was found for."""
        of_order = replace(self.problem, cluster=completion.cluster or self.problem.cluster)
        return of_order.costs.pricing.estimate(completion.strategy)

    # ---- the answer

    def trained(self, strategy: Strategy) -> tuple[str, ...]:
        """Names of the frameworks that train a strategy."""
        if strategy not in self._trained:
            able = (name for name, limits in self.frameworks.items() if is_trained(self.problem, strategy, limits))
            self._trained[strategy] = tuple(able)
        return self._trained[strategy]

    def common(self, strategy: Strategy) -> bool:
        """Whether a framework trains a strategy that is not rare, or nobody asks for frameworks."""
        return not self.frameworks or any(not self.frameworks[name].rare for name in self.trained(strategy))

    def charge(self, completion: Completion) -> tuple[bool, float]:
        """By what strategies are chosen, the least: those that no framework trains last, but for those of a profile,
        whose own code is trained by what its owner has; a rare framework, or none for a profile, is a step more, and a
        dispatcher that is given is none."""
        given = {INSTALLED} if "dispatcher" in self.problem.fixed else NOTHING
        names, steps = self.trained(completion.strategy), len(steps_of(completion.strategy) - given)
        common = self.common(completion.strategy)
        last = not common and not names and not isinstance(self.problem.work, ProfileWork)
        order = 1e-9 * min((list(self.frameworks).index(name) for name in names), default=0)
        return last, charged_s(completion.step_s, steps + (not common), self.min_gain) * (1 + order)

    def choose(self) -> bool:
        """Go on with the strategy of the pool that asks least. Returns: whether it is another one."""
        former, self.chosen = self.chosen, min(self.pool, key=self.charge)
        return former is not self.chosen

    # ---- searches

    def search(
        self, name: str, restricted: StrategyProblem, budget_s: float | None = None, beside: Strategy | None = None
    ) -> None:
        """Add to the pool what the search of a part of the problem comes upon, unless it has been searched.

        Args:
            name: of what is searched, in words.
            restricted: that part; or what the problem is a part of, for all that is in it, too.
            budget_s: of the search; None for a short one.
            beside: the strategy that it begins beside; None for the chosen one.
        """
        key = _key(restricted)
        if key in self._infeasible or self.deadline.passed:
            return
        self.watch(Progress(f"searching strategies: {name}"))
        shortest = sorted(
            (candidate for candidate in self.pool if holds(restricted, candidate)),
            key=lambda candidate: candidate.step_s,
        )
        start = [beside or self.best, *(candidate.strategy for candidate in shortest[:4])]
        config = self.short if budget_s is None else replace(self.longer, budget_s=budget_s)
        self._infeasible[key] = False
        with suppress(BadInput):  # fields contradict one another, or the framework has no words for the model
            result = StrategiesPlanner(config).solve(replace(restricted, start=start), deadline=self.deadline)
            self._infeasible[key] = result.status == "infeasible"
            unlike = restricted.rank_reserve_bytes != self.problem.rank_reserve_bytes
            for completion in result.search_log:
                inside = holds(self.problem, completion)
                inside = inside and not (unlike and not self.problem.fits(self.estimate(completion)))
                (self.pool if inside else self.beyond).append(completion)

    def row(self, name: str, restricted: StrategyProblem, inside: Sequence[Completion]) -> Alternative:
        """The shortest of these that is of a part of the problem, of those that frameworks train where one is."""
        inside = [entry for entry in inside if holds(restricted, entry)]
        if not inside:
            return Alternative(name, None, self._infeasible.get(_key(restricted), False))
        return Alternative(name, self.estimate(min(inside, key=lambda entry: (self.charge(entry)[0], entry.step_s))))

    def search_beside(self, strategy: Strategy, alike: Sequence[str] = DEGREES) -> None:
        """What is like a strategy, no harder, and trained by its framework, which has time for other cuts.

        Args:
            strategy: which.
            alike: fields in which the others are like it.
        """
        same = {name: getattr(strategy, name) for name in alike}
        nearby = replace(self.problem, fixed={**same, **self.problem.fixed}, without=STEPS - steps_of(strategy))
        for name in self.trained(strategy)[:1]:
            nearby = replace(nearby, within=self.frameworks[name])
        self.search(f"beside {kind_of(strategy)}", nearby, 0.08 * self.budget_s, strategy)

    def search_kinds(self) -> None:
        """Other cuts of the pipeline that asks least of each kind of parallelism."""
        kinds: dict[frozenset[str], Strategy] = {}
        for completion in sorted(self.pool, key=self.charge):
            kinds.setdefault(_used(completion.strategy), completion.strategy)
        for strategy in list(kinds.values())[:4]:
            if strategy.stages > 1:
                self.search_beside(strategy, (*DEGREES, "micro_batch", "schedule", "vp", "zero", "sequence_parallel"))

    def search_frameworks(self) -> None:
        """The strategies of each framework: what the chosen one is to be of, and starts for all others. What is longer
        than one of the frameworks before it is charged is of no interest: it would not be chosen."""
        half = self.deadline.part(0.5 * self.budget_s, effort.counted_s)
        for name, limits in self.frameworks.items():
            charged = (self.charge(entry)[1] for entry in self.pool if self.trained(entry.strategy))
            within = replace(self.problem, within=limits, below_s=min(charged, default=float("inf")))
            self.search(f"for {name}", within, 0.5 * half.remaining_s)

    # ---- choices

    def choices(self) -> list[Alternative]:
        """The best strategy without each of the choices that the chosen one makes and that nobody has fixed.

        They are no harder to run than the chosen one in anything, and so not shorter, unless no such one fits.
        """
        best, rows = self.best, []
        plain = replace(self.problem, without=STEPS - steps_of(best))
        for name, fields in CHOICES.items():
            chosen = any(getattr(best, field) != value for field, value in fields.items())
            idle = ("schedule" in fields and best.stages == 1) or ("dispatcher" in fields and best.ep == 1)
            if not chosen or idle or set(fields) & set(self.problem.fixed):
                continue
            if "layers" in fields:
                restricted = replace(plain, without=plain.without | {UNEQUAL})
            else:
                restricted = replace(plain, fixed={**self.problem.fixed, **fields})
            names = self.trained(best)
            budget_s = 0.25 * self.budget_s if "dispatcher" in fields else None  # other degrees are best then
            within = replace(restricted, within=self.frameworks[names[0]]) if names else restricted
            self.search(name, within, budget_s)
            row = self.row(name, restricted, self.no_better)
            if row.estimate is None:
                harder = replace(restricted, without=restricted.without & {UNEQUAL} if "layers" in fields else NOTHING)
                self.search(name, harder)
                row = self.row(name, harder, self.no_better)
            rows.append(row if row.estimate is None else replace(row, requires=self.beyond_best(row.estimate.strategy)))
        return rows

    @property
    def no_better(self) -> list[Completion]:
        """Those of the pool that are not shorter than the chosen one."""
        return [entry for entry in self.pool if entry.step_s >= self.chosen.step_s]

    # ---- kinds

    def kinds(self) -> list[Alternative]:
        """The best strategy of each kind of parallelism, the shortest step first, those of which none fits last.

        Data parallelism, with whatever stage of ZeRO, goes with all kinds. Of kinds than which the same other one is
        shorter those are left out that have one more degree than another of them.
        """
        rows, none = list[Alternative](), list[tuple[set[str], Alternative]]()
        divided = {_used(degrees) for degrees in Grid(self.problem).degree_sets()}
        # From fewer kinds of parallelism to more, so that what a kind is compared with was searched before it.
        for used in (set(entry) for size in range(len(PARALLEL) + 1) for entry in combinations(PARALLEL, size)):
            if used not in divided:
                continue
            name = listed(["data", *(KINDS[degree] for degree in PARALLEL if degree in used)])
            restricted = replace(self.problem, without=frozenset(PARALLEL[entry] for entry in set(PARALLEL) - used))
            if not used >= _used(self.best):
                self.search(name, restricted)
            inside = [entry for entry in self.pool if holds(restricted, entry)]
            kind = [entry for entry in inside if _used(entry.strategy) == used]
            shortest = self.chosen if used == _used(self.best) else self._shortest(kind)
            other = self._shortest([entry for entry in inside if _used(entry.strategy) < used])
            if shortest is None or (other is not None and other.step_s <= shortest.step_s * (1 + TIE)):
                instead = "" if other is None else kind_of(other.strategy)
                if all(entry.instead != instead or not instead or not before < used for before, entry in none):
                    row = Alternative(name, None, self._infeasible.get(_key(restricted), False), instead)
                    none.append((used, row))
            else:
                estimate = self.estimate(shortest)
                rows.append(Alternative(kind_of(shortest.strategy), estimate, requires=self.requires(shortest)))
        return [
            *sorted(rows, key=lambda entry: entry.estimate.step_s if entry.estimate else 0.0),
            *(row for _, row in none),
        ]

    def _shortest(self, completions: Sequence[Completion]) -> Completion | None:
        return min(completions, key=lambda entry: (self.charge(entry)[0], entry.step_s), default=None)

    # ---- memory

    def of_memory(self) -> list[Estimate]:
        """The best strategies with less and less memory, none of which another one is shorter and emptier than."""
        best = self.estimate(self.chosen)
        estimates = [best]
        # Shares of what the best strategy holds, not of the device, so that each asks for another strategy.
        for share in (0.75, 0.5, 0.35, 0.25):
            reserve = self.problem.cluster.memory - share * best.peak_memory
            if reserve > self.problem.reserve_bytes:
                name = f"{100 * share:.0f} % of the memory"
                smaller = replace(self.problem, reserve_bytes=reserve, rank_reserve_bytes={})
                self.search(name, smaller)
                estimates += filter(None, [self.row(name, smaller, self.no_better).estimate])
        return front(estimates)

    # ---- what is shorter

    def requires(self, completion: Completion) -> tuple[str, ...]:
        """What a strategy that is shorter than the chosen one needs beyond that."""
        if completion.step_s >= self.chosen.step_s:
            return ()
        further = self.beyond_best(completion.strategy)
        if not self.trained(self.best) or self.common(completion.strategy):
            return further
        return (*further, *(self.trained(completion.strategy)[:1] or (NO_FRAMEWORK,)))

    def beyond_best(self, strategy: Strategy) -> tuple[str, ...]:
        """Steps of a strategy that the chosen one has not."""
        return tuple(sorted(steps_of(strategy) - steps_of(self.best)))

    def shorter(self) -> list[Alternative]:
        """The strategies that are shorter than the chosen one by half a per cent or more: the shortest for what each
        needs, unless one that needs no more is as short."""
        shortest: list[tuple[set[str], Completion]] = []
        pool = [entry for entry in self.pool if entry.step_s < 0.995 * self.chosen.step_s]
        for completion in sorted(pool, key=lambda entry: (len(self.requires(entry)), entry.step_s)):
            wanted = set(self.requires(completion))
            if all(not other <= wanted or completion.step_s < 0.995 * entry.step_s for other, entry in shortest):
                shortest = [(other, entry) for other, entry in shortest if other != wanted] + [(wanted, completion)]
        least = sorted(shortest, key=lambda pair: pair[1].step_s)
        able = [pair for pair in least if pair is least[0] or NO_FRAMEWORK not in pair[0]][:3]
        return [Alternative("", self.estimate(entry), requires=self.requires(entry)) for _, entry in able]

    def without_limits(self) -> Estimate:
        """The best strategy of any framework, which is never longer than the chosen one."""
        free = replace(self.problem, within=None)
        self.search("without the limits of a framework", free, 0.4 * self.budget_s)
        return self.estimate(min((self.chosen, *self.pool, *self.beyond), key=lambda entry: entry.step_s))

    # ---- all of them

    def answer(self) -> Compared:
        """All comparisons, and the strategy that is chosen among all that they come upon."""
        unlimited = None if self.problem.within is None else self.without_limits()
        self.search_frameworks()
        self.search_kinds()
        self.choose()
        while True:
            self.search_beside(self.best)
            self.choose()
            rows = self.choices(), self.kinds(), self.of_memory()
            if not self.choose():
                break
        if unlimited is not None and unlimited.step_s > self.chosen.step_s:
            unlimited = self.estimate(self.chosen)
        return Compared(_with_plan(self), *rows, unlimited, self.shorter())


@dataclass(frozen=True)
class Compared:
    """The answer of a search and of all comparisons, which are beside it.

    Attributes:
        result: of the search, with the chosen strategy.
        choices, kinds, memory, shorter, unlimited: see Comparisons; the last one is None without a framework.
    """

    result: StrategyResult
    choices: list[Alternative]
    kinds: list[Alternative]
    memory: list[Estimate]
    unlimited: Estimate | None
    shorter: list[Alternative]

    @property
    def uneven(self) -> Estimate | None:
        """The shorter strategy that needs unequal layers and nothing else."""
        return next((entry.estimate for entry in self.shorter if entry.requires == (UNEQUAL,)), None)


def _with_plan(beside: Comparisons) -> StrategyResult:
    """The result of the search with the chosen plan, which is perhaps simpler than its own."""
    result, cost = beside.result, beside.estimate(beside.chosen)
    if beside.best == result.plan and cost == result.cost:
        return result
    bound, cluster = result.bound, beside.chosen.cluster or beside.problem.cluster
    if bound is not None and bound.value > cost.step_s:
        bound = replace(bound, value=cost.step_s)
    status = "feasible" if cost.step_s > result.cost.step_s * (1 + TIE) else result.status
    problem = replace(result.problem, cluster=cluster)
    return replace(result, problem=problem, plan=beside.best, cost=cost, bound=bound, status=status)


def holds(problem: StrategyProblem, completion: Completion) -> bool:
    """Whether a strategy that fits the cluster is one of a problem, which may reserve more."""
    strategy, within = completion.strategy, problem.within
    most = problem.cluster.device_memory.max() - problem.reserve_bytes
    return (
        all(getattr(strategy, name) == value for name, value in problem.fixed.items())
        and not steps_of(strategy) & problem.without
        and completion.held_bytes <= most
        and (within is None or is_trained(problem, strategy, within))
    )


def _key(problem: StrategyProblem) -> object:
    within = None if problem.within is None else problem.within.name
    return (
        within,
        problem.without,
        problem.reserve_bytes,
        repr(sorted(problem.fixed.items(), key=lambda entry: entry[0])),
    )


def front(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Those of which none is both shorter and emptier, the shortest first."""
    shortest: list[Estimate] = []
    for estimate in sorted(estimates, key=lambda priced_one: (priced_one.step_s, priced_one.peak_memory)):
        if not shortest or estimate.peak_memory < shortest[-1].peak_memory:
            shortest.append(estimate)
    return shortest


def kind_of(strategy: Strategy) -> str:
    """`data, tensor and pipeline`: what a strategy divides the devices by."""
    used = [KINDS[name] for name in PARALLEL if name in _used(strategy)]
    return listed((["data"] if strategy.dp > 1 or not used else []) + used)


def _distinct(frameworks: Mapping[str, Limits], facts: ModelFacts) -> dict[str, Limits]:
    """Those that do not take, in whatever precision, just what one before them does: another front of its program."""
    programs = list[Limits]()
    of_text = facts.shape is None or facts.shape.images is None
    passed = ("name", "precisions", *["images_apart"] * of_text)
    for limits in frameworks.values():
        alike = (replace(limits, **{name: getattr(one, name) for name in passed}) == one for one in programs)
        programs += [] if any(alike) else [limits]
    return {limits.name: limits for limits in programs}


def _used(divided: Any) -> frozenset[str]:
    """Degrees of a strategy, or of a set of degrees, that are more than 1."""
    return frozenset(name for name in PARALLEL if getattr(divided, name) > 1)
