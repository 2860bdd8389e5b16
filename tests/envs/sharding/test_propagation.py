"""Auto-MAP's step against its definition: decide one class, exclude its neighbours, one at a time on plain sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import MeshAxis
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.envs.sharding.propagation import (
    PARTITIONED,
    REPLICATED,
    UNDECIDED,
    Propagation,
    State,
    sharded_classes,
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


def by_definition(problem: ShardingProblem, decided: list[int], dim: int, decision: int) -> list[int] | None:
    """The decision vector after one decision, None for a conflict: dimension by dimension, until nothing changes."""
    classes = problem.classes
    conflicts = {frozenset(pair) for pair in classes.conflicts.tolist()}
    vector = list(decided)
    todo = [(dim, decision)]
    while todo:
        i, value = todo.pop()
        own = int(classes.dim_classes[i])
        if vector[i] == value:
            continue
        if vector[i] != UNDECIDED or (value == PARTITIONED and classes.divisors[own] % problem.mesh[0].size):
            return None
        vector[i] = value
        for j, other in enumerate(classes.dim_classes.tolist()):
            if other == own:
                todo.append((j, value))
            elif value == PARTITIONED and frozenset({own, other}) in conflicts:
                todo.append((j, REPLICATED))
    return vector


@given(problems(), st.data())
def test_a_step_does_what_its_definition_says(problem: ShardingProblem, data: st.DataObject) -> None:
    propagation, state = Propagation(problem.along[0]), State()
    vector: list[int] | None = [UNDECIDED] * len(propagation)
    for _ in range(len(propagation)):
        dim = data.draw(st.integers(0, len(propagation) - 1))
        decision = data.draw(st.sampled_from([PARTITIONED, REPLICATED]))
        assert vector is not None
        before, vector = vector, by_definition(problem, vector, dim, decision)
        step = propagation.decide(state, dim, decision)
        assert step.conflict == (vector is None)
        if vector is None:
            assert (step.state, step.reward) == (state, -1.0)
            break
        state = step.state
        assert propagation.decisions(state).tolist() == vector
        new = [after for was, after in zip(before, vector, strict=True) if was == UNDECIDED != after]
        assert (step.partitioned, step.replicated) == (new.count(PARTITIONED), new.count(REPLICATED))
        assert step.reward == pytest.approx(0.4 * step.partitioned + 0.1 * step.replicated)
        assert [propagation.decided(state, i) for i in range(len(vector))] == [v != UNDECIDED for v in vector]


@given(problems())
@settings(deadline=None)
def test_a_linkage_group_is_what_one_decision_alone_decides(problem: ShardingProblem) -> None:
    propagation = Propagation(problem.along[0])
    sizes = propagation.group_sizes()
    for dim in range(len(propagation)):
        for decision in (REPLICATED, PARTITIONED):
            vector = by_definition(problem, [UNDECIDED] * len(propagation), dim, decision)
            group = propagation.linkage_group(dim, decision)
            if vector is None:
                assert group is None
                assert sizes[dim, decision] == 0
            else:
                assert group is not None
                assert [i for i, v in enumerate(vector) if v == PARTITIONED] == group.partitioned.tolist()
                assert [i for i, v in enumerate(vector) if v == REPLICATED] == group.replicated.tolist()
                assert sizes[dim, decision] == group.partitioned.size + group.replicated.size
    order = propagation.by_group_size()
    assert sorted(order.tolist()) == list(range(len(propagation)))
    assert (np.diff(sizes.max(axis=1)[order]) <= 0).all()


@given(problems())
@settings(deadline=None)
def test_a_replay_ends_with_the_classes_it_was_given(problem: ShardingProblem) -> None:
    propagation = Propagation(problem.along[0])
    chosen: list[int] = []
    for c in np.flatnonzero(problem.along[0].live).tolist():
        if not problem.classes.adjacency[c, chosen].any():
            chosen.append(c)
    replay = propagation.replay(chosen)
    decided = propagation.decisions(replay.state).tolist()
    assert sharded_classes(replay.state) == tuple(chosen)
    assert UNDECIDED not in decided
    assert replay.reward == pytest.approx(0.4 * decided.count(PARTITIONED) + 0.1 * decided.count(REPLICATED))
    assert 1 <= replay.decisions <= len(problem.classes)


@given(problems(), st.booleans(), st.data())
def test_greedy_decisions_shard_whatever_nothing_sharded_before_excludes(
    problem: ShardingProblem, linkage_groups: bool, data: st.DataObject
) -> None:
    (along,) = problem.along
    propagation, k = Propagation(along), len(problem.classes)
    unavailable = data.draw(st.sets(st.integers(0, k - 1)))
    episode = propagation.greedy(linkage_groups=linkage_groups, unavailable=unavailable)
    conflicts = {frozenset(pair) for pair in problem.classes.conflicts.tolist()}
    expected: list[int] = []
    for dim in propagation.by_group_size() if linkage_groups else range(len(propagation)):
        number = propagation.dim_classes[dim]
        excluded = any(frozenset({number, other}) in conflicts for other in expected)
        if along.live[number] and number not in unavailable and number not in expected and not excluded:
            expected.append(number)
    assert list(sharded_classes(episode.state)) == sorted(expected)
