"""Consequences of one decision: exact where one stage is left, bounded, and the same in every unit and batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.envs.pipeline.features import progress

LAW = settings(max_examples=8, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 16, 4, 18
FIRST = torch.arange(1.0, MAX_DEVICES)

DrawProblems = Callable[..., list[StagedProblem]]


def drawn(random_problems: DrawProblems, seed: int, **sizes: object) -> Problems:
    return Problems.from_encoded(encode(random_problems(seed, 8, POINTS, **sizes)))


def after(problems: Problems, decisions: int, seed: int) -> Partial:
    """Plans after so many uniform legal decisions."""
    generator = torch.Generator().manual_seed(seed)
    partial = pipeline.reset(len(problems.stages), MAX_STAGES)
    for _ in range(decisions):
        legal = pipeline.legal_actions(problems, partial, MAX_DEVICES)
        action = torch.multinomial(legal.float(), 1, generator=generator).squeeze(1)
        partial = pipeline.apply(partial, action, POINTS)
    return partial


def rewards(problems: Problems, partial: Partial) -> torch.Tensor:
    """[B, MAX_DEVICES - 1] by the environment, of plans that lack a device cut; NaN where memory is close to full."""
    row = torch.arange(len(partial.step)).repeat_interleave(MAX_DEVICES - 1)
    device = torch.arange(1, MAX_DEVICES).repeat(len(partial.step))
    complete = pipeline.apply(partial.take(row), POINTS + device - 1, POINTS)
    close = (pipeline.complete_cost(problems.take(row), complete).memory - 1).abs().lt(1e-5).any(1)
    reward = torch.where(close, torch.nan, pipeline.terminal_reward(problems.take(row), complete))
    return reward.view(-1, MAX_DEVICES - 1)


@LAW
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_the_last_device_cut_is_worth_what_the_environment_pays(
    random_problems: DrawProblems, seed: int, stages: int
) -> None:
    problems = drawn(random_problems, seed, stages=(stages, stages))
    partial = after(problems, 2 * stages - 3, seed)
    before = pipeline.complete_cost(problems, after(problems, 2 * stages - 2, seed)).memory[:, : stages - 2]
    estimate = one_step.device_features(problems, partial, FIRST)[2]
    reward = rewards(problems, partial)
    sure = pipeline.legal_device_cuts(problems, partial, FIRST) & ~reward.isnan() & (before < 1).all(1).unsqueeze(1)
    np.testing.assert_allclose(estimate[sure], reward[sure], rtol=1e-5, atol=1e-6)


@LAW
@given(st.integers(0, 2**32))
def test_the_last_cut_is_worth_a_device_cut_behind_it_that_is_nearly_the_best(
    random_problems: DrawProblems, seed: int
) -> None:
    """All device cuts tried by the environment; the coarse choice and its two refinements miss few of the best."""
    problems = drawn(random_problems, seed, stages=(2, 2))
    start = after(problems, 0, seed)
    estimate = one_step.instruction_features(problems, start)[2]
    row, point = pipeline.legal_cuts(problems, start).nonzero(as_tuple=True)
    cut = pipeline.apply(start.take(row), point, POINTS)
    reward = rewards(problems.take(row), cut)
    best = torch.where(pipeline.legal_device_cuts(problems.take(row), cut, FIRST), reward, -2.0).amax(1)
    ours, sure = estimate[row, point], ~best.isnan()
    assert (ours[sure] <= best[sure] + 1e-5).all()
    assert ((ours[sure] - best[sure]).abs() < 1e-5).float().mean() > 0.95


@LAW
@given(st.integers(0, 2**32), st.integers(0, 5))
def test_features_are_in_a_range_and_do_not_depend_on_the_batch(
    random_problems: DrawProblems, seed: int, decisions: int
) -> None:
    problems = drawn(random_problems, seed, stages=(4, 4))
    partial = after(problems, decisions, seed)

    def features(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if decisions % 2:
            return one_step.device_features(problems.take(rows), partial.take(rows), FIRST)[:2]
        return one_step.instruction_features(problems.take(rows), partial.take(rows))[:2]

    together, globally = features(torch.arange(len(problems.stages)))
    width = one_step.DEVICE_FEATURES if decisions % 2 else one_step.INSTRUCTION_FEATURES
    state = one_step.DEVICE_GLOBAL_FEATURES if decisions % 2 else one_step.GLOBAL_FEATURES
    assert (together.shape[2], globally.shape[1]) == (width, state)
    assert together.isfinite().all()
    assert together.abs().max() <= 5
    alone = features(torch.tensor([3]))
    torch.testing.assert_close(alone[0][0], together[3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone[1][0], globally[3], rtol=1e-4, atol=1e-5)


@LAW
@given(st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_units_of_time_do_not_matter(random_problems: DrawProblems, seed: int, factor: float) -> None:
    """All times and memory per second of parameters in another unit: the same features."""
    problems = drawn(random_problems, seed, stages=(3, 3))
    unit = torch.tensor([factor] * 4 + [1.0]).view(1, 5, 1)
    other = problems._replace(arrays=problems.arrays * unit, state_over_memory=problems.state_over_memory / factor)
    partial = after(problems, 2, seed)
    features, _, estimate = one_step.instruction_features(problems, partial)
    changed, _, changed_estimate = one_step.instruction_features(other, partial)
    legal = pipeline.legal_cuts(problems, partial)
    torch.testing.assert_close(changed_estimate[legal], estimate[legal], rtol=1e-3, atol=1e-4)
    near = (changed - features)[legal].abs() < 1e-2
    assert near.float().mean() > 0.99  # rounding moves a few sums over the edge of a piece


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_first_point_that_reaches_a_sum_is_numpys(seed: int, points: int) -> None:
    random = np.random.default_rng(seed)
    sums = np.cumsum(random.integers(0, 3, (2, points)), 1).astype(np.float32)
    wanted = random.uniform(-1, sums.max() + 1, (2, 5)).astype(np.float32)
    ours = one_step.first_points(torch.from_numpy(sums), torch.from_numpy(wanted)).numpy()
    for row in range(2):
        np.testing.assert_array_equal(ours[row], np.searchsorted(sums[row], wanted[row]).clip(max=points - 1))


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_smallest_between_two_points_is_that_of_a_loop(seed: int, points: int) -> None:
    random = np.random.default_rng(seed)
    values = random.random((2, points)).astype(np.float32)
    low, high = random.integers(0, points, (2, 2, 6))
    ours = one_step.smallest_between(*map(torch.from_numpy, (values, low, high))).numpy()
    for row in range(2):
        for i in range(6):
            a, b = low[row, i], high[row, i]
            assert ours[row, i] == (values[row, a : b + 1].min() if a <= b else values[row, b])


def test_the_rest_behind_the_last_cut_is_the_last_stage(random_problems: DrawProblems) -> None:
    """One stage left: M micro-batches of its share, and the all-reduce of its parameters on all devices left."""
    problems = drawn(random_problems, 5, stages=(2, 2))
    scaled = problems.scaled()
    done = progress(scaled, after(problems, 0, 5))
    first = (scaled.devices / 2).floor().expand(-1, POINTS, 1)
    rest, _ = one_step.rest_evenly(scaled, done, scaled.arrays, first)
    left = scaled.total[:, 0] - scaled.arrays[:, 0]
    expected = scaled.micro.squeeze(2) * left / (scaled.devices - (scaled.devices / 2).floor()).squeeze(2)
    possible = rest.span.squeeze(2) < 1e5
    torch.testing.assert_close(rest.span.squeeze(2)[possible], expected[possible])
    assert (rest.stop == scaled.devices).all()


@pytest.mark.parametrize("per_node", [1.0, 8.0])
def test_every_candidate_stage_leaves_a_device_for_each_stage_behind(
    random_problems: DrawProblems, per_node: float
) -> None:
    problems = drawn(random_problems, 7, stages=(4, 4))
    scaled = problems.scaled()
    done = progress(scaled, after(problems, 2, 7))
    _, stop = one_step.best_stops(scaled._replace(per_node=torch.full_like(scaled.per_node, per_node)), done)
    assert (stop > done.first).all()
    assert (stop <= scaled.devices - done.left).all()


def test_the_largest_point_behind_another_is_found(random_problems: DrawProblems) -> None:
    """By looking at every one of them; behind the last there is none."""
    problems = drawn(random_problems, 9)
    scaled = problems.scaled()
    points = torch.arange(POINTS).expand(len(problems.stages), -1)
    got = one_step.largest_behind(scaled, points).numpy()
    sums = scaled.arrays[:, [0, 2, 4]].numpy()
    own = np.diff(sums, axis=2, prepend=np.zeros_like(sums[:, :, :1]))
    for k in range(POINTS - 1):
        np.testing.assert_array_equal(got[:, :, k], own[:, :, k + 1 :].max(axis=2))
    assert (got[:, :, -1] == 0).all()
