"""The sharding environment against the definition of its step, one episode at a time, and its laws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sharding_steps import decided_by
from torch import Tensor

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.env import Decided, ShardingTables
from automap_models.envs.sharding.propagation import PARTITIONED, REPLICATED, UNDECIDED, Propagation

EPISODES = 5
SEEDS = st.integers(0, 10_000)
Draw = Callable[[int], ShardingProblem]


def played(tables: ShardingTables, data: st.DataObject) -> list[tuple[Decided, Tensor]]:
    """States and legal actions of a batch of episodes until all have ended; those of ended ones are 0."""
    states, path = tables.reset(EPISODES), []
    while (legal := tables.legal(states)).any():
        draws = data.draw(st.lists(st.booleans(), min_size=EPISODES, max_size=EPISODES))
        action = torch.tensor(draws).long() * legal[:, 1]
        path.append((states, action))
        after, _, _ = tables.step(states, action)
        running = legal.any(1)
        states = Decided(
            torch.where(running.unsqueeze(1), after.classes, states.classes),
            torch.where(running, after.position, states.position),
        )
    return [*path, (states, torch.zeros(EPISODES))]


@given(SEEDS, st.booleans(), st.data())
def test_a_batch_of_steps_is_the_step_by_its_definition_one_by_one(
    random_sharding_problem: Draw, seed: int, linkage_groups: bool, data: st.DataObject
) -> None:
    problem = random_sharding_problem(seed)
    tables = ShardingTables.from_problem(problem, linkage_groups=linkage_groups)
    order = tables.order.tolist()
    for states, action in played(tables, data)[:-1]:
        after, reward, ended = tables.step(states, action)
        vectors = [torch.empty_like(tables.decision_vector(s)) for s in (states, after)]
        for vector, decided in zip(vectors, (states, after), strict=True):
            vector[:, tables.order] = tables.decision_vector(decided)
        for row in tables.legal(states).any(1).nonzero().squeeze(1).tolist():
            before = vectors[0][row].tolist()
            expected = decided_by(problem, before, order[int(states.position[row])], int(action[row]))
            assert vectors[1][row].tolist() == (before if expected is None else expected)
            new = [now for was, now in zip(before, expected or before, strict=True) if was != now]
            earned = -1.0 if expected is None else sum(0.4 if now == PARTITIONED else 0.1 for now in new)
            assert float(reward[row]) == pytest.approx(earned, rel=1e-5)
            open_ = [place for place, dim in enumerate(order) if (expected or before)[dim] == UNDECIDED]
            assert bool(ended[row]) == (expected is None or not open_)
            assert int(after.position[row]) == (len(order) if ended[row] else open_[0])


@given(SEEDS, st.booleans(), st.data())
def test_an_episode_pays_for_every_dimension_once_and_a_conflict_once(
    random_sharding_problem: Draw, seed: int, linkage_groups: bool, data: st.DataObject
) -> None:
    problem = random_sharding_problem(seed)
    tables = ShardingTables.from_problem(problem, linkage_groups=linkage_groups)
    earned = torch.zeros(EPISODES)
    *path, (end, _) = played(tables, data)
    for states, action in path:
        running = tables.legal(states).any(1)
        earned += torch.where(running, tables.step(states, action)[1], 0.0)
    vector = tables.decision_vector(end)
    paid = 0.4 * (vector == PARTITIONED).sum(1) + 0.1 * (vector == REPLICATED).sum(1)
    conflict = (vector == UNDECIDED).any(1)
    torch.testing.assert_close(earned, paid - conflict.float())
    assert not (linkage_groups and conflict.any())  # known beforehand, none is legal


@given(SEEDS, st.booleans(), st.data())
def test_a_state_is_always_a_legal_plan(
    random_sharding_problem: Draw, seed: int, linkage_groups: bool, data: st.DataObject
) -> None:
    problem = random_sharding_problem(seed)
    tables = ShardingTables.from_problem(problem, linkage_groups=linkage_groups)
    for states, _ in played(tables, data):
        for row in (states.classes == PARTITIONED).numpy():
            sharded = np.flatnonzero(row)
            assert problem.along[0].live[sharded].all()
            assert not problem.classes.adjacency[np.ix_(sharded, sharded)].any()


@given(SEEDS)
def test_an_episode_may_begin_with_some_decisions_made(random_sharding_problem: Draw, seed: int) -> None:
    problem = random_sharding_problem(seed)
    tables = ShardingTables.from_problem(problem, linkage_groups=True)
    begun = tables.step(tables.reset(1), torch.tensor([0]))[0]
    again = tables.start(begun.classes)
    assert torch.equal(again.classes, begun.classes)
    assert torch.equal(again.position, begun.position)


@given(SEEDS)
def test_with_linkage_groups_the_largest_comes_first_and_without_the_first(
    random_sharding_problem: Draw, seed: int
) -> None:
    problem = random_sharding_problem(seed)
    sizes = Propagation(problem.along[0]).group_sizes().max(axis=1)
    grouped = ShardingTables.from_problem(problem, linkage_groups=True).order.numpy()
    assert (np.diff(sizes[grouped]) <= 0).all()
    assert ShardingTables.from_problem(problem, linkage_groups=False).order.tolist() == list(range(len(sizes)))
