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
from typing import Any, ClassVar, Literal

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
from automap_models.core.step_devices import Order, StepDevices
from automap_models.cost.placement import PlacementCost, gap, placement_cost
from automap_models.errors import BadInput
from automap_models.formats.plan import TOLERANCE, read, require_same
from automap_models.formats.schema import (
    Amount,
    Document,
    Foreign,
    Index,
    Integer,
    decode_json,
    located,
    read_bytes,
    wrong,
)
from automap_models.version import __version__


class Baselines(Document):
    """What the plan is compared with."""

    one_device_s: Amount | None


class Provenance(Document):
    """Where the plan comes from."""

    automap_version: str
    graph_fingerprint: str
    seed: Integer
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
    order: Order = "path"
    turns: bool = True

    @classmethod
    def from_devices(cls, network: StepDevices) -> NetworkDocument:
        """The document that describes them."""
        lists: dict[str, Any] = {key: np.asarray(getattr(network, key)).tolist() for key in cls.__struct_fields__}
        finite: dict[str, Any] = {
            key: [None if value == math.inf else value for value in values] if isinstance(values, list) else values
            for key, values in lists.items()
        }
        return cls(**finite)

    def network(self) -> StepDevices:
        """The devices.

        Raises:
            BadInput: numbers that do not belong together.
        """
        count, channels = len(self.names), len(self.bytes_per_s)
        of_devices: tuple[list[Any], ...] = (self.kinds, self.slowdown, self.memory_bytes, self.channel, *self.channel)
        between = all(-1 <= channel < channels for row in self.channel for channel in row)
        if {*map(len, of_devices)} != {count} or not between or len(self.latency_s) != channels:
            raise BadInput("$.network has lists of different lengths")
        slowdown, memory, bandwidths, latencies = (
            np.array([math.inf if value is None else value for value in values], dtype=np.float64)
            for values in (self.slowdown, self.memory_bytes, self.bytes_per_s, self.latency_s)
        )
        arrays = slowdown, memory, np.array(self.channel), bandwidths, latencies
        return StepDevices(tuple(self.names), tuple(self.kinds), *arrays, self.order, self.turns)


class VerifiedDocument(Document):
    """What running a placed step on devices of one host came to, beside one device (run.verify_placement)."""

    equal: bool
    loss: float
    loss_error: Amount
    array_error: Amount
    devices: Integer
    parts: Integer
    moved: Integer


class PlacementDocument(Document):
    """The whole file."""

    remedy: ClassVar[str] = "plan again for this graph"

    schema: Literal[1]
    kind: Literal["placement"]
    model: str
    planner: str
    objective: Objective
    communication: Communication
    split_passes: bool
    accelerators: Integer
    cpus: Integer
    accelerator_bytes: Amount
    pieces_per_accelerator: Integer
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


_OF_PROBLEM = ("objective", "communication", "split_passes", "accelerators", "cpus")
"""In the file as in PlacementProblem."""


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
    verified = facts.get("verified")
    document = PlacementDocument(
        schema=1,
        kind="placement",
        model=model_name(problem.graph),
        planner=plan.planner,
        **{key: getattr(problem, key) for key in _OF_PROBLEM},
        accelerator_bytes=float(problem.memory_bytes),
        pieces_per_accelerator=problem.pieces,
        **_figures(cost),
        compute_s=cost.compute_s.tolist(),
        transfer_s=cost.transfer_s.tolist(),
        bound=None if result.bound is None else float(result.bound.value),
        gap=gap(result),
        status="optimal" if result.status == "optimal" else "feasible",
        assignment=_by_id(problem.graph, plan.assignment),
        pieces=None if plan.pieces is None else _by_id(problem.graph, plan.pieces),
        baselines=Baselines(facts.get("one_device_s")),
        seconds=float(result.taken_s),
        notes=list(result.notes),
        provenance=Provenance(__version__, problem.graph.fingerprint, facts.get("seed", 0), facts.get("time_limit_s")),
        network=None if problem.network is None else NetworkDocument.from_devices(problem.network),
        verified=verified and msgspec.convert(verified, VerifiedDocument, from_attributes=True),
    )
    return document.builtins()


