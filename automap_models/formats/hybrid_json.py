"""plan.json of kind "hybrid-pipeline": pipelines whose stages replicate and partition operators (explore.md).

It is the document of a pipeline (plan_json.py), with three more fields for each stage: `data` and `tensor`, d replicas
of t devices each, and `partitioning`, the name of the way in which these t divide operators. `shardings` tells the
degree of each way in use and which dimension of each variable it partitions. A plan that is read is costed again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.sharded_profile import ShardedProfile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, plan_cost
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.json_fields import Fields, read_json
from automap_models.formats.plan_fields import STALE, plan_in, problem_in, require_kind, require_same_cost
from automap_models.formats.plan_json import dumps
from automap_models.formats.plan_report import PlanReport, plan_document, stage_documents

KIND = "hybrid-pipeline"


def hybrid_document(report: PlanReport) -> dict[str, Any]:
    """The report as a JSON document: plain Python numbers, lists and dictionaries."""
    problem, plan = report.problem, report.plan
    return {
        **plan_document(report),
        "kind": KIND,
        "stages": _stages(problem, plan, report.cost),
        "launch_s": float(problem.launch_s),
        "partitionings": {
            each.name: {"degree": int(each.degree), "dims": {name: int(dim) for name, dim in each.dims.items()}}
            for way, each in enumerate(problem.all_shardings)
            if way in plan.shardings
        },
    }


def write_hybrid_plan(path: str | os.PathLike[str], report: PlanReport) -> None:
    """Write plan.json.

    Raises:
        BadInput: the file cannot be written.
    """
    text = dumps(hybrid_document(report)) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8", errors="backslashreplace"))

    write_atomically(path, write)


def read_hybrid_plan(
    path: str | os.PathLike[str], model: ProfiledModel, cluster: Cluster | None = None
) -> tuple[StagedProblem, StagedPlan]:
    """The plan in a file with its problem, costed again.

    Args:
        path: a plan.json of kind hybrid-pipeline.
        model: that it was made for; the profile's fingerprint must match, and the ways in use must be among its own.
        cluster: that it was made for; None takes the one in the file.

    Raises:
        BadInput: the file is no such plan, belongs to another model or cluster, or contradicts itself or the cost model
            by more than 1e-6.
        Infeasible: a stage does not fit the memory.
    """
    fields = read_json(path)
    require_kind(fields, KIND, model.profile)
    pipeline = problem_in(fields, model.profile, cluster)
    if fields.number("launch_s") != model.launch_s:
        fields.refuse("launch_s", f"{model.launch_s:g}, that of the model's device")
    problem = _partitioned(replace(pipeline, launch_s=model.launch_s), model, fields)
    names = [each.name for each in problem.all_shardings]
    chosen = [_index(stage, names) for stage in fields.objects("stages")]
    plan = replace(plan_in(fields, pipeline), shardings=tuple(chosen))
    valid, why = plan.check_valid(problem)
    if not valid:
        raise BadInput(why, where=str(path), do=STALE)
    cost = plan_cost(problem, plan)
    require_same_cost(fields, pipeline.cluster, cost, _stages(problem, plan, cost))
    return problem, plan


def _stages(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> list[dict[str, Any]]:
    """The stages table."""
    return [
        {**document, "replicas": d, "data": d, "tensor": t, "partitioning": problem.all_shardings[way].name}
        for document, way, (d, t) in zip(
            stage_documents(problem, plan, cost), plan.shardings, plan.degrees(problem), strict=True
        )
    ]


def _partitioned(problem: StagedProblem, model: ProfiledModel, fields: Fields) -> StagedProblem:
    """The problem with the model's ways at the micro-batch size of the problem."""
    own, samples = (microbatch_size(profile) for profile in (model.profile, problem.profile))
    factor = samples / own if own is not None and samples is not None else 1.0
    known = {each.name: each for each in model.shardings}
    written = fields.object("partitionings")
    used: list[ShardedProfile] = []
    for name in map(str, written.document):
        way = written.object(name)
        ours = known.get(name)
        if name == problem.all_shardings[0].name:
            continue
        if ours is None or way.whole("degree") != ours.degree or way.any("dims") != dict(ours.dims):
            written.refuse(name, f"a way in which the operators of {model.profile.model} are partitioned")
        used.append(ours if factor == 1.0 else ours.rescaled(factor))
    return replace(problem, shardings=tuple(used))


def _index(stage: Fields, names: Sequence[str]) -> int:
    name = stage.text("partitioning")
    return names.index(name) if name in names else stage.refuse("partitioning", "one of partitionings")
