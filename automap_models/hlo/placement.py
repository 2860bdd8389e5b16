"""From an instruction graph to a placement graph of at most N nodes: groups of instructions to be placed on devices.

1. The forward instructions, in execution order, are cut into groups of about equal time, where each counts with the
   backward and update instructions at home with it (attribution.py). One that only shows a parameter, a transposed
   weight, goes with that which computes with it, and so does the parameter's update. Each cut moves by up to half a
   group to the place with the fewest bytes crossing.
2. A backward instruction that reads what one of an earlier group made belongs to that group, too, if not to one still
   earlier. So the backward pass goes through the groups from the last to the first, as the forward pass goes from the
   first to the last, and no group waits for one that waits for it.
3. A group has a forward part and a backward part, which also holds its updates. An update that reads what an earlier
   group's backward part made (a step counter, a global norm) goes to a further part of its group, for the same reason.
   A part is a node, a group a class: one device runs it forward and backward, and updates it.
4. Times are those of the instructions, added. Memory is that of what is given, arguments and constants, that a node is
   the first to read, of the
   gradients of its group's parameters, and of the activations that it keeps for the backward pass.
5. An edge is a value that one node makes and another reads. A node's transfer moves all of its values that other
   groups read. Where not all are read by the same groups (a residual beside what the next layer reads), each such set
   leaves through a node of its own, which takes no time, so that no more is moved than has to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.core.placement import PlacementGraph
from automap_models.errors import BadInput
from automap_models.hlo.attribution import homes
from automap_models.hlo.liveness import NEVER, Liveness


@dataclass(frozen=True, eq=False)
class Reads:
    """r times that an instruction reads an activation which another one made, in execution order of the readers."""

    values: IntArray
    producers: IntArray
    readers: IntArray

    @classmethod
    def from_liveness(cls, liveness: Liveness) -> Reads:
        """Those of a graph; of arguments and of what is made of constants alone every device has its own."""
        graph = liveness.graph
        values = liveness.storage[graph.operands]
        counts = liveness.is_activation[values] & (graph.producers[values] >= 0)
        return cls(values[counts], graph.producers[values[counts]], graph.consumers[counts])


def _forward_groups(liveness: Liveness, home: IntArray, times_s: FloatArray, groups: int) -> IntArray:
    """[m] group of each forward instruction, of that many groups; of fewer where single ones take longer than a group.

    Args:
        home: [n] the forward instruction, by position, that each one belongs to.
        times_s: [n] seconds of each.
    """
    done = np.cumsum(np.bincount(home, times_s, liveness.forward.size))
    share = done / done[-1] if done[-1] > 0 else np.arange(1, done.size + 1) / done.size
    crossing = liveness.crossing()
    cuts = set()
    for k in range(1, groups):
        first, end = np.searchsorted(share, [(k - 0.5) / groups, (k + 0.5) / groups])
        window = crossing[first : max(first + 1, end)]
        cuts.add(int(first + np.argmin(window)))
    starts = np.array(sorted(cuts - {done.size - 1}), dtype=np.int64)
    return np.searchsorted(starts, np.arange(done.size))


def _lowered(phases: IntArray, reads: Reads, groups: IntArray) -> IntArray:
    """[n] the groups with each backward instruction in one no later than those of the backward ones that it reads."""
    lowered = groups.tolist()
    both = (phases[reads.producers] == Phase.BACKWARD) & (phases[reads.readers] == Phase.BACKWARD)
    for producer, reader in zip(reads.producers[both].tolist(), reads.readers[both].tolist(), strict=True):
        lowered[reader] = min(lowered[reader], lowered[producer])
    return np.array(lowered)


def _levels(phases: IntArray, reads: Reads, groups: IntArray) -> IntArray:
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


def _numbered(phases: IntArray, groups: IntArray, levels: IntArray) -> tuple[IntArray, IntArray]:
    """[n] the group of each instruction and its part of it; both are numbered without gaps, parts topologically.

    The forward parts come by group, then level by level the others, from the last group to the first.
    """
    groups = np.unique(groups, return_inverse=True)[1]
    total = int(groups.max()) + 1
    key = np.where(phases == Phase.FORWARD, groups, total * (levels + 2) - 1 - groups)
    return groups, np.unique(key, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where the m nodes come from.

    Attributes:
        nodes: [n] node of each instruction.
        groups: [n] its group.
        sender: [v] node through which each value leaves its group; NEVER for one that does not.
        maker: [m] node that makes what each node holds or sends: itself, or the one that it sends for.
    """

    nodes: IntArray
    groups: IntArray
    sender: IntArray
    maker: IntArray

    @property
    def total(self) -> int:
        """Number of nodes m."""
        return self.maker.size


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
        BadInput: fewer than two nodes, a bandwidth that is none, or a graph without a forward instruction.
    """
    accelerator_s, cpu_s = (np.asarray(times, dtype=np.float64) for times in (accelerator_times_s, cpu_times_s))
    _require(graph, nodes, link_bytes_per_s)
    liveness = Liveness(graph)
    reads = Reads.from_liveness(liveness)
    layout = _layout(liveness, reads, accelerator_s, nodes)
    first = np.unique(layout.nodes, return_index=True)[1]  # an instruction of each node that has some
    of_maker = np.zeros(layout.total, dtype=np.int64)
    of_maker[layout.nodes[first]] = first
    of_maker = of_maker[layout.maker]
    leaving = np.flatnonzero(layout.sender != NEVER)
    output_bytes = _sums(layout.sender[leaving], graph.value_bytes[leaving], layout.total)
    return PlacementGraph(
        ids=tuple(range(layout.total)),
        names=_names(graph, layout, accelerator_s),
        accelerator_s=_sums(layout.nodes, accelerator_s, layout.total),
        cpu_s=_sums(layout.nodes, cpu_s, layout.total),
        memory_bytes=_memory_bytes(liveness, layout),
        transfer_s=output_bytes / link_bytes_per_s,
        output_bytes=output_bytes,
        supported=np.ones(layout.total, dtype=np.bool_),
        backward=graph.phases[of_maker] != Phase.FORWARD,
        classes=layout.groups[of_maker],
        edges=_edges(reads, layout),
        accelerators=accelerators,
        cpus=cpus,
        accelerator_bytes=accelerator_bytes,
        meta={"model": graph.model, "instructions": len(graph)} | dict(graph.meta) | dict(meta or {}),
    )


def _require(graph: InstructionGraph, nodes: int, link: float) -> None:
    if nodes < 2:
        raise BadInput(f"{nodes} node(s)", where="`nodes`", do="give at least 2")
    if not 0 < link < np.inf:
        raise BadInput(f"{link} bytes/s", where="`link_bytes_per_s`", do="give a positive bandwidth")
    if not (graph.phases == Phase.FORWARD).any():
        raise BadInput("has no forward instruction", where=graph.model, do="give a model")


def _layout(liveness: Liveness, reads: Reads, times_s: FloatArray, most: int) -> _Layout:
    """As many groups as that many nodes allow, by bisection; one group always fits."""
    home = _users(liveness)[np.maximum(homes(liveness), 0)]  # what belongs nowhere goes with the first
    phases = liveness.graph.phases.astype(np.int64)

    def layout(groups: int) -> _Layout:
        grouped = _lowered(phases, reads, _forward_groups(liveness, home, times_s, groups)[home])
        groups_and_parts = _numbered(phases, grouped, _levels(phases, reads, grouped))
        return _with_senders(*groups_and_parts, reads, len(liveness.graph.shapes))

    training = bool((phases != Phase.FORWARD).any())
    fits, too_many = 1, (most // 2 if training else most) + 1
    best = layout(fits)
    while fits + 1 < too_many:
        groups = (fits + too_many) // 2
        candidate = layout(groups)
        if candidate.total <= most:
            fits, best = groups, candidate
        else:
            too_many = groups
    return best


def _users(liveness: Liveness) -> IntArray:
    """[m] each forward instruction itself; in place of one that only shows a parameter, that which computes with it.

    A parameter's update is at home where it is first used, and its gradient where it is computed with: these belong
    together.
    """
    graph, users = liveness.graph, np.arange(liveness.forward.size)
    of_parameters = liveness.users_of(liveness.parameters)
    storage = liveness.storage[graph.result_offsets[liveness.forward]]
    for position, value in enumerate(storage.tolist()):
        first, *_ = of_parameters.get(value, (position,))
        users[position] = max(position, first)
    return users


def _with_senders(groups: IntArray, parts: IntArray, reads: Reads, values: int) -> _Layout:
    """Parts as nodes, each followed by the nodes through which its values leave it if these are more than one set."""
    bundles: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for value, (part, elsewhere) in _readers_elsewhere(groups, parts, reads).items():
        bundles.setdefault(part, {}).setdefault(elsewhere, []).append(value)
    sender = np.full(values, NEVER)
    maker: list[int] = []
    node_of_part = []
    for part in range(int(parts.max()) + 1):
        node = len(maker)
        node_of_part.append(node)
        sets = list(bundles.get(part, {}).values())
        apart = len(sets) > 1
        maker += [node] * (1 + apart * len(sets))
        for number, sent in enumerate(sets, start=1):
            sender[sent] = node + number * apart
    return _Layout(np.array(node_of_part)[parts], groups, sender, np.array(maker))


def _readers_elsewhere(groups: IntArray, parts: IntArray, reads: Reads) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Value → the part that makes it and the other groups that read it, for values that other groups read."""
    leaves = groups[reads.producers] != groups[reads.readers]
    values, producers = reads.values[leaves], reads.producers[leaves]
    elsewhere = groups[reads.readers[leaves]]
    part = dict(zip(values.tolist(), parts[producers].tolist(), strict=True))
    readers: dict[int, list[int]] = {}
    for value, group in np.unique(np.stack([values, elsewhere], axis=1), axis=0).tolist():
        readers.setdefault(value, []).append(group)
    return {value: (part[value], tuple(members)) for value, members in readers.items()}


