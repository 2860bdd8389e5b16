"""plan.json of sharding plans, schema 1: kinds "operator" and "data" (one axis) and "hybrid" (two); see formats.md.

`variables` holds what the plan decides on along an axis. `arguments` holds the step's other arguments, which follow by
propagation: the optimiser's moments are partitioned as their parameter is. `dim` is the partitioned dimension, or -1 if
the variable is replicated. With two axes, `plans` holds such a document for each axis by name.

Plans for the least time or memory also have `mesh`, `price`, `baselines` (prices of other plans on the same devices,
null where one does not exist) and `price_optimality`: no plan is below its `bound`, in seconds or bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from automap_models.core.instruction_graph import ArgumentKind
from automap_models.core.mesh import AXES, Mesh, MeshAxis, mesh_text
from automap_models.core.result import Proof, Result
from automap_models.core.sharding import CANDIDATES, Objective, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import REPLICATED, Variable
from automap_models.cost.sharding import ShardingPrice, objective_value
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_json
from automap_models.formats.document_kind import read_document
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.schema import LARGEST_WHOLE, Amount, Document, Index, wrong
from automap_models.version import __version__

TOLERANCE = 1e-6
"""Absolute difference at which the gap and the figures that make it disagree."""

_PARALLEL: Mesh = (MeshAxis("data", 0),)
"""The one axis of data parallelism; its size is that of the mesh."""

AxisSize = Annotated[int, Meta(ge=2, le=LARGEST_WHOLE)]
Dim = Annotated[int, Meta(ge=REPLICATED, le=LARGEST_WHOLE)]


class VariableDocument(Document):
    """A variable, and which of its dimensions is partitioned."""

    shape: list[Index]
    dtype: str
    bytes: Amount
    dim: Dim


class ArgumentDocument(VariableDocument):
    """A variable that the plan does not decide on."""

    kind: ArgumentKind


class OptimalityDocument(Document):
    """What is proven about all plans, and how far this one is from it."""

    bound: float
    proof: Proof
    gap: float


class PriceDocument(Document):
    """What a step costs; all-reduces by the name of their axis."""

    time_s: Amount
    compute_s: Amount
    all_reduce_s: dict[str, float]
    activation_bytes: dict[str, float]
    gradient_bytes: dict[str, float]
    memory_bytes: Amount


class BaselinesDocument(Document):
    """Prices of other plans on the same devices."""

    replicated: PriceDocument | None
    data_parallel: PriceDocument | None


class ProvenanceDocument(Document):
    """Where the plan comes from."""

    automap_version: str
    seed: int | None


class ShardingPlanDocument(Document, kw_only=True):
    """What files of one axis, of two, and each axis's part of the latter have in common.

    A plan that was made by counting variables says in `optimality` what is proven. Others have a price.
    """

    remedy: ClassVar[str] = "plan again for this model and cluster"

    schema: Literal[1]
    kind: Literal["data", "hybrid", "operator"]
    model: str
    planner: str
    objective: Objective
    rules: str
    cluster: ClusterDocument
    devices: AxisSize
    mesh: dict[str, AxisSize] | UnsetType = UNSET
    price: PriceDocument | UnsetType = UNSET
    baselines: BaselinesDocument | UnsetType = UNSET
    price_optimality: OptimalityDocument | UnsetType | None = UNSET
    optimality: OptimalityDocument | UnsetType | None = UNSET
    search_s: Amount
    planning_s: Amount
    notes: list[str]
    provenance: ProvenanceDocument


class AxisDocument(ShardingPlanDocument, kw_only=True):
    """What is decided along one axis: a file, or a part of one."""

    kind: Literal["data", "operator"]
    optimality: OptimalityDocument | None
    variables: dict[str, VariableDocument]
    arguments: dict[str, ArgumentDocument]
    partitioned: Index
    decided_by_propagation: Index
    conflicts: Literal[0]
    reward: float
    episodes: Index
    interrupted: bool = False


class TwoAxesDocument(ShardingPlanDocument, kw_only=True):
    """The whole file of a plan along two axes."""

    kind: Literal["hybrid"]
    mesh: dict[str, AxisSize]
    plans: dict[str, AxisDocument]


SHARDING_DOCUMENTS = (ShardingPlanDocument, AxisDocument, TwoAxesDocument)
_STALE = ShardingPlanDocument.remedy


@dataclass(frozen=True)
class ShardingReport:
    """A sharding plan with everything that people read about it.

    Attributes:
        result: with a plan.
        planning_s: time from the model to the plan.
        notes: sentences for people.
        replicated: price of doing everything on every device; None where variables are counted.
        data_parallel: price of partitioning the batch across all devices of the mesh; None where they do not divide it.
    """

    result: Result[ShardingProblem, ShardingPlan]
    planning_s: float
    notes: tuple[str, ...] = ()
    replicated: ShardingPrice | None = None
    data_parallel: ShardingPrice | None = None

    @property
    def problem(self) -> ShardingProblem:
        """The problem."""
        return self.result.problem

    @property
    def plan(self) -> ShardingPlan:
        """Its plan."""
        return self.result.required_plan()


def sharding_document(report: ShardingReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    plan, optimality = report.plan, _optimality(report)
    of_file: dict[str, Any] = {"objective": report.problem.objective, "notes": list(report.notes)}
    if report.problem.objective == "count":
        of_file |= {"optimality": optimality}
    else:
        price, baselines = _price(report.result.cost, plan.mesh), _baselines(report)
        of_file |= {"mesh": _sizes(plan.mesh), "price": price, "baselines": baselines, "price_optimality": optimality}
    if len(plan.mesh) == 1:
        document: ShardingPlanDocument = _axis_document(report, 0, **{"optimality": None, **of_file})
    else:
        document = TwoAxesDocument(
            **_common(report),
            kind="hybrid",
            devices=math.prod(axis.size for axis in plan.mesh),
            plans={axis.name: _axis_document(report, a, **_COUNTED) for a, axis in enumerate(plan.mesh)},
            **{"mesh": _sizes(plan.mesh), **of_file},
        )
    builtins: dict[str, Any] = msgspec.to_builtins(document)
    return builtins


def write_sharding_plan(path: str | os.PathLike[str], report: ShardingReport) -> None:
    """Write plan.json.

    Raises:
        BadInput: the file cannot be written.
    """
    write_json(path, sharding_document(report))


def read_sharding_plan(path: str | os.PathLike[str], problem: ShardingProblem | None = None) -> ShardingPlan:
    """The plan in a file, of one axis or two, whichever planner made it and for whatever objective.

    Args:
        path: a plan.json of kind operator, data or hybrid.
        problem: the problem that the plan shall solve. The plan is checked against it by propagation. Without a problem
            the file only has to agree with itself, which is enough for `partition_specs` and `placements`.

    Raises:
        BadInput: the file is no sharding plan or contradicts itself, belongs to another model, cluster or mesh, or
            propagation on the module leads to a conflict.
    """
    return sharding_plan(read_document(path, *SHARDING_DOCUMENTS), str(path), problem)


def sharding_plan(document: ShardingPlanDocument, where: str, problem: ShardingProblem | None = None) -> ShardingPlan:
    """The plan in a document; see `read_sharding_plan`."""
    mesh = _mesh(document, where)
    if problem is not None and mesh != problem.mesh:
        what = f"is a plan for the mesh {mesh_text(mesh)}, not {mesh_text(problem.mesh)}"
        raise BadInput(what, where=where, do=_STALE)
    dims_along = []
    for axis, (at, decided) in zip(mesh, _axis_documents(document, mesh, where).items(), strict=True):
        dims_along.append(_dims(decided, axis, at, where))
        if problem is not None:
            decided.cluster.require_same(problem.cluster, where, f"{at}.cluster", _STALE)
    _require_agreement(dims_along, where)
    variables = tuple(dims_along[0])
    dims = tuple(tuple(along[variable] for variable in variables) for along in dims_along)
    plan = ShardingPlan(mesh, variables, dims, document.planner)
    return plan if problem is None else _fitted(plan, problem, where)


def mesh_of(path: str | os.PathLike[str]) -> Mesh:
    """The mesh that a plan in a file is for.

    Raises:
        BadInput: the file is no sharding plan.
    """
    return _mesh(read_document(path, *SHARDING_DOCUMENTS), str(path))


_COUNTED: Mapping[str, Any] = {"objective": "count", "optimality": None, "notes": []}
"""Of each axis's part of a file of two."""


