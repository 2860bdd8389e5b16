"""Routes by a price for devices: the cheapest stages by enumeration, bounds kept, and what a route should look like."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.beam_kernel import route_length_s
from automap_models.planners.staged.far_search import even_routes
from automap_models.planners.staged.plain_stages import PlainStages, plain_stages
from automap_models.planners.staged.priced_routes import (
    ANY_PRICE,
    EXPOSED,
    FACTORS,
    PRECISION,
    Terms,
    cheapest,
    lead,
    least_bound,
    pairs_of,
    priced_routes,
)


def stages_of(
    seed: int,
    points: int = 60,
    nodes: int = 64,
    per_node: int = 8,
    stages: int = 8,
    memory: float = 1e18,
    rounds: int = 16,
) -> PlainStages:
    """Random arrays on equal nodes."""
    rng = np.random.default_rng(seed)
    C, A, W = rng.lognormal(sigma=1.5, size=(3, points)) * [[1.0], [1e9], [1e9]]
    profile = Profile.create(C, A, W, stash=A)
    return plain_stages(StagedProblem(profile, Cluster(nodes, per_node, 1e11, 1e9, memory), stages, rounds))[0]


def routes_of(stages: PlainStages) -> np.ndarray:
    """All that the planner asks for."""
    return priced_routes(stages, np.array(EXPOSED), np.array(FACTORS))


def stage_cost_s(
    stages: PlainStages, terms: Terms, s: int, i: int, k: int, place: int, replicas: float | None = None
) -> tuple[float, float]:
    """Cost and devices of a stage but for transfers of singles; inf where a bound forbids it. Place -1: a wide one."""
    rounds, per_node, last = stages.micro_batches, stages.per_node, stages.held.size - 1
    bound_s = terms.bound_s * (1 + (last - s) / rounds)
    behind_s = terms.bound_s * (1 + max(last - s - 1, 0) / rounds)
    u, weights, stash = stages.C[k] - stages.C[i], stages.W[k] - stages.W[i], stages.H[k] - stages.H[i]
    free = stages.memory - stages.state_factor * weights
    if free <= 0:
        return np.inf, 0.0
    least = max(1.0, rounds * u / bound_s, stages.held[s] * stash / free)
    if place >= 0:
        return (u + terms.price, 1.0) if least <= 1 else (np.inf, 0.0)
    for boundary, most_s in ((i, bound_s), (k, behind_s)):
        crossing_s = 2 * rounds * stages.A[boundary] / stages.inter
        if crossing_s > most_s:
            least = max(least, per_node * crossing_s / most_s)
    most = terms.most
    if 2 * weights / stages.inter > terms.exposed_s:
        ring_s = 2 * weights * (per_node - 1) / per_node / stages.intra
        most = per_node if ring_s <= terms.exposed_s else 1.0
    if least > most:
        return np.inf, 0.0
    moved = per_node * (stages.A[i] + stages.A[k]) / stages.inter
    r = min(max(least, np.sqrt((u + moved) / terms.price)), most)
    if replicas is not None:
        assert replicas == pytest.approx(r)
    return u / r + moved / max(r, per_node) + terms.price * r, r


def between_s(stages: PlainStages, terms: Terms, s: int, i: int, before: int, place: int) -> float:
    """The transfer at a boundary beside a single, from the stage before at a place; inf where it is forbidden."""
    if before < 0 and place < 0:
        return 0.0
    bound_s = terms.bound_s * (1 + (stages.held.size - 1 - s) / stages.micro_batches)
    inside = before >= 0 and place == before + 1
    if before >= 0 and place >= 0 and not inside and (before, place) != (int(stages.per_node) - 1, 0):
        return np.inf
    u = 2 * stages.A[i] / (stages.intra if inside else stages.inter)
    return u if stages.micro_batches * u <= bound_s else np.inf


def whole_cost_s(stages: PlainStages, terms: Terms, cut: tuple[int, ...], places: tuple[int, ...]) -> float:
    """Of all stages between cuts, each at a place."""
    total_s, before = 0.0, -1
    for s, place in enumerate(places):
        total_s += stage_cost_s(stages, terms, s, cut[s], cut[s + 1], place)[0]
        total_s += between_s(stages, terms, s, cut[s], before, place) if s else 0.0
        before = place
    return total_s


@settings(deadline=None)  # the loops are compiled when they are first called
@given(st.integers(0, 10_000), st.sampled_from([0.03, 0.3, 3.0]), st.sampled_from([1.1, 2.0, np.inf]))
def test_the_cheapest_stages_are_those_of_an_enumeration(seed: int, priced: float, factor: float) -> None:
    """All cuts of seven points into three stages, each wide or on one of a node's two devices."""
    rng = np.random.default_rng(seed)
    memory = float(rng.choice([1e18, 3e10]))
    stages = stages_of(seed, points=7, nodes=8, per_node=2, stages=3, memory=memory, rounds=int(rng.integers(1, 9)))
    ideal_s = stages.C[-1] * stages.micro_batches / stages.devices
    price = priced * 3 * stages.C[-1] / stages.devices**2
    terms = Terms(price, 2 * ideal_s * factor, float(rng.choice([0.1, 1.0])) * ideal_s, float(stages.devices))
    cut, replicas, places = cheapest(stages, pairs_of(stages), terms)
    least_s = min(
        whole_cost_s(stages, terms, (0, *inside, 7), own)
        for inside in combinations(range(1, 7), 2)
        for own in product((-1, 0, 1), repeat=3)
    )
    if np.isinf(least_s):
        assert not cut.any()
        assert not replicas.any()
        return
    assert whole_cost_s(stages, terms, tuple(cut), tuple(places)) == pytest.approx(least_s)
    for s, place in enumerate(places):
        stage_cost_s(stages, terms, s, cut[s], cut[s + 1], place, None if place >= 0 else replicas[s])


