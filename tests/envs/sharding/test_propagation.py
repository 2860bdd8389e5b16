"""Closed forms of Auto-MAP's decisions against their definition, one at a time (sharding_steps)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharding_steps import decided_by

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import MeshAxis
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.envs.sharding.propagation import (
    PARTITIONED,
    REPLICATED,
    UNDECIDED,
    Propagation,
)

CLUSTER = Cluster(1, 8, 1e9, 1e9, 1e9)


@st.composite
def problems(draw: st.DrawFn) -> ShardingProblem:
    """Up to eight classes over one-dimensional parameters, any of them dead, any pair in conflict."""
    k = draw(st.integers(1, 8))
    own = [*range(k), *draw(st.lists(st.integers(0, k - 1), max_size=6))]
    divisors = np.array(draw(st.lists(st.sampled_from([1, 2, 6]), min_size=k, max_size=k)))
    divisors[draw(st.integers(0, k - 1))] = 2
    live = [c for c in range(k) if divisors[c] > 1]
    pairs = [(a, b) for a in live for b in live if a < b and draw(st.booleans())]
    variables = tuple(Variable(f"p{i}", (2,), "f32", 8.0, "parameter") for i in range(len(own)))
    conflicts = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    classes = ShardingClasses(variables, np.array(own), divisors, conflicts)
    return ShardingProblem("drawn", classes, CLUSTER, (MeshAxis("model", 2),))


@given(problems())
@settings(deadline=None)
def test_a_linkage_group_is_what_one_decision_alone_decides(problem: ShardingProblem) -> None:
    propagation = Propagation(problem.along[0])
    sizes = propagation.group_sizes()
    for dim in range(len(propagation)):
        for decision in (REPLICATED, PARTITIONED):
            vector = decided_by(problem, [UNDECIDED] * len(propagation), dim, decision)
            assert sizes[dim, decision] == (0 if vector is None else len(vector) - vector.count(UNDECIDED))
            if vector is not None and decision == PARTITIONED:
                number = propagation.dim_classes[dim]
                assert vector.count(PARTITIONED) == propagation.sizes[number]
                assert vector.count(REPLICATED) == propagation.excluded_sizes[number]
    order = propagation.order(linkage_groups=True)
    assert sorted(order.tolist()) == list(range(len(propagation)))
    assert (np.diff(sizes.max(axis=1)[order]) <= 0).all()


@given(problems())
@settings(deadline=None)
def test_a_replay_decides_and_earns_what_its_steps_do(problem: ShardingProblem) -> None:
    propagation = Propagation(problem.along[0])
    chosen: list[int] = []
    for c in np.flatnonzero(problem.along[0].live).tolist():
        if not problem.classes.adjacency[c, chosen].any():
            chosen.append(c)
    vector: list[int] | None = [UNDECIDED] * len(propagation)
    decisions = 0
    for dim in propagation.order(linkage_groups=True).tolist():
        assert vector is not None
        if vector[dim] == UNDECIDED:
            decision = PARTITIONED if propagation.dim_classes[dim] in chosen else REPLICATED
            vector, decisions = decided_by(problem, vector, dim, decision), decisions + 1
    assert vector is not None
    replay = propagation.replay(chosen)
    assert replay.decisions == decisions
    assert replay.reward == pytest.approx(0.4 * vector.count(PARTITIONED) + 0.1 * vector.count(REPLICATED))


@given(problems(), st.booleans(), st.data())
def test_greedy_decisions_shard_whatever_nothing_sharded_before_excludes(
    problem: ShardingProblem, linkage_groups: bool, data: st.DataObject
) -> None:
    (along,) = problem.along
    propagation, k = Propagation(along), len(problem.classes)
    unavailable = data.draw(st.sets(st.integers(0, k - 1)))
    conflicts = {frozenset(pair) for pair in problem.classes.conflicts.tolist()}
    expected: list[int] = []
    for dim in propagation.order(linkage_groups=linkage_groups).tolist():
        number = int(propagation.dim_classes[dim])
        excluded = any(frozenset({number, other}) in conflicts for other in expected)
        if along.live[number] and number not in unavailable and number not in expected and not excluded:
            expected.append(number)
    assert propagation.greedy(linkage_groups=linkage_groups, unavailable=unavailable) == sorted(expected)
