"""JSON of dnn-partitioning (Tarnawski et al., NeurIPS 2020) as a graph and as a profile, that of Piper as a profile.

Device-placement JSON of dnn-partitioning
-----------------------------------------
`maxSizePerFPGA` (bytes), `maxFPGAs`, `maxCPUs`; `nodes` with `id`, `supportedOnFpga`, `cpuLatency` and `fpgaLatency`
(ms), `isBackwardNode`, and perhaps `colorClass`, `size` (bytes) and `name`; `edges` with `sourceId`, `destId`, `cost`
(ms to move the source's output between an accelerator and the CPUs) and perhaps `size` (bytes of that output). The
format is documented in the README.md of msr-fiddle/dnn-partitioning.

A profile is the forward operators in a line, with what the backward pass adds to each. The graph knows times, the
memory of each node and the size of its output; a profile asks for more, so:

- **Instructions** are the forward nodes, in the order with the fewest bytes crossing all cuts. Where a graph gives
  variables nodes of their own (no inputs, no time on either device, but a size: the operator graphs do), these are no
  instructions.
- **C_fwd** is the time on an accelerator. **C** adds the backward nodes of the same colour class, shared among the
  class's instructions in proportion to their forward time. A backward node without forward classmates counts with its
  nearest neighbour in the graph (its consumers before its producers); none is dropped, and `meta` says how many there
  were.
- **A**: output sizes of the nodes before the cut that a forward node after it reads, each once; variables do not count.
- **W**: sizes of the variables, at their first reader. Where a graph has no nodes for them (the layer graphs), a node's
  memory is that of its output and its parameters, so W is the one less the other. A node that nobody reads tells no
  output size: it holds parameters only if it takes time, and then all of its memory counts as such.
- **stash**: output sizes of the forward nodes that a backward node reads; of all of them where no edge leads from the
  forward pass into the backward one (the layer graphs); 0 for inference.

Colour classes are a constraint on placements, and nothing in a profile says so.

JSON of Piper (Tarnawski, Narayanan and Phanishayee, NeurIPS 2021)
------------------------------------------------------------------
`nodes` with `id`, perhaps `name`, and `TMPCs`: for every degree of tensor parallelism variants of the layer, each
with `timePerSample` (forward and backward), `parameterSize`, `memoryUsageA` (per micro-batch in flight) and
`memoryUsageB` (whatever the number of them); `edges` with `sourceId`, `destId` and `communicationCost` (bytes). The
format is documented in the README.md of msr-fiddle/piper.

- **C** is `timePerSample` of the fastest way at degree 1, which is the one that recomputes nothing. Its planner adds
  it to bytes over `bandwidth` in bytes/s, so it is in seconds; the artifact's own gnmt.json and resnet.json hold
  PipeDream's milliseconds there. C_fwd is unknown to the format, so a third.
- **A**: a node's output is as large as its largest edge; the outputs from before the cut that are read after it, each
  once. **W** is `parameterSize`. **stash** is `memoryUsageA`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from automap_models.core.dag import crossing_bytes, order_with_little_crossing, predecessors_of
from automap_models.core.placement import PlacementGraph
from automap_models.core.profile import Profile, SharedParameter
from automap_models.errors import BadInput
from automap_models.formats.graph_nodes import PLACEMENT, Edge, Node, json_ends, json_kind, sorted_nodes
from automap_models.formats.schema import Amount, Foreign, Index, Integer, decode_json, read_bytes

DO = "give device-placement JSON of dnn-partitioning"


Flag = bool | Annotated[int, Meta(ge=0, le=1)]
"""True or false, or 1 or 0."""


class PlacementNode(Node):
    """An operator; latencies in ms, sizes in bytes."""

    supported: Flag = msgspec.field(name="supportedOnFpga")
    cpu_ms: Amount = msgspec.field(name="cpuLatency")
    accelerator_ms: Amount = msgspec.field(name="fpgaLatency")
    backward: Flag = msgspec.field(name="isBackwardNode")
    colour: Integer | msgspec.UnsetType = msgspec.field(name="colorClass", default=msgspec.UNSET)
    size: Amount = 0.0
    name: str = ""


class PlacementEdge(Edge):
    """What one operator reads of another: the ms to move the source's output, and perhaps its bytes."""

    cost: Amount
    size: Amount | msgspec.UnsetType = msgspec.UNSET


