"""Planning by online training: how an agent trains on the one profile, and how it explores (Auto-MAP §3.4, §4.4).

Of thousands of pivots hardly any leads to a plan shorter than the best one so far, and the lower bound of L rules most
of the others out. So an exploratory decision is drawn from the promising pivots, those with a lower bound below the
best length. Each of their device cuts is as likely as any other, and so is each instruction cut with it. Besides, some
episodes go where the best plan has been before they explore (Ecoffet et al. 2021): they take over its first pivots,
and half of them then stay near its others. The last decision, whose value the look-ahead knows, is never exploratory.

    episode              decision 1   …   decision S-1      what it chooses
    1 greedy             greedy           least bound       the pivot of the largest value
    round - 1 ε-greedy   ε: drawn         least bound       drawn from all promising pivots
    around               kept or drawn    least bound       the best plan's pivots, then drawn, half of them near it
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from automap_models.core.result import TIE
from automap_models.core.staged import StagedPlan
from automap_models.cost.staged import plan_cost
from automap_models.envs.online.env import OnlinePipelineEnv, final_length_s, legal_pivots, pivot_costs
from automap_models.envs.online.pivots import Candidates
from automap_models.envs.online.tables import Chosen, Pivots
from automap_models.planners.agent_yaml import OnlineAgentConfig
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


WIDTH = 8
"""Unfinished plans that the first plan is chosen from at a time."""
OUT_OF_MEMORY_S = 1e300
"""Stands for the length of plans that do not fit: longer than any, and yet legal."""
REACH = 8
"""Instructions per largest distance that is near."""


def bounds_s(problems: Pivots, states: Chosen) -> Tensor:
    """[B, P] lower bounds of L over all plans that go on with a pivot; infinite where it is not legal."""
    bound = pivot_costs(problems, states).bound_s.nan_to_num(nan=OUT_OF_MEMORY_S, posinf=OUT_OF_MEMORY_S)
    return torch.where(legal_pivots(problems, states), bound, torch.inf)


def first_plans(problems: Pivots) -> Chosen:
    """Ends of episodes: of each state and candidate device cut the pivot with the least bound, then the WIDTH best.

    That many, because a bound does not see all that a device cut brings about; and one for each device cut, because
    neighbouring instructions would fill the places of all others.
    """
    env = OnlinePipelineEnv()
    states = env.reset(problems)
    for step in range(problems.stages - 1):
        least, pivot = _least_per_device_cut(problems, step, bounds_s(problems, states))
        _, best = least.flatten().sort(stable=True)
        best = best[: min(WIDTH, max(1, int(least.isfinite().sum())))]
        states, _, _ = env.step(problems, states.take(best // least.shape[1]), pivot.flatten()[best])
    return states


def _least_per_device_cut(problems: Pivots, step: int, bound: Tensor) -> tuple[Tensor, Tensor]:
    """[B, J] the least bound of pivots with each device cut, and int64 [B, J] which pivot has it."""
    slots = range(problems.device.shape[1])
    least = [torch.where(problems.slot[step] == slot, bound, torch.inf).min(1) for slot in slots]
    return torch.stack([of.values for of in least], 1), torch.stack([of.indices for of in least], 1)


class Exploration(NamedTuple):
    """How B episodes explore.

    Attributes:
        epsilon: [B] share of exploratory decisions.
        kept: bool [B, S-1], which of those take over the best plan's pivot.
        near: bool [B], whether the others lie near the best plan's.
    """

    epsilon: Tensor
    kept: Tensor
    near: Tensor


def draw_exploration(
    epsilon: float, episodes: int, around: int, stages: int, generator: torch.Generator
) -> Exploration:
    """One greedy episode, ε-greedy ones, and others `around` the best plan, which keep few or many of its pivots."""
    share = torch.tensor([0.0, *[epsilon] * (episodes - 1), *[1.0] * around])
    kept = torch.zeros(episodes + around, stages - 1, dtype=torch.bool)
    often = torch.rand(around, 1, generator=generator)
    kept[episodes:] = torch.rand(around, stages - 1, generator=generator) < often
    near = torch.zeros(episodes + around, dtype=torch.bool)
    near[episodes::2] = True
    return Exploration(share, kept, near)


def explore(
    agent: Agent[Pivots, Chosen],
    problems: Pivots,
    start: Chosen,
    how: Exploration,
    best: StagedPlan | None,
    best_s: float,
    generator: torch.Generator,
) -> list[Moment[Chosen]]:
    """All decisions of episodes, which begin in B states.

    Args:
        best: the plan to explore around, none if there is none.
        best_s: pivots that no shorter plan can have are not explored.
    """
    env = OnlinePipelineEnv(len(how.epsilon))
    known = torch.full((problems.stages - 1, 2), -1) if best is None else torch.tensor([best.cuts, best.device_cuts]).T
    states, rows, moments = start, torch.arange(len(how.epsilon)), []
    for step in range(problems.stages - 1):
        if step == problems.stages - 2:
            action, explored = _least_bound(problems, states), torch.zeros(len(rows), dtype=torch.bool)
        else:
            here = Exploration(*(part[rows] for part in how))
            action, explored = _decide(agent, problems, states, here, known[step], best_s, generator)
        following, reward, ended = env.step(problems, states, action)
        moments.append(Moment(rows, states, action, explored, reward, following, ended))
        going = (~ended).nonzero().squeeze(1)
        rows, states = rows[going], following.take(going)
        if not len(rows):
            break
    return moments


def _decide(
    agent: Agent[Pivots, Chosen],
    problems: Pivots,
    states: Chosen,
    how: Exploration,
    known: Tensor,
    best_s: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """[R] what running episodes choose, and whether they explore with it; known is the best plan's pivot, int64 [2]."""
    explored = torch.rand(len(how.epsilon), generator=generator) < how.epsilon
    action = torch.zeros(len(how.epsilon), dtype=torch.int64)
    if len(greedy := (~explored).nonzero().squeeze(1)):
        action[greedy] = _greedy(agent, problems, states.take(greedy))
    if len(own := explored.nonzero().squeeze(1)):
        action[own] = _drawn(
            problems, states.take(own), Exploration(*(part[own] for part in how)), known, best_s, generator
        )
    return action, explored


