"""Arrays of stages say of each stage what the cost model says of it in a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.profiled_model import unsharded
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.stage_arrays import MEMORY, PARTS, stage_arrays
from automap_models.planners.staged.stage_kernel import ending_s, held_bytes

CLUSTER = Cluster(2, 4, intra=100e9, inter=10e9, memory=1e9, name="pair")


@pytest.mark.parametrize("seed", range(10))
def test_copies_of_tied_weights_count_in_the_memory_and_in_the_all_reduce(seed: int) -> None:
    """A device that holds what a stage of some plan needs fits it, and one of hardly less does not."""
    rng = np.random.default_rng(seed)
    C, A, W, stash = rng.random((4, 10)) * [[1.0], [1e6], [1e8], [1e8]]
    users = [tuple(sorted(rng.choice(10, size=int(rng.integers(2, 6)), replace=False).tolist())) for _ in range(3)]
    users.append(users[0])
    shared = [SharedParameter(f"p{k}", float(W[uses[0]] * rng.random()), uses) for k, uses in enumerate(users)]
    profile = Profile.create(C, A, W, stash=stash, shared_parameters=shared)
    halves = replace(
        unsharded(profile), name="halves", degree=2, W=W / 2, shared_bytes=unsharded(profile).shared_bytes / 2
    )
    problem = StagedProblem(profile, CLUSTER, stages=3, micro_batches=2, shardings=(halves,))
    for _ in range(10):
        cuts = tuple(sorted(rng.choice(9, size=2, replace=False).tolist()))
        chosen = tuple(rng.integers(0, 2, size=3).tolist())
        cost = plan_cost(problem, StagedPlan(cuts, (2, 4), 2, "test", shardings=chosen))
        stop = np.array([*cuts, 9]) + 1
        for s, (begin, end, devices, index) in enumerate(zip((0, *stop), stop, (2, 2, 4), chosen, strict=False)):
            memory = cost.memory_bytes[s]
            for held, fits in ((memory * (1 + 1e-12), True), (memory * (1 - 1e-9), False)):
                stages, boundary = stage_arrays(replace(problem, cluster=replace(CLUSTER, memory=float(held))))
                i, k = np.searchsorted(boundary, (begin, end)).tolist()
                a, q = (0, 2, 4)[s], (0, 2, 4)[s] + devices
                kind = stages.kind[index, a, q]
                parts, most = stages.speeds[index, a, q, [PARTS, MEMORY]]
                assert (held_bytes(stages, kind, i, k, stages.in_flight[s], parts) <= most) == fits
            late, _ = ending_s(stages, index, i, k, a, q, 0.0)
            assert late == pytest.approx(cost.all_reduce_s[s], rel=1e-9)
