"""plan.json of sharding plans, schema 1: kinds "operator" and "data" (one axis) and "hybrid" (two); see formats.md.

`variables` holds what the plan decides on along an axis, `arguments` the step's other arguments, which follow by
propagation: the optimiser's moments are partitioned as their parameter is. `dim` is the partitioned dimension, -1 where
none is. With two axes, `plans` holds such a document for each axis by name.

Plans for the least time or memory also have `mesh`, `objective`, `price`, `baselines` (prices of other plans on the
same devices, null where one does not exist) and what is proven (`price_optimality`: no plan is below `bound`, in
seconds or bytes).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import AXES, Mesh, MeshAxis, mesh_text
from automap_models.core.result import Bound, Result
from automap_models.core.sharding import CANDIDATES, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import REPLICATED, Variable
from automap_models.cost.sharding import ShardingPrice, objective_value
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.json_fields import Fields, read_json
from automap_models.formats.plan_json import cluster_document, dumps
from automap_models.version import __version__

SCHEMA = 1
HYBRID = "hybrid"
ARGUMENT_KINDS = ("parameter", "state", "input")
TOLERANCE = 1e-6
"""Relative difference at which the gap and the figures that make it disagree."""

_STALE = "plan again for this model and cluster"
_PARALLEL: Mesh = (MeshAxis("data", 0),)
"""The one axis of data parallelism; its size is that of the mesh."""


@dataclass(frozen=True)
class ShardingReport:
    """Everything that is said about a sharding plan.

    Attributes:
        result: the problem, its plan, what it is worth and what is proven; there is a plan.
        planning_s: from the model to the plan.
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
    counts, several = report.problem.objective == "count", len(report.plan.mesh) > 1
    if several:
        whole = _hybrid_document(report)
    else:
        whole = _axis_document(report, 0, _optimality_document(report) if counts else None, report.result.facts)
    beside = {} if counts and not several else {"mesh": {axis.name: int(axis.size) for axis in report.plan.mesh}}
    priced = {} if counts else _price_documents(report)
    return {**whole, "objective": report.problem.objective, **beside, **priced, "notes": list(report.notes)}


def write_sharding_plan(path: str | os.PathLike[str], report: ShardingReport) -> None:
    """Write plan.json.

    Raises:
        BadInput: the file cannot be written.
    """
    text = dumps(sharding_document(report)) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8", errors="backslashreplace"))

    write_atomically(path, write)


def read_sharding_plan(path: str | os.PathLike[str], problem: ShardingProblem | None = None) -> ShardingPlan:
    """The plan in a file, of one axis or two, whoever made it and for whatever objective.

    Args:
        path: a plan.json of kind operator, data or hybrid.
        problem: what it shall solve, against which it is checked by propagation; without one the file has to agree
            with itself, which is enough for `partition_specs` and `placements`.

    Raises:
        BadInput: the file is no sharding plan or contradicts itself, belongs to another model, cluster or mesh, or
            propagation on the module leads to a conflict.
    """
    fields = read_json(path)
    if fields.any("schema") != SCHEMA:
        fields.refuse("schema", f"{SCHEMA}, the one that this version reads")
    mesh = _mesh(fields)
    if problem is not None and mesh != problem.mesh:
        what = f"is a plan for the mesh {mesh_text(mesh)}, not {mesh_text(problem.mesh)}"
        raise BadInput(what, where=fields.where, do=_STALE)
    documents = [_axis_fields(fields, axis, len(mesh)) for axis in mesh]
    dims_along = [_axis_dims(document) for document in documents]
    _require_agreement(fields, dims_along)
    variables = tuple(dims_along[0])
    dims = tuple(tuple(along[variable] for variable in variables) for along in dims_along)
    plan = ShardingPlan(mesh, variables, dims, fields.text("planner"))
    for axis, document in enumerate(documents):
        _check_figures(document, plan.partitioned(axis))
    return plan if problem is None else _fitted(plan, documents, fields, problem)


def mesh_of(path: str | os.PathLike[str]) -> Mesh:
    """The mesh that a plan in a file is for.

    Raises:
        BadInput: the file is no sharding plan.
    """
    return _mesh(read_json(path))


