"""Look-ahead features: what is settled is exact, what is left at the end is the reward, units do not matter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.staged import StagedProblem
from automap_models.cost.collectives import all_reduce_s_per_byte, transfer_s_per_byte
from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline import features as pipeline_features
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.envs.pipeline.features import Progress

LAW = settings(max_examples=8, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 16, 5, 18
FLOAT32 = 1e-5

FIRST = torch.arange(1.0, MAX_DEVICES)
"""Every device but the first."""

SHARES = st.sampled_from([0.0, 0.5])
"""Of the problems whose replicas get whole samples."""

DrawProblems = Callable[..., list[StagedProblem]]


def with_tables(records: list[StagedProblem]) -> Problems:
    """The problems as the look-ahead takes them."""
    return Problems.from_encoded(encode(records)).with_cost_to_go(MAX_STAGES)


def random_states(problems: Problems, step: int | None, seed: int) -> Partial:
    """Plans after `step` uniform legal decisions; after a random number short of the end where None."""
    generator = torch.Generator().manual_seed(seed)
    steps = pipeline.episode_steps(problems)
    until = torch.full_like(steps, step or 0)
    if step is None:
        until = (torch.rand(len(steps), generator=generator) * steps).long()
    partial = pipeline.reset(len(steps), MAX_STAGES)
    for t in range(int(until.max())):
        rows = (until > t).nonzero().squeeze(1)
        here, so_far = problems.take(rows), partial.take(rows)
        legal = pipeline.legal_actions(here, so_far, int(problems.devices.max()))
        action = torch.multinomial(legal.float(), 1, generator=generator).squeeze(1)
        after = pipeline.apply(so_far, action, problems.points)
        partial = Partial(*(old.index_put((rows,), new) for old, new in zip(partial, after, strict=True)))
    return partial


def features(problems: Problems, partial: Partial) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Legal candidates, features, global features: of states that cut instructions and of states that cut devices."""
    even = partial.step % 2 == 0
    here, so_far = problems.take(even), partial.take(even)
    legal = pipeline.legal_cuts(here, so_far)
    described, globally, _ = pipeline_features.instruction_features(here, so_far)
    cut = (legal, described, globally)
    here, so_far = problems.take(~even), partial.take(~even)
    legal = pipeline.legal_device_cuts(here, so_far, FIRST)
    described, globally, _ = pipeline_features.device_features(here, so_far, FIRST)
    return [cut, (legal, described, globally)]


# --- with one stage left the look-ahead is the reward ------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32), st.integers(2, 4), SHARES)
def test_with_one_stage_left_the_estimate_of_a_device_cut_is_its_reward(
    random_problems: DrawProblems, seed: int, stages: int, whole_samples: float
) -> None:
    """For every last cut at every point, as long as the stages before it fit."""
    here, after = _after_every_cut(*_one_boundary_left(random_problems, seed, stages, whole_samples=whole_samples))[1:]
    estimate = pipeline_features.device_features(here, after, FIRST)[2]
    reward = _rewards_of_all_device_cuts(here, after)
    sure = pipeline.legal_device_cuts(here, after, FIRST) & ~reward.isnan()
    np.testing.assert_allclose(estimate[sure], reward[sure], rtol=FLOAT32, atol=1e-6)


@LAW
@given(st.integers(0, 2**32), st.integers(2, 4), SHARES)
def test_that_holds_for_every_device_of_larger_clusters_and_a_point_is_worth_its_best_unit(
    random_problems: DrawProblems, seed: int, stages: int, whole_samples: float
) -> None:
    """33 and 35 devices are counted in twos, 65 in threes, and none of them makes a whole number of units."""
    clusters = [(11, 3), (5, 7), (13, 5)]
    problems, partial = _one_boundary_left(
        random_problems, seed, stages, whole_samples=whole_samples, clusters=clusters
    )
    first = torch.arange(1.0, 65)
    (row, point), here, after = _after_every_cut(problems, partial)
    estimate = pipeline_features.device_features(here, after, first)[2]
    reward = _rewards_of_all_device_cuts(here, after, 65)
    legal, known = pipeline.legal_device_cuts(here, after, first), ~reward.isnan()
    np.testing.assert_allclose(estimate[legal & known], reward[legal & known], rtol=FLOAT32, atol=1e-6)
    unit = legal & (first % torch.ceil(here.devices / 32).unsqueeze(1) == 0)
    best = torch.where(unit, reward, -1.0).amax(1)  # no unit may be left where hardly a device is
    of_point = pipeline_features.instruction_features(problems, partial)[2][row, point]
    np.testing.assert_allclose(of_point[known.all(1)], best[known.all(1)], rtol=FLOAT32, atol=1e-6)


