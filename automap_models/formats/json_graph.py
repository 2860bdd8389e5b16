"""What the JSON graphs of other planners share: nodes with an `id`, edges from `sourceId` to `destId`, no cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from automap_models.core.dag import find_cycle
from automap_models.errors import BadInput
from automap_models.formats.document_kind import READERS
from automap_models.formats.schema import Foreign, Whole


class Node(Foreign):
    """A node by the number that edges name it by."""

    id: Whole


class Edge(Foreign):
    """An edge between two nodes."""

    source: Whole = msgspec.field(name="sourceId")
    destination: Whole = msgspec.field(name="destId")


class GraphKind(Foreign):
    """The keys that tell JSON graphs, and what is taken for one, apart."""

    placement: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="maxFPGAs", default=msgspec.UNSET)
    placement_bytes: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="maxSizePerFPGA", default=msgspec.UNSET)
    piper: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="maxDevices", default=msgspec.UNSET)
    piper_bytes: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="maxMemoryPerDevice", default=msgspec.UNSET)
    cuts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    planner: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    kind: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_placement(self) -> bool:
        """Whether the document is meant to be a device-placement graph."""
        return self.placement is not msgspec.UNSET or self.placement_bytes is not msgspec.UNSET

    @property
    def is_piper(self) -> bool:
        """Whether the document is meant to be Piper's."""
        return self.piper is not msgspec.UNSET or self.piper_bytes is not msgspec.UNSET

    @property
    def plan(self) -> str | None:
        """The kind of plan of ours that the document is meant to be, a key of READERS; None if it is none."""
        if isinstance(self.planner, msgspec.UnsetType):
            return None
        names = (name for name in READERS if self.kind == msgspec.Raw(msgspec.json.encode(name)))
        return next(names, None if isinstance(self.cuts, msgspec.UnsetType) else "pipeline")


NodeT = TypeVar("NodeT", bound=Node)


def sorted_nodes(nodes: Sequence[NodeT], where: str) -> list[NodeT]:
    """The nodes in ascending order of their ids; `where` says where the document comes from.

    Raises:
        BadInput: there are none, or two ids are the same.
    """
    if not nodes:
        raise BadInput("$.nodes is empty", where=where, do="give the model's operators")
    known: set[int] = set()
    for i, node in enumerate(nodes):
        if node.id in known:
            raise BadInput(f"$.nodes[{i}].id {node.id} was given before", where=where, do="give every node once")
        known.add(node.id)
    return sorted(nodes, key=lambda node: node.id)


def positions_of_ends(edges: Sequence[Edge], ids: Sequence[int], where: str) -> list[tuple[int, int]]:
    """Positions of the producer and the consumer of each edge among the ids.

    Raises:
        BadInput: an end is none of the ids.
    """
    position = {number: i for i, number in enumerate(ids)}
    for i, edge in enumerate(edges):
        for end in (edge.source, edge.destination):
            if end not in position:
                what = f"$.edges[{i}]: there is no node with id {end}"
                raise BadInput(what, where=where, do="give the node or drop the edge")
    return [(position[edge.source], position[edge.destination]) for edge in edges]


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
