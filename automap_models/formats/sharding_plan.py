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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from automap_models.core.instruction_graph import ArgumentKind
from automap_models.core.mesh import AXES, Mesh, MeshAxis, mesh_text
from automap_models.core.plan import Plan, Stage
from automap_models.core.result import Proof, Result
from automap_models.core.sharding import CANDIDATES, Objective, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import REPLICATED, Variable
from automap_models.cost.sharding import ShardingPrice, objective_value
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import ClusterDocument
from automap_models.formats.plan import TOLERANCE, PlanDocument, read
from automap_models.formats.schema import LARGEST_INTEGER, Amount, Document, Index, wrong
from automap_models.version import __version__

_SHARDING = "plan"
"""Name of the sharding of a plan's only stage."""
AxisSize = Annotated[int, Meta(ge=2, le=LARGEST_INTEGER)]
Dim = Annotated[int, Meta(ge=REPLICATED, le=LARGEST_INTEGER)]


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


class ShardingPlanDocument(PlanDocument, kw_only=True):
    """What files of one axis, of two, and each axis's part of the latter have in common.

    A plan that was made by counting variables says in `optimality` what is proven. Others have a price.
    """

    remedy: ClassVar[str] = "plan again for this model and cluster"

    kind: Literal["data", "hybrid", "operator"]
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

    def plan(self, where: str) -> Plan:
        """See PlanDocument: one stage, d replicas of t devices, and one micro-batch a step.

            mesh data=2, model=2      stage 0 on devices 0 … 3, two replicas of two devices
            along model, along data   the dimension of every variable that the plan partitions

        An axis along which nothing is partitioned needs one device. The price is that of a whole step: a third of its
        computation is charged to the forward pass, as a product of matrices has one there and two in the backward pass.
        """
        sharding = self.sharding_plan()
        used = {axis.kind: axis.size for axis in sharding.mesh if sharding.partitioned_dims(axis.kind)}
        replicas, tensor = used.get("data", 1), used.get("operator", 1)
        compute_s = self.price.compute_s if self.price else 0.0
        reduce_s = sum(self.price.all_reduce_s.values()) if self.price else 0.0
        stage = Stage(
            first=0,
            last=0,
            last_name="end of forward",
            devices=(0, replicas * tensor - 1),
            replicas=replicas,
            tensor=tensor,
            sharding=_SHARDING if tensor > 1 else None,
            forward_s=compute_s / 3,
            backward_s=2 * compute_s / 3,
            transfer_s=0.0,
            all_reduce_s=reduce_s,
        )
        return Plan(
            where=where,
            model=self.model,
            stages=(stage,),
            micro_batches=1,
            step_s=compute_s + reduce_s,
            shardings={_SHARDING: sharding.partitioned_dims("operator")} if tensor > 1 else {},
            cluster=self.cluster.cluster("$.cluster"),
            sharding=sharding,
        )

    def sharding_plan(self, problem: ShardingProblem | None = None) -> ShardingPlan:
        """What is decided; see `read_sharding_plan`."""
        mesh = _mesh(self)
        if problem is not None and mesh != problem.mesh:
            raise BadInput(f"is a plan for the mesh {mesh_text(mesh)}, not {mesh_text(problem.mesh)}")
        dims_along = []
        for axis, (path, along) in zip(mesh, _axis_documents(self, mesh).items(), strict=True):
            dims_along.append(_dims(along, axis, path))
            if problem is not None:
                along.cluster.require_same(problem.cluster, f"{path}.cluster")
        first = dims_along[0]
        for other in dims_along[1:]:
            for variable in (*first, *other):
                if variable not in first or variable not in other:
                    raise BadInput(f"$.plans are about different variables ({variable.name} is in one alone)")
                if other[variable] == first[variable] != REPLICATED:
                    raise BadInput(f"$.plans both partition dimension {first[variable]} of {variable.name}")
        variables = tuple(first)
        if problem is not None:
            variables = problem.classes.variables
            for some, others, owner in ((variables, first, "the plan"), (first, set(variables), problem.model)):
                for variable in some:
                    if variable not in others:
                        what = f"{owner} has no {variable.kind} {variable.name} {variable.dtype}{list(variable.shape)}"
                        raise BadInput(what)
        dims = tuple(tuple(along[variable] for variable in variables) for along in dims_along)
        plan = ShardingPlan(mesh, variables, dims, self.planner)
        valid, objection = (True, "") if problem is None else plan.check_valid(problem)
        if not valid:
            raise BadInput(objection)
        return plan


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


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardingReport(Result[ShardingProblem, ShardingPlan]):
    """A sharding plan with everything that people read about it.

    Attributes:
        planning_s: time from the model to the plan.
        replicated: price of doing everything on every device; None where variables are counted.
        data_parallel: price of partitioning the batch across all devices of the mesh; None where they do not divide it.
    """

    plan: ShardingPlan
    planning_s: float
    replicated: ShardingPrice | None = None
    data_parallel: ShardingPrice | None = None


