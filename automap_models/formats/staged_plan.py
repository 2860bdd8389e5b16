"""Plans of stages as JSON: kind "pipeline", which is plan.json (formats.md).

A plan whose stages shard operators has three more fields for each stage: `data` and `tensor`, d replicas of t devices
each, and `sharding`, the name of how these t divide operators. `shardings` tells the degree of each one in use and
which dimension of each variable it partitions.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import (
    microbatch_size,
    profiled_fingerprint,
    profiled_size,
    rescaled,
    time_factors,
    with_microbatch_size,
)
from automap_models.core.plan import Plan, Stage
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import UNSHARDED, ProfiledModel
from automap_models.core.result import Bound, PlanReport, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.training_state import DEFAULT_STATE_FACTOR
from automap_models.cost.staged import StagedCost, plan_tied_sums
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.hardware_yaml import ClusterDocument, step_device
from automap_models.formats.plan import TOLERANCE, PlanDocument, read, require_same
from automap_models.formats.schema import Count, Document, Foreign, Index, Positive, located, wrong
from automap_models.simulate.plan_step import step_cost
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


class StagedDocument(PlanDocument, kw_only=True):
    """plan.json. `tried` has a core.staged.SearchLogEntry for each number of stages and micro-batches, for people."""

    remedy: ClassVar[str] = "plan again for this profile and cluster"

    kind: Literal["pipeline"]
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
    search_log: list[dict[str, Any]] = msgspec.field(default_factory=list, name="tried")
    provenance: ProvenanceDocument
    launch_s: float | UnsetType = UNSET
    shardings: dict[str, ShardingDocument] | UnsetType = UNSET
    adjustment: AdjustmentDocument | UnsetType = UNSET

    def plan(self, where: str) -> Plan:
        """See PlanDocument; its stages have to follow each other."""
        instruction = device = 0
        stages: list[Stage] = []
        for s, stage in enumerate(self.stages):
            tensor, (first, last) = stage.tensor or 1, stage.devices
            count, names, sums_s = stage.replicas * tensor, stage.tied or [], stage.tied_sums_s or []
            with_count = 0 <= first <= last and last - first + 1 == count
            for right, key, written, expected in (
                (with_count, "devices", stage.devices, f"the first and the last of {count} devices"),
                (
                    not sums_s or len(sums_s) == len(names),
                    "tied_sums_s",
                    sums_s,
                    f"{len(names)} numbers, as many as tied",
                ),
                (stage.first == instruction, "first", stage.first, f"{instruction}, with which stage {s} begins"),
                (stage.last >= stage.first, "last", stage.last, f"{stage.first} or more"),
                (first == device, "devices", stage.devices, f"from device {device} on"),
            ):
                if not right:
                    raise wrong(f"$.stages[{s}].{key}", written, expected)
            instruction, device = stage.last + 1, last + 1
            stages.append(
                Stage(
                    first=stage.first,
                    last=stage.last,
                    last_name=stage.last_name,
                    devices=(first, last),
                    replicas=stage.replicas,
                    tensor=tensor,
                    sharding=None if tensor == 1 else stage.sharding or None,
                    exposed_s=None if stage.exposed_s is UNSET else stage.exposed_s,
                    tied=tuple(zip(names, sums_s, strict=False)),
                    layers=(stage.layers[0], stage.layers[1]),
                    **{
                        key: getattr(stage, key) or 0.0
                        for key in ("forward_s", "backward_s", "transfer_s", "all_reduce_s", "update_s")
                    },
                )
            )
        for key, cuts, by_stages, how in (
            ("cuts", self.cuts, [stage.last for stage in stages[:-1]], "end"),
            ("device_cuts", self.device_cuts, [stage.devices[0] for stage in stages[1:]], "begin"),
        ):
            if cuts != by_stages:
                raise wrong(f"$.{key}", cuts, f"{by_stages} as its stages {how}")
        return Plan(
            where=where,
            model=self.model,
            stages=tuple(stages),
            micro_batches=self.micro_batches,
            microbatch_size=self.microbatch_size,
            schedule=self.schedule,
            step_s=self.length_s if self.step_s is None else self.step_s,
            model_fingerprint=self.provenance.model_fingerprint,
            shardings={name: sharding.dims for name, sharding in (self.shardings or {}).items()},
            cluster=self.cluster.cluster("$.cluster"),
        )


def plan_document(report: PlanReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    return staged_document(report).builtins()


def staged_document(report: PlanReport) -> StagedDocument:
    """The report as what is written of it."""
    problem, plan, cost, bound = report.problem, report.plan, report.cost, report.bound
    optimality = None
    if bound is not None and bound.value > 0.0:
        optimality = OptimalityDocument(float(bound.value), bound.proof, cost.step_s / bound.value - 1.0, "grid")
    points, samples = problem.grid.to_points(plan.cuts), microbatch_size(problem.profile)
    document = StagedDocument(
        schema=SCHEMA,
        kind="pipeline",
        model=problem.profile.model,
        planner=plan.planner,
        granularity=problem.granularity,
        cluster=ClusterDocument.from_cluster(problem.cluster),
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
        planning_s=report.taken_s,
        notes=list(report.notes),
        search_log=[asdict(entry) for entry in report.stages_log],
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
    return document


def stage_documents(problem: StagedProblem, plan: StagedPlan, cost: StagedCost) -> list[StageDocument]:
    """The stages table of plan.json."""
    profile, tied = problem.profile, plan_tied_sums(problem, plan)
    spans, devices = plan.stage_instructions(len(profile)), plan.stage_devices(problem.cluster.devices)
    documents: list[StageDocument] = []
    for s, (replicas, tensor) in enumerate(plan.degrees(problem)):
        first, last = spans[s]
        figures: dict[str, Any] = {
            key: float(getattr(cost, key)[s]) for key in ("forward_s", "backward_s", "all_reduce_s", "memory_bytes")
        }
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
    with read(path, StagedDocument) as document:
        if document.provenance.profile_fingerprint != model.profile.fingerprint:
            raise BadInput(f"belongs to another profile than {model.profile.model}")
        problem = _problem(document, model, cluster)
        plan = StagedPlan(
            cuts=tuple(document.cuts),
            device_cuts=tuple(document.device_cuts),
            micro_batches=problem.micro_batches,
            planner=document.planner,
            coarse_cuts=None if document.coarse_cuts is None else tuple(document.coarse_cuts),
            shardings=_plan_shardings(document, [sharding.name for sharding in problem.all_shardings]),
        )
        valid, objection = plan.check_valid(problem)
        if not valid:
            raise BadInput(objection)
        cost = step_cost(problem, plan)
        stages = stage_documents(problem, plan, cost)
        if len(document.stages) != len(stages):
            raise BadInput(f"lists {len(document.stages)} stages, but the cuts make {len(stages)}")
        figures = {"length_s": float(cost.length_s), "span_s": float(cost.span_s)}
        if problem.schedule is not None:
            figures["step_s"] = float(cost.step_s)
        for stage, written in zip(stages, document.stages, strict=True):
            require_same(written, stage.builtins(), f"$.stages[{stage.index}]", "as its cuts make it")
        require_same(document, figures, "$", "as its cuts make it")
        if document.pivot >= 2 * plan.stages - 1:
            raise wrong("$.pivot", document.pivot, f"one of the {2 * plan.stages - 1} pseudo-stages")
        if not cost.feasible:
            s, cluster = cost.fullest, problem.cluster
            what = f"stage {s} needs {cost.memory_bytes[s] / 1e9:.1f} GB on each device, "
            what += f"cluster {cluster.name} has {cost.limit_bytes[s] / 1e9:.1f} GB"
            raise Infeasible(what, do="plan again")
        return Result(problem, plan, cost, "feasible", _bound(document))


def _problem(document: StagedDocument, model: ProfiledModel, cluster: Cluster | None) -> StagedProblem:
    """The problem that the plan solves, at its micro-batch size."""
    profiled, samples = document.provenance.profile_microbatch_size, document.microbatch_size
    if (profiled is None) != (samples is None):
        key = "$.provenance.profile_microbatch_size" if profiled is None else "$.microbatch_size"
        raise wrong(key, None, "a number of samples")
    profile = model.profile
    if profiled is not None and samples is not None:
        with located(None, document.remedy):
            profile = rescaled(with_microbatch_size(profile, profiled), samples)
    described = document.cluster.cluster("$.cluster")
    if cluster is not None:
        document.cluster.require_same(cluster, "$.cluster")
    cluster = cluster or described
    if (document.schedule is None) == (document.objective == "step"):
        raise wrong("$.schedule", document.schedule, "a schedule where the objective is step, else null")
    with located(None, document.remedy):
        problem = StagedProblem(
            profile,
            cluster,
            stages=len(document.cuts) + 1,
            micro_batches=document.micro_batches,
            state_factor=document.state_factor,
            granularity=document.granularity,
            schedule=document.schedule,
            device=step_device(profile, cluster),
        )
    return _with_shardings(problem, document, model)


def _with_shardings(problem: StagedProblem, document: StagedDocument, model: ProfiledModel) -> StagedProblem:
    """The problem with those shardings of the model that the plan uses."""
    written = document.shardings
    if isinstance(written, UnsetType):
        if any(stage.sharding is not UNSET for stage in document.stages):
            raise wrong("$.shardings", None, "there, with the shardings of its stages")
        return problem
    if not model.shardings and written.keys() - {UNSHARDED}:
        what = f"has stages that partition operators, of which the profile of {model.profile.model} says nothing"
        raise BadInput(what, do="give the model: automap plan MODEL reads it with `plan`")
    if document.launch_s != model.launch_s:
        raise wrong("$.launch_s", document.launch_s, f"{model.launch_s:g}, that of the model's device")
    by_name, used = {sharding.name: sharding for sharding in model.shardings}, []
    traced, samples = microbatch_size(model.profile), microbatch_size(problem.profile)
    for name, described in written.items():
        if name == UNSHARDED:
            continue
        sharding = by_name.get(name)
        if sharding is None or (described.degree, described.dims) != (sharding.degree, dict(sharding.dims)):
            expected = f"a sharding of the operators of {model.profile.model}"
            raise wrong(f"$.shardings[{name!r}]", described.builtins(), expected)
        if traced is not None and samples is not None and samples != traced:
            sharding = sharding.rescaled(samples / traced, *time_factors(model.profile, samples))
        used.append(sharding)
    return replace(problem, shardings=tuple(used), launch_s=model.launch_s)


def _plan_shardings(document: StagedDocument, names: list[str]) -> tuple[int, ...]:
    """[S] index of each stage's sharding; empty where no stage names one."""
    if len(names) == 1:
        return ()
    for s, stage in enumerate(document.stages):
        if stage.sharding not in names:
            raise wrong(f"$.stages[{s}].sharding", stage.sharding, f"one of {', '.join(names)}")
    return tuple(names.index(str(stage.sharding)) for stage in document.stages)


def _bound(document: StagedDocument) -> Bound | None:
    """What the file says is proven.

    Raises:
        BadInput: it contradicts itself.
    """
    written = document.optimality
    if written is None:
        return None
    bound_s, gap, on_grid = written.bound_s, written.gap, written.grid_bound_s
    step_s, name = (document.length_s, "length_s") if document.step_s is None else (document.step_s, "step_s")
    off_grid = document.coarse_cuts is None and on_grid is UNSET
    if not math.isclose(step_s, bound_s * (1.0 + gap), rel_tol=TOLERANCE) or (gap < -TOLERANCE and not off_grid):
        raise wrong("$.optimality.gap", gap, f"{name} over bound_s less 1")
    if isinstance(on_grid, UnsetType):
        return Bound(bound_s, written.proof)
    if on_grid < bound_s * (1.0 - TOLERANCE) or (on_grid > bound_s * (1.0 + TOLERANCE) and gap > TOLERANCE):
        expected = "bound_s, or more where the plan is shorter than all on the grid"
        raise wrong("$.optimality.grid_bound_s", on_grid, expected)
    return Bound(on_grid, written.proof)
