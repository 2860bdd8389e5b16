"""Piper's JSON (Tarnawski, Narayanan and Phanishayee, NeurIPS 2021) as a profile.

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

import msgspec

from automap_models.core.dag import crossing_bytes, order_with_little_crossing
from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.graph_nodes import Edge, Node, json_ends, sorted_nodes
from automap_models.formats.schema import Amount, Foreign, decode_json

DO = "give JSON of Piper"


class PiperWay(Foreign):
    """A way of running a layer."""

    time_s: Amount = msgspec.field(name="timePerSample")
    parameter_bytes: Amount = msgspec.field(name="parameterSize")
    stash_bytes: Amount = msgspec.field(name="memoryUsageA")


class PiperDegrees(Foreign):
    """Ways of running a layer by the degree of tensor parallelism, of which degree 1 is read."""

    whole: list[PiperWay] = msgspec.field(name="1", default_factory=list)


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
    parsed = decode_json(content, PiperDocument, where=where, do=DO)
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


def _fastest(index: int, node: PiperNode, where: str) -> PiperWay:
    """The fastest way of running a layer on one device."""
    if not node.degrees.whole:
        what = f"$.nodes[{index}].TMPCs has no way of running on one device"
        raise BadInput(what, where=where, do="give degree 1")
    return min(node.degrees.whole, key=lambda way: way.time_s)
