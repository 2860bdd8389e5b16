"""plan.json, schema 1, kinds "operator" and "data": sharding plans, written whole, read and checked (formats.md).

`variables` holds what the plan decides on, `arguments` the step's other arguments, which follow by propagation: the
optimiser's moments are partitioned as their parameter is. `dim` is the partitioned dimension, -1 where none is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from automap_models.core.cluster import Cluster
from automap_models.core.sharding import CANDIDATES, ShardingOptimality, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import REPLICATED, Variable
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.json_fields import Fields, read_json
from automap_models.formats.plan_json import cluster_document, dumps
from automap_models.version import __version__

SCHEMA = 1
OBJECTIVE = "count"
ARGUMENT_KINDS = ("parameter", "state", "input")
TOLERANCE = 1e-6
"""Relative difference at which the gap and the figures that make it disagree."""

_STALE = "plan again for this model and cluster"


@dataclass(frozen=True)
class ShardingReport:
    """Everything that is said about a sharding plan.

    Attributes:
        problem, plan: what was asked, what was decided.
        planning_s: from the model to the plan.
        seed: of a planner that draws.
        notes: sentences for people.
    """

    problem: ShardingProblem
    plan: ShardingPlan
    planning_s: float
    seed: int | None = None
    notes: tuple[str, ...] = ()


def sharding_document(report: ShardingReport) -> dict[str, Any]:
    """The report as the JSON document of formats.md: plain Python numbers, lists and dictionaries."""
    problem, plan = report.problem, report.plan
    decided = plan.candidates
    others = {variable: dim for variable, dim in plan.by_variable.items() if variable not in decided}
    return {
        "schema": SCHEMA,
        "kind": plan.kind,
        "model": problem.model,
        "planner": plan.planner,
        "objective": OBJECTIVE,
        "rules": problem.rules,
        "cluster": cluster_document(problem.cluster),
        "devices": int(plan.axis_size),
        "variables": {variable.name: _variable_document(variable, dim) for variable, dim in decided.items()},
        "arguments": {v.name: {**_variable_document(v, dim), "kind": v.kind} for v, dim in others.items()},
        "partitioned": int(plan.partitioned),
        "decided_by_propagation": int(plan.decided_by_propagation),
        "conflicts": 0,
        "reward": float(plan.reward),
        "search_s": float(plan.search_s),
        "episodes": int(plan.episodes),
        "interrupted": bool(plan.interrupted),
        "optimality": _optimality_document(plan),
        "planning_s": float(report.planning_s),
        "notes": list(report.notes),
        "provenance": {"automap_version": __version__, "seed": report.seed},
    }


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
    """The plan in a file.

    Args:
        path: a plan.json.
        problem: what it shall solve, against which it is checked by propagation; without one the file has to agree
            with itself, which is enough for `partition_specs` and `placements`.

    Raises:
        BadInput: the file is no sharding plan or contradicts itself, belongs to another model, cluster or mesh, or
            propagation on the module leads to a conflict.
    """
    return sharding_plan(read_json(path), problem)


def sharding_plan(fields: Fields, problem: ShardingProblem | None = None) -> ShardingPlan:
    """The plan in a document; see `read_sharding_plan`."""
    if fields.any("schema") != SCHEMA:
        fields.refuse("schema", f"{SCHEMA}, the one that this version reads")
    plan = _plan(fields)
    if fields.whole("partitioned") != plan.partitioned:
        fields.refuse("partitioned", f"{plan.partitioned}, the number of variables with a dim")
    if fields.whole("conflicts") != 0:
        fields.refuse("conflicts", "0")
    return plan if problem is None else _fitted(plan, fields, problem)


def _variable_document(variable: Variable, dim: int) -> dict[str, Any]:
    shape = [int(size) for size in variable.shape]
    return {"shape": shape, "dtype": variable.dtype, "bytes": float(variable.nbytes), "dim": int(dim)}


def _optimality_document(plan: ShardingPlan) -> dict[str, Any] | None:
    """No plan partitions more variables than `bound`; the gap is what this one falls short of it, relatively."""
    proven = plan.optimality
    if proven is None:
        return None
    return {"bound": float(proven.bound), "proof": proven.proof, "gap": _gap(plan.partitioned, proven.bound)}


def _gap(partitioned: int, bound: float) -> float:
    return 1.0 - partitioned / bound if bound else 0.0


def _plan(fields: Fields) -> ShardingPlan:
    kind = fields.text("kind")
    if kind not in CANDIDATES:
        fields.refuse("kind", " or ".join(CANDIDATES))
    dims = dict(_written(fields, CANDIDATES[kind]))
    plan = ShardingPlan(
        kind="operator" if kind == "operator" else "data",
        axis_size=_at_least(2, fields, "devices"),
        variables=tuple(dims),
        dims=tuple(dims.values()),
        planner=fields.text("planner"),
        decided_by_propagation=_at_least(0, fields, "decided_by_propagation"),
        reward=fields.number("reward"),
        search_s=fields.number("search_s"),
        episodes=_at_least(0, fields, "episodes"),
        interrupted="interrupted" in fields and fields.flag("interrupted"),
    )
    return plan if fields.any("optimality") is None else _with_optimality(plan, fields.object("optimality"))


def _written(fields: Fields, kind: str) -> Iterator[tuple[Variable, int]]:
    """Everything that a file lists, with its partitioned dimension; `kind` is that of the variables decided on."""
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


def _with_optimality(plan: ShardingPlan, written: Fields) -> ShardingPlan:
    bound, proof = written.number("bound"), written.text("proof")
    if proof not in ("exact", "relaxation"):
        written.refuse("proof", "exact or relaxation")
    if bound < plan.partitioned:
        written.refuse("bound", f"at least {plan.partitioned}, which the plan partitions")
    if not math.isclose(written.number("gap"), _gap(plan.partitioned, bound), abs_tol=TOLERANCE):
        written.refuse("gap", "1 less partitioned over bound")
    return replace(plan, optimality=ShardingOptimality(bound, "exact" if proof == "exact" else "relaxation"))


def _at_least(least: int, fields: Fields, key: str) -> int:
    number = fields.whole(key)
    return number if number >= least else fields.refuse(key, f"a whole number ≥ {least}")


def _fitted(plan: ShardingPlan, fields: Fields, problem: ShardingProblem) -> ShardingPlan:
    """The plan with the problem's variables, in their order, after propagation has led to the same."""
    _require_same_cluster(fields.object("cluster"), problem.cluster)
    written, variables = plan.by_variable, problem.classes.variables
    for one, others, whose in ((variables, written, "the plan"), (written, set(variables), problem.model)):
        for variable in one:
            if variable not in others:
                what = f"{whose} has no {variable.kind} {variable.name} {variable.dtype}{list(variable.shape)}"
                raise BadInput(what, where=fields.where, do=_STALE)
    fitted = replace(plan, variables=variables, dims=tuple(written[variable] for variable in variables))
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
