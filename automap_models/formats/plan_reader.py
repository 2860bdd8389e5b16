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
from automap_models.core.sharding import ShardingPlan
from automap_models.core.sharding_classes import REPLICATED
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.written_plan import WrittenArgument, WrittenPlan, WrittenStage
from automap_models.cost.staged import StagedCost
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.document_kind import read_document
from automap_models.formats.hardware_yaml import step_device
from automap_models.formats.plan_json import (
    PLAN_DOCUMENTS,
    FormerPlanDocument,
    PlanDocument,
    StageDocument,
    stage_documents,
)
from automap_models.formats.schema import Document, wrong
from automap_models.formats.sharding_json import SHARDING_DOCUMENTS, ShardingPlanDocument, sharding_plan
from automap_models.simulate.step import step_cost

TOLERANCE = 1e-6
"""Relative difference at which a file's figure and the cost model's disagree."""
_NO_TIME = 1e-15
"""Seconds that are none, such as what comes after a pass that hides all."""
_LATER = frozenset({"tied", "tied_sums_s", "exposed_s", "update_s"})
"""Figures of a stage that older files do not have."""
STALE = PlanDocument.remedy
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
    where, document = str(path), read_document(path, *PLAN_DOCUMENTS)
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


def read_written_plan(path: str | os.PathLike[str]) -> WrittenPlan:
    """The plan of stages in a file as it is written.

    Raises:
        BadInput: the file is no such plan, or its stages do not follow each other.
    """
    return written_plan(read_document(path, *PLAN_DOCUMENTS), str(path))


def read_plan_to_run(path: str | os.PathLike[str]) -> WrittenPlan:
    """A plan of stages as it is written, or a sharding plan as one of one stage.

    Raises:
        BadInput: the file is neither or contradicts itself.
    """
    document, where = read_document(path, *PLAN_DOCUMENTS, *SHARDING_DOCUMENTS), str(path)
    if isinstance(document, ShardingPlanDocument):
        return _one_stage(document, where)
    assert isinstance(document, PlanDocument)
    return written_plan(document, where)


def written_plan(document: PlanDocument, where: str) -> WrittenPlan:
    """The plan of stages in a document; see `read_written_plan`."""
    stages = tuple(_written_stage(stage, f"$.stages[{s}]", where) for s, stage in enumerate(document.stages))
    _require_consecutive(stages, where)
    cuts, device_cuts = [stage.last for stage in stages[:-1]], [stage.devices[0] for stage in stages[1:]]
    if cuts != document.cuts:
        raise wrong(where, "$.cuts", document.cuts, f"{cuts} as its stages end", STALE)
    if device_cuts != document.device_cuts:
        raise wrong(where, "$.device_cuts", document.device_cuts, f"{device_cuts} as its stages begin", STALE)
    return WrittenPlan(
        where=where,
        model=document.model,
        stages=stages,
        micro_batches=document.micro_batches,
        microbatch_size=document.microbatch_size,
        schedule=document.schedule,
        step_s=document.length_s if document.step_s is None else document.step_s,
        model_fingerprint=document.provenance.model_fingerprint,
        shardings={name: (sharding.degree, sharding.dims) for name, sharding in (document.shardings or {}).items()},
        cluster=document.cluster.cluster(f"{where}, $.cluster"),
    )


def _written_stage(stage: StageDocument, at: str, where: str) -> WrittenStage:
    tensor = stage.tensor or 1
    first, last = stage.devices
    if not 0 <= first <= last or last - first + 1 != stage.replicas * tensor:
        expected = f"the first and the last of {stage.replicas * tensor} devices"
        raise wrong(where, f"{at}.devices", stage.devices, expected, STALE)
    names, sums_s = stage.tied or [], stage.tied_sums_s or []
    if sums_s and len(names) != len(sums_s):
        raise wrong(where, f"{at}.tied_sums_s", sums_s, f"{len(names)} numbers, as many as tied", STALE)
    return WrittenStage(
        first=stage.first,
        last=stage.last,
        end=stage.last_name,
        devices=(first, last),
        replicas=stage.replicas,
        tensor=tensor,
        sharding=None if tensor == 1 else stage.sharding or None,
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        transfer_s=stage.transfer_s or 0.0,
        all_reduce_s=stage.all_reduce_s,
        exposed_s=None if stage.exposed_s is UNSET else stage.exposed_s,
        update_s=stage.update_s or 0.0,
        tied=tuple(zip(names, sums_s, strict=False)),
    )


