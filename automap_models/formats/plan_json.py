"""plan.json, schema 1, kind "pipeline": written whole, read with every figure costed again (formats.md).

A run reads it without the profile (`read_run_plan`): the model is there, and the file's own figures are compared.

A plan whose stages shard operators has three more fields for each stage: `data` and `tensor`, d replicas of t devices
each, and `sharding`, the name of how these t divide operators. `shardings` tells the degree of each one in use and
which dimension of each variable it partitions. Older files of kind "hybrid-pipeline" say the same in other
words, `partitioning` and `partitionings`, and are still read.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import (
    microbatch_size,
    profiled_fingerprint,
    profiled_size,
    rescaled,
    with_microbatch_size,
)
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import WHOLE, ProfiledModel
from automap_models.core.result import Bound, PlanReport, Result
from automap_models.core.run_record import RunPlan, RunStage
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.training_state import DEFAULT_STATE_FACTOR
from automap_models.cost.staged import StagedCost, plan_tied_sums
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.atomic import write_json
from automap_models.formats.hardware_yaml import ClusterDocument, cluster_document
from automap_models.formats.schema import Count, Document, Index, Positive, decode_json, read_bytes, require_kind, wrong
from automap_models.simulate.step import step_cost
from automap_models.version import __version__

SCHEMA = 1
KIND = "pipeline"
FORMER = "hybrid-pipeline"
"""Kind of older files of plans whose stages shard operators."""
TOLERANCE = 1e-6
"""Relative difference at which a file's figure and the cost model's disagree."""
STALE = "plan again for this profile and cluster"

Objective = Literal["step", "length"]
"""What a plan was made short by: the simulated step under its schedule, or Auto-MAP's length L."""


class StageDocument(Document):
    """A row of the stages table.

    `samples`, those of a micro-batch on the fullest replica, are there where replicas get whole samples; `tied`, the
    parameters of which other stages have a copy, too, where there are any; the last four where stages shard operators.
    """

    index: int
    first: int
    last: int
    first_name: str
    last_name: str
    layers: Annotated[list[str], Meta(min_length=2, max_length=2)]
    devices: Annotated[list[int], Meta(min_length=2, max_length=2)]
    replicas: int
    forward_s: float
    backward_s: float
    transfer_s: float | None
    all_reduce_s: float
    memory_bytes: float
    samples: int | UnsetType = UNSET
    tied: list[str] | UnsetType = UNSET
    data: int | UnsetType = UNSET
    tensor: int | UnsetType = UNSET
    sharding: str | UnsetType = UNSET
    partitioning: str | UnsetType = UNSET


class BaselinesDocument(Document):
    """What a step takes without planning, by the same clock as the plan's."""

    single_device_s: float
    data_parallel_s: float | None
    uniform_s: float | None


class OptimalityDocument(Document):
    """What is proven about plans on the grid and this one: none of them is shorter than `bound_s`.

    A plan off the grid may be shorter than all on it: `bound_s` is then its own length, and `grid_bound_s` theirs.
    """

    bound_s: Positive
    proof: Literal["exact", "relaxation"]
    gap: float
    grid_bound_s: float | UnsetType = UNSET


class TriedDocument(Document):
    """A number of stages and micro-batches among which the planner chose (core.staged.SearchLogEntry).

    Older files call `step_s` `length_s`.
    """

    stages: int
    micro_batches: int
    microbatch_size: int | None
    planner: str | None
    bound_s: float | None
    outcome: str
    chosen: bool
    step_s: float | None = None
    length_s: float | UnsetType | None = UNSET


class ProvenanceDocument(Document):
    """Where a plan comes from."""

    profile_fingerprint: str
    automap_version: str | None = None
    model_fingerprint: str | None = None
    policy: str | None = None
    profile_microbatch_size: Count | None = None
    seed: int | None = None


class ShardingDocument(Document):
    """A sharding of a stage: devices that share a replica, and the dimension of each variable that is partitioned."""

    degree: int
    dims: dict[str, int]


class ScaleDocument(Document):
    """How much longer a stage's passes take than the profile says."""

    forward: float
    backward: float


class MovingDocument(Document):
    """What the change from one plan to the next costs."""

    received_bytes: float
    between_nodes_bytes: float
    moving_s: float
    restart_s: float


class AdjustmentDocument(Document, kw_only=True):
    """The devices that a plan was adjusted to, as their measured times show them."""

    stage_scale: list[ScaleDocument] = msgspec.field(default_factory=list)
    slowdown: list[Positive]
    slowdown_error: list[float] = msgspec.field(default_factory=list)
    device_order: list[Index]
    idle: list[Index]
    running_length_s: float | None = None
    length_s: float | None = None
    moving: MovingDocument | None = None
    pays_after_steps: float | None = None


