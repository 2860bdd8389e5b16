"""The search of a cluster, and of its parts that may be better than all of it.

Parts (planners.strategies.parts) are searched in the order of what a step is expected to take: the least of that with
the bubble of 1F1B, as much longer as the step of its side is than that.

Where fewer devices may be better for being fewer, as by their cost, numbers of nodes of each side are searched: all of
them, a half, a quarter and so on, and then those that are expected to be the best by what the ones next to them take.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count, islice
from math import inf, log, sqrt

from automap_models.core.cluster import Cluster
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.planners.base import SILENT, Progress, Watch
from automap_models.planners.strategies.parts import LISTED, Counts, Part, Parts
from automap_models.planners.strategies.planner import any_subspace, require_searchable
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.planners.strategies.remedies import surely

Searched = Result[StrategyProblem, Strategy]
SIDES, MOST = 8, 6
"""Sides that are searched, and other parts; of a side's sizes, those beside halves."""
NEAR = 0.95
"""Share of what a part is expected to take that has to be better than the best, or it is not searched."""


class PartSearch:
    """The search of a cluster, and then of its parts that may be better.

    The cluster shares the budget with up to three of its sides evenly; other parts have an eighth each.

    Args:
        problem: on all of the cluster.
        config: of all searches together; parts are searched to the end where its gap is 0.
        charge: what a step of so many seconds on a part is compared by, the least the best.
        sized: whether that depends on how many devices a part has.

    Attributes:
        results: of the parts that were searched.
        passed: parts that were not, though their bounds do not rule them out.
    """

    def __init__(
        self,
        problem: StrategyProblem,
        config: StrategiesConfig,
        charge: Callable[[Part, float], tuple[float, float]] = lambda part, step_s: (0.0, part.charged_s(step_s)),
        watch: Watch = SILENT,
        *,
        sized: bool = False,
    ) -> None:
        self.parts, self.problem, self.config, self.charge, self.watch = Parts(problem), problem, config, charge, watch
        self.results, self.passed = list[tuple[Part, Searched]](), list[Part]()
        self.best: tuple[float, float] = (inf, inf)
        self.best_result: Searched | None = None
        self.queue: list[tuple[float, int, Part, Counts | None]] = []
        self.sized, self.trimmed, self.numbers = sized, 0, count()
        self.sides = list(self.parts.sides())

    @property
    def thorough(self) -> bool:
        """Whether all parts are searched that are not ruled out."""
        return self.config.gap == 0.0

    def full(self, *, may_fail: bool = True) -> Searched | None:
        """The result on all of the cluster; None where nothing divides that, and a part may be divided.

        Raises:
            BadInput: a fixed field contradicts another one, the model or the cluster.
        """
        if may_fail and not any_subspace(replace(self.problem, fixed={}, within=None)):
            return None
        return self._searched(Part(self.problem.cluster), self.problem, 1 + min(len(self.sides), 3))

    def run(
        self,
        on_part: Callable[[Cluster], StrategyProblem],
        full: Searched | None,
        best: tuple[float, float] = (inf, inf),
    ) -> None:
        """Until no part is left that is not ruled out and expected to be better than the best.

        Args:
            on_part: the problem on a part; it may be within limits that all of the cluster's is not.
            full: the result on all of the cluster, or what came of it.
            best: what it is to be better than, too.

        Raises:
            BadInput: nothing divides the cluster or any part of it.
        """
        self.results, self.best, self.on_part = [], best, on_part
        self.best_result = full if full is not None and full.plan else None
        if self.best_result is not None:
            self.best = min(best, self.charge(Part(self.problem.cluster), self.best_result.cost.step_s))
        fewest = {side: sum(map(bool, side)) if self.sized else 0 for side in self.sides}  # places
        for number, side in enumerate(sorted(fewest, key=lambda side: (fewest[side], self.parts.computing_s(side)))):
            part = self.parts.part(side)
            if number >= SIDES and not self.thorough:
                self.passed += [part._replace(bound_s=0.0) if self.sized else part] if part.bound_s < inf else []
            elif self.sized:
                self._size(side)
            else:
                self._push(part.bound_s, part, side)
        if self.sized:
            self._size(self.parts.everything)
        else:
            self._trim(self.parts.everything, full)
        while self.queue:
            self._next(*heapq.heappop(self.queue))
        if full is None and not self.results:
            require_searchable(self.problem)
        part, result = min(self.results, key=self._order, default=(None, None))
        if part is not None and part.trimmed and result is not None and self._order((part, result)) == self.best:
            again = self._searched(part, replace(self.on_part(part.cluster), within=self.problem.within), 2)
            if again.plan is None or again.cost.step_s > result.cost.step_s:
                again = replace(result, bound=again.bound, facts=again.facts)
            others = [entry for entry in self.results[:-1] if entry[1] is not result]
            self.results = [*others, (part, again)]

    def _order(self, entry: tuple[Part, Searched]) -> tuple[float, float]:
        return (inf, inf) if entry[1].plan is None else self.charge(entry[0], entry[1].cost.step_s)

    def _next(self, expected_s: float, _number: int, part: Part, side: Counts | None) -> None:
        if self.charge(part, part.bound_s) >= self.best:
            return
        hopeless = side is None and (self.trimmed >= MOST or self.charge(part, NEAR * expected_s) >= self.best)
        if hopeless and not self.thorough:
            self.passed.append(part)
            return
        result = self._on_part(part, 1 + min(len(self.sides), 3) if side else 8)
        if side is None:
            self.trimmed += result is not None
        elif result is not None:
            self._trim(side, result)

    def _on_part(self, part: Part, share: int) -> Searched | None:
        """Of a search beside the best result; None where that is better than any, or nothing divides the part as
        schedules and fixed fields ask for."""
        if self.charge(part, part.bound_s) >= self.best:
            return None
        start = () if self.best_result is None else (self.best_result.required_plan(),)
        with suppress(BadInput):
            on_part = replace(self.on_part(part.cluster), start=start, below_s=self._limit_s(part))
            return self._searched(part, on_part, share)
        return None

    def _size(self, side: Counts) -> None:
        """Search how many nodes of a side, or of all, are best, of each place where that makes few parts; else of all
        in proportion. To the end all are searched that their bounds do not rule out."""
        every = [side, *islice(self.parts.fewer(side), None if self.thorough else LISTED)]
        if len(every) > LISTED and not self.thorough:
            every = self.parts.proportional(side)
            self.passed.append(Part(self.parts.cluster(side)))  # nothing is proven of the others
        parts = [part for counts in every if (part := self.parts.part(counts)).bound_s < inf and part.idle]
        ratios: dict[int, float] = {}

        def expected(part: Part) -> tuple[float, float]:
            devices = part.cluster.devices
            near = min(ratios, key=lambda size: abs(log(size / devices)), default=devices)
            return self.charge(part, ratios.get(near, 1.0) * NEAR * part.about_s)

        def visit(part: Part) -> None:
            parts.remove(part)
            result = self._on_part(part, 8)
            if result is not None and result.plan is not None:
                ratios[part.cluster.devices] = result.cost.step_s / part.about_s

        while self.thorough and parts:
            visit(parts[0])
        most, idle = self.parts.cluster(side).devices, side != self.parts.everything
        for size in (most >> power for power in range(0 if idle else 1, most.bit_length())):
            near = min(parts, key=lambda part: (abs(part.cluster.devices - size), expected(part)), default=None)
            if near is not None and expected(near) < self.best:
                visit(near)
        for _ in range(MOST):
            first = min(parts, key=expected, default=None)
            if first is None or expected(first) >= self.best:
                break
            visit(first)
        self.passed += parts

    def _searched(self, part: Part, problem: StrategyProblem, share: int) -> Searched:
        self.watch(Progress(f"searching strategies on {part.cluster.name}"))
        config = replace(self.config, budget_s=self.config.budget_s / share)
        result = surely(problem, config, self.watch)
        result = replace(result, problem=replace(result.problem, start=(), within=self.problem.within))
        if problem.within != self.problem.within:  # then nothing is proven of other strategies
            result = replace(result, bound=None, status="feasible" if result.plan is not None else "stopped")
        self.results.append((part, result))
        if result.plan is not None and (charged := self.charge(part, result.cost.step_s)) < self.best:
            self.best, self.best_result = charged, result
        return result

    def _limit_s(self, part: Part) -> float:
        """What a step on a part has to be shorter than to be better, where what it is compared by grows with it."""
        (missed, least), (twice_missed, twice) = (self.charge(part, n * part.bound_s) for n in (1, 2))
        alike = missed == twice_missed == self.best[0] and abs(twice - 2 * least) <= 1e-9 * twice
        return part.bound_s * self.best[1] / least if alike else inf

    def _trim(self, side: Counts, result: Searched | None) -> None:
        """Have the parts of a side in the queue that compute alone does not rule out."""
        if self.sized or (result is not None and result.status == "infeasible" and not self.thorough):
            return
        like, ratio = Part(self.parts.cluster(side)), 0.0
        for number, counts in enumerate(self.parts.fewer(side)):
            least_s = self.parts.computing_s(counts)
            if self.charge(like, least_s) >= self.best:
                break
            ratio = ratio or self._ratio(side, result)
            hopeless = number == LISTED or self.charge(like, NEAR * ratio * least_s) >= self.best
            if hopeless and not self.thorough:
                self.passed.append(like._replace(bound_s=least_s))
                break
            bound_s, about_s = self.parts.times(counts)
            if bound_s == inf:
                continue  # nothing divides it
            if self.thorough or self.charge(like, NEAR * ratio * about_s) < self.best:
                self._push(ratio * about_s, self.parts.part(counts))
            elif self.charge(like, bound_s) < self.best:
                self.passed.append(like._replace(bound_s=bound_s))

    def _ratio(self, side: Counts, result: Searched | None) -> float:
        """How many times as long a step takes on a side as it would if nothing but compute, samples and layers counted;
        at least, where no strategy is known that fits."""
        about_s, step_s = self.parts.part(side).about_s, 0.0
        if result is not None and result.plan is not None:
            step_s = result.cost.step_s
        elif result is not None and result.bound is not None:
            step_s = result.bound.value
        ratio = step_s / about_s if step_s else 1.0
        return ratio if sum(map(bool, side)) > 1 else sqrt(ratio)  # in one place half of it may be how that is divided

    def _push(self, expected_s: float, part: Part, side: Counts | None = None) -> None:
        if part.bound_s < inf and self.charge(part, part.bound_s) < self.best:
            heapq.heappush(self.queue, (expected_s, next(self.numbers), part, side))
