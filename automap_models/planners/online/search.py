"""Auto-MAP's pipeline planning by online training: a Rainbow agent learns on the one profile (§3.4, §4.4)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from automap_models.core.result import TIE
from automap_models.core.staged import StagedPlan
from automap_models.cost.staged import plan_cost
from automap_models.envs.online.costs import final_length_s
from automap_models.envs.online.env import OnlinePipelineEnv
from automap_models.envs.online.pivots import Candidates
from automap_models.envs.online.tables import Chosen, Pivots
from automap_models.planners.online.config import OnlineAgentConfig
from automap_models.planners.online.exploration import bounds_s, draw_exploration, explore, first_plans
from automap_models.rl.agent import Agent, Moment
from automap_models.rl.learner import OnlineLearner
from automap_models.rl.networks.online import PivotQNetwork
from automap_models.rl.targets import log_rescale

NAME = "online"


class OnlineRound(NamedTuple):
    """What a round of episodes came to; lengths in seconds, infinite where a plan does not fit or was given up.

    Attributes:
        episodes: played so far, these included.
        lengths_s: of all episodes of the round, in their order.
        greedy_s: of the one without exploration; None where there was none.
        best_s: the shortest so far.
        epsilon: share of exploratory decisions.
    """

    episodes: int
    lengths_s: tuple[float, ...]
    greedy_s: float | None
    best_s: float
    epsilon: float


class OnlineSearch:
    """An agent that trains online; deterministic, and fit to be interrupted between any two rounds.

    Args:
        candidates: pivots to choose from.
        config: of the agent.
        seed: of weights, exploration and the replay's draws.
        warm_start: a plan to begin with, whose cuts need not be candidates.

    Attributes:
        pivots: those that the agent plays on.
        best: the shortest plan so far; None where none fitted.
        best_s: its length.
        episodes: played so far.
    """

    def __init__(
        self, candidates: Candidates, config: OnlineAgentConfig, seed: int, warm_start: StagedPlan | None = None
    ) -> None:
        self.candidates, self.config = candidates, config
        pivots = Pivots.from_candidates(candidates, reward_s=1.0)
        self.pivots = pivots._replace(reward_s=pivots.ideal_s) if config.reward == "ideal/L" else pivots
        self.best: StagedPlan | None = None
        self.best_s, self.episodes = float("inf"), 0
        self._start_from(warm_start)
        seeds = [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(3)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            online = PivotQNetwork(config.hidden, self.pivots, look_ahead=config.look_ahead)
        self.env = OnlinePipelineEnv(config.round)
        self.agent = Agent(self.env, online, copy.deepcopy(online).requires_grad_(False), config.agent)
        self.generator = torch.Generator().manual_seed(seeds[1])
        like, rng = self.env.reset(self.pivots), np.random.default_rng(seeds[2])
        self.learner = OnlineLearner(self.agent, self.pivots, like, Chosen, config.learner, rng)

    def _start_from(self, warm_start: StagedPlan | None) -> None:
        """Know a plan: the one given, or with a look-ahead the one that follows it; and prune the pivots by it."""
        if warm_start is not None:
            cost = plan_cost(self.candidates.problem, warm_start)
            if cost.feasible:
                self.best, self.best_s = warm_start, cost.length_s
        if self.config.look_ahead:
            self._rate(first_plans(self.pivots))
            if self.best is not None:
                self.pivots = self.pivots.within(self.best_s)

    @property
    def finished(self) -> bool:
        """Whether the look-ahead knows that no plan on the candidates is shorter than the best, rounding apart."""
        if not self.config.look_ahead:
            return False
        bounds = bounds_s(self.pivots, OnlinePipelineEnv().reset(self.pivots))
        return not bool((bounds < self.best_s * (1.0 - TIE)).any())

    def round(self) -> OnlineRound:
        """Play a round of episodes, then learn."""
        epsilon = self.config.agent.epsilon(self.learner.iteration)
        start, moments = self._explored(epsilon) if self.config.look_ahead else self._played(epsilon)
        lengths = self._learn_from(start, moments)
        for _ in range(self.config.learner.iterations):
            self.learner.learn()
        self.episodes += len(lengths)
        greedy_s = lengths[0] if self.config.round > 1 else None
        return OnlineRound(self.episodes, tuple(lengths), greedy_s, self.best_s, epsilon)

    def _played(self, epsilon: float) -> tuple[Chosen, list[Moment[Chosen]]]:
        """ε-greedy episodes, of several the first one greedy."""
        start = OnlinePipelineEnv(self.config.round).reset(self.pivots)
        share = torch.full((self.config.round,), epsilon)
        share[: int(self.config.round > 1)] = 0.0
        return start, list(self.agent.play(self.pivots, start, share, self.generator))

    def _explored(self, epsilon: float) -> tuple[Chosen, list[Moment[Chosen]]]:
        """Episodes that explore by the look-ahead, the first one greedy."""
        config = self.config
        how = draw_exploration(epsilon, config.round, config.around, self.pivots.stages, self.generator)
        start = OnlinePipelineEnv(len(how.epsilon)).reset(self.pivots)
        return start, explore(self.agent, self.pivots, start, how, self.best, self.best_s, self.generator)

    def _learn_from(self, start: Chosen, moments: Sequence[Moment[Chosen]]) -> list[float]:
        """Remember episodes; the lengths of their plans."""
        final = Chosen(*(part.clone() for part in start))
        for moment in moments:
            for whole, part in zip(final, moment.s_t, strict=True):
                whole[moment.rows] = part
        lengths = self._rate(final)
        if self.config.agent.log_values:
            moments = [m._replace(r_t=torch.where(m.ended, log_rescale(m.r_t), 0.0)) for m in moments]
        self.learner.remember(start, list(moments))
        return lengths

    def _rate(self, final: Chosen) -> list[float]:
        """The lengths of plans, and the shortest of them taken where it is shorter than the best so far."""
        complete = final.step == self.pivots.stages - 1
        length = torch.where(complete, final_length_s(self.pivots, final), torch.inf)
        shortest = int(length.argmin())
        if length[shortest] < self.best_s:
            cuts, device_cuts = (tuple(places) for places in final.pivots[shortest].T.tolist())
            problem = self.candidates.problem
            plan = StagedPlan(cuts, device_cuts, problem.micro_batches, NAME, problem.grid.to_points(cuts))
            cost = plan_cost(problem, plan)
            if cost.feasible and cost.length_s < self.best_s:
                self.best, self.best_s = plan, cost.length_s
        return [float(value) for value in length]
