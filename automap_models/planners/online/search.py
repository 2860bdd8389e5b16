"""How an agent trains on one problem: rounds of episodes, learning in between, and the shortest plan on the way."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Floats, Problems, States
from automap_models.planners.agent_yaml import PipelineAgentDocument
from automap_models.planners.staged.costs import plain
from automap_models.rl.episodes import IDEAL_OVER_LENGTH, PipelineAgent, empty_branches, empty_decision
from automap_models.rl.learner import Learner
from automap_models.rl.networks.pipeline import NETWORKS, NetworkSize
from automap_models.rl.replay import PrioritisedReplay

NAME = "online"
COPIES = 64
"""Of the problem that are played on between learner iterations; with several branches that many episodes each."""


class OnlineRound(NamedTuple):
    """What a round of episodes came to; lengths in seconds, infinite where a plan does not fit.

    Attributes:
        episodes: played so far, these included.
        lengths_s: of all episodes of the round, as the environment pays them: it knows no weights that stages share.
        greedy_s: of the agent's own plan after it.
        best_s: the shortest so far.
    """

    episodes: int
    lengths_s: tuple[float, ...]
    greedy_s: float
    best_s: float


class OnlineSearch:
    """An agent that trains on one problem; deterministic, and fit to be interrupted between any two rounds.

    Attributes:
        best: the shortest plan so far; None where none fitted.
        best_s: its length.
    """

    def __init__(
        self, problem: StagedProblem, config: PipelineAgentDocument, seed: int, warm_start: StagedPlan | None = None
    ) -> None:
        self.problem, self.episodes, self.branches = problem, 0, config.learner.branches
        settings, learner, several = config.agent.config(), config.learner.config(), self.branches > 1
        self.one = Problems.from_encoded(encode([plain(problem)]))
        self.index = np.zeros(COPIES, dtype=np.int64)
        self.best, self.best_s = warm_start, np.inf
        if warm_start is not None:
            cost = plan_cost(problem, warm_start)
            self.best, self.best_s = (warm_start, cost.length_s) if cost.feasible else (None, np.inf)
        size = NetworkSize(problem.granularity, problem.stages, max(problem.cluster.devices, 2), config.size.hidden)
        seeds = [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(3)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            online = NETWORKS[config.network](size)
        target, generator = copy.deepcopy(online).requires_grad_(False), torch.Generator().manual_seed(seeds[1])
        describe, reward = online.describe(size), IDEAL_OVER_LENGTH
        agent = PipelineAgent(online, target, describe, size.max_stages, reward, settings, generator)
        row = empty_branches(size.max_stages, self.branches) if several else empty_decision(size.max_stages)
        replay = PrioritisedReplay(learner.replay, row, learner.alpha, learner.beta)
        loss = agent.branch_loss if several else agent.decision_loss
        rng = np.random.default_rng(seeds[2])
        self.agent = agent
        self.learner = Learner(
            online,
            target,
            replay,
            learner,
            rng,
            lambda items, weights: loss(self.one.take(items["problem"]), items, weights),
        )

    def round(self) -> OnlineRound:
        """Play a round of episodes, then learn."""
        epsilon, copies = self.agent.config.epsilon(self.learner.iteration), self.one.take(self.index)
        if self.branches > 1:
            played = self.agent.branch(self.index, copies, self.branches, epsilon)
        else:
            played = self.agent.decisions(self.index, copies, epsilon)
        self.learner.replay.add(played.items)
        lengths_s = self._rated(played.complete, played.earned)
        for _ in range(self.learner.config.iterations):
            self.learner.learn()
        greedy_s = self._taken(self.agent.planned(self.one), 0)
        self.episodes += len(lengths_s)
        return OnlineRound(self.episodes, tuple(lengths_s), greedy_s, self.best_s)

    def _rated(self, complete: States, earned: Floats) -> list[float]:
        """Lengths of plans, s; the eight shortest are costed with the weights that stages share, the best is kept."""
        problem, ideal_s = self.problem, float(self.problem.profile.C.sum()) * self.problem.micro_batches
        ideal_s /= problem.cluster.devices
        for row in np.argsort(-earned, kind="stable")[:8].tolist():
            if earned[row] > 0.0:
                self._taken(complete, row)
        return [ideal_s / reward if reward > 0.0 else np.inf for reward in earned.tolist()]

    def _taken(self, complete: States, row: int) -> float:
        """What one plan takes, s; it is kept where it is shorter than the best so far."""
        problem, boundaries = self.problem, self.problem.stages - 1
        points = tuple(complete.cuts[row, :boundaries].tolist())
        cuts, devices = problem.grid.to_instructions(points), tuple(complete.firsts[row, :boundaries].tolist())
        plan = StagedPlan(cuts, devices, problem.micro_batches, NAME, points)
        cost = plan_cost(problem, plan)
        if not cost.feasible:
            return float("inf")
        if cost.length_s < self.best_s and plan.check_valid(problem)[0]:
            self.best, self.best_s = plan, cost.length_s
        return cost.length_s
