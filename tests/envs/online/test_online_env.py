"""The environment of online training: candidates, masks, and costs held against cost.staged and brute force."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.online.env import OnlinePipelineEnv, chosen, final_length_s, legal_pivots, pivot_costs
from automap_models.envs.online.pivots import (
    Candidates,
    candidate_device_cuts,
    candidates,
    centre_solution,
    distinct_cuts,
)
from automap_models.envs.online.tables import Pivots
from automap_models.errors import BadInput, Infeasible


def problem(seed: int, stages: int = 3, n: int = 12) -> StagedProblem:
    """Sparse arrays on 2 to 4 nodes; memory that some plans exceed. Every other one has tied weights."""
    rng = np.random.default_rng(seed)

    def sparse(scale: float) -> np.ndarray:
        return rng.uniform(size=n) * scale * (rng.uniform(size=n) < 0.6)

    C, W, stash = sparse(1.0), sparse(3e8), sparse(1e9)
    C[0], W[[0, n // 2, n - 1]] = 0.3, 1e8
    memory = float(rng.choice([3e9, 1e18]))
    nodes = int(rng.integers(2, 5))
    shared: list[SharedParameter] = []
    if seed % 2:
        uses = [sorted(rng.choice(n, size=size, replace=False).tolist()) for size in (2, 3)]
        shared = [SharedParameter(f"tied_{j}", 5e7, tuple(own)) for j, own in enumerate(uses)]
        for parameter in shared:
            W[parameter.instructions[0]] += parameter.nbytes
    return StagedProblem(
        Profile.create(C, sparse(2e8), W, stash=stash, shared_parameters=shared),
        Cluster(nodes, 3, 5e10, 1e9, memory),
        stages,
        4,
        granularity=n,
    )


def length_s(drawn: StagedProblem, cuts: tuple[int, ...], device_cuts: tuple[int, ...]) -> float:
    """L by the cost model; inf where a plan does not fit."""
    cost = plan_cost(drawn, StagedPlan(cuts, device_cuts, drawn.micro_batches, "test"))
    return cost.length_s if cost.feasible else np.inf


def allowed_plans(possible: Candidates) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every plan with candidate device cuts whose stages all train something, cuts after any instruction."""
    drawn = possible.problem
    cuts = [c for c in combinations(range(len(drawn.profile) - 1), drawn.stages - 1) if possible.every_stage_trains(c)]
    devices = [d for d in product(*(part.tolist() for part in possible.device_cuts)) if list(d) == sorted(set(d))]
    return list(product(cuts, devices))


@pytest.mark.parametrize(
    ("nodes", "stages", "centres"),
    [(4, 4, (8, 16, 24)), (4, 2, (16,)), (4, 3, (8, 24)), (2, 4, (4, 8, 12)), (3, 3, (8, 16)), (5, 1, ())],
)
def test_the_centre_solution_lies_on_node_boundaries_where_there_is_one_a_stage(
    nodes: int, stages: int, centres: tuple[int, ...]
) -> None:
    assert centre_solution(Cluster(nodes, 8, 1e11, 1e9, 1e9), stages) == centres


def test_candidate_device_cuts_are_those_within_the_radius() -> None:
    cuts = candidate_device_cuts(Cluster(4, 8, 1e11, 1e9, 1e9), 4, 3)
    assert [(int(part[0]), int(part[-1])) for part in cuts] == [(5, 11), (13, 19), (21, 27)]


@given(nodes=st.integers(1, 5), size=st.integers(1, 6), stages=st.integers(2, 8), radius=st.integers(0, 40))
def test_every_candidate_device_cut_is_part_of_an_increasing_plan(
    nodes: int, size: int, stages: int, radius: int
) -> None:
    if stages > nodes * size:
        return
    cuts = candidate_device_cuts(Cluster(nodes, size, 1e11, 1e9, 1e9), stages, radius)
    plans = (
        [p for p in product(*(part.tolist() for part in cuts)) if all(a < b for a, b in pairwise(p))]
        if np.prod([part.size for part in cuts]) < 5000
        else None
    )
    for s, part in enumerate(cuts):
        assert part.size and part[0] > 0 and part[-1] < nodes * size
        assert plans is None or {p[s] for p in plans} == set(part.tolist())


def test_of_equivalent_cuts_the_one_that_the_fewest_bytes_cross_is_kept() -> None:
    profile = Profile.create([1.0, 0, 0, 1, 0, 1], [5.0, 3, 4, 7, 7, 0], [1.0, 0, 0, 1, 0, 1])
    assert distinct_cuts(profile).tolist() == [1, 3]


