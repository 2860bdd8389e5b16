"""plan.json, schema 1, kind "pipeline": what it holds, and its writer (formats.md); plan_reader.py reads it.

A plan whose stages shard operators has three more fields for each stage: `data` and `tensor`, d replicas of t devices
each, and `sharding`, the name of how these t divide operators. `shardings` tells the degree of each one in use and
which dimension of each variable it partitions. Older files of kind "hybrid-pipeline" say the same in other words, and
are still read.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from automap_models.core.microbatch import (
    microbatch_size,
    profiled_fingerprint,
    profiled_size,
)
from automap_models.core.result import PlanReport
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.training_state import DEFAULT_STATE_FACTOR
from automap_models.cost.staged import StagedCost, plan_tied_sums
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.schema import Count, Document, Foreign, Index, Positive
from automap_models.version import __version__

SCHEMA: Literal[1] = 1

Objective = Literal["step", "length"]
"""What a plan was made short by: the simulated step under its schedule, or Auto-MAP's length L."""


class StageDocument(Document, kw_only=True):
    """A row of the stages table.

    `samples`, those of a micro-batch on the fullest replica, are there where replicas get whole samples; `tied`, the
    parameters of which other stages have a copy, too, where there are any; the last four where stages shard operators.
    What of an all-reduce comes after the stage's last backward pass, and the update of its parameters, are there where
    a plan has a schedule. Older files have buckets of gradients and whether these share a link, which is read past.
    """

    index: Index
    first: Index
    last: Index
    first_name: str
    last_name: str
    layers: Annotated[list[str], Meta(min_length=2, max_length=2)]
    devices: Annotated[list[int], Meta(min_length=2, max_length=2)]
    replicas: Count
    forward_s: float
    backward_s: float
    transfer_s: float | None
    all_reduce_s: float
    memory_bytes: float
    samples: Count | UnsetType = UNSET
    tied: list[str] | UnsetType = UNSET
    tied_sums_s: list[float] | UnsetType = UNSET
    exposed_s: float | UnsetType = UNSET
    update_s: float | UnsetType = UNSET
    buckets_ready_s: list[float] | UnsetType = UNSET
    buckets_s: list[float] | UnsetType = UNSET
    shares_link: bool | UnsetType = UNSET
    data: Count | UnsetType = UNSET
    tensor: Count | UnsetType = UNSET
    sharding: str | UnsetType = UNSET


class BaselinesDocument(Document):
    """What a step takes without planning, by the same clock as the plan's."""

    single_device_s: float
    data_parallel_s: float | None
    uniform_s: float | None


class OptimalityDocument(Document):
    """What is proven about the plans on the grid: none of them is shorter than `bound_s`.

    A plan whose cuts lie between the grid's points may be shorter than that: its `gap` is below 0. Older files say
    `grid_bound_s`; their `bound_s` is never above the plan's own step.
    """

    bound_s: Positive
    proof: Literal["exact", "relaxation"]
    gap: float
    plans: Literal["grid"] | UnsetType = UNSET
    grid_bound_s: float | UnsetType = UNSET


class SearchLogDocument(Document, kw_only=True):
    """A number of stages and micro-batches among which the planner chose (core.staged.SearchLogEntry).

    Older files call `step_s` `length_s`.
    """

    stages: int
    micro_batches: int
    microbatch_size: int | None
    planner: str | None
    step_s: float | None = None
    bound_s: float | None
    outcome: str
    chosen: bool
    length_s: float | UnsetType | None = UNSET


class ProvenanceDocument(Document, kw_only=True):
    """Where a plan comes from."""

    automap_version: str | None = None
    model_fingerprint: str | None = None
    policy: str | None = None
    profile_fingerprint: str
    profile_microbatch_size: Count | None = None
    seed: int | None = None


class ShardingDocument(Document):
    """A sharding of a stage: devices that share a replica, and the dimension of each variable that is partitioned."""

    degree: int
    dims: dict[str, int]


class AdjustmentDocument(Foreign):
    """Of the devices that a plan was adjusted to: what is read when it is adjusted again; the rest is for people."""

    slowdown: list[Positive]
    device_order: list[Index]
    idle: list[Index]


class PlanDocument(Document, kw_only=True):
    """plan.json."""

    remedy: ClassVar[str] = "plan again for this profile and cluster"

    schema: Literal[1]
    kind: Literal["pipeline", "hybrid-pipeline"]
    model: str
    planner: str
    granularity: int
    cluster: ClusterDocument
    micro_batches: Count
    microbatch_size: Count | None = None
    global_batch: int | None = None
    state_factor: float = DEFAULT_STATE_FACTOR
    cuts: list[Index]
    coarse_cuts: list[Index] | None
    device_cuts: list[Index]
    stages: Annotated[list[StageDocument], Meta(min_length=1)]
    length_s: float
    span_s: float
    pivot: Index
    objective: Objective = "length"
    schedule: str | None = None
    step_s: float | None = None
    simulated_length_s: dict[str, float] | None = None
    baselines: BaselinesDocument | None = None
    optimality: OptimalityDocument | None
    planning_s: float = 0.0
    notes: list[str] = msgspec.field(default_factory=list)
    search_log: list[SearchLogDocument] = msgspec.field(default_factory=list, name="tried")
    provenance: ProvenanceDocument
    launch_s: float | UnsetType = UNSET
    shardings: dict[str, ShardingDocument] | UnsetType = UNSET
    adjustment: AdjustmentDocument | UnsetType = UNSET