class PlacementDocument(Foreign):
    """The whole file."""

    accelerator_bytes: Amount = msgspec.field(name="maxSizePerFPGA")
    accelerators: Index = msgspec.field(name="maxFPGAs")
    cpus: Index = msgspec.field(name="maxCPUs")
    nodes: list[PlacementNode]
    edges: list[PlacementEdge]


def read_placement(path: str | os.PathLike[str], *, do: str = DO) -> PlacementGraph:
    """The graph in a device-placement JSON file.

    Args:
        path: the file.
        do: what to give instead of a file of another kind, for messages.

    Raises:
        BadInput: the file is none, or a value in it makes no sense, naming the node or edge at fault.
    """
    content, where = read_bytes(path), str(path)
    if json_kind(content, "model", where, do) != PLACEMENT:
        raise BadInput("is no device-placement graph: it has no maxFPGAs", where=where, do=do)
    return parse_placement(content, where=where, model=Path(path).stem)


def parse_placement(content: bytes, *, where: str, model: str) -> PlacementGraph:
    """The graph in the content of a file, which `where` names; see `read_placement`."""
    parsed = decode_json(content, PlacementDocument, where=where, do=DO)
    nodes = sorted_nodes(parsed.nodes, where)
    ids = tuple(node.id for node in nodes)
    ends, _ = json_ends(parsed.edges, ids, where)
    for i, (producer, consumer) in enumerate(ends):  # the backward pass reads the forward pass
        if nodes[producer].backward and not nodes[consumer].backward:
            what = f"$.edges[{i}]: backward node {ids[producer]} feeds forward node {ids[consumer]}"
            raise BadInput(what, where=where, do="check isBackwardNode of the two")
    transfer_s, output_bytes = _outputs(parsed.edges, ends, len(ids), where)
    classes: dict[object, int] = {}  # a node without a colour has one of its own
    keys = [(node.id, None) if node.colour is msgspec.UNSET else node.colour for node in nodes]
    return PlacementGraph(
        ids=ids,
        names=tuple(node.name for node in nodes),
        accelerator_s=np.array([node.accelerator_ms for node in nodes], dtype=np.float64) / 1e3,
        cpu_s=np.array([node.cpu_ms for node in nodes], dtype=np.float64) / 1e3,
        memory_bytes=np.array([node.size for node in nodes], dtype=np.float64),
        transfer_s=transfer_s,
        output_bytes=output_bytes,
        supported=np.array([bool(node.supported) for node in nodes]),
        backward=np.array([bool(node.backward) for node in nodes]),
        classes=np.array([classes.setdefault(key, len(classes)) for key in keys], dtype=np.int64),
        edges=np.array(sorted(set(ends)), dtype=np.int64).reshape(-1, 2),
        accelerators=parsed.accelerators,
        cpus=parsed.cpus,
        accelerator_bytes=parsed.accelerator_bytes,
        meta={"model": model, "source": "dnn-partitioning JSON", "path": where},
    )