@pytest.mark.parametrize("seed", range(6))
def test_the_least_bound_is_one_for_which_the_devices_suffice_and_hardly_less(seed: int) -> None:
    stages = stages_of(seed)
    pairs, any_price = pairs_of(stages), ANY_PRICE * stages.C[-1] / stages.devices**2
    bound_s = least_bound(stages, pairs, 0.1, 0.0)

    def demand(of_s: float) -> float:
        terms = Terms(any_price, of_s, 0.1 * of_s * lead(stages), float(stages.devices))
        return float(cheapest(stages, pairs, terms)[1].sum())

    assert 0 < demand(bound_s) <= stages.devices
    less = demand(bound_s / PRECISION)
    assert less == 0 or less > stages.devices
    assert least_bound(stages, pairs, 0.1, bound_s) == bound_s


@settings(deadline=None)  # the loops are compiled when they are first called
@given(
    st.integers(0, 10_000),
    st.sampled_from([(64, 8), (300, 1), (40, 16)]),
    st.integers(2, 20),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([1e18, 2e10, 1.0]),
)
def test_routes_hold_every_point_and_device_once(
    seed: int, cluster: tuple[int, int], count: int, rounds: int, memory: float
) -> None:
    stages = stages_of(seed, 20, *cluster, count, memory, rounds)
    routes = routes_of(stages)
    assert len(routes) <= len(EXPOSED) * len(FACTORS)
    assert (routes[:, :, 0] == 0).all()
    assert (routes[:, :, -1] == [stages.C.size - 1, stages.devices]).all()
    assert (np.diff(routes) > 0).all()
    assert memory > 1 or not len(routes)


def test_where_only_computing_takes_time_stages_share_it() -> None:
    """Nothing is sent and no parameters are reduced: before any search, L is near the time of all devices at work."""
    rng = np.random.default_rng(3)
    C = rng.uniform(0.5, 1.5, size=100)
    cluster = Cluster(64, 8, 1e11, 1e9, 1e18)
    stages, _ = plain_stages(StagedProblem(Profile.create(C, np.zeros(100), np.zeros(100)), cluster, 8, 512))
    ideal_s = C.sum() * 512 / stages.devices
    assert ideal_s <= min(route_length_s(stages, route) for route in routes_of(stages)) < 1.1 * ideal_s


def test_what_sends_much_and_computes_little_shares_a_node() -> None:
    """From point 10 to 18 a thousand times as much is sent as elsewhere, and a stage must be cut at each point."""
    C, A = np.ones(28), np.full(28, 1e6)
    C[11:19], A[10:18] = 1e-3, 1e9
    profile = Profile.create(C, A, np.zeros(28))
    stages, _ = plain_stages(StagedProblem(profile, Cluster(32, 8, 1e11, 1e9, 1e18), 28, 4))
    best = min(routes_of(stages), key=lambda route: route_length_s(stages, route))
    assert (np.diff(best[1])[11:18] == 1).all()
    assert len(set((best[1, 11:19] // 8).tolist())) == 1
    even_s = min(route_length_s(stages, route) for route in even_routes(stages))
    assert route_length_s(stages, best) < 0.9 * even_s
