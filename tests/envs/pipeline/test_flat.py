"""The paper's flattened state: all numbers within [0, 1], and bandwidths between devices as the cluster has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline import flat
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Problems, States

POINTS, MAX_STAGES, MAX_DEVICES = 16, 4, 18


def test_a_state_is_as_wide_as_said_and_within_its_range(
    random_problems: Callable[..., list[StagedProblem]],
) -> None:
    problems = Problems.from_encoded(encode(random_problems(2, 12, POINTS, stages=(2, 4))))
    choices = flat.describe(problems, States.empty(12, MAX_STAGES), MAX_DEVICES)
    (state,) = choices.inputs
    assert state.shape == (12, flat.width(POINTS, MAX_STAGES, MAX_DEVICES))
    assert ((state >= 0) & (state <= 1 + 1e-6)).all() and not choices.settled.any()
    joint = state[:, : 3 * POINTS].max(axis=1)
    assert np.allclose(joint, 1.0, atol=1e-5)  # of C, A and W together, which the paper scales by one MAX


def test_devices_are_connected_as_in_the_cluster(random_problems: Callable[..., list[StagedProblem]]) -> None:
    problems = Problems.from_encoded(encode(random_problems(4, 6, POINTS)))
    for i, matrix in enumerate(flat.interconnect(problems, MAX_DEVICES)):
        nodes, per_node = problems.numbers[i, 0] // problems.numbers[i, 1], int(problems.numbers[i, 1])
        cluster = Cluster(int(nodes), per_node, intra=1.0 / problems.numbers[i, 2], inter=1.0, memory=1.0)
        for a in range(MAX_DEVICES):
            for b in range(MAX_DEVICES):
                expected = 0.0
                if max(a, b) < cluster.devices:
                    expected = cluster.intra if a // per_node == b // per_node else cluster.inter
                assert np.isclose(matrix[a, b], expected / max(cluster.intra, cluster.inter))
