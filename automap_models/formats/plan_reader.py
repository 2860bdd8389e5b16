"""plan.json, read: with its model every figure is costed again, without it the file's own figures are taken."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import msgspec
from msgspec import UNSET, UnsetType

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size, rescaled, time_factors, with_microbatch_size
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import WHOLE, ProfiledModel
from automap_models.core.result import Bound, Result
from automap_models.core.sharding_classes import REPLICATED
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.written_plan import WrittenArgument, WrittenPlan, WrittenStage
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.document_kind import TOLERANCE, read_document, require_same
from automap_models.formats.hardware_yaml import step_device
from automap_models.formats.plan_json import (
    PLAN_DOCUMENTS,
    FormerPlanDocument,
    PlanDocument,
    stage_documents,
)
from automap_models.formats.schema import Document, located, wrong
from automap_models.formats.sharding_json import SHARDING_DOCUMENTS, ShardingPlanDocument, sharding_plan
from automap_models.simulate.step import step_cost

_SHARDING = "plan"
"""Name of the only sharding of a sharding plan's stage."""


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
    with read_document(path, *PLAN_DOCUMENTS) as document:
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


def _problem(document: PlanDocument, model: ProfiledModel, cluster: Cluster | None) -> StagedProblem:
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


def _with_shardings(problem: StagedProblem, document: PlanDocument, model: ProfiledModel) -> StagedProblem:
    """The problem with those shardings of the model that the plan uses."""
    key, written = _key(document, "shardings"), document.shardings
    if isinstance(written, UnsetType):
        if isinstance(document, FormerPlanDocument) or any(stage.sharding is not UNSET for stage in document.stages):
            raise wrong(f"$.{key}", None, "there, with the shardings of its stages")
        return problem
    if not model.shardings and written.keys() - {WHOLE}:
        what = f"has stages that partition operators, of which the profile of {model.profile.model} says nothing"
        raise BadInput(what, do="give the model: automap plan MODEL reads it with `plan`")
    if document.launch_s != model.launch_s:
        raise wrong("$.launch_s", document.launch_s, f"{model.launch_s:g}, that of the model's device")
    by_name, used = {sharding.name: sharding for sharding in model.shardings}, []
    traced, samples = microbatch_size(model.profile), microbatch_size(problem.profile)
    for name, described in written.items():
        if name == WHOLE:
            continue
        sharding = by_name.get(name)
        if sharding is None or (described.degree, described.dims) != (sharding.degree, dict(sharding.dims)):
            expected = f"a sharding of the operators of {model.profile.model}"
            raise wrong(f"$.{key}[{name!r}]", described.builtins(), expected)
        if traced is not None and samples is not None and samples != traced:
            sharding = sharding.rescaled(samples / traced, *time_factors(model.profile, samples))
        used.append(sharding)
    return replace(problem, shardings=tuple(used), launch_s=model.launch_s)


def _plan_shardings(document: PlanDocument, names: list[str]) -> tuple[int, ...]:
    """[S] index of each stage's sharding; empty where no stage names one."""
    if len(names) == 1:
        return ()
    for s, stage in enumerate(document.stages):
        if stage.sharding not in names:
            raise wrong(f"$.stages[{s}].{_key(stage, 'sharding')}", stage.sharding, f"one of {', '.join(names)}")
    return tuple(names.index(str(stage.sharding)) for stage in document.stages)


def _key(document: Document, name: str) -> str:
    """What a field of a document is called in its file."""
    return next(field.encode_name for field in msgspec.structs.fields(document) if field.name == name)


def _bound(document: PlanDocument) -> Bound | None:
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


def read_written_plan(path: str | os.PathLike[str]) -> WrittenPlan:
    """The plan of stages in a file as it is written.

    Raises:
        BadInput: the file is no such plan, or its stages do not follow each other.
    """
    with read_document(path, *PLAN_DOCUMENTS) as document:
        return written_plan(document, str(path))


def read_plan_to_run(path: str | os.PathLike[str]) -> WrittenPlan:
    """A plan of stages as it is written, or a sharding plan as one of one stage.

    Raises:
        BadInput: the file is neither or contradicts itself.
    """
    with read_document(path, *PLAN_DOCUMENTS, *SHARDING_DOCUMENTS) as document:
        return written_plan(document, str(path))