def sharding_document(report: ShardingReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    problem, plan, cost, bound = report.problem, report.plan, report.cost, report.bound
    mesh, optimality = {axis.name: int(axis.size) for axis in plan.mesh}, None
    if bound is not None:
        reached, limit = objective_value(problem, cost), float(bound.value)
        gap = _gap(reached, limit) if problem.objective == "count" else reached / limit - 1.0
        optimality = OptimalityDocument(limit, bound.proof, gap)
    of_file: dict[str, Any] = {"objective": problem.objective, "notes": list(report.notes), "optimality": optimality}
    if problem.objective != "count":
        baselines = BaselinesDocument(_price(report.replicated, mesh), _price(report.data_parallel, ("data",)))
        of_file |= {"mesh": mesh, "price": _price(cost, mesh), "baselines": baselines}
        of_file |= {"price_optimality": optimality, "optimality": None if len(mesh) == 1 else UNSET}
    if len(mesh) == 1:
        return _axis_document(report, 0, **of_file).builtins()
    of_file = {"mesh": mesh, **of_file}
    counted: dict[str, Any] = {"objective": "count", "optimality": None, "notes": []}
    return TwoAxesDocument(
        **_common(report),
        kind="hybrid",
        devices=math.prod(mesh.values()),
        plans={axis.name: _axis_document(report, a, **counted) for a, axis in enumerate(plan.mesh)},
        **of_file,
    ).builtins()


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
    with read(path, *SHARDING_DOCUMENTS) as document:
        return document.sharding_plan(problem)


def _axis_document(report: ShardingReport, axis: int, **others: Any) -> AxisDocument:
    plan, facts = report.plan, report.facts
    decided = plan.candidates(axis)
    undecided = {variable: dim for variable, dim in plan.by_variable(axis).items() if variable not in decided}
    return AxisDocument(
        **_common(report),
        kind=plan.mesh[axis].kind,  # type: ignore[arg-type]  # an axis is of no other kind
        devices=plan.mesh[axis].size,
        variables={v.name: VariableDocument(*_variable_fields(v, dim)) for v, dim in decided.items()},
        arguments={v.name: ArgumentDocument(*_variable_fields(v, dim), v.kind) for v, dim in undecided.items()},
        partitioned=plan.partitioned(axis),
        decided_by_propagation=facts["decided_by_propagation"][axis],
        conflicts=0,
        reward=float(facts["reward"][axis]),
        episodes=facts.get("episodes", 0),
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
        "cluster": ClusterDocument.from_cluster(report.problem.cluster),
        "search_s": float(report.taken_s),
        "planning_s": float(report.planning_s),
        "provenance": ProvenanceDocument(__version__, report.facts.get("seed")),
    }


def _variable_fields(variable: Variable, dim: int) -> tuple[list[int], str, float, int]:
    return list(variable.shape), variable.dtype, float(variable.nbytes), dim


def _price(price: ShardingPrice | None, axes: Iterable[str]) -> PriceDocument | None:
    if price is None:
        return None
    figures: dict[str, Any] = {key: getattr(price, key) for key in PriceDocument.__struct_fields__}
    along = {key: dict(zip(axes, figure, strict=True)) for key, figure in figures.items() if isinstance(figure, tuple)}
    figures |= along
    return PriceDocument(**figures)


def _gap(partitioned: float, bound: float) -> float:
    """How many fewer variables than the bound, relative to it."""
    return 1.0 - partitioned / bound if bound else 0.0


def _mesh(document: ShardingPlanDocument) -> Mesh:
    """The axes in a file. A plan that was made by counting along one axis names only its kind."""
    if document.mesh is UNSET:
        return tuple(MeshAxis(name, document.devices) for name, kind in AXES.items() if kind == document.kind)
    if not 1 <= len(document.mesh) <= len(AXES) or not set(document.mesh) <= set(AXES):
        raise wrong("$.mesh", document.mesh, f"a mesh of {' and '.join(AXES)}")
    if len(document.mesh) > 1 and document.kind != "hybrid":
        raise wrong("$.kind", document.kind, "hybrid, as its mesh has two axes")
    return tuple(MeshAxis(name, size) for name, size in document.mesh.items())


def _axis_documents(document: ShardingPlanDocument, mesh: Mesh) -> dict[str, AxisDocument]:
    """The path to the document of each axis → the document, in the mesh's order."""
    if isinstance(document, AxisDocument):
        by_path = {"$": document}
    else:
        assert isinstance(document, TwoAxesDocument)
        names = [axis.name for axis in mesh]
        for name in sorted({*names} ^ document.plans.keys()):
            raise BadInput(f"$.plans.{name} is missing" if name in names else f"$.plans has the unknown key {name!r}")
        by_path = {f"$.plans.{name}": document.plans[name] for name in names}
    for axis, (path, along) in zip(mesh, by_path.items(), strict=True):
        for key, written, expected in (("kind", along.kind, axis.kind), ("devices", along.devices, axis.size)):
            if written != expected:
                raise wrong(f"{path}.{key}", written, f"{expected}, as the axis {axis.name} has it")
    return by_path


def _dims(document: AxisDocument, axis: MeshAxis, path: str) -> dict[Variable, int]:
    """Each variable of the document of one axis with its partitioned dimension."""
    dims: dict[Variable, int] = {}
    decided: ArgumentKind = CANDIDATES[axis.kind]
    for key, variables in (("variables", document.variables), ("arguments", document.arguments)):
        for name, entry in variables.items():
            if entry.dim >= len(entry.shape):
                raise wrong(f"{path}.{key}.{name}.dim", entry.dim, f"-1 or one of the {len(entry.shape)} dimensions")
            kind = entry.kind if isinstance(entry, ArgumentDocument) else decided
            dims[Variable(name, tuple(entry.shape), entry.dtype, entry.bytes, kind)] = entry.dim
    count = sum(variable.kind == decided and dim != REPLICATED for variable, dim in dims.items())
    if document.partitioned != count:
        raise wrong(f"{path}.partitioned", document.partitioned, f"{count}, the number of variables with a dim")
    if (proven := document.optimality) is not None:
        if proven.bound < count:
            raise wrong(f"{path}.optimality.bound", proven.bound, f"at least {count}, which the plan partitions")
        if not math.isclose(proven.gap, _gap(count, proven.bound), abs_tol=TOLERANCE):
            raise wrong(f"{path}.optimality.gap", proven.gap, "1 - partitioned / bound")
    return dims