def _axis_document(report: ShardingReport, axis: int, **others: Any) -> AxisDocument:
    plan, facts = report.plan, report.result.facts
    decided = plan.candidates(axis)
    undecided = {variable: dim for variable, dim in plan.by_variable(axis).items() if variable not in decided}
    return AxisDocument(
        **_common(report),
        kind=plan.mesh[axis].kind,  # type: ignore[arg-type]  # an axis is of no other kind
        devices=int(plan.mesh[axis].size),
        variables={v.name: VariableDocument(*_variable_fields(v, dim)) for v, dim in decided.items()},
        arguments={v.name: ArgumentDocument(*_variable_fields(v, dim), v.kind) for v, dim in undecided.items()},
        partitioned=int(plan.partitioned(axis)),
        decided_by_propagation=int(facts["decided_by_propagation"][axis]),
        conflicts=0,
        reward=float(facts["reward"][axis]),
        episodes=int(facts.get("episodes", 0)),
        interrupted=bool(facts.get("interrupted", False)),
        **others,
    )


def _common(report: ShardingReport) -> dict[str, Any]:
    """What a file and each of its parts have in common."""
    return {
        "schema": 1,
        "model": report.problem.model,
        "planner": report.plan.planner,
        "rules": report.problem.rules,
        "cluster": ClusterDocument.of(report.problem.cluster),
        "search_s": float(report.result.taken_s),
        "planning_s": float(report.planning_s),
        "provenance": ProvenanceDocument(__version__, report.result.facts.get("seed")),
    }


