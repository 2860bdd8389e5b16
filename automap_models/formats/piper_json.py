"""Piper's JSON (Tarnawski, Narayanan and Phanishayee, NeurIPS 2021) as a profile.

`nodes` with `id`, perhaps `name`, and `TMPCs`: for every degree of tensor parallelism the ways to run the layer, each
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
from pathlib import Path
from typing import NamedTuple

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.dag_order import crossing_bytes, order_with_little_crossing
from automap_models.formats.json_fields import Fields, read_json
from automap_models.formats.json_graph import amount, edges_between, nodes_by_id, require_acyclic

WHOLE = "1"
"""The key of the layer as a whole among TMPCs: tensor parallelism of degree 1."""


class _Layer(NamedTuple):
    name: str
    time_s: float
    parameter_bytes: float
    stash_bytes: float


def looks_like_piper(document: Fields) -> bool:
    """Whether a JSON object is meant to be Piper's."""
    return "maxMemoryPerDevice" in document or "maxDevices" in document


def read_piper_json(path: str | os.PathLike[str]) -> Profile:
    """The profile in a Piper JSON file: one micro-batch on one device.

    The nodes are put into the topological order with the fewest bytes crossing all cuts. `names` are the node ids,
    `layers` the names.

    Raises:
        BadInput: the file is none, or a value in it makes no sense, naming the node or edge at fault.
    """
    return parse_piper(read_json(path), model=Path(path).stem)


def parse_piper(document: Fields, *, model: str) -> Profile:
    """The profile in a parsed JSON object; see `read_piper_json`."""
    ids, nodes = zip(*nodes_by_id(document), strict=True)
    layers = [_layer(node) for node in nodes]
    output_bytes = [0.0] * len(ids)
    consumers: list[set[int]] = [set() for _ in ids]
    for edge in edges_between(document, ids):
        size = amount(edge.fields, "communicationCost")
        output_bytes[edge.producer] = max(output_bytes[edge.producer], size)
        consumers[edge.producer].add(edge.consumer)
    successors = [sorted(found) for found in consumers]
    require_acyclic(successors, ids, document.where)
    order = order_with_little_crossing(output_bytes, successors)
    return Profile.create(
        C=[layers[i].time_s for i in order],
        A=crossing_bytes(order, output_bytes, successors),
        W=[layers[i].parameter_bytes for i in order],
        stash=[layers[i].stash_bytes for i in order],
        names=[str(ids[i]) for i in order],
        layers=[layers[i].name for i in order] if any(layer.name for layer in layers) else (),
        meta={"model": model, "source": "Piper JSON"},
        source=document.where,
    )


def _layer(node: Fields) -> _Layer:
    """The fastest way of running a layer on one device."""
    degrees = node.object("TMPCs")
    ways = degrees.objects(WHOLE) if WHOLE in degrees else []
    if not ways:
        raise BadInput("has no way of running on one device", where=degrees.where, do=f"give degree {WHOLE}")
    fastest = min(ways, key=lambda way: amount(way, "timePerSample"))
    return _Layer(
        node.text("name") if "name" in node else "",
        amount(fastest, "timePerSample"),
        amount(fastest, "parameterSize"),
        amount(fastest, "memoryUsageA"),
    )
