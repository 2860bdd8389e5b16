"""The table of least bottleneck against every plan of small problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from rings import all_reduce_s_per_byte

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.planners.staged.bottleneck import constructed, least_bottleneck
from automap_models.planners.staged.stage_arrays import stage_arrays


def problem_of(seed: int, *, memory: float = 1e18, min_stage: float = 0.0) -> StagedProblem:
    """Up to eight instructions on up to eight devices in nodes; transfers, all-reduces or computation decide."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 9))
    C, A = rng.uniform(0.0, 1.0, n) ** 3 + 0.01, rng.uniform(size=n) * 10 ** rng.uniform(6, 10)
    W = rng.integers(0, 2, n) * rng.uniform(size=n) * 10 ** rng.uniform(6, 10)
    profile = Profile.create(C, A, W, stash=rng.uniform(size=n) * 1e9)
    cluster = Cluster(int(rng.integers(1, 4)), int(rng.integers(2, 4)), 1e11, 10 ** rng.uniform(9, 11), memory)
    stages = int(rng.integers(2, min(4, cluster.devices, n) + 1))
    schedule = str(rng.choice(["1f1b", "gpipe"]))
    constraints = Constraints(min_stage=min_stage)
    return StagedProblem(profile, cluster, stages, int(rng.integers(1, 9)), schedule=schedule, constraints=constraints)


def holds_work(problem: StagedProblem, instructions: slice) -> bool:
    """A trainable parameter, and the least share of the computation or of the parameters, as the option says it."""
    profile, share = problem.profile, problem.constraints.min_stage / problem.stages
    if not share:
        return True
    both, nbytes = profile.C[instructions].sum(), profile.W[instructions].sum()
    trains = nbytes > 0 or not profile.W.any()
    return bool(trains and (both >= share * profile.C.sum() or nbytes >= share * profile.W.sum()))


def span_s(problem: StagedProblem, begins: tuple[int, ...], devices: tuple[int, ...]) -> float:
    """The span of a plan by sums: what a stage is busy for, its message too, and all that comes before either.

    And what two neighbouring stages take for the rounds after the warm-up, under 1F1B two of them at a time.
    """
    profile, cluster, rounds = problem.profile, problem.cluster, problem.micro_batches
    ends, stops, before, loads = (*begins[1:], len(profile)), (*devices[1:], cluster.devices), 0.0, []
    for s in range(problem.stages):
        own, a, q = slice(begins[s], ends[s]), devices[s], stops[s]
        nbytes, replicas = profile.W[own].sum(), q - a
        held = problem.state_factor * nbytes + problem.in_flight(s) * profile.stash[own].sum() / replicas
        if held > cluster.memory or not holds_work(problem, own):
            return np.inf
        ring = all_reduce_s_per_byte(cluster, a, q)
        late_s = max(ring * nbytes - (profile.C - profile.C_fwd)[own].sum() / replicas, 0.0)
        both_s = profile.C[own].sum() / replicas
        loads.append(before + rounds * both_s + late_s)
        before += both_s
        if q < cluster.devices:
            x = profile.A[ends[s] - 1] * transfer_s_per_byte(cluster, a, q, stops[s + 1])
            loads.append(before + (rounds + 1) * x)
            before += 2 * x
            next_s = profile.C[ends[s] : (*ends, 0)[s + 1]].sum() / (stops[s + 1] - q)
            turns = (rounds - problem.in_flight(s)) // (1 + problem.in_flight(s) - problem.in_flight(s + 1))
            loads.append(before - 2 * x - both_s + turns * (both_s + 2 * x + next_s))
    return float(max(loads))


def every_plan(problem: StagedProblem) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """With which instruction and which device each stage begins."""
    for begins in combinations(range(1, len(problem.profile)), problem.stages - 1):
        for devices in combinations(range(1, problem.cluster.devices), problem.stages - 1):
            yield (0, *begins), (0, *devices)


def by_table(problem: StagedProblem) -> tuple[float, np.ndarray]:
    """Over all boundaries and devices."""
    stages, boundary = stage_arrays(problem)
    return least_bottleneck(stages, np.arange(boundary.size), np.arange(problem.cluster.devices + 1))


@pytest.mark.parametrize("min_stage", [0.0, 0.25, 0.8])
@pytest.mark.parametrize("seed", range(10))
def test_no_plan_has_a_smaller_span(seed: int, min_stage: float) -> None:
    problem = problem_of(seed, min_stage=min_stage)
    expected = min(span_s(problem, *plan) for plan in every_plan(problem))
    load_s, route = by_table(problem)
    assert load_s == pytest.approx(expected, rel=1e-9)
    if np.isfinite(load_s):
        begins, devices = (tuple(row[:-1].tolist()) for row in route[:2])
        assert span_s(problem, begins, devices) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_no_plan_has_a_smaller_span_where_memory_binds(seed: int) -> None:
    """The memory lies between what the emptiest and the median plan need, or below both."""
    free = problem_of(seed)
    needed = []
    for begins, devices in every_plan(free):
        sums = np.add.reduceat(free.profile.W, begins), np.add.reduceat(free.profile.stash, begins)
        flights = [free.in_flight(s) for s in range(free.stages)]
        replicas = np.diff([*devices, free.cluster.devices])
        needed.append(float((free.state_factor * sums[0] + flights * sums[1] / replicas).max()))
    for share in (0.5, 0.1, -0.1):
        memory = float(np.quantile(needed, share)) * (1 + 1e-9) if share > 0 else 0.99 * min(needed)
        problem = replace(free, cluster=replace(free.cluster, memory=memory))
        expected = min(span_s(problem, *plan) for plan in every_plan(problem))
        load_s, _ = by_table(problem)
        assert load_s == pytest.approx(expected, rel=1e-9)
        assert np.isfinite(load_s) == (share > 0)


@pytest.mark.parametrize("seed", range(8))
def test_a_coarser_table_constructs_a_plan_of_many_instructions_and_devices(seed: int) -> None:
    """Every stage has instructions and devices, in order, and holds work."""
    rng = np.random.default_rng(seed)
    C, A, W = rng.uniform(0.1, 1.0, (3, 300))
    profile = Profile.create(C, A * 1e8, W * 1e8)
    cluster, constraints = Cluster(int(rng.integers(1, 9)), 8, 1e11, 1e10, 1e18), Constraints(min_stage=0.25)
    stages = int(rng.integers(2, min(17, cluster.devices + 1)))
    problem = StagedProblem(profile, cluster, stages, 8, schedule="1f1b", constraints=constraints)
    arrays, boundary = stage_arrays(problem)
    route = constructed(arrays)
    assert route is not None
    assert (np.diff(route[:2]) > 0).all()
    assert route[:2, 0].tolist() == [0, 0]
    assert route[:2, -1].tolist() == [boundary.size - 1, cluster.devices]
    begins = boundary[route[0]]
    assert all(holds_work(problem, slice(*ends)) for ends in pairwise(begins))