def _variable_fields(variable: Variable, dim: int) -> tuple[list[int], str, float, int]:
    return [int(size) for size in variable.shape], variable.dtype, float(variable.nbytes), int(dim)


def _sizes(mesh: Mesh) -> dict[str, int]:
    return {axis.name: int(axis.size) for axis in mesh}


def _baselines(report: ShardingReport) -> BaselinesDocument:
    replicated, parallel = report.replicated, report.data_parallel
    return BaselinesDocument(
        None if replicated is None else _price(replicated, report.plan.mesh),
        None if parallel is None else _price(parallel, _PARALLEL),
    )


def _price(price: ShardingPrice, mesh: Mesh) -> PriceDocument:
    def by_axis(values: tuple[float, ...]) -> dict[str, float]:
        return {axis.name: float(value) for axis, value in zip(mesh, values, strict=True)}

    return PriceDocument(
        time_s=float(price.time_s),
        compute_s=float(price.compute_s),
        all_reduce_s=by_axis(price.all_reduce_s),
        activation_bytes=by_axis(price.activation_bytes),
        gradient_bytes=by_axis(price.gradient_bytes),
        memory_bytes=float(price.memory_bytes),
    )


def _optimality(report: ShardingReport) -> OptimalityDocument | None:
    """The bound, and the relative distance from it: fewer variables than it, or more time or memory."""
    bound = report.result.bound
    if bound is None:
        return None
    reached = objective_value(report.problem, report.result.cost)
    gap = _gap(reached, bound.value) if report.problem.objective == "count" else reached / bound.value - 1.0
    return OptimalityDocument(float(bound.value), bound.proof, float(gap))


def _gap(partitioned: float, bound: float) -> float:
    return 1.0 - partitioned / bound if bound else 0.0


def _mesh(document: ShardingPlanDocument, where: str) -> Mesh:
    """The axes in a file. A plan that was made by counting along one axis names only its kind."""
    if document.mesh is not UNSET:
        if not 1 <= len(document.mesh) <= len(AXES) or not set(document.mesh) <= set(AXES):
            raise wrong(where, "$.mesh", document.mesh, f"a mesh of {' and '.join(AXES)}", _STALE)
        if len(document.mesh) > 1 and document.kind != "hybrid":
            raise wrong(where, "$.kind", document.kind, "hybrid, as its mesh has two axes", _STALE)
        return tuple(MeshAxis(name, size) for name, size in document.mesh.items())
    return tuple(MeshAxis(name, document.devices) for name, kind in AXES.items() if kind == document.kind)


