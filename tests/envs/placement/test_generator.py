"""Random steps of the shapes that training steps have."""

from __future__ import annotations

import numpy as np
import pytest

from automap_models.core.dag import find_cycle
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
