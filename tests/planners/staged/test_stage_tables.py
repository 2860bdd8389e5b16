"""Tables of stages say of each stage what the cost model says of it in a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.profiled_model import whole
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.staged.problem_tables import tables_of

CLUSTER = Cluster(2, 4, intra=100e9, inter=10e9, memory=1e9, name="pair")


@pytest.mark.parametrize("seed", range(20))
def test_copies_of_tied_weights_count_in_the_memory_to_the_last_bit_and_in_the_all_reduce(seed: int) -> None:
    """A device that holds exactly what a stage of some plan needs fits it, and one of a byte less does not."""
    rng = np.random.default_rng(seed)
    C, A, W, stash = rng.random((4, 10)) * [[1.0], [1e6], [1e8], [1e8]]
    users = [tuple(sorted(rng.choice(10, size=int(rng.integers(2, 6)), replace=False).tolist())) for _ in range(3)]
    users.append(users[0])
    shared = [SharedParameter(f"p{k}", float(W[uses[0]] * rng.random()), uses) for k, uses in enumerate(users)]
    profile = Profile.create(C, A, W, stash=stash, shared_parameters=shared)
    halves = replace(whole(profile), name="halves", degree=2, W=W / 2, shared_bytes=whole(profile).shared_bytes / 2)
    problem = StagedProblem(profile, CLUSTER, stages=3, micro_batches=2, shardings=(halves,))
    for _ in range(10):
        cuts = tuple(sorted(rng.choice(9, size=2, replace=False).tolist()))
        chosen = tuple(rng.integers(0, 2, size=3).tolist())
        cost = plan_cost(problem, StagedPlan(cuts, (2, 4), 2, "test", shardings=chosen))
        stop = np.array([*cuts, 9]) + 1
        for s, (begin, end, devices, index) in enumerate(zip((0, *stop), stop, (2, 2, 4), chosen, strict=False)):
            for memory, fits in ((cost.memory_bytes[s], True), (np.nextafter(cost.memory_bytes[s], 0.0), False)):
                tables = tables_of(replace(problem, cluster=replace(CLUSTER, memory=float(memory))))
                i, k = (np.searchsorted(tables.boundary, [at]) for at in (begin, end))
                first = (0, 2, 4)[s]
                on = (np.array([first]), np.array([first + devices]))
                assert tables.fits(s, (i, k), on, index).tolist() == [fits]
            sharding = tables.shardings[index]
            assert sharding.reduce_s(i, k, sharding.pace(*on))[0] == pytest.approx(cost.all_reduce_s[s], rel=1e-9)
