"""What a step consists of adds up to it, and each part is what the plan says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.schedules import WARM_UPS
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.simulate.breakdown import breakdown
from automap_models.simulate.plan_step import step_cost

CLUSTER = Cluster(2, 4, intra=100e9, inter=10e9, memory=1e12, name="pair")


@pytest.mark.parametrize("schedule", [None, *WARM_UPS])
@pytest.mark.parametrize("seed", range(25))
def test_the_parts_add_up_to_the_step_and_to_the_memory(seed: int, schedule: str | None) -> None:
    rng = np.random.default_rng(seed)
    C, A, W, stash = rng.random((4, 12)) * [[1.0], [10.0 ** rng.integers(6, 10)], [1e9], [1e8]]
    shared = [SharedParameter("embedding", float(W[0]), (0, 7, 11))]
    profile = Profile.create(C, A, W, stash=stash, meta={"microbatch_size": 6}, shared_parameters=shared)
    stages, micro_batches = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    problem = StagedProblem(profile, CLUSTER, stages, micro_batches, schedule=schedule)
    cuts = tuple(sorted(rng.choice(11, size=stages - 1, replace=False).tolist()))
    device_cuts = tuple(sorted((1 + rng.choice(7, size=stages - 1, replace=False)).tolist()))
    plan = StagedPlan(cuts, device_cuts, micro_batches, "test")
    cost = step_cost(problem, plan)
    parts = breakdown(problem, plan, cost)
    assert parts.step_s == pytest.approx(cost.step_s, rel=1e-9)
    assert parts.memory_bytes == pytest.approx(cost.memory_bytes.max(), rel=1e-12)
    for part_s in (parts.compute_s, parts.transfers_s, parts.bubble_s, parts.gradients_s, parts.tied_s):
        assert part_s >= -1e-9 * cost.step_s
    if schedule is not None:
        busy = max((cost.forward_s + cost.backward_s).max(), cost.transfer_s.max(initial=0.0))
        assert parts.compute_s + parts.transfers_s == pytest.approx(micro_batches * busy)


def test_data_parallelism_computes_and_waits_for_nothing_but_gradients() -> None:
    profile = Profile.create(C=[8.0, 8.0], A=[1.0, 0.0], W=[1e9, 1e9])
    problem = StagedProblem(profile, CLUSTER, 1, 4, schedule="1f1b")
    plan = StagedPlan((), (), 4, "test")
    cost = step_cost(problem, plan)
    parts = breakdown(problem, plan, cost)
    assert parts.compute_s == pytest.approx(4 * 16.0 / 8)
    assert (parts.activations_s, parts.transfers_s, parts.tied_s) == (0.0, 0.0, 0.0)
    assert parts.bubble_s == pytest.approx(0.0, abs=1e-12)
    assert parts.gradients_s == pytest.approx(cost.exposed_s[0])


def test_a_link_that_is_at_work_for_longest_is_the_bottleneck() -> None:
    """Passes of half a second, 5 s over the link each way; the tied sum of 4 replicas takes 4·2·½·10e9/10e9 = 4 s.

    Each direction of the link is at work for 10 s:

        stage 0   F0 from 0.0, F1 from 0.5                              B0 from 16.5, B1 from 21.5 to 22
        link →    F0 from 0.5, F1 from 5.5 to 10.5
        link ←    B0 from 11.5, B1 from 16.5 to 21.5
        stage 1   F0 from 5.5, F1 from 10.5, B0 from 11 to 11.5, B1 to 12
    """
    profile = Profile.create(C=[4.0, 4.0], C_fwd=[2.0, 2.0], A=[50e9, 0.0], W=[10e9, 0.0])
    profile = replace(profile, shared_parameters=(SharedParameter("embedding", 10e9, (0, 1)),))
    problem = StagedProblem(profile, CLUSTER, 2, 2, schedule="gpipe")
    plan = StagedPlan((0,), (4,), 2, "test")
    parts = breakdown(problem, plan, step_cost(problem, plan))
    assert (parts.compute_s, parts.transfers_s) == (0.0, pytest.approx(10.0))
    assert parts.bubble_s == pytest.approx(22.0 - 10.0)
    assert (parts.gradients_s, parts.tied_s, parts.update_s) == (0.0, pytest.approx(4.0), 0.0)
    assert parts.last_reduced == 0


def test_the_length_ends_with_the_first_stage_s_gradients_where_those_of_others_are_hidden() -> None:
    """The second stage has twice the gradients, 30 ms, while the first still works backward for 5 s."""
    profile = Profile.create(C=[40.0, 4.0], C_fwd=[20.0, 2.0], A=[1.0, 0.0], W=[1e9, 2e9])
    problem, plan = StagedProblem(profile, CLUSTER, 2, 2), StagedPlan((0,), (4,), 2, "test")
    parts = breakdown(problem, plan, step_cost(problem, plan))
    assert parts.last_reduced == 0
    assert parts.gradients_s == pytest.approx(1e9 * 2 * 0.75 / 100e9)