@LAW
@given(st.integers(0, 2**32), st.integers(2, 4), SHARES)
def test_with_one_stage_left_the_estimate_of_a_point_is_the_reward_of_its_best_device_cut(
    random_problems: DrawProblems, seed: int, stages: int, whole_samples: float
) -> None:
    problems, partial = _one_boundary_left(random_problems, seed, stages, whole_samples=whole_samples)
    estimate = pipeline_features.instruction_features(problems, partial)[2]
    (row, point), here, after = _after_every_cut(problems, partial)
    reward = _rewards_of_all_device_cuts(here, after)
    best = torch.where(pipeline.legal_device_cuts(here, after, FIRST), reward, -2.0).amax(1)
    sure = ~reward.isnan().any(1)
    np.testing.assert_allclose(estimate[row, point][sure], best[sure], rtol=FLOAT32, atol=1e-6)


def _one_boundary_left(random_problems: DrawProblems, seed: int, stages: int, **sizes: Any) -> tuple[Problems, Partial]:
    """Random states before the last two decisions whose complete stages fit."""
    problems = with_tables(random_problems(seed, 8, POINTS, stages=(stages, stages), **sizes))
    partial = random_states(problems, 2 * (stages - 2), seed)
    some_complete_plan = random_states(problems, 2 * (stages - 1), seed)
    memory = pipeline.complete_cost(problems, some_complete_plan).memory[:, : stages - 2]
    fits = (memory < 1).all(1)  # the random states grow into each other: same seed, same decisions
    return problems.take(fits), partial.take(fits)


def _after_every_cut(
    problems: Problems, partial: Partial
) -> tuple[tuple[torch.Tensor, torch.Tensor], Problems, Partial]:
    """Every legal (row, point) with its problem and the plan after cutting there."""
    row, point = pipeline.legal_cuts(problems, partial).nonzero(as_tuple=True)
    return (row, point), problems.take(row), pipeline.apply(partial.take(row), point, POINTS)


def _rewards_of_all_device_cuts(problems: Problems, partial: Partial, max_devices: int = MAX_DEVICES) -> torch.Tensor:
    """[B, max_devices - 1] by the environment; NaN where memory is too close to the limit to call."""
    row = torch.arange(len(partial.step)).repeat_interleave(max_devices - 1)
    device = torch.arange(1, max_devices).repeat(len(partial.step))
    problems, partial = problems.take(row), partial.take(row)
    complete = pipeline.apply(partial, POINTS + device - 1, POINTS)
    close = (pipeline.complete_cost(problems, complete).memory - 1).abs().lt(FLOAT32).any(1)
    reward = torch.where(close, torch.nan, pipeline.terminal_reward(problems, complete))
    return reward.view(-1, max_devices - 1)


# --- what is settled --------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32))
def test_progress_is_what_plain_loops_over_the_complete_stages_find(random_problems: DrawProblems, seed: int) -> None:
    records = random_problems(seed, 12, POINTS)
    problems = Problems.from_encoded(encode(records))
    partial = random_states(problems, None, seed)
    done = pipeline_features.progress(problems.scaled(), partial)
    for i, record in enumerate(records):
        expected = _slow_progress(record, partial, i)
        for name in Progress._fields:
            # 1e-5 of values around 1; prefix sums lose 1e-7 of MAX, which is up to 1e2 ideal lengths here.
            ours = float(getattr(done, name)[i])
            assert ours == pytest.approx(expected[name], rel=FLOAT32, abs=FLOAT32), (name, i)


def _slow_progress(problem: StagedProblem, partial: Partial, i: int) -> dict[str, float]:
    """Stage by stage in float64, seconds over the ideal length; parameters and activations over `inter`."""
    profile, cluster, M = problem.profile, problem.cluster, problem.micro_batches
    ideal = profile.C.sum() * M / cluster.devices
    complete = int(partial.step[i]) // 2
    cuts = problem.grid.to_instructions(partial.cuts[i, :complete].tolist())
    bounds = [0, *partial.device_cuts[i, :complete].tolist()]
    through = back = span = reduce = 0.0
    own, links = [], []
    starts = [0, *(cut + 1 for cut in cuts)]
    for s, ((first, stop), (a, b)) in enumerate(zip(pairwise(starts), pairwise(bounds), strict=True)):
        if s:
            sender = bounds[s - 1]
            x = profile.A[first - 1] * transfer_s_per_byte(cluster, sender, a, b)
            span = max(span, through + 2 * M * x)
            through, back = through + 2 * x, back + x
            links.append(2 * x)
        compute, forward = profile.C[first:stop].sum() / (b - a), profile.C_fwd[first:stop].sum() / (b - a)
        span = max(span, through + M * compute)
        reduce = max(reduce, profile.W[first:stop].sum() * all_reduce_s_per_byte(cluster, a, b) - back)
        through, back = through + compute, back + compute - forward
        own.append(compute)
    rounds = [(sum(own[s : s + n]) + sum(links[s : s + n - 1])) / n for n in (1, 2, 3) for s in range(len(own) - n + 1)]
    end = cuts[-1] + 1 if cuts else 0
    times = {
        "last": own[-1] if own else 0.0,
        "last_two": sum(own[-2:]) + (links[-1] if links else 0.0),
        "round": max(rounds, default=0.0),
        "through": through,
        "span": span,
        "back": back,
        "reduce": reduce,
        "activation": profile.A[end - 1] / cluster.inter if end else 0.0,
        "compute": profile.C[:end].sum(),
        "weights": profile.W[:end].sum() / cluster.inter,
        "forward": profile.C_fwd[:end].sum(),
    }
    return {
        **{name: time / ideal for name, time in times.items()},
        "left": problem.stages - 1 - complete,
        "first": bounds[-1],
        "previous": bounds[-2] if complete else 0,
        "stash": profile.stash[:end].sum() / cluster.memory,
    }


