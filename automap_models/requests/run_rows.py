"""The step of a run as a row of measured steps, which automap-calibrate reads beside those that people write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from automap_models.core.plan import Plan, Stage
from automap_models.core.run_record import RunRecord
from automap_models.cost.measured_step import SkippedStep
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.measured_documents import RowDocument, SourceDocument
from automap_models.formats.measured_rows import step_of
from automap_models.formats.schema import convert
from automap_models.requests import RunRequest
from automap_models.workloads.measured import DTYPES, parameters_of, row_model, step_work
from automap_models.workloads.source import described

SOURCE = "automap run"
"""Who measured the steps of all runs."""
SAME = 0.02
"""Share by which the parameters of a row's model may differ from those of the one that ran."""
_NUMBER = re.compile(r"\d+")


def with_row(record: RunRecord, request: RunRequest) -> RunRecord:
    """The record with its row, or with why there is none."""
    try:
        return replace(record, row=_row(record, request))
    except BadInput as error:
        return replace(record, no_row=str(error))


def _row(record: RunRecord, request: RunRequest) -> dict[str, Any]:
    """See docs/reference/files.md.

    Raises:
        BadInput: rows have no words for the plan or the model.
    """
    transformer: Any = described(request.source).get("transformer")
    if transformer is None:
        raise BadInput("is no transformer by name, by a config.json, or of transformers", where=request.source.what)
    dtype, (model, work) = transformer["dtype"], row_model(transformer, record.plan.model)
    row = {
        **{"source": SOURCE, "system": f"automap run on {record.backend}", "model": model},
        **_strategy(record, request, work.shape.layers),
        **{"gpu_type": record.device, "flash": transformer["flash"], "precision": DTYPES.get(dtype, dtype)},
        "measured": {"iteration_s": record.step_s, "memory_max_allocated_bytes": record.memory_bytes},
    }
    row["id"] = f"{model['name']}: pp {row['pp']}, dp {row['dp']}, {row['global_batch']} samples"
    step = step_of(convert(row, RowDocument, where=record.plan.where, do=""), SourceDocument())
    if isinstance(step, SkippedStep):
        raise BadInput(step.reason)
    if abs(parameters_of(step_work(step)) / parameters_of(work) - 1.0) > SAME:
        raise BadInput("is no GPT-2, BERT, Llama or mixture of these by its parameters", where=record.plan.model)
    return row


def _strategy(record: RunRecord, request: RunRequest, layers: int) -> dict[str, Any]:
    """Its keys, and those of the cluster.

    Raises:
        BadInput: a strategy has no words for the plan.
    """
    plan, schedule = record.plan, record.schedule
    ranks, cluster, samples = {stage.device_count for stage in plan.stages}, plan.cluster, plan.microbatch_size
    dp = min(ranks)
    for what, is_so in {
        "is no plan of stages": plan.kind != "stages",
        "has stages that share operators": any(stage.tensor > 1 for stage in plan.stages),
        "has stages of unequal numbers of devices": len(ranks) > 1,
        "is for several kinds of devices": cluster is not None and bool(cluster.groups),
        "has micro-batches that are no equal parts for replicas": samples is None or samples % dp > 0,
    }.items():
        if is_so:
            raise BadInput(what, where=plan.where)
    assert cluster is not None and samples is not None
    return {
        **{"gpus": cluster.devices, "cluster": ClusterDocument.from_cluster(cluster).builtins()},
        **{"tp": 1, "pp": schedule.ranks, "dp": dp, "vp": schedule.virtual, "schedule": schedule.name},
        **{"micro_batch": samples // dp, "global_batch": samples * plan.micro_batches},
        **{"recompute": "none", "zero": request.zero, "layers_per_stage": _stage_layers(plan, layers)},
    }


def _stage_layers(plan: Plan, layers: int) -> list[int]:
    """[S] blocks of each stage.

    Raises:
        BadInput: a stage ends inside of one.
    """
    ends = [0, *(_blocks_before(cut, plan.where) for cut in pairwise(plan.stages)), layers]
    return [after - before for before, after in pairwise(ends)]


def _blocks_before(cut: Sequence[Stage], where: str) -> int:
    """Blocks before a cut, of which the last one's number stands in the name of the layer before it, if any does."""
    before, after = (_NUMBER.search(name) for name in (cut[0].layers[1], cut[1].layers[0]))
    if before is None:
        return 0
    if after is not None and after[0] == before[0]:
        raise BadInput("has a stage that ends inside a block", where=where, do="plan with `cut_at=blocks`")
    return int(before[0]) + 1
