"""Examples for the placer: placements met on the way from a baseline, and what their moves are worth.

    problem ── a baseline ── annealing, now and then stopped ── moves drawn at one level ── simulated: gains

A gain is what a move takes off the step, as a share of it. Every draw follows from the seeds, so that an example can be
made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from automap_models.core.placement import FloatArray, IntArray, PlacementGraph, PlacementProblem
from automap_models.core.step_devices import StepDevices
from automap_models.envs.placement.features import PlacerInputs
from automap_models.envs.placement.generator import DEVICES
from automap_models.planners.base import NEVER
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_moves import MoveSpace, Pieces, drawn_moves
from automap_models.planners.placement.step_search import Neighbourhood, accepted, score_of, starts


@dataclass(frozen=True, eq=False)
class MoveExample:
    """One placement with the worth of some of its moves.

    Attributes:
        moves: [m, 2] pieces and devices.
        gains: [m] what each takes off the step, as a share of it.
    """

    inputs: PlacerInputs
    moves: IntArray
    gains: FloatArray

    def write(self, path: Path) -> None:
        """Write it as npz."""
        with path.open("wb") as file:
            np.savez_compressed(file, moves=self.moves, gains=self.gains, **vars(self.inputs))

    @classmethod
    def read(cls, path: Path) -> MoveExample:
        """What `write` wrote."""
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        moves, gains = arrays.pop("moves"), arrays.pop("gains")
        return cls(PlacerInputs(**arrays), moves, gains)


def traced_graph(name: str, sequence: int | None = None) -> PlacementGraph:
    """The step of a built-in model, timed by the roofline of a V100; this takes jax, and for some models minutes.

    Args:
        sequence: tokens of a sample; None: as many as are usual for it.
    """
    from automap_models.formats.hardware_yaml import DEFAULT_DEVICE, read_device
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.clock import clock_times
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.step_graph import step_graph
    from automap_models.workloads.registry import build

    graph = instruction_graph(trace(build(name, sequence=sequence)))
    accelerator, host = (clock_times(graph, read_device(kind)) for kind in (DEFAULT_DEVICE, "cpu"))
    return step_graph(graph, accelerator, host, {}, link_bytes_per_s=12e9, accelerators=4, accelerator_bytes=32e9)


def varied(graph: PlacementGraph, random: np.random.Generator) -> PlacementProblem:
    """A graph on random devices: two to eight, links 3 times slower to 3 times faster, a third of the time unequal."""
    devices = int(random.choice(DEVICES))
    slowdown = np.ones(devices)
    if random.random() < 1 / 3:
        slowdown = 2.0 ** random.uniform(-1, 1, devices)
    rate = graph.link_bytes_per_s * 10 ** random.uniform(-0.5, 0.5)
    network = StepDevices.equal(devices, 0, graph.accelerator_bytes, rate, 5e-6 * random.random())
    return PlacementProblem.of_step(graph, replace(network, slowdown=slowdown))


def examples(
    problem: PlacementProblem, seed: int, moves: int, walks: tuple[int, ...] = (0, 30, 100, 300, 1000)
) -> Iterator[MoveExample]:
    """Examples of one problem, one at a random level for each of `walks`.

    Args:
        walks: moves of annealing after which a placement is an example.
    """
    random = np.random.default_rng([seed, 1])
    units = StepUnits.from_problem(problem)
    space, neighbours = MoveSpace(units, seed), Neighbourhood(units, seed)
    candidates = [device for name, device in starts(units, seed, NEVER) if name != "single"]
    device = candidates[int(random.integers(len(candidates)))]
    if random.random() < 0.5:
        device = min(candidates, key=lambda one: score_of(units, one))
    score, position = score_of(units, device), 0
    for until in walks:
        while position < until:
            position += 1
            changed = neighbours.move(device, random)
            if changed is None:
                continue
            drawn = score_of(units, changed)
            if accepted(drawn, score, 3e-4 * score.value_s, random):  # a temperature, as a share of the step
                device, score = changed, drawn
        pieces = space.pieces(device, int(random.integers(len(space.levels))), random)
        inputs = space.inputs(device, pieces)
        chosen = _chosen(inputs, moves, random)
        if chosen.size:
            yield MoveExample(inputs, chosen, gains(units, device, pieces, chosen))


def _chosen(inputs: PlacerInputs, moves: int, random: np.random.Generator) -> IntArray:
    """[≤ moves, 2]: a third drawn all alike, a third where the piece has neighbours."""
    near = inputs.pairs[:, :, 1] + inputs.pairs[:, :, 2]
    drawn = [
        drawn_moves(np.zeros(near.shape), inputs, moves // 3, 1.0, random),
        drawn_moves(np.where(near > 0, 0.0, -5.0), inputs, moves // 3, 0.0, random),
    ]
    return np.unique(np.concatenate(drawn), axis=0)


def gains(units: StepUnits, device: IntArray, pieces: Pieces, moves: IntArray) -> FloatArray:
    """[m] what each move takes off the step, as a share of it; -1 for one that passes the memory further."""
    score = score_of(units, device)
    different, inverse = np.unique(moves, axis=0, return_inverse=True)
    worth = np.empty(len(different))
    for i, (piece, target) in enumerate(different.tolist()):
        changed = device.copy()
        changed[pieces.members(piece)] = target
        drawn = score_of(units, changed)
        worth[i] = 1.0 - drawn.value_s / max(score.value_s, 1e-15)
        if drawn.excess_bytes > score.excess_bytes:
            worth[i] = -1.0
    return worth[inverse.ravel()]


def stacked(arrays: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Arrays with a batch dimension, padded to the largest."""
    shape = np.max([array.shape for array in arrays], axis=0)
    out = np.zeros((len(arrays), *shape), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[tuple(slice(0, size) for size in array.shape)] = array
    return out
