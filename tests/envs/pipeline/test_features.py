"""What a policy sees: exact where it says so, the same on every scale, and no more than it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline import features
from automap_models.envs.pipeline.encoding import COMPUTE, SAVED, SENT, WEIGHTS, encode
from automap_models.envs.pipeline.env import OUT_OF_MEMORY_REWARD, Problems, States, follow, prefix_of, rewards

LAW = settings(max_examples=25, deadline=None, derandomize=True)
POINTS, MAX_STAGES = 16, 5

DrawProblems = Callable[..., list[StagedProblem]]


def begun(problems: Problems, decisions: int, seed: int = 0) -> States:
    """States after so many random decisions, or as many as all problems have."""
    rng, empty = np.random.default_rng(seed), States.empty(len(problems.stages), MAX_STAGES)
    until = np.minimum(problems.decisions, decisions)
    return follow(problems, empty, until, features.describe, lambda c: rng.random(c.choice.shape).astype(np.float32))


@LAW
@given(st.integers(0, 2**32))
@example(131073)
def test_the_last_device_cut_is_settled_and_earns_what_is_said(random_problems: DrawProblems, seed: int) -> None:
    """Where the stages before it fit the memory; where these do not, nothing that is still chosen mends that."""
    problems = Problems.from_encoded(encode(random_problems(seed, 8, POINTS, stages=(2, 4))))
    states = follow(problems, begun(problems, 0), problems.decisions - 1, features.describe, lambda c: c.estimate)
    choices = features.describe(problems, states)
    assert choices.settled.all()
    earned = np.full(choices.estimate.shape, np.nan)
    for column in range(choices.choice.shape[1]):
        rows = np.flatnonzero(choices.legal[:, column])
        complete = states.take(rows).after(choices.choice[rows, column])
        earned[rows, column] = rewards(problems.take(rows), complete)
    some = np.nanmax(earned, axis=1) > OUT_OF_MEMORY_REWARD
    legal = choices.legal & some[:, None]
    assert choices.estimate[legal] == pytest.approx(earned[legal], rel=1e-5)


def test_a_settled_cut_earns_what_its_best_device_cut_does_and_never_more(random_problems: DrawProblems) -> None:
    """Devices are looked at where the work deserves them and beside; that misses the best one of a hundred times."""
    ratios = []
    for seed in range(40):
        problems = Problems.from_encoded(encode(random_problems(seed, 6, POINTS, stages=(2, 2))))
        states = begun(problems, 0)
        choices = features.describe(problems, states)
        for column in range(choices.choice.shape[1]):
            rows = np.flatnonzero(choices.legal[:, column])
            after = features.describe(problems.take(rows), states.take(rows).after(choices.choice[rows, column]))
            best = np.where(after.legal, after.estimate, OUT_OF_MEMORY_REWARD).max(axis=1)
            ratios.extend((choices.estimate[rows, column] / best)[best > 0.0].tolist())
    assert max(ratios) <= 1.0 + 1e-6
    assert np.mean(np.array(ratios) > 1.0 - 1e-5) > 0.97


@LAW
@given(st.integers(0, 2**32), st.sampled_from([1e-3, 7.0]), st.integers(0, 4))
def test_features_are_the_same_on_every_scale(
    random_problems: DrawProblems, seed: int, scale: float, decisions: int
) -> None:
    """Times, and bytes with their bandwidths and memory, in other units."""
    records = random_problems(seed, 4, POINTS, stages=(2, 4))

    def scaled(problem: StagedProblem) -> StagedProblem:
        p, c = problem.profile, problem.cluster
        profile = Profile.create(scale * p.C, 5 * p.A, 5 * p.W, scale * p.C_fwd, 5 * p.stash)
        cluster = Cluster(c.nodes, c.devices_per_node, c.intra * 5 / scale, c.inter * 5 / scale, 5 * c.memory)
        return replace(problem, profile=profile, cluster=cluster)

    ours, others = (Problems.from_encoded(encode(some)) for some in (records, [scaled(p) for p in records]))
    states = begun(ours, decisions, seed)
    rows = np.flatnonzero(states.step < ours.decisions)
    one, other = (features.describe(some.take(rows), states.take(rows)) for some in (ours, others))
    assert (one.choice == other.choice).all()
    for a, b in zip(one.inputs, other.inputs, strict=True):
        assert np.isfinite(a).all()
        assert a == pytest.approx(b, abs=2e-3)


def test_of_many_devices_those_that_look_best_are_looked_at(random_problems: DrawProblems) -> None:
    record = random_problems(1, 1, POINTS, stages=(3, 3))[0]
    wide = replace(record, cluster=replace(record.cluster, nodes=16, devices_per_node=8))
    problems = Problems.from_encoded(encode([wide]))
    states = begun(problems, 1)
    choices = features.describe(problems, states)
    assert choices.legal.sum() == features.MOST_DEVICE_CHOICES
    assert (np.diff(choices.choice[0]) > 0).all()
    arrays, given_, point = problems.arrays[0], problems.numbers[0], int(states.cuts[0, 0])
    passed = prefix_of(arrays, given_, states.cuts[0], states.firsts[0], 0)
    looks = [features.stage_outcome(arrays, given_, passed, point, float(q)).reward for q in range(1, 127)]
    best = np.sort(looks)[::-1][: features.MOST_DEVICE_CHOICES]
    assert np.sort(choices.estimate[0])[::-1] == pytest.approx(best.astype(np.float32))


@LAW
@given(st.integers(0, 2**32))
def test_the_rest_is_described_as_numpy_says(random_problems: DrawProblems, seed: int) -> None:
    problems = Problems.from_encoded(encode(random_problems(seed, 1, POINTS)))
    arrays, given_ = problems.arrays[0], problems.numbers[0]
    largest, fewest = features.behind(arrays)
    for row, channel in enumerate((COMPUTE, WEIGHTS, SAVED)):
        steps = np.diff(arrays[channel])
        for p in range(POINTS - 1):
            assert largest[row, p] == pytest.approx(max(steps[p:].max(), 0.0))
    for row in range(len(fewest)):
        for p in range(POINTS):
            assert fewest[row, p] == arrays[SENT, p : p + (1 << row)].min()
    empty = States.empty(1, MAX_STAGES)
    passed = prefix_of(arrays, given_, empty.cuts[0], empty.firsts[0], 0)
    out = np.zeros(features.FEATURES, dtype=np.float32)
    for point in range(POINTS - 1):
        features.describe_rest(out, arrays, given_, passed, point, fewest)
        assert out == pytest.approx(rest_by_numpy(arrays, given_, passed.remaining, point), abs=1e-5)


def rest_by_numpy(arrays: np.ndarray, numbers: np.ndarray, left: float, point: int) -> np.ndarray:
    """The features behind LOOKED of a first cut, from sums and slices."""
    devices, _, _, state, _, micro, _ = numbers
    compute, weights, end = arrays[COMPUTE], arrays[WEIGHTS], POINTS - 1
    even = micro * compute[end] / devices
    stage = (compute[end] - compute[point]) / left

    def reached(sums: np.ndarray, wanted: float) -> int:
        return min(int(np.searchsorted(sums, np.float64(wanted))), end)

    places = [reached(compute, min(compute[point] + edge * stage, compute[end])) for edge in features.EDGES] + [end]
    out = [0.0] * features.LOOKED
    for low, high in pairwise(places):
        sent = arrays[SENT, low + 1 : high + 1].min() if high > low else arrays[SENT, high]
        for x in (2 * max(weights[high] - weights[low], 0), 2 * micro * sent):
            out.append(x / (x + even + 1e-6))
    rest = weights[end] - weights[point]
    for part in features.SHARES:
        center = reached(weights, weights[point] + part * rest)
        for x in (compute[end] - compute[center], max(compute[center] - compute[point], 0)):
            out.append(micro * x / (1 + micro * x))
    stash = min(micro, left) * (arrays[SAVED, end] - arrays[SAVED, point]) / devices
    for x in (state * rest / left, stash, 2 * micro * arrays[SENT, point]):
        out.append(x / (1 + x))
    return np.array([*out, weights[point] / max(weights[end], 1e-9), rest / (1 + rest)])
