"""What the graphs of other planners share: nodes with an id, edges between them, no cycle.

In messages a node or an edge has a place in its file, such as `line 7` or `$.edges[3]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from automap_models.core.dag import find_cycle
from automap_models.errors import BadInput
from automap_models.formats.plan import READERS, plan_refused
from automap_models.formats.schema import Foreign, Integer, decode_json

Id = TypeVar("Id", int, str)

PLACEMENT, PIPER = "a device-placement graph", "a graph of Piper"


class Node(Foreign):
    """A node of a JSON graph by the number that edges name it by."""

    id: Integer


class Edge(Foreign):
    """An edge of a JSON graph."""

    source: Integer = msgspec.field(name="sourceId")
    destination: Integer = msgspec.field(name="destId")


NodeT = TypeVar("NodeT", bound=Node)


def json_kind(content: bytes, what: str, where: str, do: str) -> str | None:
    """What a JSON file is meant to be: PLACEMENT, PIPER or neither, None.

    Args:
        what: is asked for, such as "profile", for messages.
        where, do: where the file is, and what to give instead.

    Raises:
        BadInput: it is no JSON, no mapping, or a plan of ours.
    """
    keys = decode_json(content, dict[str, msgspec.Raw], where=where, do=do)
    for kind, names in ((PLACEMENT, ("maxFPGAs", "maxSizePerFPGA")), (PIPER, ("maxDevices", "maxMemoryPerDevice"))):
        if any(name in keys for name in names):
            return kind
    if "planner" in keys:
        named = [kind for kind in READERS if keys.get("kind") == msgspec.Raw(msgspec.json.encode(kind))]
        if named or "cuts" in keys:
            raise plan_refused((*named, "pipeline")[0], what, where)
    return None


def sorted_nodes(nodes: Sequence[NodeT], where: str) -> list[NodeT]:
    """The nodes of a JSON graph in ascending order of their ids; `where` says where the document comes from.

    Raises:
        BadInput: there are none, or two ids are the same.
    """
    if not nodes:
        raise BadInput("$.nodes is empty", where=where, do="give the model's operators")
    require_once([node.id for node in nodes], [f"$.nodes[{i}]" for i in range(len(nodes))], where)
    return sorted(nodes, key=lambda node: node.id)


def require_once(ids: Sequence[Id], places: Sequence[str], where: str) -> None:
    """Refuse two nodes with the same id."""
    first: dict[Id, str] = {}
    for number, place in zip(ids, places, strict=True):
        if number in first:
            what = f"node {number} was already given in {first[number]}"
            raise BadInput(what, where=f"{where}, {place}", do="give every node once")
        first[number] = place


def json_ends(edges: Sequence[Edge], ids: Sequence[int], where: str) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """`linked` of the edges of a JSON graph."""
    places = [f"$.edges[{i}]" for i in range(len(edges))]
    return linked([(edge.source, edge.destination) for edge in edges], ids, places, where)


def linked(
    edges: Sequence[tuple[Id, Id]], ids: Sequence[Id], places: Sequence[str], where: str
) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Positions of the producer and the consumer of each edge; [n] those of each node's consumers, ascending.

    Raises:
        BadInput: an end is none of the ids, or the edges form a cycle, whose ids are named.
    """
    position = {number: i for i, number in enumerate(ids)}
    for edge, place in zip(edges, places, strict=True):
        for end in edge:
            if end not in position:
                what = f"there is no node with id {end}"
                raise BadInput(what, where=f"{where}, {place}", do="give the node or drop the edge")
    ends = [(position[producer], position[consumer]) for producer, consumer in edges]
    consumers: list[set[int]] = [set() for _ in ids]
    for producer, consumer in ends:
        consumers[producer].add(consumer)
    successors = [sorted(after) for after in consumers]
    if cycle := find_cycle(successors):
        names: list[str] = [str(ids[i]) for i in cycle]
        listed: list[str] = names if len(names) <= 8 else [*names[:7], "…"]
        what = f"the edges form a cycle, {' → '.join([*listed, names[0]])}"
        place = places[ends.index((cycle[-1], cycle[0]))]
        raise BadInput(what, where=f"{where}, {place}", do="a training step's graph must be acyclic")
    return ends, successors
