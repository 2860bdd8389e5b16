"""From the arguments of `automap-search opp` and `adp` to a checked plan."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from automap_models.core.mesh import PlanKind
from automap_models.core.result import Result
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.sharding_json import ShardingReport
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.registry import make_planner
from automap_models.planners.sharding.episodes import Round
from automap_models.planners.watch import Progress

from ..mesh_argument import one_axis
from ..reports.progress import Steps
from ..requests import SearchRequest
from ..sources import module_of
from .search_options import search_options

if TYPE_CHECKING:
    from automap_models.hlo.adapter import Module
    from automap_models.hlo.rule_sets import RuleSet
    from automap_models.hlo.sharding_classes import ModuleSharding


KINDS: Mapping[str, PlanKind] = {"opp": "operator", "adp": "data"}
"""Search → kind of the plans that it makes."""


class Inserted(NamedTuple):
    """Collective operations of one sort: how many, and the bytes of their results."""

    number: int
    nbytes: float


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        report: the plan and what is said about it.
        inserted: what Shardy's own propagation of it inserts, by Shardy's word; a legal plan needs no `reshard`.
        rounds: of episodes that the search played.
    """

    report: ShardingReport
    inserted: Mapping[str, Inserted]
    rounds: tuple[Round, ...] = ()


def found(arguments: SearchRequest) -> Found:
    """The plan that was asked for.

    Raises:
        BadInput: an argument means nothing for this input, or the model cannot be read, traced or partitioned.
        UserCodeError: the user's own code raised.
    """
    begun, kind = time.perf_counter(), KINDS[arguments.search]
    cluster, rule_set = read_cluster(arguments.topo), read_rule_set(arguments.rules)
    mesh = one_axis(arguments.mesh, kind, cluster)
    steps = Steps()

    def watch(news: Progress) -> None:
        steps.begin(news.what)

    planner = make_planner(arguments.planner, kind="sharding", **search_options(arguments))
    with contextlib.redirect_stdout(sys.stderr), steps:
        steps.begin(f"tracing {arguments.source.what}")
        module = module_of(arguments.source)
        steps.begin(f"propagating through {len(module.operations):,} operations")
        sharding = sharding_of(module, rule_set)
        problem = ShardingProblem(module.name, sharding.classes, cluster, mesh, rules=rule_set.name)
        steps.begin(f"searching {len(problem.along[0].candidate_dims)} dimensions")
        result = planner.solve(problem, watch=watch)
        planning_s = time.perf_counter() - begun
        steps.begin("checking the plan with Shardy")
        inserted = inserted_by_shardy(module, result.required_plan())
    return Found(ShardingReport(result, planning_s, _notes(result, inserted)), inserted, result.search_log)


def sharding_of(module: Module, rule_set: RuleSet) -> ModuleSharding:
    """The classes of a module's variables under a rule set."""
    from automap_models.hlo.sharding_classes import sharding_classes
    from automap_models.hlo.shardy import sharding_rules

    return sharding_classes(module, sharding_rules(module), rule_set)


def inserted_by_shardy(module: Module, plan: ShardingPlan) -> dict[str, Inserted]:
    """What Shardy's own propagation of a plan along all its axes inserts: its word for it → number and bytes."""
    from automap_models.hlo.shardy import mesh_collectives

    inserted: dict[str, Inserted] = {}
    along = [(dims, axis.size) for dims, axis in zip(plan.dims, plan.mesh, strict=True)]
    for kind, nbytes in mesh_collectives(module, along):
        number, total = inserted.get(kind, Inserted(0, 0.0))
        inserted[kind] = Inserted(number + 1, total + nbytes)
    return inserted


def _notes(result: Result[ShardingProblem, ShardingPlan], inserted: Mapping[str, Inserted]) -> tuple[str, ...]:
    notes = []
    if result.facts.get("interrupted"):
        notes.append(f"interrupted after {result.facts['episodes']:,} episodes: the best plan until then")
    if reshards := inserted.get("reshard"):
        notes.append(f"Shardy's own propagation of this plan needs {reshards.number} reshards")
    return tuple(notes)
