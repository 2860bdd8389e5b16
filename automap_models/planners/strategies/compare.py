"""What each choice of a strategy buys, each kind of parallelism, and each piece of memory: the best strategies without.

All of these are searches of their own, shorter than the one for the best strategy. Each begins with the strategies that
the former ones came upon, so that none of them says less than what has been seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import Estimate
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Progress, Watch
from automap_models.planners.strategies.completion import Completion
from automap_models.planners.strategies.planner import StrategiesPlanner
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem

StrategyResult = Result[StrategyProblem, Strategy]
EQUAL_LAYERS = "with equal cuts"
PARTS = {"tp": "tensor", "cp": "context", "pp": "pipeline"}
"""Degree of a strategy → the kind of parallelism."""


@dataclass(frozen=True)
class Alternative:
    """The best strategy with a choice less, or of one kind.

    Attributes:
        name: what it does without, or what it is, in words.
        estimate: of the best strategy that was found; None where none was.
        ruled_out: whether it is proven that none fits, where none was found.
    """

    name: str
    estimate: Estimate | None
    ruled_out: bool = False


@dataclass
class Comparisons:
    """Short searches beside that of a result.

    Attributes:
        result: of the search for the best strategy.
        config: of that search.
        watch: who is told.
        budget_s: of all comparisons together, but for the one without limits; none is a quarter of that search's. What
            comes when it is over says what the other searches came upon.
        starts: strategies that any of these searches came upon.
        shortest: of the searches within the limits of the problem, so far.
    """

    result: StrategyResult
    config: StrategiesConfig
    watch: Watch = SILENT
    budget_s: float | None = None
    starts: list[Completion] = field(default_factory=list)
    shortest: StrategyResult | None = None

    def __post_init__(self) -> None:
        self.starts += self.result.search_log
        budget_s = 0.25 * self.config.budget_s if self.budget_s is None else self.budget_s
        self.short = replace(self.config, gap=0.02, budget_s=budget_s / 16)  # enough for so many of them
        self.deadline = Deadline(budget_s, effort.counted_s)

    @property
    def problem(self) -> StrategyProblem:
        """Of the best strategy."""
        return self.result.problem

    @property
    def best(self) -> Strategy:
        """The best strategy."""
        return self.result.required_plan()

    def search(self, name: str, restricted: StrategyProblem, config: StrategiesConfig | None = None) -> Alternative:
        """The best strategy of another problem, which begins with those of it that other searches came upon.

        Args:
            name: of what is searched, in words.
            restricted: the problem.
            config: of the search; None for the short one.

        Raises:
            BadInput: fields contradict one another.
        """
        self.watch(Progress(f"searching strategies: {name}"))
        most = restricted.cluster.device_memory.max() - restricted.reserve_bytes
        lighter = [candidate.strategy for candidate in self.starts if candidate.held_bytes <= most]
        start = [strategy for strategy in lighter if _has(strategy, restricted.fixed)]
        if restricted.equal_layers:
            start = [strategy for strategy in start if strategy.layers is None]
        deadline = self.deadline if config is None else NEVER
        result = StrategiesPlanner(config or self.short).solve(replace(restricted, start=start), deadline=deadline)
        self.starts += result.search_log
        of_problem = restricted.within == self.problem.within and result.plan is not None
        if of_problem and (self.shortest is None or result.cost.step_s < self.shortest.cost.step_s):
            self.shortest = result
        return Alternative(name, result.cost, result.status == "infeasible")

    def with_fields(self, **fields: Any) -> StrategyProblem:
        """The problem with fields fixed beside those that are."""
        return replace(self.problem, fixed={**self.problem.fixed, **fields})

    # ---- choices

    def choices(self) -> list[Alternative]:
        """The best strategy without each of the choices that the best one makes and that nobody has fixed."""
        result = []
        for name, restricted in self._choices():
            with suppress(BadInput):
                result.append(self.search(name, restricted))
        return result

    def _choices(self) -> Iterator[tuple[str, StrategyProblem]]:
        best, fixed = self.best, self.problem.fixed
        if best.recompute != "none" and "recompute" not in fixed:
            yield "without recomputation", self.with_fields(recompute="none")
        if best.zero and "zero" not in fixed:
            yield "without ZeRO", self.with_fields(zero=0)
        if best.sequence_parallel and "sequence_parallel" not in fixed:
            yield "without sequence parallelism", self.with_fields(sequence_parallel=False)
        if best.layers is not None and "layers" not in fixed:
            yield EQUAL_LAYERS, replace(self.problem, equal_layers=True)
        if (best.schedule, best.vp) != ("1f1b", 1) and best.pp > 1 and not {"schedule", "vp"} & set(fixed):
            yield "with plain 1F1B", self.with_fields(schedule="1f1b", vp=1)

    def prefer_equal_layers(self) -> Estimate | None:
        """Go on with the best strategy of equal stages where it is longer by less than 2 %: it is simpler to run.

        Returns: the one that is shorter, if so.
        """
        if self.best.layers is None or "layers" in self.problem.fixed:
            return None
        return self._prefer(EQUAL_LAYERS, replace(self.problem, equal_layers=True), 0.02)

    def _prefer(self, name: str, restricted: StrategyProblem, share: float) -> Estimate | None:
        former: Estimate = self.result.cost
        self.shortest = None
        with suppress(BadInput):
            longer = replace(self.short, budget_s=4 * self.short.budget_s)  # it decides what is recommended
            self.search(name, restricted, longer)
        simpler, self.shortest = self.shortest, None
        if simpler is None or simpler.cost.step_s * (1 - share) > former.step_s:
            return None
        self.result = _with_plan_of(replace(self.result, problem=restricted), simpler)
        return former

    # ---- kinds

    def kinds(self) -> list[Alternative]:
        """The best strategy of each kind of parallelism, the shortest step first, those of which none fits last.

        Data parallelism, with whatever stage of ZeRO, goes with all kinds. A kind that comes to a strategy of another
        one is left out, as is one that the best strategy is of, too.
        """
        alternatives, none = [Alternative(kind_of(self.best), self.result.cost)], []
        for used in ((), ("tp",), ("cp",), ("pp",), ("tp", "cp"), ("tp", "pp"), ("cp", "pp")):
            alone = {name: 1 for name in PARTS if name not in used}
            if any(self.problem.fixed.get(name, 1) != 1 for name in alone) or _has(self.best, alone):
                continue
            try:
                kind = self.search(_listed(["data", *(PARTS[name] for name in used)]), self.with_fields(**alone))
            except BadInput:
                continue
            if kind.estimate is None:
                none.append(kind)
                continue
            named = replace(kind, name=kind_of(kind.estimate.strategy))
            if all(other.name != named.name for other in alternatives):
                alternatives.append(named)
        return [*sorted(alternatives, key=lambda one: one.estimate.step_s if one.estimate else 0.0), *none]

    def prefer_fewer(self, kinds: Sequence[Alternative]) -> bool:
        """Go on with the best strategy of fewer kinds of parallelism where it is longer by less than 1 %.

        Returns: whether there is one.
        """
        best_s, used = self.result.cost.step_s, _used(self.best)
        for estimate in (kind.estimate for kind in kinds if kind.estimate is not None):
            fewer = _used(estimate.strategy)
            if fewer < used and estimate.step_s * (1 - 0.01) < best_s:
                restricted = self.with_fields(**dict.fromkeys(used - fewer, 1))
                return self._prefer("fewer kinds of parallelism", restricted, 0.01) is not None
        return False

    # ---- memory

    def of_memory(self) -> list[Estimate]:
        """The best strategies with less and less memory, none of which another one is shorter and emptier than."""
        best: Estimate = self.result.cost
        estimates = [best]
        for share in (0.75, 0.5, 0.35, 0.25):
            most = share * best.peak_memory
            reserve = self.problem.cluster.memory - most
            if reserve <= self.problem.reserve_bytes:
                continue
            smaller = replace(self.problem, reserve_bytes=reserve, rank_reserve_bytes={})
            other = self.search(f"{100 * share:.0f} % of the memory", smaller)
            if other.estimate is not None:
                estimates.append(other.estimate)
        return front(estimates)

    # ---- limits

    def without_limits(self) -> Estimate:
        """The best strategy of any framework, which is never longer than the best one; in as much time as that took."""
        free = replace(self.problem, within=None)
        other = self.search("without the limits of a framework", free, self.config).estimate
        best: Estimate = self.result.cost
        return best if other is None or other.step_s > best.step_s else other


@dataclass(frozen=True)
class Compared:
    """The best strategy of a search and of all comparisons, which are beside it.

    Attributes:
        result: of the search; of the shortest comparison where that is shorter.
        choices, kinds, memory, unlimited: see Comparisons; the last one is None without a framework.
        uneven: the shorter strategy that has not equally many layers in all stages, where it is shorter by less than
            2 %: nothing else is compared then but strategies of equally many.
    """

    result: StrategyResult
    choices: list[Alternative]
    kinds: list[Alternative]
    memory: list[Estimate]
    unlimited: Estimate | None
    uneven: Estimate | None = None


def compared(
    result: StrategyResult,
    config: StrategiesConfig,
    watch: Watch = SILENT,
    budget_s: float | None = None,
    unlimited: Estimate | None = None,
) -> Compared:
    """Compare the best strategy of a search with others; where one of them is shorter it is the best one from then on.

    Args: as of Comparisons; and
        unlimited: the best strategy without the limits of a framework, where it is known.
    """
    beside = Comparisons(result, config, watch, budget_s)
    uneven = beside.prefer_equal_layers()
    while True:
        choices, kinds, memory = beside.choices(), beside.kinds(), beside.of_memory()
        shorter = beside.shortest
        if shorter is not None and shorter.cost.step_s < beside.result.cost.step_s:
            beside.result = _with_plan_of(beside.result, shorter)
        elif not beside.prefer_fewer(kinds):
            break
    if beside.problem.within is not None and unlimited is None:
        unlimited = beside.without_limits()
    return Compared(beside.result, choices, kinds, memory, unlimited, uneven)


def _with_plan_of(result: StrategyResult, shorter: StrategyResult) -> StrategyResult:
    """The result of a search with the plan of another one, which is of a part of its problem and perhaps simpler."""
    problem = replace(result.problem, cluster=shorter.problem.cluster)
    bound = result.bound
    if bound is not None and bound.value > shorter.cost.step_s:
        bound = replace(bound, value=shorter.cost.step_s)
    status = "feasible" if shorter.cost.step_s > result.cost.step_s else result.status
    return replace(result, problem=problem, plan=shorter.plan, cost=shorter.cost, bound=bound, status=status)


def front(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Those of which none is both shorter and emptier, the shortest first."""
    shortest: list[Estimate] = []
    for estimate in sorted(estimates, key=lambda priced_one: (priced_one.step_s, priced_one.peak_memory)):
        if not shortest or estimate.peak_memory < shortest[-1].peak_memory:
            shortest.append(estimate)
    return shortest


def kind_of(strategy: Strategy) -> str:
    """`data, tensor and pipeline`: what a strategy divides the devices by."""
    s = strategy
    degrees = {"data": s.dp, "tensor": s.tp, "context": s.cp, "expert": s.ep, "pipeline": s.pp}
    return _listed([name for name, degree in degrees.items() if degree > 1 and name != "expert"] or ["data"])


def _used(strategy: Strategy) -> set[str]:
    return {name for name in PARTS if getattr(strategy, name) > 1}


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _has(strategy: Strategy, fields: Mapping[str, Any]) -> bool:
    return all(getattr(strategy, name) == value for name, value in fields.items())


def of_sizes(
    result: StrategyResult, clusters: list[Cluster], config: StrategiesConfig, watch: Watch = SILENT
) -> list[StrategyResult]:
    """The best strategy on each of several clusters, of which that of the result may be one."""
    results = []
    for cluster in clusters:
        watch(Progress(f"searching strategies of {cluster.devices} devices"))
        same = cluster == result.problem.cluster
        problem = replace(result.problem, cluster=cluster)
        results.append(result if same else StrategiesPlanner(config).solve(problem))
    return results
