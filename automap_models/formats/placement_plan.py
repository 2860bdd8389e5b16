"""placement.json, schema 1, kind "placement": written whole, read with every figure costed again.

Times are in seconds, `value`, `bound` and `seconds` (how long planning took) among them. `assignment` maps the id of
each node in the graph's file to a device: accelerators 0 … `accelerators`-1, then the CPUs; `pieces` likewise to a
subgraph of its accelerator where the problem lets one hold several, and is null otherwise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, get_args

import numpy as np

from automap_models.core.placement import (
    IntArray,
    Objective,
    PlacementGraph,
    PlacementPlan,
    PlacementProblem,
    PlacementResult,
    model_name,
)
from automap_models.core.result import Bound, Result, Status
from automap_models.cost.placement import PlacementCost, gap, placement_cost
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.json_fields import Fields, finite, read_json
from automap_models.formats.plan_json import dumps
from automap_models.version import __version__

SCHEMA = 1
KIND = "placement"
TOLERANCE = 1e-6
"""Relative difference at which a file's figure and the cost model's disagree."""

STATUSES = ("optimal", "feasible")
"""Of a result that has a plan."""

_STALE = "plan again for this graph"


def placement_document(result: PlacementResult) -> dict[str, Any]:
    """The result as the JSON document: plain Python numbers, lists and dictionaries.

    Args:
        result: with a plan. Of its facts the document has `one_device_s` (the value of everything on one device, or
            None where that is no valid plan), `seed` and `time_limit_s` (or None for the planner's own limit).

    Raises:
        Infeasible: the result has no plan.
    """
    problem, plan, cost, facts = result.problem, result.required_plan(), result.cost, result.facts
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "model": model_name(problem.graph),
        "planner": plan.planner,
        "objective": problem.objective,
        "communication": problem.communication,
        "split_passes": problem.split_passes,
        "accelerators": problem.accelerators,
        "cpus": problem.cpus,
        "accelerator_bytes": float(problem.memory_bytes),
        "pieces_per_accelerator": problem.pieces,
        "value": float(cost.value_s),
        "bound": None if result.bound is None else float(result.bound.value),
        "gap": gap(result),
        "status": result.status,
        "loads_s": cost.loads_s.tolist(),
        "compute_s": cost.compute_s.tolist(),
        "transfer_s": cost.transfer_s.tolist(),
        "memory_bytes": cost.memory_bytes.tolist(),
        "assignment": _by_id(problem.graph, plan.assignment),
        "pieces": None if plan.pieces is None else _by_id(problem.graph, plan.pieces),
        "baselines": {"one_device_s": facts.get("one_device_s")},
        "seconds": float(result.taken_s),
        "notes": list(result.notes),
        "provenance": {
            "automap_version": __version__,
            "graph_fingerprint": problem.graph.fingerprint,
            "seed": facts.get("seed", 0),
            "time_limit_s": facts.get("time_limit_s"),
        },
    }


def write_placement_plan(path: str | os.PathLike[str], result: PlacementResult) -> None:
    """Write placement.json; see `placement_document`.

    Raises:
        BadInput: the file cannot be written.
    """
    text = dumps(placement_document(result)) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8", errors="backslashreplace"))

    write_atomically(path, write)


def read_placement_plan(path: str | os.PathLike[str], graph: PlacementGraph) -> PlacementResult:
    """What a file says about a placement, which is costed again.

    Args:
        path: a placement.json.
        graph: the graph it was made for; the fingerprint must match.

    Raises:
        BadInput: the file is no placement, belongs to another graph, or contradicts itself or the cost model by more
            than 1e-6.
    """
    fields = read_json(path)
    for key, expected in (("schema", SCHEMA), ("kind", KIND)):
        if fields.any(key) != expected:
            fields.refuse(key, f"{expected!r}, which this version reads")
    if fields.object("provenance").text("graph_fingerprint") != graph.fingerprint:
        raise BadInput(f"belongs to another graph than {model_name(graph)}", where=str(path), do=_STALE)
    problem = _problem(fields, graph)
    plan = PlacementPlan(
        planner=fields.text("planner"),
        assignment=_of_nodes(fields, "assignment", graph),
        pieces=None if fields.any("pieces") is None else _of_nodes(fields, "pieces", graph),
    )
    valid, objection = plan.check_valid(problem)
    if not valid:
        raise BadInput(objection, where=str(path), do=_STALE)
    cost = placement_cost(problem, plan)
    _require_same_cost(fields, cost)
    status: Status = _choice(fields, "status", STATUSES)
    return Result(problem, plan, cost, status, _bound(fields, cost, status))


def _by_id(graph: PlacementGraph, values: IntArray) -> dict[str, int]:
    return {str(number): value for number, value in zip(graph.ids, values.tolist(), strict=True)}


def _of_nodes(fields: Fields, key: str, graph: PlacementGraph) -> IntArray:
    """[n] a number for each node, from an object that names each node's id once."""
    written = fields.object(key)
    known = {str(number) for number in graph.ids}
    for name in written.document:
        if name not in known:
            raise BadInput(f"there is no node with id {name}", where=written.where, do=_STALE)
    values = [written.whole(str(number)) for number in graph.ids]
    if max(map(abs, values)) > np.iinfo(np.int32).max:
        fields.refuse(key, "devices or subgraphs by number")
    return np.array(values, dtype=np.int64)


def _problem(fields: Fields, graph: PlacementGraph) -> PlacementProblem:
    try:
        return PlacementProblem(
            graph,
            accelerators=fields.whole("accelerators"),
            cpus=fields.whole("cpus"),
            memory_bytes=fields.number("accelerator_bytes"),
            objective=_choice(fields, "objective", get_args(Objective)),
            communication=_choice(fields, "communication", ("sum", "max")),
            split_passes=fields.flag("split_passes"),
            pieces=fields.whole("pieces_per_accelerator"),
        )
    except BadInput as error:
        raise BadInput(error.what, where=fields.where, do=_STALE) from None


def _choice(fields: Fields, key: str, known: tuple[str, ...]) -> Any:
    value = fields.text(key)
    return value if value in known else fields.refuse(key, " or ".join(known))


def _require_same_cost(fields: Fields, cost: PlacementCost) -> None:
    """Value, loads and memory agree with the cost model's."""
    figures: Mapping[str, list[float]] = {
        "loads_s": cost.loads_s.tolist(),
        "memory_bytes": cost.memory_bytes.tolist(),
    }
    if not math.isclose(fields.number("value"), cost.value_s, rel_tol=TOLERANCE):
        fields.refuse("value", f"{cost.value_s!r} as its assignment makes it")
    for key, expected in figures.items():
        written = fields.any(key)
        numbers = [finite(value) for value in written] if isinstance(written, list) else []
        same = len(numbers) == len(expected) and all(
            number is not None and math.isclose(number, value, rel_tol=TOLERANCE)
            for number, value in zip(numbers, expected, strict=True)
        )
        if not same:
            fields.refuse(key, f"{expected!r} as its assignment makes it")


def _bound(fields: Fields, cost: PlacementCost, status: Status) -> Bound | None:
    """The bound, which does not contradict the value."""
    if fields.any("bound") is None:
        return None
    bound_s = fields.number("bound")
    if not 0 <= bound_s <= cost.value_s * (1.0 + TOLERANCE):
        fields.refuse("bound", "a lower bound of value")
    return Bound(bound_s, "exact" if status == "optimal" and bound_s >= cost.value_s else "relaxation")