def _axis_documents(document: ShardingPlanDocument, mesh: Mesh, where: str) -> dict[str, AxisDocument]:
    """The path to the document of each axis → the document, in the mesh's order."""
    if isinstance(document, AxisDocument):
        by_path = {"$": document}
    else:
        assert isinstance(document, TwoAxesDocument)
        if unknown := document.plans.keys() - {axis.name for axis in mesh}:
            raise BadInput(f"$.plans has the unknown key {min(unknown)!r}", where=where, do=_STALE)
        for axis in mesh:
            if axis.name not in document.plans:
                raise BadInput(f"$.plans.{axis.name} is missing", where=where, do=_STALE)
        by_path = {f"$.plans.{axis.name}": document.plans[axis.name] for axis in mesh}
    for axis, (at, along) in zip(mesh, by_path.items(), strict=True):
        for key, written, expected in (("kind", along.kind, axis.kind), ("devices", along.devices, axis.size)):
            if written != expected:
                raise wrong(where, f"{at}.{key}", written, f"{expected}, as the axis {axis.name} has it", _STALE)
    return by_path


def _dims(document: AxisDocument, axis: MeshAxis, at: str, where: str) -> dict[Variable, int]:
    """Each variable of the document of one axis with its partitioned dimension."""
    dims: dict[Variable, int] = {}
    decided: ArgumentKind = CANDIDATES[axis.kind]
    for key, variables in (("variables", document.variables), ("arguments", document.arguments)):
        for name, entry in variables.items():
            if entry.dim >= len(entry.shape):
                expected = f"-1 or one of the {len(entry.shape)} dimensions"
                raise wrong(where, f"{at}.{key}.{name}.dim", entry.dim, expected, _STALE)
            kind = entry.kind if isinstance(entry, ArgumentDocument) else decided
            dims[Variable(name, tuple(entry.shape), entry.dtype, entry.bytes, kind)] = entry.dim
    partitioned = sum(variable.kind == decided and dim != REPLICATED for variable, dim in dims.items())
    if document.partitioned != partitioned:
        expected = f"{partitioned}, the number of variables with a dim"
        raise wrong(where, f"{at}.partitioned", document.partitioned, expected, _STALE)
    if document.optimality is not None:
        _check_optimality(document.optimality, partitioned, f"{at}.optimality", where)
    return dims


def _check_optimality(written: OptimalityDocument, partitioned: int, at: str, where: str) -> None:
    if written.bound < partitioned:
        raise wrong(where, f"{at}.bound", written.bound, f"at least {partitioned}, which the plan partitions", _STALE)
    if not math.isclose(written.gap, _gap(partitioned, written.bound), abs_tol=TOLERANCE):
        raise wrong(where, f"{at}.gap", written.gap, "1 - partitioned / bound", _STALE)


def _require_agreement(dims_along: list[dict[Variable, int]], where: str) -> None:
    """The plans along the axes are about the same variables, and none partitions a dimension that another does."""
    first, *others = dims_along
    for other in others:
        for variable in (*first, *other):
            if variable not in first or variable not in other:
                what = f"$.plans are about different variables ({variable.name} is in one alone)"
                raise BadInput(what, where=where, do=_STALE)
        for variable, dim in other.items():
            if dim == first[variable] != REPLICATED:
                raise BadInput(f"$.plans both partition dimension {dim} of {variable.name}", where=where, do=_STALE)


def _fitted(plan: ShardingPlan, problem: ShardingProblem, where: str) -> ShardingPlan:
    """The plan with the problem's variables, in their order, after propagation has led to the same."""
    written, variables = set(plan.variables), problem.classes.variables
    for some, others, owner in ((variables, written, "the plan"), (plan.variables, set(variables), problem.model)):
        for variable in some:
            if variable not in others:
                what = f"{owner} has no {variable.kind} {variable.name} {variable.dtype}{list(variable.shape)}"
                raise BadInput(what, where=where, do=_STALE)
    dims_along = [plan.by_variable(axis) for axis in range(len(plan.mesh))]
    dims = tuple(tuple(along[variable] for variable in variables) for along in dims_along)
    fitted = ShardingPlan(plan.mesh, variables, dims, plan.planner)
    valid, objection = fitted.check_valid(problem)
    if not valid:
        raise BadInput(objection, where=where, do=_STALE)
    return fitted