def _greedy(agent: Agent[Pivots, Chosen], problems: Pivots, states: Chosen) -> Tensor:
    """[R] the legal pivots with the largest values."""
    distinct, which = states.distinct()
    with torch.no_grad():
        value = agent.q(agent.online, problems, distinct)
    return torch.where(legal_pivots(problems, distinct), value, -torch.inf).argmax(1)[which]


def _least_bound(problems: Pivots, states: Chosen) -> Tensor:
    """[R] the legal pivots with the least bounds."""
    distinct, which = states.distinct()
    return bounds_s(problems, distinct).argmin(1)[which]


def _drawn(
    problems: Pivots, states: Chosen, how: Exploration, known: Tensor, best_s: float, generator: torch.Generator
) -> Tensor:
    """[R] promising pivots: the best plan's or one near it, as the episode wants, if they are promising, else any.

    Where no pivot is promising it is that with the least bound.
    """
    step = int(states.step[0])
    distinct, which = states.distinct()
    bound = bounds_s(problems, distinct)
    promising, slot = (bound < best_s).double(), problems.slot[step]
    number = promising.new_zeros(len(bound), problems.device.shape[1]).index_add_(1, slot, promising)
    share = (promising / number.clamp(min=1.0)[:, slot])[which]

    cuts, devices = (problems.cut[step] - known[0]).abs(), (problems.device[step][slot] - known[1]).abs()
    reach = max(float(problems.cut.max()) / REACH, 1.0) ** torch.rand(len(share), 1, generator=generator)
    near = share * ((cuts <= reach) & (devices <= 1) & how.near.unsqueeze(1))
    same = share * ((cuts + devices == 0) & how.kept[:, step].unsqueeze(1))
    least = torch.nn.functional.one_hot(bound.argmin(1), share.shape[1])[which].double()
    for preferred in (share, near, same):
        least = torch.where(preferred.any(1, keepdim=True), preferred, least)
    return torch.multinomial(least, 1, generator=generator).squeeze(1)
