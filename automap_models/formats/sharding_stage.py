"""A sharding plan as it runs: one stage, d replicas of t devices, and one micro-batch a step.

    mesh data=2, model=2      stage 0 on devices 0 … 3, two replicas of two devices
    along model, along data   the dimension of every variable that the plan partitions

An axis along which nothing is partitioned needs one device. The price of a plan is that of a whole step: a third of its
computation is charged to the forward pass, as a product of matrices has one there and two in the backward pass.
"""

from __future__ import annotations

import os

from msgspec import UnsetType

from automap_models.core.sharding import ShardingPlan
from automap_models.core.sharding_classes import REPLICATED
from automap_models.core.written_plan import WrittenArgument, WrittenPlan, WrittenStage
from automap_models.formats.document_kind import require_kind
from automap_models.formats.plan_json import FORMER, KIND
from automap_models.formats.plan_reader import STALE, read_written_plan
from automap_models.formats.schema import read_bytes
from automap_models.formats.sharding_json import KINDS, read_document, read_sharding_plan

SHARDING = "plan"
"""Name of the only sharding of the stage."""


def read_plan_to_run(path: str | os.PathLike[str]) -> WrittenPlan:
    """A plan of stages as it is written, or a sharding plan as one of one stage.

    Raises:
        BadInput: the file is neither or contradicts itself.
    """
    kind = require_kind(read_bytes(path), (KIND, FORMER, *KINDS), str(path), STALE)
    return _one_stage(path) if kind in KINDS else read_written_plan(path)


def _one_stage(path: str | os.PathLike[str]) -> WrittenPlan:
    where, document, plan = str(path), read_document(path), read_sharding_plan(path)
    dims = {axis.kind: _partitioned(plan, a) for a, axis in enumerate(plan.mesh)}
    sizes = {axis.kind: int(axis.size) for axis in plan.mesh}
    along_data = dims.get("data", {})
    replicas = sizes["data"] if along_data else 1
    tensor = sizes["operator"] if dims.get("operator") else 1
    price = document.price
    compute_s, reduce_s = (
        (0.0, 0.0) if isinstance(price, UnsetType) else (price.compute_s, sum(price.all_reduce_s.values()))
    )
    stage = WrittenStage(
        first=0,
        last=0,
        end="end of forward",
        devices=(0, replicas * tensor - 1),
        replicas=replicas,
        tensor=tensor,
        sharding=SHARDING if tensor > 1 else None,
        forward_s=compute_s / 3,
        backward_s=2 * compute_s / 3,
        transfer_s=0.0,
        all_reduce_s=reduce_s,
    )
    return WrittenPlan(
        where=where,
        model=document.model,
        stages=(stage,),
        micro_batches=1,
        microbatch_size=None,
        schedule=None,
        step_s=compute_s + reduce_s,
        model_fingerprint=None,
        shardings={SHARDING: (tensor, dims["operator"])} if tensor > 1 else {},
        cluster=document.cluster.cluster(f"{where}, $.cluster"),
        arguments={
            variable.name: WrittenArgument(variable.shape, along_data.get(variable.name, REPLICATED))
            for variable in plan.variables
        },
    )


def _partitioned(plan: ShardingPlan, axis: int) -> dict[str, int]:
    """Variable → the dimension that is partitioned along an axis, without those that are not."""
    return {variable.name: dim for variable, dim in plan.by_variable(axis).items() if dim != REPLICATED}