def _axis_document(
    report: ShardingReport, axis: int, optimality: dict[str, Any] | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What is decided along one axis."""
    problem, plan = report.problem, report.plan
    decided = plan.candidates(axis)
    others = {variable: dim for variable, dim in plan.by_variable(axis).items() if variable not in decided}
    return {
        "schema": SCHEMA,
        "kind": plan.mesh[axis].kind,
        "model": problem.model,
        "planner": plan.planner,
        "objective": "count",
        "rules": problem.rules,
        "cluster": cluster_document(problem.cluster),
        "devices": int(plan.mesh[axis].size),
        "variables": {variable.name: _variable_document(variable, dim) for variable, dim in decided.items()},
        "arguments": {v.name: {**_variable_document(v, dim), "kind": v.kind} for v, dim in others.items()},
        "partitioned": int(plan.partitioned(axis)),
        "decided_by_propagation": int(facts["decided_by_propagation"][axis]),
        "conflicts": 0,
        "reward": float(facts["reward"][axis]),
        "search_s": float(report.result.taken_s),
        "episodes": int(facts.get("episodes", 0)),
        "interrupted": bool(facts.get("interrupted", False)),
        "optimality": optimality,
        "planning_s": float(report.planning_s),
        "notes": [],
        "provenance": {"automap_version": __version__, "seed": facts.get("seed")},
    }


def _hybrid_document(report: ShardingReport) -> dict[str, Any]:
    """A plan along two axes, without its price."""
    problem, plan, facts = report.problem, report.plan, report.result.facts
    return {
        "schema": SCHEMA,
        "kind": HYBRID,
        "model": problem.model,
        "planner": plan.planner,
        "rules": problem.rules,
        "cluster": cluster_document(problem.cluster),
        "devices": math.prod(axis.size for axis in plan.mesh),
        "plans": {axis.name: _axis_document(report, a, None, facts) for a, axis in enumerate(plan.mesh)},
        "search_s": float(report.result.taken_s),
        "planning_s": float(report.planning_s),
        "provenance": {"automap_version": __version__, "seed": facts.get("seed")},
    } | ({"optimality": _optimality_document(report)} if problem.objective == "count" else {})


def _variable_document(variable: Variable, dim: int) -> dict[str, Any]:
    shape = [int(size) for size in variable.shape]
    return {"shape": shape, "dtype": variable.dtype, "bytes": float(variable.nbytes), "dim": int(dim)}


def _price_documents(report: ShardingReport) -> dict[str, Any]:
    """The plan's price, those beside it, and what is proven."""
    mesh, parallel = report.plan.mesh, report.data_parallel
    return {
        "price": _price_document(report.result.cost, mesh),
        "baselines": {
            "replicated": report.replicated and _price_document(report.replicated, mesh),
            "data_parallel": parallel and _price_document(parallel, _PARALLEL),
        },
        "price_optimality": _optimality_document(report),
    }


def _price_document(price: ShardingPrice, mesh: Mesh) -> dict[str, Any]:
    def by_axis(values: tuple[float, ...]) -> dict[str, float]:
        return {axis.name: float(value) for axis, value in zip(mesh, values, strict=True)}

    return {
        "time_s": float(price.time_s),
        "compute_s": float(price.compute_s),
        "all_reduce_s": by_axis(price.all_reduce_s),
        "activation_bytes": by_axis(price.activation_bytes),
        "gradient_bytes": by_axis(price.gradient_bytes),
        "memory_bytes": float(price.memory_bytes),
    }


def _optimality_document(report: ShardingReport) -> dict[str, Any] | None:
    """The bound, and by how much the plan is off it, relatively: less than it of variables, more of time or memory."""
    bound: Bound | None = report.result.bound
    if bound is None:
        return None
    reached = objective_value(report.problem, report.result.cost)
    gap = _gap(reached, bound.value) if report.problem.objective == "count" else reached / bound.value - 1.0
    return {"bound": float(bound.value), "proof": bound.proof, "gap": float(gap)}


def _gap(partitioned: float, bound: float) -> float:
    return 1.0 - partitioned / bound if bound else 0.0


def _mesh(fields: Fields) -> Mesh:
    """The axes in a file; a plan made by counting has none written, and one all the same."""
    if "mesh" in fields:
        written = fields.object("mesh")
        mesh = tuple(MeshAxis(str(name), written.whole(str(name))) for name in written.document)
    else:
        kind = fields.text("kind")
        if kind not in CANDIDATES:
            fields.refuse("kind", " or ".join(CANDIDATES))
        mesh = tuple(MeshAxis(name, _at_least(2, fields, "devices")) for name, of in AXES.items() if of == kind)
    if not 1 <= len(mesh) <= len(AXES) or not {axis.name for axis in mesh} <= set(AXES):
        fields.refuse("mesh", f"a mesh of {' and '.join(AXES)}")
    return mesh


def _axis_fields(fields: Fields, axis: MeshAxis, axes: int) -> Fields:
    """The document of one axis."""
    document = fields if axes == 1 else fields.object("plans").object(axis.name)
    for key, expected in (("kind", axis.kind), ("devices", axis.size)):
        if document.any(key) != expected:
            document.refuse(key, f"{expected}, as the axis {axis.name} has it")
    _at_least(2, document, "devices")
    return document


def _axis_dims(fields: Fields) -> dict[Variable, int]:
    """Everything that the document of one axis lists, with its partitioned dimension."""
    return dict(_written(fields, CANDIDATES[AXES[_axis_name(fields)]]))


def _axis_name(fields: Fields) -> str:
    kind = fields.text("kind")
    return next(name for name, of in AXES.items() if of == kind)


def _written(fields: Fields, kind: str) -> Iterator[tuple[Variable, int]]:
    """See `_axis_dims`; `kind` is that of the variables decided on."""
    for key in ("variables", "arguments"):
        listed = fields.object(key)
        for name in listed.document:
            entry = listed.object(str(name))
            variable = Variable(
                name=str(name),
                shape=entry.wholes("shape"),
                dtype=entry.text("dtype"),
                nbytes=entry.number("bytes"),
                kind=_kind(entry) if key == "arguments" else kind,  # type: ignore[arg-type]
            )
            dim = entry.whole("dim")
            if not REPLICATED <= dim < len(variable.shape):
                entry.refuse("dim", f"-1 or one of the {len(variable.shape)} dimensions")
            yield variable, dim


def _kind(entry: Fields) -> str:
    kind = entry.text("kind")
    return kind if kind in ARGUMENT_KINDS else entry.refuse("kind", f"one of {', '.join(ARGUMENT_KINDS)}")


def _require_agreement(fields: Fields, dims_along: list[dict[Variable, int]]) -> None:
    """The plans along the axes are about the same variables, and none partitions a dimension that another does."""
    first, *others = dims_along
    for other in others:
        for variable, dim in other.items():
            if variable not in first:
                fields.refuse("plans", f"plans of the same variables ({variable.name} is in one alone)")
            if dim == first[variable] >= 0:
                fields.refuse("plans", f"plans that partition different dimensions of {variable.name}")
        if len(other) != len(first):
            fields.refuse("plans", "plans of the same variables")


def _check_figures(fields: Fields, partitioned: int) -> None:
    """The figures of one axis agree with its plan and with one another."""
    if fields.whole("partitioned") != partitioned:
        fields.refuse("partitioned", f"{partitioned}, the number of variables with a dim")
    if fields.whole("conflicts") != 0:
        fields.refuse("conflicts", "0")
    for key in ("decided_by_propagation", "episodes"):
        _at_least(0, fields, key)
    for key in ("reward", "search_s"):
        fields.number(key)
    if "interrupted" in fields:
        fields.flag("interrupted")
    if fields.any("optimality") is not None:
        _check_optimality(fields.object("optimality"), partitioned)


def _check_optimality(written: Fields, partitioned: int) -> None:
    bound, proof = written.number("bound"), written.text("proof")
    if proof not in ("exact", "relaxation"):
        written.refuse("proof", "exact or relaxation")
    if bound < partitioned:
        written.refuse("bound", f"at least {partitioned}, which the plan partitions")
    if not math.isclose(written.number("gap"), _gap(partitioned, bound), abs_tol=TOLERANCE):
        written.refuse("gap", "1 less partitioned over bound")


def _at_least(least: int, fields: Fields, key: str) -> int:
    number = fields.whole(key)
    return number if number >= least else fields.refuse(key, f"a whole number ≥ {least}")


def _fitted(plan: ShardingPlan, documents: list[Fields], fields: Fields, problem: ShardingProblem) -> ShardingPlan:
    """The plan with the problem's variables, in their order, after propagation has led to the same."""
    for document in documents:
        _require_same_cluster(document.object("cluster"), problem.cluster)
    written, variables = set(plan.variables), problem.classes.variables
    for some, others, whose in ((variables, written, "the plan"), (plan.variables, set(variables), problem.model)):
        for variable in some:
            if variable not in others:
                what = f"{whose} has no {variable.kind} {variable.name} {variable.dtype}{list(variable.shape)}"
                raise BadInput(what, where=fields.where, do=_STALE)
    dims_along = [plan.by_variable(axis) for axis in range(len(plan.mesh))]
    dims = tuple(tuple(along[variable] for variable in variables) for along in dims_along)
    fitted = ShardingPlan(plan.mesh, variables, dims, plan.planner)
    valid, why = fitted.check_valid(problem)
    if not valid:
        raise BadInput(why, where=fields.where, do=_STALE)
    return fitted


def _require_same_cluster(written: Fields, cluster: Cluster) -> None:
    """The cluster in the file is the problem's but for its name."""
    for key, value in cluster_document(cluster).items():
        if key != "name" and written.number(key) != value:
            raise BadInput(
                f"{key} is {written.any(key)}, but cluster {cluster.name} has {value}", where=written.where, do=_STALE
            )
