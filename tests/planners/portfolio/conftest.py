"""A small model whose operators can be partitioned, and every plan of it one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel, ShardedProfile, unsharded
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.portfolio.space import PlanningSpace

Plans = Callable[[PlanningSpace], Iterator[tuple[StagedProblem, StagedPlan]]]

PAIR = Cluster(2, 2, intra=100e9, inter=10e9, memory=32e9, name="pair")
LAYERS = ("embedding", "block_0/attention", "block_0/mlp", "block_1/attention", "block_1/mlp", "head")


def model(seed: int = 0, *, partitioned: bool = True, scale: float = 1e9) -> ProfiledModel:
    """Six instructions of micro-batches of 4 samples; in half or in quarters with all-reduces here and there.

    Args:
        scale: bytes of parameters of an instruction, about.
    """
    rng = np.random.default_rng(seed)
    n = len(LAYERS)
    profile = Profile.create(
        C=rng.uniform(0.5, 1.5, n),
        A=rng.uniform(0.2e9, 1e9, n),
        W=scale * rng.uniform(0.5, 1.5, n),
        stash=rng.uniform(0.1e9, 0.5e9, n),
        layers=LAYERS,
        meta={"model": "six", "microbatch_size": 4},
    )
    shardings = tuple(divided(profile, t, rng) for t in (2, 4)) if partitioned else ()
    return ProfiledModel(profile, shardings, launch_s=1e-5, batch_dims={"batch/x": 0} if partitioned else None)


def divided(profile: Profile, degree: int, rng: np.random.Generator) -> ShardedProfile:
    n = len(profile)
    return replace(
        unsharded(profile),
        name=f"{degree}-way",
        degree=degree,
        C=profile.C / degree,
        C_fwd=profile.C_fwd / degree,
        boundary_bytes=profile.A,
        W=profile.W / degree,
        stash=profile.stash * rng.uniform(1 / degree, 1.0, n),
        reduced_fwd=profile.A * rng.integers(0, 2, n),
        reduced_bwd=profile.A * rng.integers(0, 2, n),
        starts_fwd=np.ones(n),
        starts_bwd=np.ones(n),
        gradients=np.zeros(n),
        dims={"params/kernel": 1},
    )


def every_plan(space: PlanningSpace) -> Iterator[tuple[StagedProblem, StagedPlan]]:
    """All valid plans of up to 4 stages, whether they fit or not."""
    n, devices = len(space.model.profile), space.cluster.devices
    for stages, count in product(range(1, min(devices, n) + 1), space.counts):
        problem = space.problem(stages, count, space.schedule, sharded=True)
        shardings = range(len(problem.all_shardings))
        for device_cuts in combinations(range(1, devices), stages - 1):
            for chosen in product(shardings, repeat=stages):
                for cuts in combinations(range(n - 1), stages - 1):
                    plan = StagedPlan(cuts, device_cuts, count, "brute force", shardings=chosen)
                    if not plan.check_valid(problem)[0]:
                        break  # it is the devices and shardings that are at fault
                    yield problem, plan


@pytest.fixture(scope="session", name="make_model")
def make_model_fixture() -> Callable[..., ProfiledModel]:
    return model


@pytest.fixture(scope="session", name="every_plan")
def every_plan_fixture() -> Plans:
    return every_plan


@pytest.fixture(scope="session")
def pair() -> Cluster:
    """Two nodes of two devices."""
    return PAIR