def written_plan(document: Document, where: str) -> WrittenPlan:
    """The plan in a document of the file `where`; see `read_plan_to_run`."""
    if isinstance(document, ShardingPlanDocument):
        return _one_stage(document, where)
    assert isinstance(document, PlanDocument)
    instruction = device = 0
    stages: list[WrittenStage] = []
    for s, stage in enumerate(document.stages):
        tensor, (first, last) = stage.tensor or 1, stage.devices
        count, names, sums_s = stage.replicas * tensor, stage.tied or [], stage.tied_sums_s or []
        with_count = 0 <= first <= last and last - first + 1 == count
        for right, key, written, expected in (
            (with_count, "devices", stage.devices, f"the first and the last of {count} devices"),
            (not sums_s or len(sums_s) == len(names), "tied_sums_s", sums_s, f"{len(names)} numbers, as many as tied"),
            (stage.first == instruction, "first", stage.first, f"{instruction}, with which stage {s} begins"),
            (stage.last >= stage.first, "last", stage.last, f"{stage.first} or more"),
            (first == device, "devices", stage.devices, f"from device {device} on"),
        ):
            if not right:
                raise wrong(f"$.stages[{s}].{key}", written, expected)
        instruction, device = stage.last + 1, last + 1
        stages.append(
            WrittenStage(
                first=stage.first,
                last=stage.last,
                end=stage.last_name,
                devices=(first, last),
                replicas=stage.replicas,
                tensor=tensor,
                sharding=None if tensor == 1 else stage.sharding or None,
                exposed_s=None if stage.exposed_s is UNSET else stage.exposed_s,
                tied=tuple(zip(names, sums_s, strict=False)),
                **{key: getattr(stage, key) or 0.0 for key in _SECONDS},
            )
        )
    for key, cuts, by_stages, how in (
        ("cuts", document.cuts, [stage.last for stage in stages[:-1]], "end"),
        ("device_cuts", document.device_cuts, [stage.devices[0] for stage in stages[1:]], "begin"),
    ):
        if cuts != by_stages:
            raise wrong(f"$.{key}", cuts, f"{by_stages} as its stages {how}")
    return WrittenPlan(
        where=where,
        model=document.model,
        stages=tuple(stages),
        micro_batches=document.micro_batches,
        microbatch_size=document.microbatch_size,
        schedule=document.schedule,
        step_s=document.length_s if document.step_s is None else document.step_s,
        model_fingerprint=document.provenance.model_fingerprint,
        shardings={name: (sharding.degree, sharding.dims) for name, sharding in (document.shardings or {}).items()},
        cluster=document.cluster.cluster("$.cluster"),
    )


_SECONDS = ("forward_s", "backward_s", "transfer_s", "all_reduce_s", "update_s")
"""Of a stage, in the file as in WrittenStage, which has 0 where the file says nothing."""


def _one_stage(document: ShardingPlanDocument, where: str) -> WrittenPlan:
    """A sharding plan as it runs: one stage, d replicas of t devices, and one micro-batch a step.

        mesh data=2, model=2      stage 0 on devices 0 … 3, two replicas of two devices
        along model, along data   the dimension of every variable that the plan partitions

    An axis along which nothing is partitioned needs one device. The price of a plan is that of a whole step: a third of
    its computation is charged to the forward pass, as a product of matrices has one there and two in the backward pass.
    """
    plan = sharding_plan(document)
    sizes, dims = {"data": 1, "operator": 1}, {"data": dict[str, int](), "operator": dict[str, int]()}
    for a, axis in enumerate(plan.mesh):
        partitioned = {v.name: dim for v, dim in plan.by_variable(a).items() if dim != REPLICATED}
        if partitioned:
            sizes[axis.kind], dims[axis.kind] = axis.size, partitioned
    replicas, tensor = sizes["data"], sizes["operator"]
    price = document.price or None
    compute_s, reduce_s = (0.0, 0.0) if price is None else (price.compute_s, sum(price.all_reduce_s.values()))
    stage = WrittenStage(
        first=0,
        last=0,
        end="end of forward",
        devices=(0, replicas * tensor - 1),
        replicas=replicas,
        tensor=tensor,
        sharding=_SHARDING if tensor > 1 else None,
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
        shardings={_SHARDING: (tensor, dims["operator"])} if tensor > 1 else {},
        cluster=document.cluster.cluster("$.cluster"),
        arguments={v.name: WrittenArgument(v.shape, dims["data"].get(v.name, REPLICATED)) for v in plan.variables},
    )
