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

import numpy as np
from numpy.typing import NDArray

from automap_models.core.placement import PlacementGraph
from automap_models.errors import BadInput
from automap_models.formats.json_fields import Fields, read_json
from automap_models.formats.json_graph import JsonEdge, amount, edges_between, nodes_by_id, require_acyclic

FLOAT_SLACK_MS = 1e-6
"""Costs of one node's edges may differ by this much, as in the authors' program."""

LINK_BYTES_PER_S = 2.0**31
"""Bandwidth between accelerator and CPU from which the published operator graphs' costs were computed, 2 GiB/s; it
turns a cost into bytes where a file does not give them."""


def looks_like_placement(document: Fields) -> bool:
    """Whether a JSON object is meant to be a device-placement graph."""
    return "maxFPGAs" in document or "maxSizePerFPGA" in document


def read_placement(path: str | os.PathLike[str]) -> PlacementGraph:
    """The graph in a device-placement JSON file.

    Raises:
        BadInput: the file is none, or a value in it makes no sense, naming the node or edge at fault.
    """
    return parse_placement(read_json(path), model=Path(path).stem)


def parse_placement(document: Fields, *, model: str) -> PlacementGraph:
    """The graph in a parsed JSON object; see `read_placement`."""
    ids, nodes = zip(*nodes_by_id(document), strict=True)
    edges = edges_between(document, ids)
    transfer_s, output_bytes = _outputs(edges, len(ids))
    graph = PlacementGraph(
        ids=ids,
        names=tuple(node.text("name") if "name" in node else "" for node in nodes),
        accelerator_s=np.array([amount(node, "fpgaLatency") for node in nodes]) / 1e3,
        cpu_s=np.array([amount(node, "cpuLatency") for node in nodes]) / 1e3,
        memory_bytes=np.array([amount(node, "size", 0.0) for node in nodes]),
        transfer_s=transfer_s,
        output_bytes=output_bytes,
        supported=np.array([node.flag("supportedOnFpga") for node in nodes]),
        backward=np.array([node.flag("isBackwardNode") for node in nodes]),
        classes=_classes(nodes),
        edges=np.array(sorted({(e.producer, e.consumer) for e in edges}), dtype=np.int64).reshape(-1, 2),
        accelerators=_count(document, "maxFPGAs"),
        cpus=_count(document, "maxCPUs"),
        accelerator_bytes=amount(document, "maxSizePerFPGA"),
        meta={"model": model, "source": "dnn-partitioning JSON", "path": document.where},
    )
    require_acyclic(graph.successors(), ids, document.where)
    _require_one_way(graph, edges)
    return graph


def _count(document: Fields, key: str) -> int:
    value = document.whole(key)
    return document.refuse(key, "a number of devices") if value < 0 else value


def _classes(nodes: Sequence[Fields]) -> NDArray[np.int64]:
    """Class numbers from 0 on in order of first appearance; a node without a colour gets its own."""
    seen: dict[object, int] = {}
    keys: list[object] = [
        ("colour", node.whole("colorClass")) if "colorClass" in node else ("alone", i) for i, node in enumerate(nodes)
    ]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def _outputs(edges: Sequence[JsonEdge], n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Transfer time and bytes of each node's output: the cost belongs to the source, so its edges must agree on it.

    Sizes need not agree (they say what of the output each consumer reads): the largest counts.
    """
    cost_ms: dict[int, float] = {}
    size = np.zeros(n)
    for edge in edges:
        cost = amount(edge.fields, "cost")
        if abs(cost - cost_ms.setdefault(edge.producer, cost)) > FLOAT_SLACK_MS:
            raise BadInput(
                f"cost is {cost:g}, but another edge from node {edge.fields.whole('sourceId')} costs "
                f"{cost_ms[edge.producer]:g}",
                where=edge.fields.where,
                do="the cost belongs to the source: all edges from one node have the same",
            )
        of_edge = amount(edge.fields, "size", cost / 1e3 * LINK_BYTES_PER_S)
        size[edge.producer] = max(size[edge.producer], of_edge)
    transfer_s = np.zeros(n)
    transfer_s[list(cost_ms)] = np.array(list(cost_ms.values())) / 1e3
    return transfer_s, size


def _require_one_way(graph: PlacementGraph, edges: Sequence[JsonEdge]) -> None:
    """The backward pass reads the forward pass, never the other way round."""
    for edge in edges:
        if graph.backward[edge.producer] and not graph.backward[edge.consumer]:
            raise BadInput(
                f"backward node {graph.ids[edge.producer]} feeds forward node {graph.ids[edge.consumer]}",
                where=edge.fields.where,
                do="check isBackwardNode of the two",
            )