def _figures(cost: PlacementCost) -> dict[str, Any]:
    """What a file says of a placement that is costed again when it is read."""
    return {"value": float(cost.value_s), "loads_s": cost.loads_s.tolist(), "memory_bytes": cost.memory_bytes.tolist()}


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
    with read(path, PlacementDocument) as document:
        kinds = () if document.network is None else tuple(document.network.kinds)
        graph = graph_of(kinds if document.objective == "step" else None)
        if document.provenance.graph_fingerprint != graph.fingerprint:
            raise BadInput(f"belongs to another graph than {model_name(graph)}")
        with located(None, document.remedy):
            problem = PlacementProblem(
                graph,
                **{key: getattr(document, key) for key in _OF_PROBLEM},
                memory_bytes=document.accelerator_bytes,
                pieces=document.pieces_per_accelerator,
                network=None if document.network is None else document.network.network(),
            )
        plan = PlacementPlan(
            planner=document.planner,
            assignment=_of_nodes(document.assignment, "$.assignment", graph),
            pieces=None if document.pieces is None else _of_nodes(document.pieces, "$.pieces", graph),
        )
        valid, objection = plan.check_valid(problem)
        if not valid:
            raise BadInput(objection)
        cost = placement_cost(problem, plan)
        require_same(document, _figures(cost), "$", "as its assignment makes it")
        bound = None
        if document.bound is not None:
            if document.bound > cost.value_s * (1.0 + TOLERANCE):
                raise wrong("$.bound", document.bound, "a lower bound of value")
            exact = document.status == "optimal" and document.bound >= cost.value_s
            bound = Bound(document.bound, "exact" if exact else "relaxation")
        return Result(problem, plan, cost, document.status, bound)


def _by_id(graph: PlacementGraph, values: IntArray) -> dict[str, int]:
    return {str(number): value for number, value in zip(graph.ids, values.tolist(), strict=True)}


def _of_nodes(values: dict[str, int], path: str, graph: PlacementGraph) -> IntArray:
    """[n] a number for each node, from an object that names each node's id once."""
    ids = [str(number) for number in graph.ids]
    unknown = values.keys() - set(ids)
    if unknown:
        raise BadInput(f"{path}: there is no node with id {min(unknown)}")
    for number in ids:
        if number not in values:
            raise BadInput(f"{path}.{number} is missing")
    return np.array([values[number] for number in ids], dtype=np.int64)


DO = "give a split file of dnn-partitioning"


class SplitDevice(Foreign):
    """The ids of the nodes on a device."""

    nodes: list[Integer]


class SplitDocument(Foreign):
    """The devices of a split."""

    fpgas: list[SplitDevice]
    cpus: list[SplitDevice]


def read_split(path: str | os.PathLike[str], problem: PlacementProblem) -> IntArray:
    """[n] device of each node of the problem's graph: accelerators, then CPUs, in the order of the file.

    Raises:
        BadInput: the file is no split, has more devices than the problem, or does not place every node exactly once.
    """
    where = str(path)
    document = decode_json(read_bytes(path), SplitDocument, where=where, do=DO)
    position = {number: i for i, number in enumerate(problem.graph.ids)}
    assignment = np.full(len(problem.graph), -1)
    for key, devices, first, most in (
        ("fpgas", document.fpgas, 0, problem.accelerators),
        ("cpus", document.cpus, problem.accelerators, problem.cpus),
    ):
        for index, device in enumerate(devices):
            if device.nodes and index >= most:
                raise BadInput(f"uses more {key} than the {most} there are", where=where, do="give more devices")
            for number in device.nodes:
                what = f"$.{key}[{index}].nodes: node {number}"
                if number not in position:
                    raise BadInput(f"{what} is not in the graph", where=where, do="give its own graph")
                if assignment[position[number]] >= 0:
                    raise BadInput(f"{what} is placed twice", where=where, do="place it once")
                assignment[position[number]] = first + index
    home, placed = np.full(int(problem.graph.classes.max()) + 1, -1), assignment >= 0
    home[problem.graph.classes[placed]] = assignment[placed]
    assignment = np.where(placed, assignment, home[problem.graph.classes])
    if (assignment < 0).any():
        missing = problem.graph.ids[int(np.argmax(assignment < 0))]
        raise BadInput(f"node {missing} is not placed", where=where, do="place every node")
    return assignment
