"""From an instruction graph to a graph whose every operation can be placed: what the objective `step` is about.

- A node is an instruction, or a parameter or state of the optimiser. An instruction takes its kernel's time on each
  kind of device; one that is fused into others, or a parameter, takes none.
- Views and what is made of constants alone (masks, positions) are no nodes: every device makes its own. Inputs of the
  step are on every device.
- A value is moved as a whole. A parameter is moved to the devices that read it, as TensorFlow's variables are.
- A class is a parameter with its state and the update instructions of both: a device holds what it updates.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.core.placement import PlacementGraph
from automap_models.hlo.liveness import NEVER, VIEWS, Liveness


def step_graph(
    graph: InstructionGraph,
    accelerator_s: FloatArray,
    cpu_s: FloatArray,
    kind_s: Mapping[str, FloatArray],
    *,
    link_bytes_per_s: float,
    accelerators: int,
    accelerator_bytes: float,
    meta: Mapping[str, object] | None = None,
) -> PlacementGraph:
    """The placement graph with a node for every instruction and parameter; see the module.

    Args:
        graph: n instructions.
        accelerator_s, cpu_s: [n] seconds of each on an accelerator and on a CPU.
        kind_s: kind of device → [n] seconds on it.
        link_bytes_per_s: between two devices where nobody says otherwise.
        accelerators, accelerator_bytes: the devices where nobody says otherwise.
        meta: what else is known of the graph.
    """
    liveness, arguments = Liveness(graph), len(graph.arguments)
    edges, used = _edges(liveness), _used(liveness)
    ids = np.flatnonzero(used)
    node = np.cumsum(used) - 1
    instruction = ids[ids >= arguments] - arguments
    sizes = np.zeros(arguments + len(graph))
    sizes[:arguments] = graph.value_bytes[:arguments]
    alive = liveness.is_activation & (graph.producers >= 0)
    np.add.at(sizes, arguments + graph.producers[alive], graph.value_bytes[alive])
    read = np.zeros(sizes.size, dtype=bool)
    read[edges[:, 0]] = True
    output = np.where(read, sizes, 0.0)[used]

    def padded(times_s: FloatArray) -> FloatArray:
        return np.concatenate([np.zeros(arguments), times_s])[used]

    own_s = padded(accelerator_s)
    layer_of_argument = _layers_of_arguments(graph)
    names = (*layer_of_argument, *graph.layers)
    opcodes = (*("parameter",) * arguments, *graph.opcodes)
    return PlacementGraph(
        ids=tuple(range(ids.size)),
        names=tuple(names[i] for i in ids.tolist()),
        accelerator_s=own_s,
        cpu_s=padded(cpu_s),
        memory_bytes=np.where(ids < arguments, sizes[used], 0.0) + _constants_read(graph, liveness, arguments)[used],
        transfer_s=output / link_bytes_per_s,
        output_bytes=output,
        supported=np.ones(ids.size, dtype=bool),
        backward=np.concatenate([np.zeros(ids.size - instruction.size, bool), graph.phases[instruction] != 0]),
        classes=_classes(graph, liveness, arguments)[used],
        edges=np.unique(node[edges], axis=0),
        accelerators=accelerators,
        cpus=0,
        accelerator_bytes=accelerator_bytes,
        meta={"model": graph.model, "instructions": len(graph)} | dict(graph.meta) | dict(meta or {}),
        live_bytes=np.where((own_s > 0) & (ids >= arguments), output, 0.0),
        kind_s={kind: padded(times) for kind, times in kind_s.items()},
        opcodes=tuple(opcodes[i] for i in ids.tolist()),
    )


def _constants_read(graph: InstructionGraph, liveness: Liveness, arguments: int) -> FloatArray:
    """[held + n] bytes of the constants, such as weights, that each instruction is the first to compute with."""
    storage = liveness.storage[graph.operands]
    computes = ~np.array([opcode in VIEWS for opcode in graph.opcodes], dtype=bool)[graph.consumers]
    reads = np.flatnonzero(np.isin(storage, liveness.constants) & computes)
    constants, first = np.unique(storage[reads], return_index=True)
    readers = arguments + graph.consumers[reads][first]
    return np.bincount(readers, graph.value_bytes[constants], arguments + len(graph)).astype(np.float64)


def step_nodes(graph: InstructionGraph) -> IntArray:
    """[nodes] what each node of the `step_graph` is: an argument; or an instruction, numbered after all arguments."""
    return np.flatnonzero(_used(Liveness(graph)))


def _stored(graph: InstructionGraph) -> NDArray[np.bool_]:
    """[held] which arguments are parameters or state."""
    return np.array([argument.kind != "input" for argument in graph.arguments], dtype=bool)


def _used(liveness: Liveness) -> NDArray[np.bool_]:
    """[held + n] which arguments and instructions are nodes."""
    used = np.concatenate([_stored(liveness.graph), np.zeros(len(liveness.graph), dtype=bool)])
    used[_edges(liveness).ravel()] = True
    return used


def _edges(liveness: Liveness) -> IntArray:
    """[e, 2] node → node before the numbers are closed up: arguments first, then instructions."""
    graph, stored, arguments = liveness.graph, _stored(liveness.graph), len(liveness.graph.arguments)
    shows = np.array([opcode in VIEWS for opcode in graph.opcodes], dtype=bool)
    read = liveness.storage[graph.operands]
    reader = graph.consumers
    argument = liveness.argument[read]
    is_stored = (argument != NEVER) & np.where(argument >= 0, stored[np.maximum(argument, 0)], False)
    computed = liveness.is_activation[read] & (graph.producers[read] >= 0)
    source = np.where(is_stored, argument, arguments + graph.producers[read])
    chosen = (is_stored | computed) & ~shows[reader]
    pairs = np.stack([source[chosen], arguments + reader[chosen]], axis=1)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def _layers_of_arguments(graph: InstructionGraph) -> list[str]:
    """Layer of the first instruction that reads each argument and has one."""
    layers = [""] * len(graph.arguments)
    for value, reader in zip(graph.operands.tolist(), graph.consumers.tolist(), strict=True):
        if value < len(layers) and not layers[value]:
            layers[value] = graph.layers[reader]
    return layers


def _classes(graph: InstructionGraph, liveness: Liveness, arguments: int) -> IntArray:
    """[held + n] class of each argument and instruction: updates with what they read and write of their parameter.

    Update instructions that share no more than a scalar of 8 bytes (a step counter) need not share a device.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    update = graph.phases == Phase.UPDATE
    value, reader = liveness.storage[graph.operands], graph.consumers  # a broadcast scalar is a scalar
    producer = graph.producers[value]
    is_state = (producer < 0) & _stored(graph)[np.where(producer < 0, value, 0)]
    from_update = liveness.is_activation[value] & (producer >= 0) & update[np.maximum(producer, 0)]
    joined = update[reader] & (graph.value_bytes[value] > 8) & (is_state | from_update)
    a, b = np.where(producer >= 0, arguments + producer, value)[joined], arguments + reader[joined]
    n = arguments + len(graph)
    _, label = connected_components(coo_array((np.ones(a.size), (a, b)), shape=(n, n)), directed=False)
    return np.asarray(label, dtype=np.int64)