@pytest.mark.parametrize("seed", range(6))
def test_the_best_plan_on_distinct_cuts_is_the_best_on_all(seed: int) -> None:
    possible = candidates(problem(seed))
    plans = [(length_s(possible.problem, *plan), plan) for plan in allowed_plans(possible)]
    kept = [length for length, (cuts, _) in plans if set(cuts) <= set(possible.cuts.tolist())]
    assert min(kept) == pytest.approx(min(length for length, _ in plans), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), stages=st.integers(2, 3))
def test_random_episodes_cost_what_the_cost_model_says_and_bounds_hold(seed: int, stages: int) -> None:
    drawn = problem(seed, stages)
    possible = candidates(drawn)
    pivots, env = Pivots.from_candidates(possible, reward_s=2.0), OnlinePipelineEnv(8)
    generator, states, bounds = torch.Generator().manual_seed(seed), env.reset(pivots), []
    for _ in range(stages - 1):
        action = torch.multinomial(env.legal(pivots, states).double(), 1, generator=generator).squeeze(1)
        bounds.append(pivot_costs(pivots, states).bound_s.gather(1, action.unsqueeze(1)).squeeze(1))
        states, reward, ended = env.step(pivots, states, action)
    assert bool(ended.all()) and not env.legal(pivots, states).any()
    for row, reached in enumerate(final_length_s(pivots, states).tolist()):
        cuts, device_cuts = (tuple(part) for part in states.pivots[row].T.tolist())
        expected = length_s(drawn, cuts, device_cuts)
        assert possible.every_stage_trains(cuts)
        assert reached == pytest.approx(expected, rel=1e-9)
        assert float(bounds[-1][row]) == pytest.approx(expected, rel=1e-9)
        assert all(float(bound[row]) <= expected * (1 + 1e-9) for bound in bounds)
        assert float(reward[row]) == pytest.approx(2.0 / expected if np.isfinite(expected) else -1.0, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_legal_pivots_make_exactly_the_allowed_plans(seed: int) -> None:
    possible = candidates(problem(seed))
    pivots, reached, waiting = (
        Pivots.from_candidates(possible, 1.0),
        set(),
        [OnlinePipelineEnv().reset(problems=Pivots.from_candidates(possible, 1.0))],
    )
    while waiting:
        states = waiting.pop()
        for action in legal_pivots(pivots, states)[0].nonzero().squeeze(1):
            following = chosen(pivots, states, action.view(1))
            if int(following.step) == possible.problem.stages - 1:
                reached.add(tuple(tuple(part) for part in following.pivots[0].T.tolist()))
            else:
                waiting.append(following)
    kept = set(possible.cuts.tolist())
    assert reached == {plan for plan in allowed_plans(possible) if set(plan[0]) <= kept}


@pytest.mark.parametrize("seed", range(6))
def test_pruning_by_a_known_length_keeps_every_shorter_plan(seed: int) -> None:
    possible = candidates(problem(seed))
    lengths = sorted((length_s(possible.problem, *plan), plan) for plan in allowed_plans(possible))
    known_s = lengths[len(lengths) // 4][0]
    if not np.isfinite(known_s):
        return
    pruned = Pivots.from_candidates(possible, 1.0).within(known_s)
    assert pruned.number <= Pivots.from_candidates(possible, 1.0).number
    device = pruned.device.gather(1, pruned.slot).long()
    left = [
        set(zip(pruned.cut[s][pruned.exists[s]].tolist(), device[s][pruned.exists[s]].tolist(), strict=True))
        for s in range(possible.problem.stages - 1)
    ]
    for length, (cuts, device_cuts) in lengths:
        if length < known_s and set(cuts) <= set(possible.cuts.tolist()):
            assert all(pivot in left[s] for s, pivot in enumerate(zip(cuts, device_cuts, strict=True)))


def test_what_cannot_be_cut_is_refused() -> None:
    drawn = problem(0, stages=1)
    with pytest.raises(BadInput, match="nothing to cut"):
        candidates(drawn)
    with pytest.raises(BadInput, match="radius of -1"):
        candidates(problem(0), -1)
    profile = Profile.create([1.0, 1, 1], [1.0, 1, 1], [1.0, 0, 0])
    with pytest.raises(Infeasible, match="only 1 instruction"):
        candidates(StagedProblem(profile, drawn.cluster, 2))
