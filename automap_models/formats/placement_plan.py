"""placement.json, schema 1, kind "placement": written whole, read with every figure costed again; and split files.

Times are in seconds, `value`, `bound` and `seconds` (how long planning took) among them. `assignment` maps the id of
each node in the graph's file to a device: accelerators 0 … `accelerators`-1, then the CPUs; `pieces` likewise to a
subgraph of its accelerator where the problem lets one hold several, and is null otherwise.

`network` describes unequal devices and their links where a step was planned for some, and is null otherwise.

A split of dnn-partitioning (Tarnawski et al., NeurIPS 2020) says which nodes an expert or a program put on which
device: `{"maxLoad", "fpgas": [{"load", "nodes": [ids]}, …], "cpus": [{…}, …]}`. Loads are what their writer thought and
are not read. A node that is not listed goes where its colour class is, so that a split of an inference graph is one of
the training graph, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from automap_models.core.placement import (
    Communication,
    IntArray,
    Objective,
    PlacementGraph,
    PlacementPlan,
    PlacementProblem,
    PlacementResult,
    model_name,
)
from automap_models.core.result import Bound, Result
from automap_models.core.step_devices import StepDevices
from automap_models.cost.placement import PlacementCost, gap, placement_cost
from automap_models.errors import BadInput
from automap_models.formats.document_kind import require_kind
from automap_models.formats.schema import (
    Amount,
    Document,
    Foreign,
    Index,
    Whole,
    decode_json,
    read_bytes,
    wrong,
)
from automap_models.version import __version__

TOLERANCE = 1e-6
"""Relative difference at which a file's figure and the cost model's disagree."""

_STALE = "plan again for this graph"


class Baselines(Document):
    """What the plan is compared with."""

    one_device_s: Amount | None


class Provenance(Document):
    """Where the plan comes from."""

    automap_version: str
    graph_fingerprint: str
    seed: Whole
    time_limit_s: Amount | None


class NetworkDocument(Document):
    """Devices and channels of a step (core.step_devices); null stands for infinite."""

    names: list[str]
    kinds: list[str]
    slowdown: list[float]
    memory_bytes: list[float | None]
    channel: list[list[int]]
    bytes_per_s: list[float | None]
    latency_s: list[float]

    @classmethod
    def of(cls, network: StepDevices) -> NetworkDocument:
        """The document that describes them."""
        memory, rate = (
            [value if math.isfinite(value) else None for value in values.tolist()]
            for values in (network.memory_bytes, network.bytes_per_s)
        )
        return cls(
            *(list(network.names), list(network.kinds), network.slowdown.tolist(), memory),
            *(network.channel.tolist(), rate, network.latency_s.tolist()),
        )

    def network(self, where: str) -> StepDevices:
        """The devices.

        Raises:
            BadInput: numbers that do not belong together.
        """
        count, channels = len(self.names), len(self.bytes_per_s)
        shapes = (len(self.kinds), len(self.slowdown), len(self.memory_bytes), len(self.channel))
        square = all(len(row) == count and all(-1 <= c < channels for c in row) for row in self.channel)
        if any(shape != count for shape in shapes) or not square or len(self.latency_s) != channels:
            raise BadInput("$.network has lists of different lengths", where=where, do=_STALE)
        memory, rate = (
            np.array([math.inf if value is None else value for value in values], dtype=np.float64)
            for values in (self.memory_bytes, self.bytes_per_s)
        )
        return StepDevices(
            *(tuple(self.names), tuple(self.kinds), np.array(self.slowdown, dtype=np.float64), memory),
            *(np.array(self.channel, dtype=np.int64), rate, np.array(self.latency_s, dtype=np.float64)),
        )


class VerifiedDocument(Document):
    """What running a placed step on devices of one host came to, beside one device."""

    equal: bool
    loss: float
    loss_error: Amount
    array_error: Amount
    devices: Whole
    parts: Whole
    moved: Whole

    @classmethod
    def of(cls, verified: Any) -> VerifiedDocument:
        """The document of a run.verify_placement.VerifiedPlacement."""
        return cls(*(getattr(verified, name) for name in cls.__struct_fields__))


class PlacementDocument(Document):
    """The whole file."""

    schema: Literal[1]
    kind: Literal["placement"]
    model: str
    planner: str
    objective: Objective
    communication: Communication
    split_passes: bool
    accelerators: Whole
    cpus: Whole
    accelerator_bytes: Amount
    pieces_per_accelerator: Whole
    value: Amount
    bound: Amount | None
    gap: Amount | None
    status: Literal["optimal", "feasible"]
    loads_s: list[float]
    compute_s: list[float]
    transfer_s: list[float]
    memory_bytes: list[float]
    assignment: dict[str, Index]
    pieces: dict[str, Index] | None
    baselines: Baselines
    seconds: Amount
    notes: list[str]
    provenance: Provenance
    network: NetworkDocument | None = None
    verified: VerifiedDocument | None = None


def placement_document(result: PlacementResult) -> dict[str, Any]:
    """The result as the JSON document: plain Python numbers, lists and dictionaries.

    Args:
        result: with a plan. Of its facts the document has `one_device_s` (the value of everything on one device, or
            None where that is no valid plan), `seed`, `time_limit_s` (or None for the planner's own limit) and, if it
            was run, `verified`.

    Raises:
        Infeasible: the result has no plan.
    """
    problem, plan, cost, facts = result.problem, result.required_plan(), result.cost, result.facts
    document = PlacementDocument(
        schema=1,
        kind="placement",
        model=model_name(problem.graph),
        planner=plan.planner,
        objective=problem.objective,
        communication=problem.communication,
        split_passes=problem.split_passes,
        accelerators=problem.accelerators,
        cpus=problem.cpus,
        accelerator_bytes=float(problem.memory_bytes),
        pieces_per_accelerator=problem.pieces,
        value=float(cost.value_s),
        bound=None if result.bound is None else float(result.bound.value),
        gap=gap(result),
        status="optimal" if result.status == "optimal" else "feasible",
        loads_s=cost.loads_s.tolist(),
        compute_s=cost.compute_s.tolist(),
        transfer_s=cost.transfer_s.tolist(),
        memory_bytes=cost.memory_bytes.tolist(),
        assignment=_by_id(problem.graph, plan.assignment),
        pieces=None if plan.pieces is None else _by_id(problem.graph, plan.pieces),
        baselines=Baselines(facts.get("one_device_s")),
        seconds=float(result.taken_s),
        notes=list(result.notes),
        provenance=Provenance(__version__, problem.graph.fingerprint, facts.get("seed", 0), facts.get("time_limit_s")),
        network=None if problem.network is None else NetworkDocument.of(problem.network),
        verified=VerifiedDocument.of(facts["verified"]) if "verified" in facts else None,
    )
    builtins: dict[str, Any] = msgspec.to_builtins(document)
    return builtins


def read_placement_plan(
    path: str | os.PathLike[str], graph_of: Callable[[tuple[str, ...] | None], PlacementGraph]
) -> PlacementResult:
    """What a file says about a placement, which is costed again.

    Args:
        path: a placement.json.
        graph_of: from the kinds of a step's devices, none where these are equal, or None for another objective, to the
            graph that the placement was made for; the fingerprint must match.

    Raises:
        BadInput: the file is no placement, belongs to another graph, or contradicts itself or the cost model by more
            than 1e-6.
    """
    content, where = read_bytes(path), str(path)
    require_kind(content, ("placement",), where, _STALE)
    document = decode_json(content, PlacementDocument, where=where, do=_STALE)
    kinds = () if document.network is None else tuple(document.network.kinds)
    graph = graph_of(kinds if document.objective == "step" else None)
    if document.provenance.graph_fingerprint != graph.fingerprint:
        raise BadInput(f"belongs to another graph than {model_name(graph)}", where=where, do=_STALE)
    problem = _problem(document, graph, where)
    plan = PlacementPlan(
        planner=document.planner,
        assignment=_of_nodes(document.assignment, "$.assignment", graph, where),
        pieces=None if document.pieces is None else _of_nodes(document.pieces, "$.pieces", graph, where),
    )
    valid, objection = plan.check_valid(problem)
    if not valid:
        raise BadInput(objection, where=where, do=_STALE)
    cost = placement_cost(problem, plan)
    _require_same_cost(document, cost, where)
    bound = None
    if document.bound is not None:
        exact = document.status == "optimal" and document.bound >= cost.value_s
        bound = Bound(document.bound, "exact" if exact else "relaxation")
    return Result(problem, plan, cost, document.status, bound)


def _by_id(graph: PlacementGraph, values: IntArray) -> dict[str, int]:
    return {str(number): value for number, value in zip(graph.ids, values.tolist(), strict=True)}


def _of_nodes(values: dict[str, int], at: str, graph: PlacementGraph, where: str) -> IntArray:
    """[n] a number for each node, from an object that names each node's id once."""
    ids = [str(number) for number in graph.ids]
    unknown = values.keys() - set(ids)
    if unknown:
        raise BadInput(f"{at}: there is no node with id {min(unknown)}", where=where, do=_STALE)
    for number in ids:
        if number not in values:
            raise BadInput(f"{at}.{number} is missing", where=where, do=_STALE)
    return np.array([values[number] for number in ids], dtype=np.int64)


def _problem(document: PlacementDocument, graph: PlacementGraph, where: str) -> PlacementProblem:
    try:
        return PlacementProblem(
            graph,
            accelerators=document.accelerators,
            cpus=document.cpus,
            memory_bytes=document.accelerator_bytes,
            objective=document.objective,
            communication=document.communication,
            split_passes=document.split_passes,
            pieces=document.pieces_per_accelerator,
            network=None if document.network is None else document.network.network(where),
        )
    except BadInput as error:
        raise BadInput(error.what, where=where, do=_STALE) from None


def _require_same_cost(document: PlacementDocument, cost: PlacementCost, where: str) -> None:
    """Value, loads and memory agree with the cost model's, and the bound with the value."""
    figures: tuple[tuple[str, list[float], list[float]], ...] = (
        ("value", [document.value], [cost.value_s]),
        ("loads_s", document.loads_s, cost.loads_s.tolist()),
        ("memory_bytes", document.memory_bytes, cost.memory_bytes.tolist()),
    )
    for key, written, expected in figures:
        same = len(written) == len(expected) and all(
            math.isclose(number, value, rel_tol=TOLERANCE) for number, value in zip(written, expected, strict=True)
        )
        if not same:
            single = key == "value"
            shown = (written[0], expected[0]) if single else (written, expected)
            raise wrong(where, f"$.{key}", shown[0], f"{shown[1]!r} as its assignment makes it", _STALE)
    if document.bound is not None and document.bound > cost.value_s * (1.0 + TOLERANCE):
        raise wrong(where, "$.bound", document.bound, "a lower bound of value", _STALE)


DO = "give a split file of dnn-partitioning"


class SplitDevice(Foreign):
    """The ids of the nodes on a device."""

    nodes: list[Whole]


class SplitDocument(Foreign):
    """The devices of a split."""

    fpgas: list[SplitDevice]
    cpus: list[SplitDevice]


def read_split(path: str | os.PathLike[str], problem: PlacementProblem) -> IntArray:
    """[n] device of each node of the problem's graph: accelerators, then CPUs, in the order of the file.

    Raises:
        BadInput: the file is no split, has more devices than the problem, or does not place every node exactly once.
    """
    document = decode_json(read_bytes(path), SplitDocument, where=str(path), do=DO)
    position = {number: at for at, number in enumerate(problem.graph.ids)}
    assignment = np.full(len(problem.graph), -1)
    for key, devices, first, most in (
        ("fpgas", document.fpgas, 0, problem.accelerators),
        ("cpus", document.cpus, problem.accelerators, problem.cpus),
    ):
        for index, device in enumerate(devices):
            at = f"$.{key}[{index}].nodes"
            if device.nodes and index >= most:
                raise BadInput(f"uses more {key} than the {most} there are", where=str(path), do="give more devices")
            for number in device.nodes:
                if number not in position:
                    what = f"{at}: node {number} is not in the graph"
                    raise BadInput(what, where=str(path), do="give its own graph")
                if assignment[position[number]] >= 0:
                    raise BadInput(f"{at}: node {number} is placed twice", where=str(path), do="place it once")
                assignment[position[number]] = first + index
    assignment = _with_classes(problem, assignment)
    if (assignment < 0).any():
        missing = problem.graph.ids[int(np.argmax(assignment < 0))]
        raise BadInput(f"node {missing} is not placed", where=str(path), do="place every node")
    return assignment


def _with_classes(problem: PlacementProblem, assignment: IntArray) -> IntArray:
    """[n] the assignment with each node that has none where a node of its class is; -1 where none of them is."""
    home = np.full(int(problem.graph.classes.max()) + 1, -1)
    placed = assignment >= 0
    home[problem.graph.classes[placed]] = assignment[placed]
    return np.where(placed, assignment, home[problem.graph.classes])
