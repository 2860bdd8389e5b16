"""Small random problems and two slow solvers that share nothing with the exact planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest
from rings import all_reduce_s_per_byte

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.cost.staged import plan_cost
from automap_models.planners.base import Deadline

Solver = Callable[[StagedProblem], float]


def random_problem(seed: int, *, max_n: int = 9, max_devices: int = 6, max_stages: int = 4) -> StagedProblem:
    """A problem in which any of compute, transfers, all-reduce and memory may decide."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, max_n + 1))
    shapes = [(nodes, size) for nodes in range(1, 5) for size in range(1, 9) if 2 <= nodes * size <= max_devices]
    nodes, size = shapes[rng.integers(len(shapes))]
    devices, micro_batches = nodes * size, int(2 ** rng.uniform(0, 6))
    granularity = int(rng.choice([n, 128, 2 * n + 1, max(n - 2, 2)]))
    stages = int(rng.integers(1, min(max_stages, devices, n, granularity) + 1))

    def sparse(scale: float) -> np.ndarray:
        return rng.uniform(size=n) * scale * (rng.uniform(size=n) > rng.choice([0.0, 0.4]))

    C = sparse(1.0) + (np.arange(n) == rng.integers(n))
    A = sparse(1e9 / devices * 10 ** rng.uniform(-3, 1))
    W = sparse(1e9 * micro_batches / devices * 10 ** rng.uniform(-3, 1))
    stash = sparse(W.sum() * 10 ** rng.uniform(-2, 1)) if rng.uniform() < 0.5 else np.zeros(n)
    C_fwd = C * rng.uniform(size=n) if rng.uniform() < 0.5 else None
    tight = 4.0 * W.sum() / stages + stash.sum() / devices
    memory = float(max(tight * rng.uniform(0.5, 3.0), 1.0)) if rng.uniform() < 0.5 else 1e18
    cluster = Cluster(nodes, size, 10 ** rng.uniform(9, 11), 1e9, memory)
    profile = Profile.create(C, A, W, C_fwd, stash)
    return StagedProblem(profile, cluster, stages, micro_batches, granularity=granularity)


def every_plan(problem: StagedProblem) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All coarse cuts with all device cuts."""
    for coarse in combinations(problem.grid.cut_points.tolist(), problem.stages - 1):
        for device_cuts in combinations(range(1, problem.cluster.devices), problem.stages - 1):
            yield coarse, device_cuts


def length_of(problem: StagedProblem, coarse: tuple[int, ...], device_cuts: tuple[int, ...]) -> float:
    """The length of a plan by the cost model; inf when it does not fit."""
    cuts = problem.grid.to_instructions(coarse)
    cost = plan_cost(problem, StagedPlan(cuts, device_cuts, problem.micro_batches, "brute force"))
    return cost.length_s if cost.feasible else np.inf


def _brute_force(problem: StagedProblem) -> float:
    return min(length_of(problem, *plan) for plan in every_plan(problem))


def _front(labels: list[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for span, exposed in sorted(labels):
        if not kept or exposed < kept[-1][1]:
            kept.append((span, exposed))
    return kept


def _label_search(problem: StagedProblem) -> float:
    """Device cuts enumerated; for each a search over instruction cuts, from the back, with plain sums."""
    p, cluster, M = problem.profile, problem.cluster, problem.micro_batches
    ends = [*problem.grid.instruction_of_point[problem.grid.cut_points].tolist(), len(p) - 1]
    starts = [0, *(end + 1 for end in ends[:-1])]
    best = np.inf
    for device_cuts in combinations(range(1, cluster.devices), problem.stages - 1):
        bound = (0, *device_cuts, cluster.devices)
        after: dict[int, list[tuple[float, float]]] = {}
        for s in range(problem.stages - 1, -1, -1):
            last = s == problem.stages - 1
            r = bound[s + 1] - bound[s]
            ring = all_reduce_s_per_byte(cluster, bound[s], bound[s + 1])
            byte = 0.0 if last else transfer_s_per_byte(cluster, *bound[s : s + 3])
            here: dict[int, list[tuple[float, float]]] = {}
            for first in starts if s else [0]:
                labels = []
                for end in [len(p) - 1] if last else [e for e in ends[:-1] if e >= first]:
                    of = slice(first, end + 1)
                    state, kept = 4.0 * p.W[of].sum(), min(M, problem.stages - s) * p.stash[of].sum() / r
                    if state + kept > cluster.memory:
                        continue
                    u, b = p.C[of].sum() / r, (p.C - p.C_fwd)[of].sum() / r
                    reduce, x = p.W[of].sum() * ring, p.A[end] * byte
                    if last:
                        labels.append((M * u, reduce))
                    for span, exposed in after.get(end + 1, []):
                        rest = max(2 * M * x, 2 * x + span)
                        labels.append((max(M * u, u + rest), max(reduce, exposed - x - b)))
                here[first] = _front(labels)
            after = here
        best = min([best, *(span + exposed for span, exposed in after.get(0, []))])
    return best


@pytest.fixture(scope="session", name="every_plan")
def fixture_every_plan() -> Callable[[StagedProblem], Iterator[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """All coarse cuts with all device cuts of a problem."""
    return every_plan


@pytest.fixture(scope="session")
def brute_force() -> Solver:
    """The optimum by the cost model over every plan; inf when none fits."""
    return _brute_force


@pytest.fixture(scope="session")
def label_search() -> Solver:
    """The optimum by an independent search in plain Python; inf when no plan fits."""
    return _label_search


@pytest.fixture(scope="session")
def make_problem() -> Callable[..., StagedProblem]:
    """Seed → a small random problem."""
    return random_problem


@pytest.fixture(scope="session")
def plan_length() -> Callable[..., float]:
    """The length of a plan given as coarse cuts and device cuts; inf when it does not fit."""
    return length_of


class Countdown(Deadline):
    """A deadline that passes when it has been asked so many times."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self.checks = checks

    @property
    def passed(self) -> bool:
        self.checks -= 1
        return self.checks < 0


@pytest.fixture(scope="session")
def countdown() -> type[Countdown]:
    """A deadline that does not hang on the machine's speed."""
    return Countdown
