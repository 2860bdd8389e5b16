"""What the JSON graphs of other planners share: nodes with an `id`, edges from `sourceId` to `destId`, no cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from automap_models.core.dag import find_cycle
from automap_models.errors import BadInput
from automap_models.formats.json_fields import Fields


class JsonEdge(NamedTuple):
    """An edge between two nodes, which are given by their positions in the order of their ids."""

    producer: int
    consumer: int
    fields: Fields


def nodes_by_id(document: Fields) -> list[tuple[int, Fields]]:
    """The document's nodes with their ids, in ascending order of these.

    Raises:
        BadInput: there is no list of objects with an id each, it is empty, or two ids are the same.
    """
    nodes: dict[int, Fields] = {}
    for node in document.objects("nodes"):
        number = node.whole("id")
        if number in nodes:
            raise BadInput(f"id {number} was given before", where=node.where, do="give every node once")
        nodes[number] = node
    if not nodes:
        raise BadInput("nodes is empty", where=document.where, do="give the model's operators")
    return sorted(nodes.items())


def edges_between(document: Fields, ids: Sequence[int]) -> list[JsonEdge]:
    """The document's edges, in its order.

    Raises:
        BadInput: there is no list of objects with two ends each, or an end is none of the ids.
    """
    position = {number: i for i, number in enumerate(ids)}
    edges = []
    for edge in document.objects("edges"):
        ends = [edge.whole(key) for key in ("sourceId", "destId")]
        for end in ends:
            if end not in position:
                raise BadInput(f"there is no node with id {end}", where=edge.where, do="give the node or drop the edge")
        edges.append(JsonEdge(position[ends[0]], position[ends[1]], edge))
    return edges


def require_acyclic(successors: Sequence[Sequence[int]], ids: Sequence[int], where: str) -> None:
    """Refuse a graph with a cycle.

    Raises:
        BadInput: naming the ids of the nodes on one cycle.
    """
    cycle = find_cycle(successors)
    if cycle:
        shown = [str(ids[i]) for i in cycle]
        shown = shown if len(shown) <= 8 else [*shown[:7], "…"]
        raise BadInput(
            f"the edges form a cycle, {' → '.join([*shown, str(ids[cycle[0]])])}",
            where=where,
            do="a training step's graph must be acyclic",
        )


def amount(fields: Fields, key: str, default: float | None = None) -> float:
    """A finite number ≥ 0; the default, where there is one, for a missing one.

    Raises:
        BadInput: it is anything else.
    """
    if default is not None and key not in fields:
        return default
    value = fields.number(key)
    return fields.refuse(key, "a finite number ≥ 0") if value < 0 else value
