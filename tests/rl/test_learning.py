"""All of it together learns: a few hundred iterations on a few problems come close to their optima."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import combinations, product

import numpy as np
import pytest
import torch

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Partial, PipelineEnv, Problems, terminal_reward
from automap_models.rl.agent import AgentConfig
from automap_models.rl.networks.pipeline import LookAheadQNetwork, NetworkSize
from automap_models.rl.offline import PipelineAgent, empty_transition, replayed, rollout, transitions
from automap_models.rl.replay import PrioritisedReplay

POINTS, MAX_STAGES, MAX_DEVICES = 12, 3, 17
CONFIG = AgentConfig(n_steps=4, epsilon_start=1.0, epsilon_end=0.2, epsilon_iterations=200)


def best_reward(record: StagedProblem, problem: Problems) -> float:
    """The largest reward of all plans, tried one and all."""
    boundaries = record.stages - 1
    cuts = combinations(record.grid.cut_points.tolist(), boundaries)
    plans = list(product(cuts, combinations(range(1, record.cluster.devices), boundaries)))
    unused = [-1] * (MAX_STAGES - 1 - boundaries)
    complete = Partial(
        torch.tensor([[*cut, *unused] for cut, _ in plans]),
        torch.tensor([[*device_cut, *unused] for _, device_cut in plans]),
        torch.full((len(plans),), 2 * boundaries),
    )
    everywhere = problem.take(torch.zeros(len(plans), dtype=torch.int64))
    return float(terminal_reward(everywhere, complete).max())


def learn(agent: PipelineAgent, online: LookAheadQNetwork, target: LookAheadQNetwork, problems: Problems) -> None:
    """300 iterations of learning from 128 decisions; every fourth plays each problem once."""
    replay = PrioritisedReplay(20_000, empty_transition(MAX_STAGES), alpha=0.5, beta=0.5)
    optimizer = torch.optim.Adam(online.parameters(), lr=3e-3)
    generator, random = torch.Generator().manual_seed(1), np.random.default_rng(1)
    index = torch.arange(len(problems.stages))
    for iteration in range(300):
        if iteration % 4 == 0:
            replay.add(transitions(index, rollout(agent, problems, CONFIG.epsilon(iteration), generator)))
        rows, items, weights = replay.sample(128, random)
        here = problems.take(torch.from_numpy(items["problem"]))
        loss, error = agent.loss(here, replayed(CONFIG, here, items), torch.from_numpy(weights).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update(rows, error.double().numpy())
        if iteration % 50 == 0:
            target.load_state_dict(online.state_dict())


@pytest.mark.slow
def test_a_few_hundred_iterations_come_close_to_the_optima(random_problems: Callable[..., list[StagedProblem]]) -> None:
    """From the rewards of random weights (no estimate is added to the values) to 0.95 of the optimum on average."""
    records = random_problems(2, 32, POINTS, stages=(2, 3), memory=(1.5, 20.0))
    problems = Problems.from_encoded(encode(records)).with_cost_to_go(MAX_STAGES)
    best = torch.tensor([best_reward(r, problems.take(torch.tensor([i]))) for i, r in enumerate(records)])
    assert (best > 0).all()
    online = LookAheadQNetwork(NetworkSize(POINTS, MAX_STAGES, MAX_DEVICES, hidden=32, residual="none"))
    target = deepcopy(online)
    agent = PipelineAgent(PipelineEnv(MAX_STAGES, MAX_DEVICES), online, target, CONFIG)

    def greedy() -> torch.Tensor:
        return rollout(agent, problems, 0.0, torch.Generator()).reward

    before = greedy()
    assert (before <= best + 1e-5).all()
    learn(agent, online, target, problems)
    after = greedy()
    assert (after <= best + 1e-5).all()
    assert after.mean() > before.mean() + 0.1
    assert (after / best).mean() > 0.95