def _require_consecutive(stages: tuple[WrittenStage, ...], where: str) -> None:
    """Each stage begins with the instruction and the device after those with which the one before it ends."""
    instruction = device = 0
    for s, stage in enumerate(stages):
        at = f"$.stages[{s}]"
        if stage.first != instruction:
            raise wrong(where, f"{at}.first", stage.first, f"{instruction}, with which stage {s} begins", STALE)
        if stage.last < stage.first:
            raise wrong(where, f"{at}.last", stage.last, f"{stage.first} or more", STALE)
        if stage.devices[0] != device:
            raise wrong(where, f"{at}.devices", list(stage.devices), f"from device {device} on", STALE)
        instruction, device = stage.last + 1, stage.devices[1] + 1


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
            device=step_device(profile, cluster),
        )
    except BadInput as error:
        raise BadInput(error.what, where=where, do=STALE) from None
    key, written = _key(document, "shardings"), document.shardings
    if isinstance(written, UnsetType):
        if isinstance(document, FormerPlanDocument) or any(stage.sharding is not UNSET for stage in document.stages):
            raise wrong(where, f"$.{key}", None, "there, with the shardings of its stages", STALE)
        return problem
    if not model.shardings and written.keys() - {WHOLE}:
        what = f"has stages that partition operators, of which the profile of {profile.model} says nothing"
        raise BadInput(what, where=where, do="give the model: automap plan MODEL reads it with `plan`")
    if document.launch_s != model.launch_s:
        raise wrong(where, "$.launch_s", document.launch_s, f"{model.launch_s:g}, that of the model's device", STALE)
    own, samples = microbatch_size(model.profile), microbatch_size(profile)
    known, used = {sharding.name: sharding for sharding in model.shardings}, []
    for name, described in written.items():
        if name == WHOLE:
            continue
        ours = known.get(name)
        if ours is None or described.degree != ours.degree or described.dims != dict(ours.dims):
            expected = f"a sharding of the operators of {model.profile.model}"
            raise wrong(where, f"$.{key}[{name!r}]", msgspec.to_builtins(described), expected, STALE)
        if own is not None and samples is not None and samples != own:
            ours = ours.rescaled(samples / own, *time_factors(model.profile, samples))
        used.append(ours)
    return replace(problem, profile=profile, shardings=tuple(used), launch_s=model.launch_s)


def _plan_shardings(document: PlanDocument, names: list[str], where: str) -> tuple[int, ...]:
    """[S] index of each stage's sharding; empty where no stage names one."""
    if len(names) == 1:
        return ()
    for s, stage in enumerate(document.stages):
        if stage.sharding not in names:
            at = f"$.stages[{s}].{_key(stage, 'sharding')}"
            raise wrong(where, at, stage.sharding, f"one of {', '.join(names)}", STALE)
    return tuple(names.index(str(stage.sharding)) for stage in document.stages)


def _key(document: Document, name: str) -> str:
    """What a field of a document is called in its file."""
    return next(field.encode_name for field in msgspec.structs.fields(document) if field.name == name)


def _require_same_cost(
    document: PlanDocument, problem: StagedProblem, plan: StagedPlan, cost: StagedCost, where: str
) -> None:
    """The figures in a file are those of the cost model, and they fit the memory.

    Raises:
        BadInput: a figure differs by more than TOLERANCE, or anything else at all.
        Infeasible: a stage does not fit the memory.
    """
    expected = msgspec.to_builtins(stage_documents(problem, plan, cost))
    if len(document.stages) != len(expected):
        what = f"lists {len(document.stages)} stages, but the cuts make {len(expected)}"
        raise BadInput(what, where=where, do=STALE)
    for s, stage in enumerate(document.stages):
        for key, value in expected[s].items():
            written = getattr(stage, key)
            if key not in _LATER or written is not UNSET:
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
    elif isinstance(value, list) and isinstance(written, list) and all(isinstance(one, float) for one in value):
        same = len(written) == len(value) and all(
            math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=_NO_TIME) for pair in zip(written, value, strict=True)
        )
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
    off_grid = document.coarse_cuts is None and isinstance(written.grid_bound_s, UnsetType)
    if not math.isclose(own_s, bound_s * (1.0 + gap), rel_tol=TOLERANCE) or (gap < -TOLERANCE and not off_grid):
        raise wrong(where, "$.optimality.gap", gap, f"{name} over bound_s less 1", STALE)
    on_grid = bound_s if isinstance(written.grid_bound_s, UnsetType) else written.grid_bound_s
    if on_grid < bound_s * (1.0 - TOLERANCE) or (on_grid > bound_s * (1.0 + TOLERANCE) and gap > TOLERANCE):
        expected = "bound_s, or more where the plan is shorter than all on the grid"
        raise wrong(where, "$.optimality.grid_bound_s", on_grid, expected, STALE)
    return Bound(on_grid, written.proof)


def _one_stage(document: ShardingPlanDocument, where: str) -> WrittenPlan:
    """A sharding plan as it runs: one stage, d replicas of t devices, and one micro-batch a step.

        mesh data=2, model=2      stage 0 on devices 0 … 3, two replicas of two devices
        along model, along data   the dimension of every variable that the plan partitions

    An axis along which nothing is partitioned needs one device. The price of a plan is that of a whole step: a third of
    its computation is charged to the forward pass, as a product of matrices has one there and two in the backward pass.
    """
    plan = sharding_plan(document, where)
    dims = {axis.kind: _partitioned(plan, a) for a, axis in enumerate(plan.mesh)}
    sizes = {axis.kind: int(axis.size) for axis in plan.mesh}
    along_data = dims.get("data", {})
    replicas = sizes["data"] if along_data else 1
    tensor = sizes["operator"] if dims.get("operator") else 1
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
        cluster=document.cluster.cluster(f"{where}, $.cluster"),
        arguments={
            variable.name: WrittenArgument(variable.shape, along_data.get(variable.name, REPLICATED))
            for variable in plan.variables
        },
    )


def _partitioned(plan: ShardingPlan, axis: int) -> dict[str, int]:
    """Variable → the dimension that is partitioned along an axis, without those that are not."""
    return {variable.name: dim for variable, dim in plan.by_variable(axis).items() if dim != REPLICATED}
