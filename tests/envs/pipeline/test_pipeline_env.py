"""The pipeline environment against its specification: the legal by enumeration, the earned by the cost model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost, span_and_length
from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems

LAW = settings(max_examples=25, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 16, 5, 18
FLOAT32 = 1e-5
ENV = PipelineEnv(MAX_STAGES, MAX_DEVICES)

DrawProblems = Callable[..., list[StagedProblem]]
Step = tuple[torch.Tensor, Partial, torch.Tensor, torch.Tensor, Partial, torch.Tensor, torch.Tensor]


def random_walk(problems: Problems, env: PipelineEnv, seed: int) -> Iterator[Step]:
    """Uniform legal actions to the end of every episode.

    Yields:
        rows still running, and of these: plans before, legal actions, actions, plans after, rewards, ended.
    """
    generator = torch.Generator().manual_seed(seed)
    partial = env.reset(problems)
    steps = env.episode_steps(problems)
    for t in range(int(steps.max())):
        rows = (steps > t).nonzero().squeeze(1)
        here, before = problems.take(rows), partial.take(rows)
        legal = env.legal(here, before)
        action = torch.multinomial(legal.float(), 1, generator=generator).squeeze(1)
        after, reward, ended = env.step(here, before, action)
        partial = Partial(*(old.index_put((rows,), new) for old, new in zip(partial, after, strict=True)))
        yield rows, before, legal, action, after, reward, ended


def legal_by_enumeration(problem: StagedProblem, partial: Partial, i: int) -> set[int]:
    """Next actions of all complete plans that begin with the decisions of row i."""
    cuts = tuple(cut for cut in partial.cuts[i].tolist() if cut >= 0)
    device_cuts = tuple(cut for cut in partial.device_cuts[i].tolist() if cut >= 0)
    boundaries, count = problem.stages - 1, len(cuts)
    if len(device_cuts) == boundaries:
        return set()
    if count == len(device_cuts):
        plans = combinations(problem.grid.cut_points.tolist(), boundaries)
        return {plan[count] for plan in plans if plan[:count] == cuts}
    count = len(device_cuts)
    plans = combinations(range(1, problem.cluster.devices), boundaries)
    return {problem.granularity + plan[count] - 1 for plan in plans if plan[:count] == device_cuts}


@LAW
@given(st.integers(0, 2**32))
def test_the_legal_actions_are_those_that_some_complete_plan_takes(random_problems: DrawProblems, seed: int) -> None:
    records = random_problems(seed, 4, POINTS, stages=(1, 4))
    problems = Problems.from_encoded(encode(records))
    for rows, before, legal, *_ in random_walk(problems, ENV, seed):
        for i, row in enumerate(rows.tolist()):
            assert set(legal[i].nonzero().squeeze(1).tolist()) == legal_by_enumeration(records[row], before, i)


@LAW
@given(st.integers(0, 2**32), st.sampled_from([2, 3, 5, 13]))
def test_points_that_repeat_an_instruction_are_no_cuts(
    random_problems: DrawProblems, seed: int, instructions: int
) -> None:
    """Far fewer instructions than points: a legal cut is the last point of an instruction other than the last."""
    stages = (2, min(4, instructions))
    records = random_problems(seed, 3, 128, stages=stages, instructions=(instructions, instructions))
    problems = Problems.from_encoded(encode(records))
    for rows, before, legal, *_ in random_walk(problems, ENV, seed):
        for i, row in enumerate(rows.tolist()):
            assert set(legal[i].nonzero().squeeze(1).tolist()) == legal_by_enumeration(records[row], before, i)
    first_cuts = pipeline.legal_cuts(problems, ENV.reset(problems))
    assert (first_cuts.sum(1) == torch.tensor([instructions - 1 - (r.stages - 2) for r in records])).all()


@LAW
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.5]))
def test_every_episode_of_legal_actions_ends_in_a_valid_plan_with_its_reward(
    random_problems: DrawProblems, seed: int, whole_samples: float
) -> None:
    """ideal / L by the cost model, -1 exactly when a stage is out of memory, nothing before the end."""
    records = random_problems(seed, 12, POINTS, whole_samples=whole_samples)
    problems = Problems.from_encoded(encode(records))
    finished = set()
    for rows, _, _, _, after, reward, ended in random_walk(problems, ENV, seed):
        assert not reward[~ended].any()
        for i in ended.nonzero().squeeze(1).tolist():
            finished.add(int(rows[i]))
            _assert_earned(records[int(rows[i])], after, i, float(reward[i]))
    assert finished == set(range(12))


def _assert_earned(problem: StagedProblem, complete: Partial, i: int, reward: float) -> None:
    boundaries = problem.stages - 1
    coarse_cuts, device_cuts = complete.cuts[i].tolist(), complete.device_cuts[i].tolist()
    assert coarse_cuts[boundaries:] == device_cuts[boundaries:] == [-1] * (MAX_STAGES - 1 - boundaries)
    points = coarse_cuts[:boundaries]
    plan = StagedPlan(
        problem.grid.to_instructions(points),
        tuple(device_cuts[:boundaries]),
        problem.micro_batches,
        "random",
        tuple(points),
    )
    assert plan.check_valid(problem) == (True, "")
    cost = plan_cost(problem, plan)
    if abs(cost.memory_bytes.max() / problem.cluster.memory - 1) < FLOAT32:
        return
    ideal = problem.profile.C.sum() * problem.micro_batches / problem.cluster.devices
    length_s = span_and_length(*cost.as_tuple(), problem.micro_batches)[1]  # nothing overlaps in the environment
    assert reward == pytest.approx(ideal / length_s if cost.feasible else -1.0, rel=2 * FLOAT32)
    assert reward == -1 or 0 < reward <= 1 + FLOAT32


def test_plans_that_fit_and_plans_that_do_not_both_occur(random_problems: DrawProblems) -> None:
    """Guards the test above: its problems are neither all roomy nor all hopeless."""
    problems = Problems.from_encoded(encode(random_problems(3, 200, POINTS)))
    rewards = torch.cat([reward[ended] for *_, reward, ended in random_walk(problems, ENV, 3)])
    assert 0.1 < float((rewards == -1).float().mean()) < 0.9


@LAW
@given(st.integers(0, 2**32))
def test_there_is_a_legal_action_before_the_end_and_none_after(random_problems: DrawProblems, seed: int) -> None:
    """Episodes of one to five stages side by side: each ends after its own 2(S-1) decisions."""
    records = random_problems(seed, 16, POINTS, stages=(1, 5))
    problems = Problems.from_encoded(encode(records))
    decisions = torch.zeros(16, dtype=torch.int64)
    ended_at = torch.zeros(16, dtype=torch.int64)
    for rows, _, legal, _, after, _, ended in random_walk(problems, ENV, seed):
        assert legal.any(1).all()
        decisions[rows] += 1
        ended_at[rows[ended]] = after.step[ended]
        assert not ENV.legal(problems.take(rows[ended]), after.take(ended)).any()
    expected = torch.tensor([2 * (record.stages - 1) for record in records])
    assert torch.equal(decisions, expected)
    assert torch.equal(ended_at, expected)
    one_stage = (expected == 0).nonzero().squeeze(1)
    assert not ENV.legal(problems.take(one_stage), ENV.reset(problems.take(one_stage))).any()


@LAW
@given(st.integers(0, 2**32))
def test_going_back_to_a_step_undoes_the_decisions_since(random_problems: DrawProblems, seed: int) -> None:
    problems = Problems.from_encoded(encode(random_problems(seed, 6, POINTS, stages=(4, 4))))
    states = [ENV.reset(problems)]
    for _, before, _, action, after, *_ in random_walk(problems, ENV, seed):
        untouched = before.at_step(before.step)
        _assert_same(pipeline.apply(before, action, POINTS), after)
        _assert_same(before, untouched)
        states.append(after)
    for state in states:
        _assert_same(states[-1].at_step(state.step), state)


def _assert_same(ours: Partial, theirs: Partial) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


def test_an_episode_drawn_by_hand() -> None:
    """Four equal instructions on two single-device nodes, cut in the middle, nothing to transfer or reduce.

    Two stages of u = 2 s with M = 3: T = 2 + 3·2 = 8 s = L, the ideal is 4·3 / 2 = 6 s.
    """
    cluster = Cluster(nodes=2, devices_per_node=1, intra=1.0, inter=1.0, memory=1.0)
    profile = Profile.create(C=[1.0] * 4, A=[0.0] * 4, W=[0.0] * 4)
    problems = Problems.from_encoded(encode([StagedProblem(profile, cluster, 2, 3, granularity=4)]))
    env = PipelineEnv(max_stages=2, max_devices=4)
    partial = env.reset(problems)
    assert env.legal(problems, partial).tolist() == [[True, True, True, False, False, False, False]]
    partial, reward, ended = env.step(problems, partial, torch.tensor([1]))
    assert (float(reward), bool(ended)) == (0.0, False)
    assert env.legal(problems, partial).tolist() == [[False, False, False, False, True, False, False]]
    partial, reward, ended = env.step(problems, partial, torch.tensor([4]))
    assert (partial.cuts.tolist(), partial.device_cuts.tolist(), partial.step.tolist()) == ([[1]], [[1]], [2])
    assert (float(reward), bool(ended)) == (pytest.approx(6 / 8), True)


def test_the_paper_s_reward_is_one_over_the_length_in_units_of_the_joint_max() -> None:
    """The episode above: L = 8 s, and the largest entry of its arrays is ΣC = 4 s; four times as long earns a quarter.

    On twice the bandwidth nothing changes, as nothing is transferred; ideal / L stays the same throughout.
    """
    cluster = Cluster(nodes=2, devices_per_node=1, intra=1.0, inter=1.0, memory=1.0)
    complete = Partial(torch.tensor([[1]]), torch.tensor([[1]]), torch.tensor([2]))
    for micro_batches, length in ((3, 8), (15, 32)):  # 2 + M·2 s
        profile = Profile.create(C=[1.0] * 4, A=[0.0] * 4, W=[0.0] * 4)
        problems = Problems.from_encoded(encode([StagedProblem(profile, cluster, 2, micro_batches, granularity=4)]))
        env = PipelineEnv(max_stages=2, max_devices=4, reward="inverse_length")
        assert float(env.terminal_reward(problems, complete)) == pytest.approx(4 / length)
        _, reward, _ = env.step(problems, complete.at_step(torch.tensor([1])), torch.tensor([4]))
        assert float(reward) == pytest.approx(4 / length)


@LAW
@given(st.integers(0, 2**32))
def test_both_rewards_order_the_plans_of_a_problem_alike_and_punish_the_same(
    random_problems: DrawProblems, seed: int
) -> None:
    problems = Problems.from_encoded(encode(random_problems(seed, 1, POINTS) * 20))
    complete = ENV.reset(problems)
    for rows, _, _, _, after, *_ in random_walk(problems, ENV, seed):
        complete = Partial(*(old.index_put((rows,), new) for old, new in zip(complete, after, strict=True)))
    ours, papers = (pipeline.terminal_reward(problems, complete, reward) for reward in pipeline.REWARDS)
    assert torch.equal(ours == -1, papers == -1)
    fits = ours > 0
    assert torch.equal(papers > 0, fits)
    torch.testing.assert_close(papers[fits] * pipeline.ideal_length(problems)[fits], ours[fits])


def test_the_interconnect_matrix_is_the_clusters_over_its_larger_bandwidth() -> None:
    """The diagonal counts as inside a node; missing devices have no connection."""
    clusters = [Cluster(2, 3, 10.0, 2.0, 1.0), Cluster(4, 1, 5.0, 1.0, 1.0), Cluster(1, 2, 3.0, 1.0, 1.0)]
    clusters.append(Cluster(3, 2, 1.0, 4.0, 1.0))  # faster between nodes than inside
    profile = Profile.create(C=[1.0, 1.0], A=[0.0, 0.0], W=[0.0, 0.0])
    problems = Problems.from_encoded(encode([StagedProblem(profile, c, 2, granularity=2) for c in clusters]))
    ours = pipeline.interconnect_matrix(problems, 7).numpy()
    for matrix, cluster in zip(ours, clusters, strict=True):
        expected = np.zeros((7, 7))
        for a, b in itertools.product(range(cluster.devices), repeat=2):
            same_node = a // cluster.devices_per_node == b // cluster.devices_per_node
            bandwidth = cluster.intra if same_node else cluster.inter
            expected[a, b] = bandwidth / max(cluster.intra, cluster.inter)
        np.testing.assert_allclose(matrix, expected, rtol=1e-6)