def _outputs(
    edges: Sequence[PlacementEdge], ends: Sequence[tuple[int, int]], n: int, where: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Transfer time and bytes of each node's output: the cost belongs to the source, so its edges must agree on it.

    Sizes need not agree (they say what of the output each consumer reads): the largest counts.
    """
    link_bytes_per_s = 2.0**31  # from which the published operator graphs' costs were computed
    cost_ms: dict[int, float] = {}
    transfer_s, size = np.zeros(n), np.zeros(n)
    for i, (edge, (producer, _)) in enumerate(zip(edges, ends, strict=True)):
        if abs(edge.cost - cost_ms.setdefault(producer, edge.cost)) > 1e-6:  # as in the authors' program
            what = f"$.edges[{i}].cost is {edge.cost:g}, but another edge from node {edge.source} costs "
            do = "the cost belongs to the source: all edges from one node have the same"
            raise BadInput(f"{what}{cost_ms[producer]:g}", where=where, do=do)
        nbytes = edge.cost / 1e3 * link_bytes_per_s if edge.size is msgspec.UNSET else edge.size
        transfer_s[producer], size[producer] = cost_ms[producer] / 1e3, max(size[producer], nbytes)
    return transfer_s, size


Shares = Mapping[int, float]
"""Operator → the part of a backward node's time that belongs to it; the parts add up to 1."""


def profile_from_placement(graph: PlacementGraph) -> Profile:
    """The profile of a device-placement graph, for one sample on one accelerator; see the module for what it assumes.

    Raises:
        BadInput: the graph has fewer than two operators, or they take no time.
    """
    source, successors = str(graph.meta.get("path", "placement graph")), graph.successors()
    reads, idle = np.zeros(len(graph), dtype=bool), (graph.accelerator_s == 0) & (graph.cpu_s == 0)
    reads[graph.edges[:, 1]] = True
    variables = idle & ~reads & ~graph.backward & (graph.memory_bytes > 0)
    nodes = np.flatnonzero(~graph.backward & ~variables).tolist()
    if not nodes:
        raise BadInput("no node belongs to the forward pass", where=source, do="check isBackwardNode")
    position = {node: i for i, node in enumerate(nodes)}
    consumers = [[position[after] for after in successors[node] if after in position] for node in nodes]
    sizes = graph.output_bytes[nodes].tolist()
    line = order_with_little_crossing(sizes, consumers)
    order = [nodes[i] for i in line]
    backward_s, reported = _backward_s(graph, order)
    parameters, shared = _parameters(graph, variables, order)
    return Profile.create(
        C=(graph.accelerator_s + backward_s)[order],
        A=crossing_bytes(line, sizes, consumers),
        W=parameters[order],
        C_fwd=graph.accelerator_s[order],
        stash=_saved_bytes(graph)[order],
        names=[str(graph.ids[i]) for i in order],
        layers=[graph.names[i] for i in order] if any(graph.names) else (),
        meta={"model": graph.meta["model"], "source": graph.meta["source"], "microbatch_size": 1, **reported},
        shared_parameters=shared,
        source=source,
    )


def _backward_s(graph: PlacementGraph, order: Sequence[int]) -> tuple[NDArray[np.float64], dict[str, object]]:
    """[n] backward time of each forward operator; what had to be attributed by neighbourhood."""
    shares: dict[int, Shares] = {node: {node: 1.0} for node in order}
    members: dict[int, list[int]] = {}
    for node in order:
        members.setdefault(int(graph.classes[node]), []).append(node)
    backward = np.flatnonzero(graph.backward).tolist()
    for node in backward:
        mates = members.get(int(graph.classes[node]))
        if mates:
            shares[node] = _split(mates, graph.accelerator_s)
    orphans = [node for node in backward if node not in shares]
    _adopt(graph, orphans, shares, last=order[-1])
    time_s = np.zeros(len(graph))
    for node in backward:
        for operator, part in shares[node].items():
            time_s[operator] += part * graph.accelerator_s[node]
    if not orphans:
        return time_s, {}
    taken_s = float(graph.accelerator_s[orphans].sum())
    return time_s, {"backward_without_forward": {"nodes": len(orphans), "time_s": taken_s}}


def _split(mates: Sequence[int], time_s: NDArray[np.float64]) -> Shares:
    """In proportion to forward time, evenly where there is none."""
    total = float(time_s[list(mates)].sum())
    return {node: float(time_s[node]) / total if total else 1.0 / len(mates) for node in mates}


def _adopt(graph: PlacementGraph, orphans: Iterable[int], shares: dict[int, Shares], last: int) -> None:
    """Let each orphan count with its nearest neighbour, ring by ring, and where there is none with the last one."""
    consumers = graph.successors()
    producers, alone = predecessors_of(consumers), list(orphans)
    while alone:
        adopted = {}
        for node in alone:
            neighbours = [other for other in (*consumers[node], *producers[node]) if other in shares]
            if neighbours:
                adopted[node] = shares[neighbours[0]]
        shares.update(adopted or {node: {last: 1.0} for node in alone})
        alone = [node for node in alone if node not in shares]


def _parameters(
    graph: PlacementGraph, variables: NDArray[np.bool_], order: Sequence[int]
) -> tuple[NDArray[np.float64], list[SharedParameter]]:
    """[n] parameter bytes first read by each node; the variables that several forward nodes read."""
    if not variables.any():
        read = np.zeros(len(graph), dtype=bool)
        read[graph.edges[:, 0]] = True
        busy = (graph.accelerator_s > 0) | (graph.cpu_s > 0)
        return np.maximum(0.0, graph.memory_bytes - graph.output_bytes) * (read | busy), []
    position = {node: i for i, node in enumerate(order)}
    successors = graph.successors()
    nbytes, shared = np.zeros(len(graph)), []
    for variable in np.flatnonzero(variables).tolist():
        readers = sorted({position[node] for node in successors[variable] if node in position})
        if readers:
            nbytes[order[readers[0]]] += graph.memory_bytes[variable]
        if len(readers) > 1:
            name = graph.names[variable] or str(graph.ids[variable])
            shared.append(SharedParameter(name, float(graph.memory_bytes[variable]), tuple(readers)))
    return nbytes, shared


def _saved_bytes(graph: PlacementGraph) -> NDArray[np.float64]:
    """[n] bytes that each forward node keeps for the backward pass."""
    if not graph.is_training:
        return np.zeros(len(graph))
    producers, consumers = graph.edges[:, 0], graph.edges[:, 1]
    read = np.zeros(len(graph), dtype=bool)
    read[producers[~graph.backward[producers] & graph.backward[consumers]]] = True
    return graph.output_bytes * (read if read.any() else ~graph.backward)


class PiperOption(Foreign):
    """A way of running a layer."""

    time_s: Amount = msgspec.field(name="timePerSample")
    parameter_bytes: Amount = msgspec.field(name="parameterSize")
    stash_bytes: Amount = msgspec.field(name="memoryUsageA")


class PiperDegrees(Foreign):
    """Ways of running a layer by the degree of tensor parallelism, of which degree 1 is read."""

    single: list[PiperOption] = msgspec.field(name="1", default_factory=list)


class PiperNode(Node):
    """A layer."""

    degrees: PiperDegrees = msgspec.field(name="TMPCs")
    name: str = ""


class PiperEdge(Edge):
    """What one layer reads of another, in bytes."""

    size: Amount = msgspec.field(name="communicationCost")


class PiperDocument(Foreign):
    """What is read of the file."""

    nodes: list[PiperNode]
    edges: list[PiperEdge]


def parse_piper(content: bytes, *, where: str, model: str) -> Profile:
    """The profile in the content of a Piper JSON file, which `where` names: one micro-batch on one device.

    The nodes are put into the topological order with the fewest bytes crossing all cuts. `names` are the node ids,
    `layers` the names.

    Raises:
        BadInput: the content is none, or a value in it makes no sense, naming the node or edge at fault.
    """
    parsed = decode_json(content, PiperDocument, where=where, do="give JSON of Piper")
    fastest = {node.id: _fastest(i, node, where) for i, node in enumerate(parsed.nodes)}
    nodes = sorted_nodes(parsed.nodes, where)
    ids = [node.id for node in nodes]
    ends, successors = json_ends(parsed.edges, ids, where)
    output_bytes = [0.0] * len(ids)
    for edge, (producer, _) in zip(parsed.edges, ends, strict=True):
        output_bytes[producer] = max(output_bytes[producer], edge.size)
    order = order_with_little_crossing(output_bytes, successors)
    layers = [fastest[ids[i]] for i in order]
    return Profile.create(
        C=[layer.time_s for layer in layers],
        A=crossing_bytes(order, output_bytes, successors),
        W=[layer.parameter_bytes for layer in layers],
        stash=[layer.stash_bytes for layer in layers],
        names=[str(ids[i]) for i in order],
        layers=[nodes[i].name for i in order] if any(node.name for node in nodes) else (),
        meta={"model": model, "source": "Piper JSON"},
        source=where,
    )


def _fastest(index: int, node: PiperNode, where: str) -> PiperOption:
    """The fastest way of running a layer on one device."""
    if not node.degrees.single:
        what = f"$.nodes[{index}].TMPCs has no way of running on one device"
        raise BadInput(what, where=where, do="give degree 1")
    return min(node.degrees.single, key=lambda degree: degree.time_s)
