"""Whether a model fits a cluster, by which strategy, and what would fit where none does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from automap_models.core.cluster import MemoryVerdict
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.result import Result
from automap_models.core.strategy import Strategy
from automap_models.errors import BadInput
from automap_models.export.targets import training_limits
from automap_models.planners import effort
from automap_models.planners.base import Deadline, Watch
from automap_models.planners.strategies.bounds import holds_state
from automap_models.planners.strategies.compare import Comparisons
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.planners.strategies.remedies import (
    QUICK,
    Change,
    Remedy,
    at_risk,
    emptiest,
    first_remedy,
    is_useful,
    more_devices,
    open_fields,
    remedies,
    surely,
    with_hosts,
    without_reserve,
)
from automap_models.requests import FitRequest
from automap_models.requests.strategies import strategy_problem

LEAST_TOKENS = 256
"""Of a sample that is made shorter so that something fits."""
FRAMEWORKS_S = 4.0
"""Counted seconds, of which half go to searches of what each framework trains, where none trains the best strategy."""
REMEDIES_S = 2.5
"""Counted seconds in which changes are tried."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FitResult(Result[StrategyProblem, Strategy]):
    """The best strategy found that fits; or the changes with which something does.

    Attributes:
        emptiest: of some strategies that hold little, where none fits.
        remedies: changes that were tried and fit, that which asks for least first; where none fits without, or only at
            less than USEFUL of the peak, and then those at more.
    """

    emptiest: Estimate | None = None
    remedies: tuple[Remedy, ...] = ()

    @property
    def verdict(self) -> MemoryVerdict:
        """Of the best strategy: at risk where only the upper bound of what it holds is too much."""
        return "does not fit" if self.plan is None else self.cost.verdict


def solve(request: FitRequest, watch: Watch) -> FitResult:
    """The best strategy found in a short search that leaves the reserve, perhaps with the optimiser on hosts; else one
    that is at risk; else what would fit.

    Raises:
        BadInput: see StrategiesPlanner.
    """
    begun_s = time.perf_counter()
    problem = strategy_problem(request, watch)
    result = with_hosts(surely(problem, QUICK, watch), QUICK, watch)
    if not request.reserve:
        result = at_risk(result, QUICK, watch)
    fields: dict[str, Any] = {**vars(result)}
    if result.plan is None:
        fields |= {"emptiest": emptiest(problem)}
    else:
        fields |= _trained(result, watch)
    if result.plan is None or not is_useful(fields["cost"]):
        every = _remedies(request, problem, watch)
        fields |= {"remedies": tuple(entry for entry in every if result.plan is None or is_useful(entry.cost))}
    fields |= {"taken_s": time.perf_counter() - begun_s}
    return FitResult(**fields)


def _trained(result: Result[StrategyProblem, Strategy], watch: Watch) -> dict[str, Any]:
    """`plan` and `cost` of a strategy that is nearly as short as the best one found, simple, and trained by a framework
    if any is found."""
    pool = Comparisons(result, QUICK, watch, budget_s=FRAMEWORKS_S, frameworks=training_limits())
    pool.choose()
    if not pool.trained(pool.best) or pool.chosen.step_s >= QUICK.far * result.cost.step_s:
        pool.search_frameworks()
        pool.choose()
    return {"plan": pool.best, "cost": pool.estimate(pool.chosen)}


def _remedies(request: FitRequest, problem: StrategyProblem, watch: Watch) -> Iterator[Remedy]:
    """Changes that fit, in the order of what they ask for: other fields of the strategy, fewer tokens, a smaller state
    of the optimiser, adapters, more devices."""
    deadline = Deadline(request.options.budget_s or REMEDIES_S, effort.counted_s)
    yield from remedies(without_reserve(problem) if request.reserve else (), watch, deadline)
    yield from remedies(open_fields(problem), watch, deadline)
    if (remedy := first_remedy(list(_fewer_tokens(request, problem, watch)), watch, deadline)) is not None:
        yield remedy
    yield from remedies(_less_training(request, problem, watch), watch, deadline)
    if (remedy := more_devices(problem, watch, deadline)) is not None:
        yield remedy


def _fewer_tokens(request: FitRequest, problem: StrategyProblem, watch: Watch) -> Iterator[Change]:
    """Samples of half the tokens, and half of that again, as many tokens a step unless the samples are given."""
    shape = problem.work.facts.shape
    if shape is None or isinstance(request.source.model, ModelWork) or not holds_state(problem):
        return
    tokens = shape.sequence // request.training.sequences // 2
    while tokens >= LEAST_TOKENS:
        shorter = replace(request, source=replace(request.source, sequence=tokens))
        yield from _changed(f"take samples of {tokens:,} tokens", shorter, watch)
        tokens //= 2


def _less_training(request: FitRequest, problem: StrategyProblem, watch: Watch) -> Iterator[Change]:
    """A smaller state of the optimiser, and adapters, of a transformer that is trained as usual."""
    training, shape = request.training, problem.work.facts.shape
    if not training.trains_all or shape is None or isinstance(request.source.model, ModelWork):
        return
    smaller: dict[str, dict[str, Any]] = {
        "train by `optimizer=adamw-8bit` with `states=bf16`": {"optimizer": "adamw-8bit", "states": "bf16"},
        "train adapters (`lora=16`)": {"rank": 16},
        "train adapters (`lora=16`) beside 4 bits (`quantize`)": {"rank": 16, "quantize": True},
    }
    for change, fields in smaller.items():
        yield from _changed(change, replace(request, training=replace(training, **fields)), watch)


def _changed(change: str, request: FitRequest, watch: Watch) -> Iterator[Change]:
    """A change, unless the model or the framework that is asked for has no such thing."""
    with suppress(BadInput):
        yield change, strategy_problem(request, watch)
