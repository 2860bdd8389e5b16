"""plan.json of sharding plans chosen by what they cost: kinds "operator", "data" (one axis) and "hybrid" (two).

On one axis it is the document of sharding_json.py; on two, `plans` holds such a document for each axis by name. Beside
that stand `mesh`, `objective`, `price`, `baselines` (prices of other plans on the same devices, null where one does not
exist) and what is proven (`price_optimality`: no plan is below `bound`, in seconds or bytes).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, BinaryIO

from automap_models.core.mesh import AXES, Mesh, MeshAxis
from automap_models.core.priced_sharding import PricedShardingPlan, PricedShardingProblem
from automap_models.core.sharding import ShardingPlan
from automap_models.cost.sharding import ShardingPrice
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.json_fields import Fields, read_json
from automap_models.formats.plan_json import cluster_document, dumps
from automap_models.formats.sharding_json import SCHEMA, ShardingReport, sharding_document, sharding_plan
from automap_models.version import __version__

HYBRID = "hybrid"
_STALE = "plan again for this model and cluster"


@dataclass(frozen=True)
class PricedShardingReport:
    """Everything that is said about a plan chosen by its price.

    Attributes:
        problem, plan: what was asked, what was decided.
        price: of the plan.
        replicated: of doing everything on every device.
        data_parallel: of partitioning the batch across all devices of the mesh; None where they do not divide it.
        planning_s: from the model to the plan.
        notes: sentences for people.
    """

    problem: PricedShardingProblem
    plan: PricedShardingPlan
    price: ShardingPrice
    replicated: ShardingPrice
    data_parallel: ShardingPrice | None
    planning_s: float
    notes: tuple[str, ...] = ()


def priced_document(report: PricedShardingReport) -> dict[str, Any]:
    """The report as a JSON document: plain Python numbers, lists and dictionaries."""
    problem, plan = report.problem, report.plan
    of_axis = {
        axis.name: sharding_document(ShardingReport(along, one, report.planning_s))
        for axis, along, one in zip(problem.mesh, problem.along, plan.plans, strict=True)
    }
    (first, *others) = of_axis.values()
    whole = first if not others else _hybrid(report, of_axis)
    return {
        **whole,
        "objective": problem.objective,
        "mesh": {axis.name: int(axis.size) for axis in problem.mesh},
        "price": _price_document(report.price, problem.mesh),
        "baselines": {
            "replicated": _price_document(report.replicated, problem.mesh),
            "data_parallel": report.data_parallel and _price_document(report.data_parallel, DATA_PARALLEL),
        },
        "price_optimality": _optimality_document(report),
        "notes": list(report.notes),
    }


DATA_PARALLEL: Mesh = (MeshAxis("data", 0),)
"""The one axis of data parallelism; its size is that of the mesh."""


def write_priced_plan(path: str | os.PathLike[str], report: PricedShardingReport) -> None:
    """Write plan.json.

    Raises:
        BadInput: the file cannot be written.
    """
    text = dumps(priced_document(report)) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8", errors="backslashreplace"))

    write_atomically(path, write)


def read_priced_plan(path: str | os.PathLike[str], problem: PricedShardingProblem | None = None) -> PricedShardingPlan:
    """The plan in a file, of one axis or two, whoever made it and for whatever objective.

    Args:
        path: a plan.json of kind operator, data or hybrid.
        problem: what it shall solve, against which it is checked by propagation.

    Raises:
        BadInput: the file is no sharding plan or contradicts itself, belongs to another model, cluster or mesh, or
            propagation on the module leads to a conflict.
    """
    fields = read_json(path)
    if fields.any("schema") != SCHEMA:
        fields.refuse("schema", f"{SCHEMA}, the one that this version reads")
    mesh = _mesh(fields)
    if problem is not None and mesh != problem.mesh:
        asked, written = (", ".join(f"{axis.name}={axis.size}" for axis in each) for each in (problem.mesh, mesh))
        raise BadInput(f"is a plan for the mesh {written}, not {asked}", where=fields.where, do=_STALE)
    alongs = problem.along if problem else (None,) * len(mesh)
    documents = [_plan_fields(fields, axis, len(mesh)) for axis in mesh]
    plans = tuple(sharding_plan(document, along) for document, along in zip(documents, alongs, strict=True))
    plan = PricedShardingPlan(mesh, plans, fields.text("planner"))
    _require_agreement(fields, plans)
    if problem is not None:
        valid, why = plan.check_valid(problem)
        if not valid:
            raise BadInput(why, where=fields.where, do=_STALE)
    return plan


def mesh_of(path: str | os.PathLike[str]) -> Mesh:
    """The mesh that a plan in a file is for.

    Raises:
        BadInput: the file is no sharding plan.
    """
    return _mesh(read_json(path))


def _hybrid(report: PricedShardingReport, of_axis: dict[str, Any]) -> dict[str, Any]:
    problem = report.problem
    devices = 1
    for axis in problem.mesh:
        devices *= axis.size
    return {
        "schema": SCHEMA,
        "kind": HYBRID,
        "model": problem.model,
        "planner": report.plan.planner,
        "rules": problem.rules,
        "cluster": cluster_document(problem.cluster),
        "devices": devices,
        "plans": of_axis,
        "search_s": float(report.plan.search_s),
        "planning_s": float(report.planning_s),
        "provenance": {"automap_version": __version__, "seed": None},
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


def _optimality_document(report: PricedShardingReport) -> dict[str, Any] | None:
    proven = report.plan.optimality
    if proven is None:
        return None
    reached = report.price.time_s if report.problem.objective == "time" else report.price.memory_bytes
    return {"bound": float(proven.bound), "proof": proven.proof, "gap": float(reached / proven.bound - 1.0)}


def _mesh(fields: Fields) -> Mesh:
    """The axes in a file; a plan made by counting has none written, and one all the same."""
    if "mesh" in fields:
        written = fields.object("mesh")
        mesh = tuple(MeshAxis(str(name), written.whole(str(name))) for name in written.document)
    else:
        kind = fields.text("kind")
        mesh = tuple(MeshAxis(name, fields.whole("devices")) for name, of in AXES.items() if of == kind)
    if not 1 <= len(mesh) <= len(AXES) or not {axis.name for axis in mesh} <= set(AXES):
        fields.refuse("mesh" if "mesh" in fields else "kind", f"a mesh of {' and '.join(AXES)}")
    return mesh


def _plan_fields(fields: Fields, axis: MeshAxis, axes: int) -> Fields:
    document = fields if axes == 1 else fields.object("plans").object(axis.name)
    for key, expected in (("kind", axis.kind), ("devices", axis.size)):
        if document.any(key) != expected:
            document.refuse(key, f"{expected}, as the axis {axis.name} has it")
    return document


def _require_agreement(fields: Fields, plans: tuple[ShardingPlan, ...]) -> None:
    """The plans along the axes are about the same variables, and none partitions a dimension that another does."""
    first, *others = (plan.by_variable for plan in plans)
    for other in others:
        for variable, dim in other.items():
            if variable not in first:
                fields.refuse("plans", f"plans of the same variables ({variable.name} is in one alone)")
            if dim == first[variable] >= 0:
                fields.refuse("plans", f"plans that partition different dimensions of {variable.name}")
        if len(other) != len(first):
            fields.refuse("plans", "plans of the same variables")
