"""Every kind of plan of one model, ranked; or one plan, whichever kind it is of, costed again."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from automap_models.core.cluster import Cluster
from automap_models.core.result import PlanReport
from automap_models.formats.atomic import fingerprint
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.plan_reader import read_plan
from automap_models.planners.base import Progress, Watch
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import Exploration, ExplorePlanner
from automap_models.planners.portfolio.planning import explore_config, space_to_explore
from automap_models.planners.portfolio.store import StoredExploration
from automap_models.planners.staged.evaluate import evaluate
from automap_models.requests import ExploreRequest, cache_of
from automap_models.requests.profile import profiled_model
from automap_models.version import __version__


@dataclass(frozen=True)
class Explored:
    """What the command came to.

    Attributes:
        exploration: the plans.
        seed: of random draws.
        taken_s: from the request to the plans.
        cached: whether they come from the cache.
    """

    exploration: Exploration
    seed: int
    taken_s: float
    cached: bool

    @cached_property
    def report(self) -> PlanReport:
        """The best plan, whose baselines have as many micro-batches; what else was searched the exploration says."""
        return evaluate(replace(self.exploration.result, search_log=()), seed=self.seed)


def solve(request: ExploreRequest, watch: Watch) -> Explored | Candidate:
    """All plans, the best one first; or the plan that is given."""
    begun, cluster = time.perf_counter(), request.cluster
    key, model = profiled_model(request, cluster, watch, cached=request.cached)
    if request.plan is not None:
        read = read_plan(request.plan, model, cluster)
        return Candidate(read.problem, read.required_plan(), read.cost, read.bound)
    space = space_to_explore(model, cluster, request.options)
    key = f"plans-{fingerprint({'model': key, **_identity(request, cluster)})}"
    fresh: list[Exploration] = []

    def explore() -> StoredExploration:
        planner = ExplorePlanner(explore_config(request.options))
        result = planner.solve(space, watch=lambda news: watch(Progress(news.what)))
        result.required_plan()
        fresh.append(result.facts["exploration"])
        return StoredExploration.of(fresh[0])

    stored = cache_of(request.cached).once(key, StoredExploration, explore)
    exploration = fresh[0] if fresh else stored.of_space(space)
    return Explored(exploration, request.options.seed, time.perf_counter() - begun, cached=not fresh)


def _identity(request: ExploreRequest, cluster: Cluster) -> dict[str, object]:
    """Everything but the model that the plans depend on, as plain data."""
    identity = {"microbatch_size": request.microbatch_size, **asdict(request.options)}
    identity["rates"] = [group.rates for group in cluster.groups]
    return {**identity, "cluster": ClusterDocument.of(cluster).builtins(), "automap": __version__}
