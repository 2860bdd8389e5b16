"""Random graphs of the shapes that training steps have, to train the placer on.

    grid      layers × steps of cells, as a recurrent network unrolled       cell(l, t) ← cell(l-1, t), cell(l, t-1)
    branches  blocks of parallel chains, joined at their ends (Inception)
    chain     blocks with a residual sum each (transformers, ResNet)
    skips     a chain each of whose layers also feeds one sum at the end (WaveNet)

Every forward operation has a backward one that reads it and goes the other way, and a parameter now and then, with an
update after its backward operation. Times, bytes and devices are drawn at random over the ranges of real steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.core.step_devices import StepDevices

Edges = list[tuple[int, int]]
Shape = tuple[int, Edges, list[str]]
"""Forward operations, their edges, and the name of each operation's layer."""
DEVICES = (2, 3, 4, 6, 8)


def random_problem(random: np.random.Generator) -> PlacementProblem:
    """A random step on two to eight devices with as much memory as is needed, a third of the time unequal ones."""
    names = sorted(SHAPES)
    name = names[random.integers(len(names))]
    graph = _with_backward(SHAPES[name](random), random, name)
    devices = int(random.choice(DEVICES))
    slowdown = np.ones(devices)
    if random.random() < 1 / 3:
        slowdown = 2.0 ** random.uniform(-1, 1, devices)
    mean_s = float(graph.accelerator_s[graph.accelerator_s > 0].mean())
    mean_bytes = float(graph.output_bytes[graph.output_bytes > 0].mean())
    ratio = float(10 ** random.uniform(-1.5, 1.0))  # of a mean transfer over a mean operation
    network = StepDevices.equal(devices, 0, 1e15, mean_bytes / (ratio * mean_s), 0.05 * mean_s * random.random())
    return PlacementProblem.of_step(graph, replace(network, slowdown=slowdown))


def _grid(random: np.random.Generator) -> Shape:
    layers, steps = int(random.integers(2, 9)), int(random.integers(4, 16))
    edges = [(cell, cell + steps) for cell in range((layers - 1) * steps)]
    edges += [(cell, cell + 1) for cell in range(layers * steps - 1) if (cell + 1) % steps]
    return layers * steps, edges, [f"layer_{cell // steps}" for cell in range(layers * steps)]


def _branches(random: np.random.Generator) -> Shape:
    count, edges, names, last = 1, [], ["block_0"], 0
    for block in range(int(random.integers(3, 12))):
        ends = []
        for _ in range(int(random.integers(2, 7))):
            node = last
            for _ in range(int(random.integers(1, 5))):
                edges.append((node, count))
                node, count = count, count + 1
                names.append(f"block_{block}")
            ends.append(node)
        edges += [(end, count) for end in ends]
        names.append(f"block_{block}")
        last, count = count, count + 1
    return count, edges, names


def _chain(random: np.random.Generator) -> Shape:
    count, edges, names = 1, [], ["block_0"]
    for block in range(int(random.integers(4, 20))):
        first, length = count - 1, int(random.integers(2, 7))
        edges += [(first + i, first + i + 1) for i in range(length)]
        count += length
        edges.append((first, count - 1))
        names += [f"block_{block}"] * length
    return count, sorted(set(edges)), names


def _skips(random: np.random.Generator) -> Shape:
    layers = int(random.integers(8, 40))
    edges = []
    for layer in range(layers):
        start = 3 * layer  # convolution, gate, skip; the next layer reads the gate
        edges += [(start, start + 1), (start + 1, start + 2), (start + 2, 3 * layers)]
        if layer + 1 < layers:
            edges.append((start + 1, start + 3))
    return 3 * layers + 1, edges, [*(f"layer_{i // 3}" for i in range(3 * layers)), "sum"]


SHAPES: dict[str, Callable[[np.random.Generator], Shape]] = {
    "grid": _grid,
    "branches": _branches,
    "chain": _chain,
    "skips": _skips,
}
"""Name → what draws forward passes of that shape."""


def _with_backward(shape: Shape, random: np.random.Generator, name: str) -> PlacementGraph:
    """The training step of a forward pass: its mirror image, parameters and updates."""
    n, edges, names = shape
    mirrored = [(2 * n - 1 - b, 2 * n - 1 - a) for a, b in edges]
    saved = [(v, 2 * n - 1 - v) for v in range(n)]
    owners = np.flatnonzero(random.random(n) < 0.5).tolist()
    parameters = {v: 2 * n + 2 * i for i, v in enumerate(owners)}
    gradients = [pair for v, p in parameters.items() for pair in ((p, v), (2 * n - 1 - v, p + 1), (p, p + 1))]
    total = 2 * n + 2 * len(owners)
    spread = random.uniform(0.2, 1.2)
    by_layer = {layer: random.lognormal(0, 0.5) for layer in dict.fromkeys(names)}
    forward_s = np.array([by_layer[layer] for layer in names]) * random.lognormal(0, spread, n) * 1e-4
    sizes = random.lognormal(0, 0.7, n) * 1e6
    time_s, output = np.zeros(total), np.zeros(total)
    time_s[:n], time_s[n : 2 * n] = forward_s, forward_s[::-1] * random.uniform(1.5, 2.2)
    output[:n], output[n : 2 * n] = sizes, sizes[::-1]
    memory, classes = np.zeros(total), np.arange(total)
    for p in parameters.values():
        output[p] = memory[p] = float(random.lognormal(0, 1.0) * 1e6)
        time_s[p + 1] = 1e-6
        classes[p + 1] = p
    update_names = [names[v] for v in owners for _ in range(2)]
    return PlacementGraph(
        ids=tuple(range(total)),
        names=(*names, *names[::-1], *update_names),
        accelerator_s=time_s,
        cpu_s=10 * time_s,
        memory_bytes=memory,
        transfer_s=output / 1e10,
        output_bytes=output,
        supported=np.ones(total, dtype=bool),
        backward=np.arange(total) >= n,
        classes=classes,
        edges=np.array(sorted({*edges, *mirrored, *saved, *gradients}), dtype=np.int64),
        accelerators=4,
        cpus=0,
        accelerator_bytes=1e15,
        meta={"model": f"random {name}"},
        live_bytes=np.where(memory > 0, 0.0, output),
        opcodes=("dot_general",) * (2 * n) + ("parameter", "add") * len(owners),
    )
