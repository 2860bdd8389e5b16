"""The simulated steps of a batch of plans against the event queue's, one plan at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.profile import Profile
from automap_models.core.schedules import SCHEDULES, build_schedule
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.envs.pipeline.encoding import decode, encode
from automap_models.envs.pipeline.env import OUT_OF_MEMORY_REWARD, Partial, PipelineEnv, Problems
from automap_models.envs.pipeline.objective import OBJECTIVES
from automap_models.simulate.step import step_cost

LAW = settings(max_examples=12, deadline=None, derandomize=True)
POINTS, MAX_STAGES, MAX_DEVICES = 16, 5, 18
FLOAT32 = 2e-5

DrawProblems = Callable[..., list[StagedProblem]]
RandomPlans = Callable[[Problems, PipelineEnv, int], tuple[Partial, torch.Tensor]]


def test_the_objectives_are_the_length_and_the_schedules_of_one_stage_a_rank_with_whole_backward_passes() -> None:
    one_stage = {name for name in SCHEDULES if name != "interleaved"}
    whole = {name for name in one_stage if not build_schedule(name, 2, 4).splits_backward}
    assert OBJECTIVES == ("length", "1f1b", "1f1b-deep", "gpipe")
    assert {*OBJECTIVES} == {"length"} | whole


@LAW
@given(st.integers(0, 2**32), st.sampled_from([*WARM_UPS]), st.sampled_from([0.0, 0.5]))
def test_a_plan_earns_the_ideal_over_its_simulated_step(
    random_problems: DrawProblems, random_plans: RandomPlans, seed: int, schedule: str, whole_samples: float
) -> None:
    records = random_problems(seed, 10, POINTS, stages=(2, 5), whole_samples=whole_samples)
    encoded = encode(records)
    problems = Problems.from_encoded(encoded)
    complete, rewards = random_plans(problems, PipelineEnv(MAX_STAGES, MAX_DEVICES, objective=schedule), seed)
    for i in range(len(records)):
        problem = replace(decode(encoded, i), schedule=schedule)
        if encoded.samples is None or not encoded.samples[i]:
            assert problem.samples is None
        boundaries = problem.stages - 1
        points = complete.cuts[i, :boundaries].tolist()
        cuts = problem.grid.to_instructions(points)
        plan = StagedPlan(cuts, tuple(complete.device_cuts[i, :boundaries].tolist()), problem.micro_batches, "random")
        assert plan.check_valid(problem) == (True, "")
        cost = step_cost(problem, plan)
        if abs(cost.memory_bytes.max() / problem.cluster.memory - 1) < FLOAT32:
            continue
        ideal = problem.profile.C.sum() * problem.micro_batches / problem.cluster.devices
        expected = ideal / cost.step_s if cost.feasible else OUT_OF_MEMORY_REWARD
        assert float(rewards[i]) == pytest.approx(expected, rel=FLOAT32)


def test_both_what_fits_and_what_does_not_occurs(random_problems: DrawProblems, random_plans: RandomPlans) -> None:
    """Guards the law above; GPipe, which holds all micro-batches, refuses what 1F1B allows."""
    problems = Problems.from_encoded(encode(random_problems(3, 200, POINTS, stages=(2, 5))))
    refused = {}
    for schedule in ("1f1b", "gpipe"):
        _, rewards = random_plans(problems, PipelineEnv(MAX_STAGES, MAX_DEVICES, objective=schedule), 3)
        refused[schedule] = float((rewards == OUT_OF_MEMORY_REWARD).float().mean())
    assert 0.05 < refused["1f1b"] < refused["gpipe"] < 0.95


def test_a_step_worked_out_by_hand() -> None:
    """Two stages of one device, f = b = 1 s, M = 2, messages of 1 s; nothing to reduce.

    stage 0   F0 F1 .  .  .  B0 .  B1      the gradient of micro-batch 0 leaves stage 1 at 4 s and comes at 5 s,
    stage 1   .  .  F0 B0 F1 B1            that of micro-batch 1 leaves at 6 s and comes at 7 s: the step takes 8 s
    """
    cluster = Cluster(nodes=2, devices_per_node=1, intra=1.0, inter=1.0, memory=100.0)
    profile = Profile.create(C=[2.0, 2.0], A=[1.0, 0.0], W=[0.0, 0.0], C_fwd=[1.0, 1.0])
    problems = Problems.from_encoded(encode([StagedProblem(profile, cluster, 2, 2, granularity=2)]))
    env = PipelineEnv(max_stages=2, max_devices=2, objective="1f1b")
    complete = Partial(torch.tensor([[0]]), torch.tensor([[1]]), torch.tensor([2]))
    ideal = 4.0 * 2 / 2
    assert float(env.terminal_reward(problems, complete)) == pytest.approx(ideal / 8.0)