class PlanDocument(Document):
    """plan.json."""

    schema: Literal[1]
    kind: Literal["pipeline", "hybrid-pipeline"]
    model: str
    planner: str
    granularity: int
    cluster: ClusterDocument
    micro_batches: int
    cuts: list[Index]
    device_cuts: list[Index]
    coarse_cuts: list[Index] | None
    stages: list[StageDocument]
    length_s: float
    span_s: float
    pivot: Index
    optimality: OptimalityDocument | None
    provenance: ProvenanceDocument
    microbatch_size: Count | None = None
    global_batch: int | None = None
    state_factor: float = DEFAULT_STATE_FACTOR
    objective: Objective = "length"
    schedule: str | None = None
    step_s: float | None = None
    simulated_length_s: dict[str, float] | None = None
    baselines: BaselinesDocument | None = None
    planning_s: float = 0.0
    notes: list[str] = msgspec.field(default_factory=list)
    tried: list[TriedDocument] = msgspec.field(default_factory=list)
    launch_s: float | UnsetType = UNSET
    shardings: dict[str, ShardingDocument] | UnsetType = UNSET
    partitionings: dict[str, ShardingDocument] | UnsetType = UNSET
    adjustment: AdjustmentDocument | UnsetType = UNSET


def plan_document(report: PlanReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    problem, plan, cost = report.problem, report.plan, report.cost
    points, samples = problem.grid.to_points(plan.cuts), microbatch_size(problem.profile)
    document = {
        "schema": SCHEMA,
        "kind": KIND,
        "model": problem.profile.model,
        "planner": plan.planner,
        "granularity": problem.granularity,
        "cluster": cluster_document(problem.cluster),
        "micro_batches": plan.micro_batches,
        "microbatch_size": samples,
        "global_batch": None if samples is None else samples * plan.micro_batches,
        "state_factor": float(problem.state_factor),
        "cuts": [int(cut) for cut in plan.cuts],
        "coarse_cuts": None if points is None else [int(point) for point in points],
        "device_cuts": [int(cut) for cut in plan.device_cuts],
        "stages": stage_documents(problem, plan, cost),
        "length_s": float(cost.length_s),
        "span_s": float(cost.span_s),
        "pivot": int(cost.pivot),
        "objective": "length" if problem.schedule is None else "step",
        "schedule": problem.schedule,
        "step_s": None if problem.schedule is None else float(cost.step_s),
        "simulated_length_s": {name: float(value) for name, value in report.simulated_length_s.items()},
        "baselines": msgspec.to_builtins(
            BaselinesDocument(
                float(report.single_device_s), _float_or_none(report.data_parallel_s), _float_or_none(report.uniform_s)
            )
        ),
        "optimality": _optimality(report.bound, float(cost.step_s), on_grid=points is not None),
        "planning_s": float(report.planning_s),
        "notes": list(report.notes),
        "tried": [msgspec.to_builtins(entry) for entry in report.search_log],
        "provenance": {
            "automap_version": __version__,
            "model_fingerprint": problem.profile.model_fingerprint,
            "policy": report.policy,
            "profile_fingerprint": profiled_fingerprint(problem.profile),
            "profile_microbatch_size": profiled_size(problem.profile),
            "seed": report.seed,
        },
    }
    return document | _sharding_documents(problem, plan)


def stage_documents(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> list[dict[str, Any]]:
    """The stages table of plan.json."""
    profile = problem.profile
    instructions = plan.stage_instructions(len(profile))
    devices, degrees = plan.stage_devices(problem.cluster.devices), plan.degrees(problem)
    tied = plan_tied_sums(problem, plan)
    documents: list[dict[str, Any]] = []
    for s, (first, last) in enumerate(instructions):
        replicas, tensor = degrees[s]
        document = StageDocument(
            index=s,
            first=int(first),
            last=int(last),
            first_name=profile.name(first),
            last_name=profile.name(last),
            layers=[profile.layer(first), profile.layer(last)],
            devices=[int(device) for device in devices[s]],
            replicas=int(replicas),
            forward_s=float(cost.forward_s[s]),
            backward_s=float(cost.backward_s[s]),
            transfer_s=float(cost.transfer_s[s]) if s < plan.stages - 1 else None,
            all_reduce_s=float(cost.all_reduce_s[s]),
            memory_bytes=float(cost.memory_bytes[s]),
        )
        if problem.samples is not None:
            document.samples = -(-problem.samples // int(replicas))
        if held := [parameter.name for parameter in tied if s in parameter.stages]:
            document.tied = held
        if any(plan.shardings):
            document.data, document.tensor = int(replicas), int(tensor)
            document.sharding = problem.all_shardings[plan.shardings[s]].name
        documents.append(msgspec.to_builtins(document))
    return documents


def _sharding_documents(problem: StagedProblem, plan: StagedPlan) -> dict[str, Any]:
    """What a plan whose stages shard operators says beside a pipeline's document."""
    if not any(plan.shardings):
        return {}
    used = {
        sharding.name: {"degree": int(sharding.degree), "dims": {name: int(dim) for name, dim in sharding.dims.items()}}
        for index, sharding in enumerate(problem.all_shardings)
        if index in plan.shardings
    }
    return {"launch_s": float(problem.launch_s), "shardings": used}


def _optimality(bound: Bound | None, step_s: float, *, on_grid: bool) -> dict[str, Any] | None:
    if bound is None:
        return None
    grid_bound_s = float(bound.value)
    bound_s = grid_bound_s if on_grid else min(grid_bound_s, step_s)
    document: dict[str, Any] = msgspec.to_builtins(
        OptimalityDocument(bound_s, bound.proof, step_s / bound_s - 1.0, grid_bound_s)
    )
    return document


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def write_plan(path: str | os.PathLike[str], report: PlanReport) -> None:
    """Write plan.json.

    Raises:
        BadInput: the file cannot be written.
    """
    write_json(path, plan_document(report))


def read_plan_document(path: str | os.PathLike[str]) -> PlanDocument:
    """The file of a plan as it is written: nothing is costed, as its model is not known.

    Raises:
        BadInput: the file is no such plan, or its numbers of stages contradict each other.
    """
    where, content = str(path), read_bytes(path)
    require_kind(content, (KIND, FORMER), where, STALE)
    document = decode_json(content, PlanDocument, where=where, do=STALE)
    for key, rows in (("stages", document.stages), ("device_cuts", [None, *document.device_cuts])):
        if len(rows) != len(document.cuts) + 1:
            what = f"$.{key} is of {len(rows)} stages, but the {len(document.cuts)} cuts make {len(document.cuts) + 1}"
            raise BadInput(what, where=where, do=STALE)
    return document


def read_plan(
    path: str | os.PathLike[str], model: Profile | ProfiledModel, cluster: Cluster | None = None
) -> Result[StagedProblem, StagedPlan]:
    """The plan in a file with its problem, costed again, and what the file says is proven about it.

    Args:
        path: a plan.json.
        model: the profile it was made for, whose fingerprint must match; with the shardings that its stages use.
        cluster: the cluster it was made for; None takes the one in the file.

    Raises:
        BadInput: the file is no such plan, belongs to another profile or cluster, or contradicts itself or the cost
            model by more than 1e-6.
        Infeasible: a stage does not fit the memory.
    """
    if isinstance(model, Profile):
        model = ProfiledModel(model)
    where, content = str(path), read_bytes(path)
    require_kind(content, (KIND, FORMER), where, STALE)
    document = decode_json(content, PlanDocument, where=where, do=STALE)
    if document.provenance.profile_fingerprint != model.profile.fingerprint:
        raise BadInput(f"belongs to another profile than {model.profile.model}", where=where, do=STALE)
    problem = _problem(document, model, cluster, where)
    names = [sharding.name for sharding in problem.all_shardings]
    plan = StagedPlan(
        cuts=tuple(document.cuts),
        device_cuts=tuple(document.device_cuts),
        micro_batches=problem.micro_batches,
        planner=document.planner,
        coarse_cuts=None if document.coarse_cuts is None else tuple(document.coarse_cuts),
        shardings=_plan_shardings(document, names, where),
    )
    valid, objection = plan.check_valid(problem)
    if not valid:
        raise BadInput(objection, where=where, do=STALE)
    cost = step_cost(problem, plan)
    _require_same_cost(document, problem, plan, cost, where)
    return Result(problem, plan, cost, "feasible", _bound(document, where))


def read_run_plan(path: str | os.PathLike[str]) -> RunPlan:
    """What a run needs of a plan.json; the figures are the file's own.

    Raises:
        BadInput: the file is no such plan, or its stages do not follow each other.
    """
    where, content = str(path), read_bytes(path)
    require_kind(content, (KIND, FORMER), where, STALE)
    document = decode_json(content, PlanDocument, where=where, do=STALE)
    cuts, device_cuts = [stage.last for stage in document.stages[:-1]], [s.devices[0] for s in document.stages[1:]]
    if cuts != document.cuts:
        raise wrong(where, "$.cuts", document.cuts, f"{cuts} as its stages end", STALE)
    if device_cuts != document.device_cuts:
        raise wrong(where, "$.device_cuts", document.device_cuts, f"{device_cuts} as its stages begin", STALE)
    written = document.shardings if not isinstance(document.shardings, UnsetType) else document.partitionings
    return RunPlan(
        where=where,
        model=document.model,
        stages=tuple(_run_stage(stage, where) for stage in document.stages),
        micro_batches=document.micro_batches,
        microbatch_size=document.microbatch_size,
        schedule=document.schedule,
        step_s=document.length_s if document.step_s is None else document.step_s,
        model_fingerprint=document.provenance.model_fingerprint,
        shardings={}
        if isinstance(written, UnsetType)
        else {name: (sharding.degree, sharding.dims) for name, sharding in written.items()},
    )


def _run_stage(stage: StageDocument, where: str) -> RunStage:
    s, tensor = stage.index, 1 if isinstance(stage.tensor, UnsetType) else stage.tensor
    named = stage.partitioning if isinstance(stage.sharding, UnsetType) else stage.sharding
    sharding = None if isinstance(named, UnsetType) or tensor == 1 else named
    first, last = stage.devices if len(stage.devices) == 2 else (0, -1)
    if not 0 <= first <= last or last - first + 1 != stage.replicas * tensor:
        expected = f"the first and the last of {stage.replicas * tensor} devices"
        raise wrong(where, f"$.stages[{s}].devices", stage.devices, expected, STALE)
    times = (stage.forward_s, stage.backward_s, stage.transfer_s or 0.0, stage.all_reduce_s)
    ends = (stage.first, stage.last, stage.last_name, (first, last))
    return RunStage(*ends, stage.replicas, tensor, sharding, *times)


def _profile(document: PlanDocument, profile: Profile, where: str) -> Profile:
    """The profile at the plan's micro-batch size, where the file names one."""
    profiled, samples = document.provenance.profile_microbatch_size, document.microbatch_size
    if profiled is None and samples is None:
        return profile
    if profiled is None or samples is None:
        key = "$.provenance.profile_microbatch_size" if profiled is None else "$.microbatch_size"
        raise wrong(where, key, None, "a number of samples", STALE)
    try:
        return rescaled(with_microbatch_size(profile, profiled), samples)
    except BadInput as error:
        raise BadInput(error.what, where=where, do=STALE) from None


def _cluster(document: PlanDocument, cluster: Cluster | None, where: str) -> Cluster:
    """The cluster in the file, which must be the given one but for its name."""
    own = document.cluster.cluster(f"{where}, $.cluster")
    if cluster is None:
        return own
    document.cluster.require_same(cluster, where, "$.cluster", STALE)
    return cluster


def _problem(document: PlanDocument, model: ProfiledModel, cluster: Cluster | None, where: str) -> StagedProblem:
    """The problem that the plan solves, with the shardings of the model that it uses."""
    profile, cluster = _profile(document, model.profile, where), _cluster(document, cluster, where)
    if (document.schedule is None) == (document.objective == "step"):
        expected = "a schedule where the objective is step, else null"
        raise wrong(where, "$.schedule", document.schedule, expected, STALE)
    try:
        problem = StagedProblem(
            profile,
            cluster,
            stages=len(document.cuts) + 1,
            micro_batches=document.micro_batches,
            state_factor=document.state_factor,
            granularity=document.granularity,
            schedule=document.schedule,
        )
    except BadInput as error:
        raise BadInput(error.what, where=where, do=STALE) from None
    former = document.kind == FORMER
    key = "partitionings" if former else "shardings"
    written = document.partitionings if former else document.shardings
    if isinstance(written, UnsetType):
        if former or any(not isinstance(stage.sharding, UnsetType) for stage in document.stages):
            raise wrong(where, f"$.{key}", None, "there, with the shardings of its stages", STALE)
        return problem
    if not model.shardings and written.keys() - {WHOLE}:
        what = f"has stages that partition operators, of which the profile of {profile.model} says nothing"
        raise BadInput(what, where=where, do="give the model: automap plan MODEL reads it with `plan`")
    if document.launch_s != model.launch_s:
        raise wrong(where, "$.launch_s", document.launch_s, f"{model.launch_s:g}, that of the model's device", STALE)
    own, samples = microbatch_size(model.profile), microbatch_size(profile)
    factor = samples / own if own is not None and samples is not None else 1.0
    known, used = {sharding.name: sharding for sharding in model.shardings}, []
    for name, described in written.items():
        if name == WHOLE:
            continue
        ours = known.get(name)
        if ours is None or described.degree != ours.degree or described.dims != dict(ours.dims):
            expected = f"a sharding of the operators of {model.profile.model}"
            raise wrong(where, f"$.{key}[{name!r}]", msgspec.to_builtins(described), expected, STALE)
        used.append(ours if factor == 1.0 else ours.rescaled(factor))
    return replace(problem, shardings=tuple(used), launch_s=model.launch_s)


def _plan_shardings(document: PlanDocument, names: list[str], where: str) -> tuple[int, ...]:
    """[S] index of each stage's sharding; empty where no stage names one."""
    if len(names) == 1:
        return ()
    key, indices = "partitioning" if document.kind == FORMER else "sharding", []
    for s, stage in enumerate(document.stages):
        name = getattr(stage, key)
        if name not in names:
            raise wrong(where, f"$.stages[{s}].{key}", name, f"one of {', '.join(names)}", STALE)
        indices.append(names.index(name))
    return tuple(indices)


def _require_same_cost(
    document: PlanDocument, problem: StagedProblem, plan: StagedPlan, cost: StagedCost, where: str
) -> None:
    """The figures in a file are those of the cost model, and they fit the memory.

    Raises:
        BadInput: a figure differs by more than TOLERANCE, or anything else at all.
        Infeasible: a stage does not fit the memory.
    """
    expected = stage_documents(problem, plan, cost)
    if len(document.stages) != len(expected):
        what = f"lists {len(document.stages)} stages, but the cuts make {len(expected)}"
        raise BadInput(what, where=where, do=STALE)
    names = {"sharding": "partitioning"} if document.kind == FORMER else {}
    for s, stage in enumerate(document.stages):
        for key, value in expected[s].items():
            written = getattr(stage, names.get(key, key))
            if key != "tied" or written is not UNSET:  # older files do not have it
                _require_same(written, value, f"$.stages[{s}].{key}", where)
    _require_same(document.length_s, cost.length_s, "$.length_s", where)
    _require_same(document.span_s, cost.span_s, "$.span_s", where)
    if problem.schedule is not None:
        _require_same(document.step_s, cost.step_s, "$.step_s", where)
    if document.pivot >= 2 * plan.stages - 1:
        raise wrong(where, "$.pivot", document.pivot, f"one of the {2 * plan.stages - 1} pseudo-stages", STALE)
    if not cost.feasible:
        stage_at_fault = cost.fullest
        raise Infeasible(
            f"stage {stage_at_fault} needs {cost.memory_bytes[stage_at_fault] / 1e9:.1f} GB on each device, "
            f"cluster {problem.cluster.name} has {cost.limit_bytes[stage_at_fault] / 1e9:.1f} GB",
            where=where,
            do="plan again",
        )


def _require_same(written: object, value: object, key: str, where: str) -> None:
    """A figure agrees with the cost model's to TOLERANCE, everything else exactly."""
    if isinstance(value, float):
        same = isinstance(written, float) and math.isclose(written, value, rel_tol=TOLERANCE)
    else:
        same = type(written) is type(value) and written == value
    if not same:
        shown = None if isinstance(written, UnsetType) else written
        raise wrong(where, key, shown, f"{value!r} as its cuts make it", STALE)


def _bound(document: PlanDocument, where: str) -> Bound | None:
    """What the file says is proven.

    Raises:
        BadInput: it contradicts itself.
    """
    written = document.optimality
    if written is None:
        return None
    bound_s, gap = written.bound_s, written.gap
    own_s, name = (document.length_s, "length_s") if document.step_s is None else (document.step_s, "step_s")
    if not math.isclose(own_s, bound_s * (1.0 + gap), rel_tol=TOLERANCE) or gap < -TOLERANCE:
        raise wrong(where, "$.optimality.gap", gap, f"{name} over bound_s less 1", STALE)
    on_grid = bound_s if isinstance(written.grid_bound_s, UnsetType) else written.grid_bound_s
    if on_grid < bound_s * (1.0 - TOLERANCE) or (on_grid > bound_s * (1.0 + TOLERANCE) and gap > TOLERANCE):
        expected = "bound_s, or more where the plan is shorter than all on the grid"
        raise wrong(where, "$.optimality.grid_bound_s", on_grid, expected, STALE)
    return Bound(on_grid, written.proof)