def _edges(reads: Reads, layout: _Layout) -> IntArray:
    """Maker → reader inside a group, maker → sender → reader between groups."""
    leaves = layout.groups[reads.producers] != layout.groups[reads.readers]
    makers, read = layout.nodes[reads.producers], layout.nodes[reads.readers]
    sent = np.where(leaves, layout.sender[reads.values], makers)
    ends = np.concatenate([np.stack([makers, sent], axis=1), np.stack([sent, read], axis=1)])
    return np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0).astype(np.int64)


def _memory_bytes(liveness: Liveness, layout: _Layout) -> FloatArray:
    """[m] arguments and constants first read, gradients, activations kept."""
    graph = liveness.graph
    given = (graph.operands < len(graph.arguments)) | np.isin(graph.operands, liveness.constants)
    arguments, first_reader = np.unique(graph.operands[given], return_index=True)  # the first reader of each
    readers = graph.consumers[given][first_reader]
    sizes = graph.value_bytes[arguments]
    memory = _sums(layout.nodes[liveness.forward], liveness.keeping(), layout.total)
    memory += _sums(layout.nodes[readers], sizes, layout.total)
    later = np.flatnonzero(graph.phases != Phase.FORWARD)[::-1]
    backward_of_group = np.full(int(layout.groups.max()) + 1, NEVER)
    backward_of_group[layout.groups[later]] = layout.nodes[later]
    gradient_in = backward_of_group[layout.groups[readers]]
    trained = np.isin(arguments, liveness.parameters) & (gradient_in != NEVER)
    return memory + _sums(gradient_in[trained], sizes[trained], layout.total)


def _names(graph: InstructionGraph, layout: _Layout, times_s: FloatArray) -> tuple[str, ...]:
    """[m] the layer, or else the name, of each maker's longest instruction."""
    longest: dict[int, int] = {}
    for i in np.argsort(-times_s, kind="stable").tolist():
        longest.setdefault(int(layout.nodes[i]), i)
    labels = {node: graph.layers[i] or graph.names[i] for node, i in longest.items()}
    return tuple(
        labels[maker] if maker == node else f"{labels[maker]}, output"
        for node, maker in enumerate(layout.maker.tolist())
    )


def _sums(keys: IntArray, values: FloatArray, total: int) -> FloatArray:
    return np.bincount(keys, values, total).astype(np.float64)
