"""What the learned placer sees of a placement: shares, masks, no units, and what a move would change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.placement import IntArray, PlacementProblem
from automap_models.cost.makespan import simulate_step
from automap_models.cost.step_tables import StepTables
from automap_models.envs.placement.features import SEGMENT, PlacerInputs, PlacerView, unknown_opcodes
from automap_models.envs.placement.generator import random_problem


def _placed(problem: PlacementProblem) -> tuple[IntArray, IntArray]:
    """A placement along the graph's order, and as pieces its runs of seven operations, cut at the devices."""
    n = len(problem.graph)
    position = np.empty(n, dtype=np.int64)
    position[StepTables.from_problem(problem).order] = np.arange(n)
    device = position * problem.devices // n
    return device, np.unique(position // 7 * problem.devices + device, return_inverse=True)[1]


def _inputs(problem: PlacementProblem) -> PlacerInputs:
    device, piece = _placed(problem)
    may = np.ones((int(piece.max()) + 1, problem.devices), dtype=bool)
    return PlacerView(problem, StepTables.from_problem(problem)).inputs(device, piece, may)


def test_pieces_are_padded_to_whole_segments_and_stay_on_no_device_twice() -> None:
    problem = random_problem(np.random.default_rng(3))
    inputs = _inputs(problem)
    device, piece = _placed(problem)
    there = inputs.piece_mask > 0
    assert len(inputs.piece_mask) % SEGMENT == 0
    assert there.sum() == piece.max() + 1
    assert (inputs.home[there].sum(axis=1) == 1).all()
    assert (inputs.home[piece].argmax(axis=1) == device).all()
    assert (inputs.move_mask[there] == 1 - inputs.home[there]).all()
    assert (inputs.move_mask[~there] == 0).all()
    assert all(np.isfinite(array).all() for array in vars(inputs).values())


def test_neighbours_are_pieces_with_an_edge_between_them() -> None:
    problem = random_problem(np.random.default_rng(5))
    inputs, (_, piece) = _inputs(problem), _placed(problem)
    edges = {(int(piece[a]), int(piece[b])) for a, b in problem.graph.edges.tolist()}
    for p in range(int(piece.max()) + 1):
        read = inputs.inputs[p][inputs.input_mask[p] > 0].tolist()
        assert all((q, p) in edges for q in read)
        assert len(set(read)) == min(len({q for q, other in edges if other == p and q != p}), inputs.inputs.shape[1])


def test_times_have_no_unit() -> None:
    """A step whose every time is a thousand times as long, on links a thousand times as slow, looks the same."""
    problem = random_problem(np.random.default_rng(4))
    network = problem.step_devices
    graph = replace(problem.graph, accelerator_s=1e3 * problem.graph.accelerator_s)
    slow = replace(network, bytes_per_s=network.bytes_per_s / 1e3, latency_s=network.latency_s * 1e3)
    one, other = vars(_inputs(problem)), vars(_inputs(PlacementProblem.of_step(graph, slow)))
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=2e-3, atol=1e-3)


def test_equal_devices_may_change_their_numbers() -> None:
    """With the numbers of two devices exchanged, every array is the same with these exchanged."""
    problem = random_problem(np.random.default_rng(8))
    network = replace(problem.step_devices, slowdown=np.ones(problem.devices))
    problem = PlacementProblem.of_step(problem.graph, network)
    device, piece = _placed(problem)
    other = np.arange(problem.devices)
    other[[0, 1]] = 1, 0
    view, may = (
        PlacerView(problem, StepTables.from_problem(problem)),
        np.ones((int(piece.max()) + 1, problem.devices), bool),
    )
    one, two = view.inputs(device, piece, may), view.inputs(other[device], piece, may)
    if simulate_step(view.tables, device).makespan_s != simulate_step(view.tables, other[device]).makespan_s:
        pytest.skip("ties were broken by the device's number")
    np.testing.assert_allclose(one.pairs, two.pairs[:, other], atol=1e-6)
    np.testing.assert_allclose(one.devices, two.devices[other], atol=1e-6)
    np.testing.assert_allclose(one.pieces, two.pieces, atol=1e-6)


def test_unknown_types_of_operations_are_told() -> None:
    assert unknown_opcodes(("dot_general", "warp_drive", "add", "parameter")) == ["warp_drive"]
