"""All of it together learns: a few hundred iterations on a few problems come close to their optima."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Problems, rewards
from automap_models.envs.pipeline.features import ESTIMATE
from automap_models.planners.staged.search import ExactPlanner
from automap_models.rl.agent import AgentConfig
from automap_models.rl.episodes import IDEAL_OVER_LENGTH, PipelineAgent, empty_branches
from automap_models.rl.learner import Learner, LearnerConfig
from automap_models.rl.networks.pipeline import ChoiceNetwork, NetworkSize
from automap_models.rl.replay import PrioritisedReplay

MAX_STAGES, BRANCHES = 4, 6


def test_a_few_hundred_iterations_come_close_to_the_optima(random_problems: Callable[..., list[StagedProblem]]) -> None:
    """From the plans that look worst to 0.95 of the optimum on average."""
    records = random_problems(2, 12, 16, stages=(3, MAX_STAGES), memory=(3.0, 20.0))
    problems, index = Problems.from_encoded(encode(records)), np.arange(len(records))
    ideal_s = [r.profile.C.sum() * r.micro_batches / r.cluster.devices for r in records]
    best = np.array(ideal_s) / [ExactPlanner().solve(record).cost.length_s for record in records]
    size = NetworkSize(16, MAX_STAGES, 18, hidden=32)
    online = ChoiceNetwork(size)
    with torch.no_grad():
        online.linear.weight[0, ESTIMATE] = -0.5  # what looks worst is taken
    target, generator = deepcopy(online), torch.Generator().manual_seed(1)
    settings = AgentConfig(huber=0.05)
    agent = PipelineAgent(online, target, online.describe(size), MAX_STAGES, IDEAL_OVER_LENGTH, settings, generator)
    replay = PrioritisedReplay(2_000, empty_branches(MAX_STAGES, BRANCHES), alpha=0.2, beta=0.6)
    config = LearnerConfig(learning_rate=3e-3, batch=64)
    learner = Learner(
        online,
        target,
        replay,
        config,
        np.random.default_rng(1),
        lambda items, weights: agent.branch_loss(problems.take(items["problem"]), items, weights),
    )

    def greedy() -> np.ndarray:
        share: np.ndarray = rewards(problems, agent.planned(problems)) / best
        assert (share <= 1 + 1e-5).all()
        return share

    before = greedy().mean()
    for _ in range(50):
        replay.add(agent.branch(index, problems, BRANCHES, 0.3).items)
        for _ in range(4):
            learner.learn()
    assert before < 0.8
    assert greedy().mean() > 0.95
