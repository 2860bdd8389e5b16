"""From the arguments of `automap-search opp` and `adp` to a checked plan."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Literal, cast

from automap_models.core.sharding import ShardingProblem
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import read_cluster
from automap_models.formats.sharding_json import ShardingReport
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.planners.registry import make_planner

from .profile_source import STEPS, kind_of, module_of, require_applicable
from .progress import Steps


@dataclass(frozen=True)
class Found:
    """A plan and what Shardy's own pipeline makes of it.

    Attributes:
        report: the plan.
        collectives: Shardy's word → how many it inserts; a legal plan needs no `reshard`.
        collective_bytes: Shardy's word → bytes of their results.
    """

    report: ShardingReport
    collectives: Counter[str]
    collective_bytes: Counter[str]


def found(arguments: argparse.Namespace, kind: str) -> Found:
    """The plan that was asked for.

    Raises:
        BadInput: an argument means nothing for this input, or the model cannot be read, traced or partitioned.
        UserCodeError: the user's own code raised.
    """
    begun = time.perf_counter()
    cluster = read_cluster(arguments.topo)
    source = kind_of(arguments.what)
    if source not in STEPS:
        raise BadInput(
            "is a profile, without operations to partition",
            where=arguments.what,
            do="give a model, a factory or an HLO file",
        )
    require_applicable(source, arguments)
    planner = make_planner(arguments.planner, None, cast(Literal["operator", "data"], kind))
    rule_set = read_rule_set(arguments.rules)
    with contextlib.redirect_stdout(sys.stderr), Steps() as steps:
        steps.begin(f"tracing {arguments.what}")
        module = module_of(source, arguments)
        from automap_models.hlo.sharding_classes import sharding_classes
        from automap_models.hlo.shardy import collectives, sharding_rules

        steps.begin(f"propagating through {len(module.operations):,} operations")
        sharding = sharding_classes(module, sharding_rules(module), rule_set)
        problem = ShardingProblem(
            model=module.name,
            kind=cast(Literal["operator", "data"], kind),
            classes=sharding.classes,
            cluster=cluster,
            axis_size=arguments.mesh or cluster.devices,
            rules=rule_set.name,
        )
        steps.begin(f"searching {len(problem.candidate_dims)} dimensions")
        plan = planner.plan(problem)
        planning_s = time.perf_counter() - begun
        steps.begin("checking the plan with Shardy")
        inserted = collectives(module, plan.dims, plan.axis_size)
    counts, sizes = Counter(each.kind for each in inserted), Counter[str]()
    for each in inserted:
        sizes[each.kind] += int(each.nbytes)
    return Found(ShardingReport(problem, plan, planning_s, notes=_notes(counts)), counts, sizes)


def _notes(counts: Counter[str]) -> tuple[str, ...]:
    reshards = counts["reshard"]
    return (f"Shardy's own propagation of this plan needs {reshards} reshards",) if reshards else ()
