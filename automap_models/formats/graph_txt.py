"""Layer profiles of PipeDream and DAPPLE: graph.txt (formats.md, "Other tools' profiles").

    node5 -- Conv2d(64, 64) -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=4
    <tab>node5 -- node6

Times are in ms, sizes in bytes; an activation may be a list, `[a; b; c]`. The writer of the format is
`graph/graph.py` of PipeDream (Narayanan et al., SOSP 2019).

A node that reads nothing and whose description begins with `Input` is no operator: PipeDream's profiler writes the time
of loading a batch into it, and its optimizer removes it first (optimizer_graph_hierarchical.py). So does this reader.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from automap_models.core.dag import crossing_bytes, order_with_little_crossing
from automap_models.core.profile import LARGEST_BYTES, Profile
from automap_models.errors import BadInput
from automap_models.formats.graph_nodes import linked, require_once
from automap_models.formats.schema import read_bytes

_NODE = re.compile(
    r"(?P<id>\S+) -- (?P<description>.*) -- forward_compute_time=(?P<forward>[^,]*), "
    r"backward_compute_time=(?P<backward>[^,]*), activation_size=(?P<activation>\[[^\]]*\]|[^,]*), "
    r"parameter_size=(?P<parameter>\S*?)(?: -- stage_id=-?\d+)?"
)
_INPUT = "Input"
_EDGE = re.compile(r"(\S+) -- (\S+)")
_FORM = (
    "a node is `ID -- DESCRIPTION -- forward_compute_time=MS, backward_compute_time=MS, "
    "activation_size=BYTES, parameter_size=BYTES`, an edge is indented: `ID -- ID`"
)


class _Node(NamedTuple):
    id: str
    description: str
    forward_ms: float
    backward_ms: float
    activation_bytes: float
    parameter_bytes: float
    line: int


def looks_like_graph_txt(text: str) -> bool:
    """Whether a text, or its beginning, has anything like a node or an edge in it and is no JSON."""
    return " -- " in text and not text.lstrip().startswith(("{", "["))


def read_graph_txt(path: str | os.PathLike[str]) -> Profile:
    """The profile in a graph.txt file.

    The nodes are put into the topological order with the fewest bytes crossing all cuts, whatever their order in
    the file; inputs are left out. `names` are the node ids, `layers` the descriptions, `stash` the activation sizes.

    Raises:
        BadInput: the file is no graph.txt or its graph has a cycle, naming the line or the nodes at fault.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("is not UTF-8 text", where=str(path), do="check which file it is") from None
    return parse_graph_txt(text, source=str(path), model=Path(path).stem)


def parse_graph_txt(text: str, *, source: str, model: str) -> Profile:
    """The profile in the text of a graph.txt file; see `read_graph_txt`."""
    nodes, edges, places = _parse(text, source)
    if not nodes:
        raise BadInput("holds no nodes", where=source, do=_FORM)
    require_once([node.id for node in nodes], [f"line {node.line}" for node in nodes], source)
    nodes = sorted(nodes, key=lambda node: _natural(node.id))
    nodes, successors = _without_inputs(nodes, linked(edges, [node.id for node in nodes], places, source)[1])
    if not nodes:
        raise BadInput("holds nothing but inputs", where=source, do=_FORM)
    sizes = [node.activation_bytes for node in nodes]
    order = order_with_little_crossing(sizes, successors)
    ordered = [nodes[i] for i in order]
    return Profile.create(
        C=[(node.forward_ms + node.backward_ms) / 1e3 for node in ordered],
        A=crossing_bytes(order, sizes, successors),
        W=[node.parameter_bytes for node in ordered],
        C_fwd=[node.forward_ms / 1e3 for node in ordered],
        stash=[node.activation_bytes for node in ordered],
        names=[node.id for node in ordered],
        layers=[node.description for node in ordered],
        meta={"model": model, "source": "graph.txt"},
        source=source,
    )


def _parse(text: str, source: str) -> tuple[list[_Node], list[tuple[str, str]], list[str]]:
    """The nodes, and the producer and the consumer of each edge, and where it stands."""
    nodes: list[_Node] = []
    edges: list[tuple[str, str]] = []
    places: list[str] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line, where = raw.strip(), f"{source}, line {number}"
        if not line:
            continue
        node = _NODE.fullmatch(line)
        edge = _EDGE.fullmatch(line)
        if node:
            nodes.append(_node(node, number, where))
        elif edge and raw[0].isspace():
            edges.append((edge[1], edge[2]))
            places.append(f"line {number}")
        elif " -- " in line and "_time=" not in line and not raw[0].isspace():
            raise BadInput(f"node {line.split(' -- ')[0]} has no times", where=where, do="profile the model first")
        else:
            raise BadInput("is neither a node nor an edge", where=where, do=_FORM)
    return nodes, edges, places


def _node(match: re.Match[str], line: int, where: str) -> _Node:
    parts = match["activation"].strip("[]").split(";") if match["activation"].startswith("[") else [match["activation"]]
    return _Node(
        match["id"],
        match["description"],
        _number("forward_compute_time", match["forward"], where),
        _number("backward_compute_time", match["backward"], where),
        math.fsum(_number("activation_size", part, where) for part in parts),
        _number("parameter_size", match["parameter"], where),
        line,
    )


def _number(key: str, text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= LARGEST_BYTES:  # of milliseconds, too: sums of them stay finite until the profile checks
        raise BadInput(f"{key} is {reprlib.repr(text.strip())}", where=where, do=f"give 0 to {LARGEST_BYTES:g}")
    return value


def _without_inputs(nodes: Sequence[_Node], successors: Sequence[Sequence[int]]) -> tuple[list[_Node], list[list[int]]]:
    """The nodes that are no inputs, and consumers among themselves."""
    reading = {after for consumers in successors for after in consumers}
    operators = [i for i, node in enumerate(nodes) if i in reading or not node.description.startswith(_INPUT)]
    position = {node: i for i, node in enumerate(operators)}
    return [nodes[i] for i in operators], [[position[after] for after in successors[i]] for i in operators]


def _natural(name: str) -> tuple[list[str | int], str]:
    """A key that puts node10 behind node9."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
