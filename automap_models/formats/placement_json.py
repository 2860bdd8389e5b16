"""Device-placement JSON of dnn-partitioning (Tarnawski et al., NeurIPS 2020) as a graph.

`maxSizePerFPGA` (bytes), `maxFPGAs`, `maxCPUs`; `nodes` with `id`, `supportedOnFpga`, `cpuLatency` and `fpgaLatency`
(ms), `isBackwardNode`, and perhaps `colorClass`, `size` (bytes) and `name`; `edges` with `sourceId`, `destId`, `cost`
(ms to move the source's output between an accelerator and the CPUs) and perhaps `size` (bytes of that output). The
format is documented in the README.md of msr-fiddle/dnn-partitioning.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from automap_models.core.placement import PlacementGraph
from automap_models.errors import BadInput
from automap_models.formats.json_graph import Edge, GraphKind, Node, positions_of_ends, require_acyclic, sorted_nodes
from automap_models.formats.schema import Amount, Foreign, Index, Whole, decode_json, read_bytes

DO = "give device-placement JSON of dnn-partitioning"

FLOAT_SLACK_MS = 1e-6
"""Costs of one node's edges may differ by this much, as in the authors' program."""

LINK_BYTES_PER_S = 2.0**31
"""Bandwidth between accelerator and CPU from which the published operator graphs' costs were computed, 2 GiB/s; it
turns a cost into bytes where a file does not give them."""


Flag = bool | Annotated[int, Meta(ge=0, le=1)]
"""True or false, or 1 or 0."""


class PlacementNode(Node):
    """An operator; latencies in ms, sizes in bytes."""

    supported: Flag = msgspec.field(name="supportedOnFpga")
    cpu_ms: Amount = msgspec.field(name="cpuLatency")
    accelerator_ms: Amount = msgspec.field(name="fpgaLatency")
    backward: Flag = msgspec.field(name="isBackwardNode")
    colour: Whole | msgspec.UnsetType = msgspec.field(name="colorClass", default=msgspec.UNSET)
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
    content = read_bytes(path)
    if not decode_json(content, GraphKind, where=str(path), do=do).is_placement:
        raise BadInput("is no device-placement graph: it has no maxFPGAs", where=str(path), do=do)
    return parse_placement(content, where=str(path), model=Path(path).stem)


def parse_placement(content: bytes, *, where: str, model: str) -> PlacementGraph:
    """The graph in the content of a file, which `where` names; see `read_placement`."""
    parsed = decode_json(content, PlacementDocument, where=where, do=DO)
    nodes = sorted_nodes(parsed.nodes, where)
    ids = tuple(node.id for node in nodes)
    ends = positions_of_ends(parsed.edges, ids, where)
    transfer_s, output_bytes = _outputs(parsed.edges, ends, len(ids), where)
    graph = PlacementGraph(
        ids=ids,
        names=tuple(node.name for node in nodes),
        accelerator_s=np.array([node.accelerator_ms for node in nodes], dtype=np.float64) / 1e3,
        cpu_s=np.array([node.cpu_ms for node in nodes], dtype=np.float64) / 1e3,
        memory_bytes=np.array([node.size for node in nodes], dtype=np.float64),
        transfer_s=transfer_s,
        output_bytes=output_bytes,
        supported=np.array([bool(node.supported) for node in nodes]),
        backward=np.array([bool(node.backward) for node in nodes]),
        classes=_classes(nodes),
        edges=np.array(sorted(set(ends)), dtype=np.int64).reshape(-1, 2),
        accelerators=parsed.accelerators,
        cpus=parsed.cpus,
        accelerator_bytes=parsed.accelerator_bytes,
        meta={"model": model, "source": "dnn-partitioning JSON", "path": where},
    )
    require_acyclic(graph.successors(), ids, where)
    _require_one_way(graph, ends, where)
    return graph


def _classes(nodes: Sequence[PlacementNode]) -> NDArray[np.int64]:
    """Class numbers from 0 on in order of first appearance; a node without a colour gets its own."""
    seen: dict[object, int] = {}
    keys: list[object] = [
        ("alone", i) if node.colour is msgspec.UNSET else ("colour", node.colour) for i, node in enumerate(nodes)
    ]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def _outputs(
    edges: Sequence[PlacementEdge], ends: Sequence[tuple[int, int]], n: int, where: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Transfer time and bytes of each node's output: the cost belongs to the source, so its edges must agree on it.

    Sizes need not agree (they say what of the output each consumer reads): the largest counts.
    """
    cost_ms: dict[int, float] = {}
    size = np.zeros(n)
    for i, (edge, (producer, _)) in enumerate(zip(edges, ends, strict=True)):
        if abs(edge.cost - cost_ms.setdefault(producer, edge.cost)) > FLOAT_SLACK_MS:
            raise BadInput(
                f"$.edges[{i}].cost is {edge.cost:g}, but another edge from node {edge.source} costs "
                f"{cost_ms[producer]:g}",
                where=where,
                do="the cost belongs to the source: all edges from one node have the same",
            )
        of_edge = edge.cost / 1e3 * LINK_BYTES_PER_S if edge.size is msgspec.UNSET else edge.size
        size[producer] = max(size[producer], of_edge)
    transfer_s = np.zeros(n)
    transfer_s[list(cost_ms)] = np.array(list(cost_ms.values())) / 1e3
    return transfer_s, size


def _require_one_way(graph: PlacementGraph, ends: Sequence[tuple[int, int]], where: str) -> None:
    """The backward pass reads the forward pass, never the other way round."""
    for i, (producer, consumer) in enumerate(ends):
        if graph.backward[producer] and not graph.backward[consumer]:
            raise BadInput(
                f"$.edges[{i}]: backward node {graph.ids[producer]} feeds forward node {graph.ids[consumer]}",
                where=where,
                do="check isBackwardNode of the two",
            )
