"""Every kind of plan of one model, ranked; or one plan, whichever kind it is of, costed again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from automap_models.core.result import PlanReport, Result
from automap_models.core.strategy import Strategy
from automap_models.errors import Infeasible
from automap_models.export.targets import target_by_name, training_limits
from automap_models.formats.staged_plan import read_plan
from automap_models.planners.base import Progress, Watch
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import Exploration, ExplorePlanner
from automap_models.planners.portfolio.planning import explore_config, space_to_explore
from automap_models.planners.portfolio.profile_strategy import PATIENT, best_strategy, gain_to_ask
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.evaluate import evaluate
from automap_models.planners.strategies.compare import Comparisons
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.requests import ExploreRequest
from automap_models.requests.profile import profiled_model
from automap_models.requests.strategies import StrategyResult


@dataclass(frozen=True)
class Explored:
    """What the command came to.

    Attributes:
        exploration: the plans.
        taken_s: from the request to the plans.
        strategy: the best one of equal stages with ZeRO and recomputation, which is not shorter; or why there is none.
        needed: how much shorter than the best plan it would have to be to take its place, relatively.
        usual_batch: whether nobody gave the samples of a step.
    """

    exploration: Exploration
    taken_s: float
    strategy: Result[StrategyProblem, Strategy] | str
    needed: float = 0.0
    usual_batch: bool = False

    @cached_property
    def report(self) -> PlanReport:
        """The best plan, whose baselines have as many micro-batches; what else was searched the exploration says."""
        return evaluate(replace(self.exploration.result, search_log=()))


def solve(request: ExploreRequest, watch: Watch) -> Explored | StrategyResult | Candidate:
    """All plans, the best one first; or the best strategy, where that is shorter; or the plan that is given."""
    begun, cluster = time.perf_counter(), request.cluster
    model = profiled_model(request, cluster, watch, cached=request.cached)
    planning = time.perf_counter()
    if request.plan is not None:
        read = read_plan(request.plan, model, cluster)
        return Candidate(read.problem, read.required_plan(), read.cost, read.bound)
    space = space_to_explore(model, cluster, request.options)
    target = None if request.target is None else target_by_name(request.target)
    within = target.limits if target is not None and target.takes_strategies else None
    exploration, reason = _explored(request, space, watch)
    watch(Progress("searching strategies"))
    fields = {} if request.options.schedule is None else {"schedule": request.options.schedule}
    strategy, min_gain = best_strategy(space, within, **fields), explore_config(request.options).min_gain
    stages, needed = None if exploration is None else exploration.best, 0.0
    if not isinstance(strategy, str):
        needed = gain_to_ask(strategy.required_plan(), min_gain)
        if stages is None or 1.0 - strategy.cost.step_s / stages.step_s >= needed:
            best = Comparisons(strategy, PATIENT, watch, None, training_limits(), min_gain).answer()
            searched: dict[str, Any] = {**vars(best.result), "taken_s": time.perf_counter() - planning}
            if stages is None or best.result.cost.step_s < stages.step_s:
                return StrategyResult(**searched, compared=best, model_s=planning - begun, stages=stages)
    if exploration is None:
        raise reason or Infeasible("no plan was found that fits the memory", where=space.model.profile.model)
    taken_s, usual = time.perf_counter() - begun, request.options.global_batch is None
    return Explored(exploration, taken_s, strategy, needed, usual)


def _explored(
    request: ExploreRequest, space: PlanningSpace, watch: Watch
) -> tuple[Exploration | None, Infeasible | None]:
    """The exploration, or the reason why no plan fits."""
    planner = ExplorePlanner(explore_config(request.options))
    try:
        result = planner.solve(space, watch=lambda news: watch(Progress(news.what)))
        result.required_plan()
    except Infeasible as reason:
        return None, reason
    return result.facts["exploration"], None
