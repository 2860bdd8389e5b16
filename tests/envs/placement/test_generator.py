"""Random steps, and what the learned placer sees of them."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.dag import find_cycle
from automap_models.core.placement import PlacementProblem
from automap_models.cost.step_tables import StepTables
from automap_models.envs.placement.features import DEVICES, GROUPS, HINTS, placer_inputs, unknown_opcodes
from automap_models.envs.placement.generator import random_problem


@pytest.mark.parametrize("seed", range(8))
def test_a_random_step_is_acyclic_and_its_backward_pass_mirrors_the_forward_one(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed))
    graph = problem.graph
    assert find_cycle(graph.successors()) is None
    works = (graph.accelerator_s > 0) & (np.array(graph.opcodes) == "dot_general")
    assert works[graph.backward].sum() == works[~graph.backward].sum()
    ends = {tuple(edge) for edge in graph.edges.tolist()}
    n = int(works[~graph.backward].sum())
    inner = [(a, b) for a, b in ends if a < n and b < n]
    assert all((2 * n - 1 - b, 2 * n - 1 - a) in ends for a, b in inner)


def test_the_same_seed_draws_the_same_step() -> None:
    drawn = [random_problem(np.random.default_rng(5)) for _ in range(2)]
    assert drawn[0].graph.fingerprint == drawn[1].graph.fingerprint
    assert drawn[0].step_devices.slowdown.tolist() == drawn[1].step_devices.slowdown.tolist()


def _inputs(problem: PlacementProblem) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    n = len(problem.graph)
    groups = np.arange(n) * min(n, GROUPS) // n
    hints = np.zeros((HINTS, n), dtype=np.int64)
    hints[1] = problem.devices - 1
    return vars(placer_inputs(problem, StepTables.of(problem), groups, hints, np.ones(HINTS)))


def test_what_is_not_there_is_masked_and_hints_are_shares() -> None:
    problem = random_problem(np.random.default_rng(3))
    inputs = _inputs(problem)
    there = inputs["group_mask"] > 0
    assert inputs["device_mask"].sum() == problem.devices <= DEVICES
    assert np.allclose(inputs["hints"][there].sum(axis=1), 1.0, atol=1e-5)
    assert (inputs["hints"][~there] == 0).all()
    assert np.isfinite(inputs["groups"]).all()


def test_times_have_no_unit() -> None:
    """A step whose every time is a thousand times as long, on links a thousand times as slow, looks the same."""
    from dataclasses import replace

    problem = random_problem(np.random.default_rng(4))
    network = problem.step_devices
    graph = replace(problem.graph, accelerator_s=1e3 * problem.graph.accelerator_s)
    slow = replace(network, bytes_per_s=network.bytes_per_s / 1e3, latency_s=network.latency_s * 1e3)
    for one, other in zip(
        _inputs(problem).values(), _inputs(PlacementProblem.of_step(graph, slow)).values(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-4)


def test_unknown_types_of_operations_are_told() -> None:
    assert unknown_opcodes(("dot_general", "warp_drive", "add", "parameter")) == ["warp_drive"]