class FormerStageDocument(StageDocument, kw_only=True):
    """A stage of a FormerPlanDocument."""

    sharding: str | UnsetType = msgspec.field(default=UNSET, name="partitioning")


class FormerPlanDocument(PlanDocument, kw_only=True):
    """plan.json of plans whose stages shard operators, as it was once written."""

    kind: Literal["hybrid-pipeline"]
    stages: Annotated[list[FormerStageDocument], Meta(min_length=1)]  # type: ignore[assignment]  # of a list nobody adds to
    shardings: dict[str, ShardingDocument] | UnsetType = msgspec.field(default=UNSET, name="partitionings")


PLAN_DOCUMENTS = (PlanDocument, FormerPlanDocument)


def plan_document(report: PlanReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    problem, plan, cost, bound = report.problem, report.plan, report.cost, report.bound
    optimality = None
    if bound is not None:
        optimality = OptimalityDocument(float(bound.value), bound.proof, cost.step_s / bound.value - 1.0, "grid")
    points, samples = problem.grid.to_points(plan.cuts), microbatch_size(problem.profile)
    document = PlanDocument(
        schema=SCHEMA,
        kind="pipeline",
        model=problem.profile.model,
        planner=plan.planner,
        granularity=problem.granularity,
        cluster=ClusterDocument.of(problem.cluster),
        micro_batches=plan.micro_batches,
        microbatch_size=samples,
        global_batch=None if samples is None else samples * plan.micro_batches,
        state_factor=float(problem.state_factor),
        cuts=list(plan.cuts),
        coarse_cuts=None if points is None else list(points),
        device_cuts=list(plan.device_cuts),
        stages=stage_documents(problem, plan, cost),
        length_s=cost.length_s,
        span_s=cost.span_s,
        pivot=cost.pivot,
        objective="length" if problem.schedule is None else "step",
        schedule=problem.schedule,
        step_s=None if problem.schedule is None else cost.step_s,
        simulated_length_s=dict(report.simulated_length_s),
        baselines=BaselinesDocument(report.single_device_s, report.data_parallel_s, report.uniform_s),
        optimality=optimality,
        planning_s=report.planning_s,
        notes=list(report.notes),
        search_log=[SearchLogDocument(**asdict(entry)) for entry in report.search_log],
        provenance=ProvenanceDocument(
            automap_version=__version__,
            model_fingerprint=problem.profile.model_fingerprint,
            policy=report.policy,
            profile_fingerprint=profiled_fingerprint(problem.profile),
            profile_microbatch_size=profiled_size(problem.profile),
            seed=report.seed,
        ),
    )
    if any(plan.shardings):
        used = [problem.all_shardings[index] for index in sorted({*plan.shardings})]
        document.launch_s = float(problem.launch_s)
        document.shardings = {
            sharding.name: ShardingDocument(sharding.degree, dict(sharding.dims)) for sharding in used
        }
    return document.builtins()


_FIGURES = ("forward_s", "backward_s", "all_reduce_s", "memory_bytes")
"""Of a stage, in the file as in StagedCost."""


def stage_documents(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> list[StageDocument]:
    """The stages table of plan.json."""
    profile, tied = problem.profile, plan_tied_sums(problem, plan)
    spans, devices = plan.stage_instructions(len(profile)), plan.stage_devices(problem.cluster.devices)
    documents: list[StageDocument] = []
    for s, (replicas, tensor) in enumerate(plan.degrees(problem)):
        first, last = spans[s]
        figures: dict[str, Any] = {key: float(getattr(cost, key)[s]) for key in _FIGURES}
        document = StageDocument(
            index=s,
            first=first,
            last=last,
            first_name=profile.name(first),
            last_name=profile.name(last),
            layers=[profile.layer(first), profile.layer(last)],
            devices=list(devices[s]),
            replicas=replicas,
            transfer_s=float(cost.transfer_s[s]) if s < plan.stages - 1 else None,
            **figures,
        )
        if problem.samples is not None:
            document.samples = -(-problem.samples // replicas)
        if parameters := [parameter for parameter in tied if s in parameter.stages]:
            document.tied = [parameter.name for parameter in parameters]
            document.tied_sums_s = [float(parameter.sum_s) for parameter in parameters]
        if problem.schedule is not None:
            document.exposed_s, document.update_s = float(cost.exposed_s[s]), float(cost.update_s[s])
        if any(plan.shardings):
            document.data, document.tensor = replicas, tensor
            document.sharding = problem.all_shardings[plan.shardings[s]].name
        documents.append(document)
    return documents
