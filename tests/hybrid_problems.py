"""Random problems whose stages may run in several shardings, and demands on their plans; every plan there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from automap_models.core.constraints import Constraints, Pin
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedPlan, StagedProblem

MakeProblem = Callable[..., StagedProblem]
SHAPES = ((1, 4), (2, 2), (3, 2), (1, 6), (2, 3), (2, 4), (3, 4), (2, 6))
"""Nodes and devices in each, most of which can be grouped."""
LAYERS = ("stem", "body/one", "body/two", "head")


def random_sharding(rng: np.random.Generator, profile: Profile, degree: int) -> ShardedProfile:
    """Each instruction divided or not; results all-reduced here and there."""
    n = len(profile)
    share = np.where(rng.uniform(size=n) < 0.85, 1.0 / degree, 1.0)

    def now_and_then(scale: float) -> np.ndarray:
        return scale * rng.uniform(size=n) * (rng.uniform(size=n) < 0.3)

    speed = rng.uniform(0.8, 1.4)  # relative to t times as many samples on each device
    nbytes = profile.A.mean() * 10 ** rng.uniform(-3, 0)
    return ShardedProfile(
        name=f"sharding {degree}",
        degree=degree,
        C=profile.C * share / speed,
        C_fwd=profile.C_fwd * share / speed,
        A=profile.A,
        boundary_bytes=profile.A * np.where(rng.uniform(size=n) < 0.5, 1.0 / degree, 1.0),
        W=profile.W * share,
        stash=profile.stash * share,
        reduced_fwd=now_and_then(nbytes),
        reduced_bwd=now_and_then(nbytes),
        starts_fwd=np.ceil(now_and_then(1.0)),
        starts_bwd=np.ceil(now_and_then(1.0)),
        gradients=profile.W * now_and_then(1.0),
        frozen=profile.frozen * share,
        shared_frozen_bytes=np.array([parameter.nbytes for parameter in profile.shared_frozen]) / degree,
    )


def with_frozen(profile: Profile, rng: np.random.Generator) -> Profile:
    """In two of three the same; else what is not trained takes as much as the training state, some of it used twice."""
    if rng.uniform() < 2 / 3:
        return profile
    frozen = 4.0 * rng.permutation(profile.W)
    users = tuple(sorted(rng.choice(len(profile), size=min(3, len(profile)), replace=False).tolist()))
    shared = SharedParameter("frozen", frozen[users[0]] * rng.uniform(), users)
    return replace(profile, frozen=frozen, shared_frozen=(shared,))


def hybrid_problem(seed: int, make_problem: MakeProblem, **sizes: int) -> StagedProblem:
    """A random pipeline problem whose stages may run in up to three further shardings."""
    rng = np.random.default_rng(seed)
    pipeline = make_problem(seed, **sizes)
    shapes = [shape for shape in SHAPES if pipeline.stages <= shape[0] * shape[1] <= sizes.get("max_devices", 6)]
    nodes, size = shapes[rng.integers(len(shapes))]
    memory = pipeline.cluster.memory * rng.uniform(0.4, 1.0)
    cluster = replace(pipeline.cluster, nodes=nodes, devices_per_node=size, memory=memory)
    pipeline = replace(pipeline, cluster=cluster)
    layers = [LAYERS[j] for j in sorted(rng.integers(len(LAYERS), size=len(pipeline.profile)))]
    pipeline = replace(pipeline, profile=with_frozen(replace(pipeline.profile, layers=tuple(layers)), rng))
    degrees = rng.choice([2, 2, 3, 4], size=rng.integers(1, 4))
    shardings = tuple(random_sharding(rng, pipeline.profile, int(t)) for t in degrees)
    launch_s = pipeline.profile.C.mean() * 10 ** rng.uniform(-3, 0) * (rng.uniform() < 0.7)
    return replace(pipeline, shardings=shardings, launch_s=launch_s)


def every_plan(problem: StagedProblem, anywhere: bool = False) -> Iterator[StagedPlan]:
    """All that are valid, on the grid or anywhere."""
    pipeline = problem
    grid, stages, devices = pipeline.grid, pipeline.stages, pipeline.cluster.devices
    places = range(len(pipeline.profile) - 1) if anywhere else grid.to_instructions(grid.cut_points.tolist())
    for device_cuts in combinations(range(1, devices), stages - 1):
        for chosen in product(range(len(problem.all_shardings)), repeat=stages):
            for cuts in combinations(places, stages - 1):
                plan = StagedPlan(cuts, device_cuts, pipeline.micro_batches, "brute force", shardings=chosen)
                if not plan.check_valid(problem)[0]:
                    break  # it is the devices and shardings that are at fault
                yield plan


def demands(seed: int, problem: StagedProblem) -> Constraints:
    rng = np.random.default_rng(seed)
    layers = sorted(set(problem.profile.layers))
    pins = [Pin(str(rng.choice(layers)), int(rng.integers(problem.stages))) for _ in range(rng.integers(3))]
    together = [str(rng.choice(layers)) for _ in range(rng.integers(2))]
    forbidden = frozenset(technique for technique in ("data", "operator") if rng.uniform() < 0.15)
    return Constraints(tuple(pins), tuple(together), forbidden=forbidden)  # type: ignore[arg-type]
