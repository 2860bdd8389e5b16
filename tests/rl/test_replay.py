"""Prioritised replay: sound after every change, drawn in proportion, a ring, and restored to the same draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.rl.replay import PrioritisedReplay

LIKE = {"number": np.int64(0), "row": np.zeros(3, dtype=np.float32)}


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    """Items that carry their number."""
    number = np.arange(first, first + count)
    return {"number": number, "row": np.repeat(number[:, None], 3, 1).astype(np.float32)}


def filled(count: int, capacity: int = 64, alpha: float = 0.5, beta: float = 0.5) -> PrioritisedReplay:
    replay = PrioritisedReplay(capacity, LIKE, alpha, beta)
    replay.add(rows(0, count))
    return replay


def assert_valid(structure: PrioritisedReplay) -> None:
    """No mass is negative, and only filled rows can be drawn."""
    assert (structure.mass >= 0).all()
    assert not structure.mass[len(structure) :].any()


# --- drawing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_rows_are_drawn_in_proportion_to_priority_to_the_alpha(alpha: float) -> None:
    """Pearson's statistic of 400 × 50 draws; stratified draws vary less than the independent ones it is made for.

    The bound is the 99.9 % quantile of the χ² distribution with 19 degrees of freedom.
    """
    priorities = np.random.default_rng(0).uniform(0.1, 5, 20)
    replay = filled(20, alpha=alpha)
    replay.update(np.arange(20), priorities)
    random = np.random.default_rng(1)
    drawn = np.concatenate([replay.sample(50, random)[0] for _ in range(400)])
    expected = drawn.size * priorities**alpha / (priorities**alpha).sum()
    counts = np.bincount(drawn, minlength=20)
    assert ((counts - expected) ** 2 / expected).sum() < 43.82


def test_a_batch_is_stratified() -> None:
    """Eight equal rows and a batch of eight: each stratum is one row."""
    index, items, _ = filled(8).sample(8, np.random.default_rng(0))
    assert index.tolist() == items["number"].tolist() == list(range(8))


def test_importance_weights_are_those_of_the_formula() -> None:
    """w = (N·P)^-β over the largest drawn; priorities 1, 4, 16 with α = ½ are drawn as 1 : 2 : 4.

    N·P = 3/7, 6/7, 12/7, so with β = 1 the weights are as 1 : 1/2 : 1/4.
    """
    replay = filled(3, alpha=0.5, beta=1.0)
    replay.update(np.arange(3), np.array([1.0, 4.0, 16.0]))
    index, _, weights = replay.sample(64, np.random.default_rng(0))
    assert set(index) == {0, 1, 2}
    np.testing.assert_allclose(weights, np.array([1.0, 0.5, 0.25])[index], rtol=1e-12)
    replay.beta = 0.0
    assert (replay.sample(64, np.random.default_rng(0))[2] == 1).all()


def test_new_rows_have_the_largest_priority_ever_seen() -> None:
    """Kept to the power of α = ½ in its mass: priority 9 as 3, 4 as 2."""
    replay = filled(2, alpha=0.5)
    np.testing.assert_array_equal(replay.mass[:3], [1, 1, 0])
    replay.update(np.array([0]), np.array([9.0]))
    replay.update(np.array([0]), np.array([4.0]))
    replay.add(rows(2, 1))
    np.testing.assert_array_equal(replay.mass[:3], [2, 1, 3])


def test_an_error_of_zero_leaves_a_row_drawable() -> None:
    replay = filled(2, alpha=1.0)
    replay.update(np.arange(2), np.zeros(2))
    assert_valid(replay)
    assert set(replay.sample(2, np.random.default_rng(0))[0]) == {0, 1}


# --- the ring ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.lists(st.integers(1, 7), min_size=1, max_size=12), st.integers(0, 2**32))
def test_the_newest_rows_are_kept_and_every_change_leaves_the_replay_sound(
    capacity: int, batches: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    replay = PrioritisedReplay(capacity, LIKE, alpha=0.7, beta=0.5)
    added = 0
    for batch in batches:
        replay.add(rows(added, batch))
        added += batch
        assert_valid(replay)
        newest = range(max(0, added - capacity), added)
        assert len(replay) == len(newest)
        assert sorted(replay.items["number"][: len(replay)]) == list(newest)
        index, items, weights = replay.sample(6, random)
        assert set(items["number"]) <= set(newest)
        np.testing.assert_array_equal(items["row"], np.repeat(items["number"][:, None], 3, 1))
        assert weights.max() == 1
        replay.update(index, random.exponential(1.0, 6))
        assert_valid(replay)


@pytest.mark.parametrize("added", [5, 64, 90])
def test_a_restored_replay_draws_and_learns_on_as_if_never_stopped(added: int) -> None:
    random = np.random.default_rng(3)
    replay = filled(added)
    replay.update(np.arange(len(replay)), random.exponential(1.0, len(replay)))
    restored = PrioritisedReplay(64, LIKE, alpha=0.5, beta=0.5)
    restored.load_state_dict(replay.state_dict())
    assert_valid(restored)
    one, other = np.random.default_rng(4), np.random.default_rng(4)
    for step in range(5):
        mine, theirs = replay.sample(16, one), restored.sample(16, other)
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1]["row"], theirs[1]["row"])
        np.testing.assert_array_equal(mine[2], theirs[2])
        for memory in (replay, restored):
            memory.update(mine[0], mine[2] + step)
            memory.add(rows(added + 3 * step, 3))
    np.testing.assert_array_equal(replay.mass, restored.mass)


def test_a_saved_state_does_not_change_with_the_replay() -> None:
    replay = filled(8)
    state = replay.state_dict()
    replay.update(np.arange(8), np.full(8, 5.0))
    replay.add(rows(100, 64))
    restored = PrioritisedReplay(64, LIKE, alpha=0.5, beta=0.5)
    restored.load_state_dict(state)
    assert restored.items["number"][:8].tolist() == list(range(8))
    np.testing.assert_array_equal(restored.mass[:9], [1] * 8 + [0])