# --- ranges and units -------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32), st.sampled_from([(1e-3, 1e-2), (0.2, 20.0), (1e3, 1e4)]))
def test_features_of_legal_candidates_are_finite_and_bounded(
    random_problems: DrawProblems, seed: int, memory: tuple[float, float]
) -> None:
    """Shares, flags and squashed numbers in [-1, 1]; only the distance of two rewards reaches 2."""
    problems = with_tables(random_problems(seed, 16, POINTS, memory=memory))
    for legal, described, globally in features(problems, random_states(problems, None, seed)):
        chosen = described[legal]
        assert chosen.isfinite().all()
        assert globally.isfinite().all()
        assert _largest(globally) <= 1.0 + FLOAT32
        assert _largest(chosen) <= 2.0 + FLOAT32
        within = chosen[:, : pipeline_features.CANDIDATE_FEATURES]
        assert _largest(within) <= 1.0 + FLOAT32


def _largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


@LAW
@given(st.integers(0, 2**32), st.sampled_from([2.0**-20, 2.0**-3, 2.0**6]))
def test_a_power_of_two_as_the_unit_of_time_changes_no_bit(
    random_problems: DrawProblems, seed: int, factor: float
) -> None:
    problems = with_tables(random_problems(seed, 12, POINTS))
    partial = random_states(problems, None, seed)
    for ours, theirs in zip(features(_in_unit(problems, factor), partial), features(problems, partial), strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)


@LAW
@given(st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_any_unit_of_time_changes_only_rounding(random_problems: DrawProblems, seed: int, factor: float) -> None:
    """Device cuts; a point's features hang on which device cut is best, where rounding may break ties otherwise."""
    problems = with_tables(random_problems(seed, 12, POINTS))
    partial = random_states(problems, None, seed)
    _, (legal, ours, our_state) = features(_in_unit(problems, factor), partial)
    _, (_, theirs, their_state) = features(problems, partial)
    np.testing.assert_allclose(ours[legal], theirs[legal], rtol=1e-4, atol=FLOAT32)
    np.testing.assert_allclose(our_state, their_state, rtol=1e-4, atol=FLOAT32)


def _in_unit(problems: Problems, factor: float) -> Problems:
    """The same problems with C, A, W and F times a factor; memory per unit of W shrinks accordingly."""
    unit = torch.tensor([factor] * 4 + [1.0]).view(1, 5, 1)
    arrays, state = problems.arrays * unit, problems.state_over_memory / factor
    changed = problems._replace(arrays=arrays, state_over_memory=state, cost_to_go=None)
    return changed.with_cost_to_go(MAX_STAGES)


def test_a_point_where_nothing_fits_is_still_described_by_possible_device_cuts(random_problems: DrawProblems) -> None:
    """Cuts that are impossible once tied with those out of memory off the node boundaries, and could be infinite."""
    problems = with_tables(random_problems(128, 16, POINTS, memory=(1e-3, 1e-2)))
    legal, described, _ = features(problems, random_states(problems, None, 128))[0]
    share_of_devices = pipeline_features.CANDIDATE_FEATURES - 4
    assert (described[legal][:, share_of_devices] > 0).all()


def test_grids_coarser_than_the_widest_tail_have_features_too(random_problems: DrawProblems) -> None:
    """The shares of the last 4 … 64 points once read before the first point of a grid of 64."""
    for points in (2, 8, 64, 65):
        problems = with_tables(random_problems(0, 4, points, stages=(2, 2)))
        partial = pipeline.reset(4, 2)
        _, _, globally = features(problems, partial)[0]
        assert globally.shape == (4, pipeline_features.GLOBAL_FEATURES)
        assert (globally[:, 3] <= 1).all()
