"""From an instruction graph to a placement graph of at most N nodes: groups of instructions to be placed on devices.

1. The forward instructions, in execution order, are cut into groups of about equal time, where each counts with the
   backward and update instructions at home with it (attribution.py). A cut moves by up to a quarter of a group to the
   place with the fewest bytes crossing. A group is a class: its device runs it forward and backward, and updates it.
2. A backward instruction that reads what one of an earlier group made belongs to that group, too, if not to one still
   earlier. So the backward pass goes through the groups from the last to the first, as the forward pass goes from the
   first to the last, and no two nodes wait for each other.
3. A group has a forward node and a backward node, which also holds its updates. An update that reads what an earlier
   group's backward node made (a step counter, a global norm) goes to a further node of its group, for the same reason.
4. Times are those of the instructions, added. Memory is that of the arguments that a node is the first to read, of the
   gradients of its group's parameters, and of the activations that it keeps for the backward pass.
5. An edge is a value that one node makes and another reads. Arguments and what is made of constants alone every device
   has for itself (liveness.py). A node's transfer moves all of its values that another class reads.

For inference there are N groups, for training N / 2, and fewer where single instructions take longer than a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.core.placement_graph import PlacementGraph
from automap_models.errors import BadInput
from automap_models.hlo.attribution import homes
from automap_models.hlo.liveness import Liveness

MOVE = 0.25
"""Share of a group by which a cut may move to where fewer bytes cross."""


@dataclass(frozen=True, eq=False)
class _Reads:
    """r times that an instruction reads an activation which another one made, in execution order of the readers."""

    values: IntArray
    producers: IntArray
    readers: IntArray


@dataclass(frozen=True, eq=False)
class _Contracted:
    """[n] the group and the node of each instruction; nodes are numbered in topological order."""

    groups: IntArray
    nodes: IntArray


def placement_from_graph(
    graph: InstructionGraph,
    accelerator_times_s: ArrayLike,
    cpu_times_s: ArrayLike,
    *,
    nodes: int,
    link_bytes_per_s: float,
    accelerators: int,
    cpus: int,
    accelerator_bytes: float,
    meta: Mapping[str, object] | None = None,
) -> PlacementGraph:
    """The placement graph of a training step or of inference; see the module for the rule.

    Args:
        graph: n instructions.
        accelerator_times_s, cpu_times_s: [n] seconds of every instruction on either.
        nodes: how many nodes to make at most (N).
        link_bytes_per_s: bandwidth between an accelerator and the CPUs' memory.
        accelerators, cpus, accelerator_bytes: the devices.
        meta: what else is known of the graph.

    Raises:
        BadInput: fewer than two nodes, a bandwidth that is none, or times that do not fit the graph.
    """
    accelerator_s, cpu_s = (np.asarray(times, dtype=np.float64) for times in (accelerator_times_s, cpu_times_s))
    _require(graph, accelerator_s, cpu_s, nodes, link_bytes_per_s)
    liveness = Liveness(graph)
    reads = _reads(liveness)
    found = _contract(liveness, reads, accelerator_s, nodes)
    total = int(found.nodes.max()) + 1
    first = np.unique(found.nodes, return_index=True)[1]
    output_bytes = _output_bytes(graph, reads, found, total)
    return PlacementGraph(
        ids=tuple(range(total)),
        names=_names(graph, found, accelerator_s),
        accelerator_s=np.bincount(found.nodes, accelerator_s, total).astype(np.float64),
        cpu_s=np.bincount(found.nodes, cpu_s, total).astype(np.float64),
        memory_bytes=_memory_bytes(liveness, found, total),
        transfer_s=output_bytes / link_bytes_per_s,
        output_bytes=output_bytes,
        supported=np.ones(total, dtype=np.bool_),
        backward=graph.phases[first] != Phase.FORWARD,
        classes=found.groups[first],
        edges=_edges(reads, found),
        accelerators=accelerators,
        cpus=cpus,
        accelerator_bytes=accelerator_bytes,
        meta={"model": graph.model, "instructions": len(graph)} | dict(graph.meta) | dict(meta or {}),
    )


def _require(graph: InstructionGraph, accelerator_s: FloatArray, cpu_s: FloatArray, nodes: int, link: float) -> None:
    for times in (accelerator_s, cpu_s):
        if times.shape != (len(graph),):
            raise BadInput(
                f"{times.shape} times for {len(graph)} instructions", where=graph.model, do="give one for each"
            )
    if nodes < 2:
        raise BadInput(f"{nodes} node(s)", where="--nodes", do="give at least 2")
    if not 0 < link < np.inf:
        raise BadInput(f"{link} bytes/s", where="--link", do="give a positive bandwidth")
    if not (graph.phases == Phase.FORWARD).any():
        raise BadInput("has no forward instruction", where=graph.model, do="give a model")


def _reads(liveness: Liveness) -> _Reads:
    graph = liveness.graph
    values = liveness.storage[graph.operands]
    counts = liveness.is_activation[values] & (graph.producers[values] >= 0)
    return _Reads(values[counts], graph.producers[values[counts]], graph.consumers[counts])


def _contract(liveness: Liveness, reads: _Reads, times_s: FloatArray, most: int) -> _Contracted:
    """As many groups as give at most that many nodes: half as many for training, fewer where there are late updates."""
    phases = liveness.graph.phases.astype(np.int64)
    home = np.maximum(homes(liveness), 0)  # what belongs nowhere goes with the first
    wanted = most if (phases == Phase.FORWARD).all() else most // 2
    while True:
        groups = _lowered(phases, reads, _forward_groups(liveness, home, times_s, wanted)[home])
        found = _nodes(phases, groups, _levels(phases, reads, groups))
        made = int(found.nodes.max()) + 1
        if made <= most or wanted == 1:
            return found
        wanted = max(1, min(wanted - 1, wanted * most // made))


def _forward_groups(liveness: Liveness, home: IntArray, times_s: FloatArray, wanted: int) -> IntArray:
    """[m] group of each forward instruction."""
    done = np.cumsum(np.bincount(home, times_s, liveness.forward.size))
    share = done / done[-1] if done[-1] > 0 else np.arange(1, done.size + 1) / done.size
    crossing = liveness.crossing_bytes
    cuts = set()
    for k in range(1, wanted):
        first, end = np.searchsorted(share, [(k - MOVE) / wanted, (k + MOVE) / wanted])
        window = crossing[first : max(first + 1, end)]
        cuts.add(int(first + np.argmin(window)))
    starts = np.array(sorted(cuts - {done.size - 1}), dtype=np.int64)
    return np.searchsorted(starts, np.arange(done.size))


def _lowered(phases: IntArray, reads: _Reads, groups: IntArray) -> IntArray:
    """[n] the groups with each backward instruction in one no later than those of the backward ones that it reads."""
    lowered = groups.tolist()
    both = (phases[reads.producers] == Phase.BACKWARD) & (phases[reads.readers] == Phase.BACKWARD)
    for producer, reader in zip(reads.producers[both].tolist(), reads.readers[both].tolist(), strict=True):
        lowered[reader] = min(lowered[reader], lowered[producer])
    return np.array(lowered)


def _levels(phases: IntArray, reads: _Reads, groups: IntArray) -> IntArray:
    """[n] how often the dataflow after the forward pass has gone up to a later group before each instruction.

    Ordered by level, and inside a level from the last group to the first, no node reads a later one.
    """
    levels = [0] * phases.size
    later = phases[reads.producers] != Phase.FORWARD
    up = groups[reads.producers] < groups[reads.readers]
    producers, readers = reads.producers[later].tolist(), reads.readers[later].tolist()
    for producer, reader, goes_up in zip(producers, readers, up[later].tolist(), strict=True):
        levels[reader] = max(levels[reader], levels[producer] + goes_up)
    return np.array(levels)


def _nodes(phases: IntArray, groups: IntArray, levels: IntArray) -> _Contracted:
    """Number the nodes: the forward ones by group, then level by level the others, from the last group to the first."""
    groups = np.unique(groups, return_inverse=True)[1]
    total = int(groups.max()) + 1
    key = np.where(phases == Phase.FORWARD, groups, total * (levels + 2) - 1 - groups)
    return _Contracted(groups, np.unique(key, return_inverse=True)[1])


def _edges(reads: _Reads, found: _Contracted) -> IntArray:
    ends = np.stack([found.nodes[reads.producers], found.nodes[reads.readers]], axis=1)
    return np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0).astype(np.int64)


def _output_bytes(graph: InstructionGraph, reads: _Reads, found: _Contracted, total: int) -> FloatArray:
    """[total] bytes of the values that each node makes and another class reads, each once."""
    leaves = found.groups[reads.producers] != found.groups[reads.readers]
    sent = np.unique(reads.values[leaves])
    made_by = found.nodes[graph.producers[sent]]
    return np.bincount(made_by, graph.value_bytes[sent], total).astype(np.float64)


def _memory_bytes(liveness: Liveness, found: _Contracted, total: int) -> FloatArray:
    """[total] arguments first read, gradients, activations kept."""
    graph = liveness.graph
    kept = np.bincount(found.nodes[liveness.forward], liveness.kept_bytes, total).astype(np.float64)
    is_argument = graph.operands < len(graph.arguments)
    arguments, at = np.unique(graph.operands[is_argument], return_index=True)  # the first reader of each
    readers = graph.consumers[is_argument][at]
    np.add.at(kept, found.nodes[readers], graph.value_bytes[arguments])
    if (graph.phases == Phase.FORWARD).all():
        return kept
    backward_of_group = np.full(int(found.groups.max()) + 1, -1)
    later = np.flatnonzero(graph.phases != Phase.FORWARD)[::-1]
    backward_of_group[found.groups[later]] = found.nodes[later]
    trained = np.array([graph.arguments[v].kind == "parameter" for v in arguments.tolist()], dtype=np.bool_)
    homes_of_gradients = backward_of_group[found.groups[readers[trained]]]
    has_home = homes_of_gradients >= 0
    np.add.at(kept, homes_of_gradients[has_home], graph.value_bytes[arguments[trained]][has_home])
    return kept


def _names(graph: InstructionGraph, found: _Contracted, times_s: FloatArray) -> tuple[str, ...]:
    """[total] the layer, or else the name, of each node's longest instruction."""
    longest: dict[int, int] = {}
    for i in np.argsort(-times_s, kind="stable").tolist():
        longest.setdefault(int(found.nodes[i]), i)
    return tuple(graph.layers[longest[node]] or graph.names[longest[node]] for node in sorted(longest))
