"""A step whose every operation can be placed: sums, classes and edges of a small model's real step."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

from automap_models.core.dag import find_cycle
from automap_models.core.instruction_graph import InstructionGraph
from automap_models.core.placement import PlacementGraph, PlacementPlan, PlacementProblem
from automap_models.cost.placement import placement_cost
from automap_models.formats.hardware_yaml import read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.clock import clock_times
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.step_graph import step_graph
from automap_models.workloads.recurrent import RecurrentConfig
from automap_models.workloads.training import training_step


@pytest.fixture(scope="module")
def instructions() -> InstructionGraph:
    step = training_step("small", RecurrentConfig(2, hidden=8, vocabulary=16), (3, 4), "float32")
    return instruction_graph(trace(step))


@pytest.fixture(scope="module")
def graph(instructions: InstructionGraph) -> PlacementGraph:
    times = clock_times(instructions, read_device("v100"))
    return step_graph(instructions, times, 3 * times, {}, link_bytes_per_s=1e9, accelerators=2, accelerator_bytes=1e9)


def test_on_one_device_the_step_takes_the_time_of_its_kernels(
    graph: PlacementGraph, instructions: InstructionGraph
) -> None:
    """But for what is made of constants alone, which is no node."""
    problem = PlacementProblem.create(graph, objective="step", accelerators=1)
    cost = placement_cost(problem, PlacementPlan("one", np.zeros(len(graph), dtype=np.int64)))
    whole = float(clock_times(instructions, read_device("v100")).sum())
    assert cost.value_s == pytest.approx(graph.accelerator_s.sum())
    assert 0.9 * whole <= cost.value_s <= whole * (1 + 1e-9)
    assert find_cycle(graph.successors()) is None


def test_parameters_and_the_optimisers_state_are_held_once(graph: PlacementGraph) -> None:
    """Adam keeps two arrays a parameter and a counter of four bytes."""
    per_layer = 8 * 32 + 32 + 8 * 32
    parameters = 16 * 8 + 2 * per_layer + 8 * 16 + 16
    assert graph.memory_bytes.sum() == 3 * 4 * parameters + 4


def test_a_parameter_shares_a_device_with_its_updates(graph: PlacementGraph) -> None:
    """Three arrays of a kernel of 8 × 32, and the instructions that update them, are one class."""
    own = [
        np.flatnonzero(graph.classes == graph.classes[v])
        for v in np.flatnonzero(graph.memory_bytes == 4 * 8 * 32).tolist()
    ]
    assert all((graph.memory_bytes[members] == 4 * 8 * 32).sum() == 3 for members in own)
    assert all(graph.backward[members].any() for members in own)


def test_cells_of_every_step_can_be_placed_apart(graph: PlacementGraph) -> None:
    """Four steps of two LSTMs, forward: each product is a node with a class of its own."""
    products = [
        v
        for v, code in enumerate(graph.opcodes)
        if "dot" in code and "lstm" in graph.names[v] and not graph.backward[v]
    ]
    assert len(products) == 4 * 2 * 2
    assert len({int(graph.classes[v]) for v in products}) == len(products)
