"""What a pupil comes through while it plays, and what a teacher with cost-to-go tables says of it.

    episodes ──▶ their different states ──▶ candidates, legal ones first, and the teacher's value of each

Every state is looked at once, however many episodes come through it, and only while there is something to learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from automap_models.envs.pipeline.cost_to_go import CostToGo, Fineness
from automap_models.envs.pipeline.env import Partial, Problems, apply, device_cuts, episode_steps
from automap_models.envs.pipeline.fine_tables import fine_cost_to_go
from automap_models.envs.pipeline.objective import LENGTH
from automap_models.rl import targets
from automap_models.rl.agent import explore
from automap_models.rl.fused import Fused
from automap_models.rl.networks.one_step import ConsequencesNetwork, OneStepQNetwork
from automap_models.rl.networks.pipeline import Described, LookAheadQNetwork
from automap_models.rl.offline import PipelineAgent

FINE = (
    (32, Fineness(48, 32, (*range(1, 13), 14, 16, 20, 24, 28))),
    (64, Fineness(48, 64, (*range(1, 17), 18, 20, 22, 24, 28, 32, 40, 48, 56))),
    (None, Fineness(48, 128, (*range(1, 17), 18, 20, 22, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112))),
)
"""Most devices of a cluster → how fine its teacher's tables are."""
JUDGED = 24
"""Actions of a state that are simulated where a schedule's step counts, the most promising by the length L."""


class Lessons:
    """What a pupil sees and what its teacher says of states that all cut the same: points, or devices.

    Args:
        online: the pupil.
        teacher: whose look-ahead is asked; nothing of it is learned.
        compiled: compile what is computed of the states (rl.fused).
    """

    def __init__(self, online: OneStepQNetwork, teacher: LookAheadQNetwork, *, compiled: bool = False) -> None:
        self.online, self.teacher, self.size, self.compiled = online, teacher, online.size, compiled
        self._seen = [Fused(look, compiled=compiled) for look in (online.describe_cuts, online.describe_device_cuts)]
        self._promising = [
            Fused(look, compiled=compiled) for look in (self._promise_of_cuts, self._promise_of_device_cuts)
        ]

    def classes(self, problems: Problems) -> list[tuple[Tensor, int, Fineness]]:
        """Problems of like size, int64 [b] each: the most devices that they may have and how fine their tables are."""
        parts, above = [], 0
        for most, fineness in FINE:
            limit = self.size.max_devices if most is None else min(most, self.size.max_devices)
            rows = ((problems.devices > above) & (problems.devices <= limit)).nonzero().squeeze(1)
            if len(rows):
                parts.append((rows, limit, fineness))
            above = limit
        return parts

    def prepare(self, problems: Problems, fineness: Fineness) -> Problems:
        """The problems with the teacher's tables."""
        most = min(self.size.max_stages, int(problems.stages.max()))
        tables = fine_cost_to_go(problems.scaled(), problems.cut_mask, most, fineness, compiled=self.compiled)
        return problems._replace(cost_to_go=tables)

    def seen(self, problems: Problems, owner: Tensor, states: Partial, limit: int) -> Described:
        """What the pupil sees of states [B] of the problems of the numbers `owner`, int64 [B].

        Args:
            limit: most devices of the problems.
        """
        bare = problems._replace(cost_to_go=None)
        return Described(*_look(self._seen, lambda rows: bare.take(owner[rows]), states, bare, limit))

    def promised(self, problems: Problems, owner: Tensor, states: Partial, limit: int) -> Tensor:
        """[B, K] what the teacher promises for every action of such states, in log reward; -∞ where it is illegal.

        That is its look-ahead's estimate. Where a schedule's step counts, the JUDGED best of these are followed to
        their ends and simulated; the others count as less.
        """
        tables, bare = problems.cost_to_go, problems._replace(cost_to_go=None)
        if tables is None:
            raise ValueError("the problems have no cost-to-go tables: take prepare(…)")
        left = problems.stages.long()[owner] - 1 - states.step // 2

        def some(rows: Tensor) -> Problems:
            return bare.take(owner[rows])._replace(cost_to_go=tables.for_states(owner[rows], left[rows]))

        promises = _look(self._promising, some, states, bare, limit)[0]
        if self.size.objective == LENGTH:
            return promises
        return self._judged(promises, problems, tables, owner, states)

    def _judged(self, promises: Tensor, problems: Problems, tables: CostToGo, owner: Tensor, states: Partial) -> Tensor:
        from automap_models.envs.pipeline.scheduled_completions import scheduled_values

        best, actions = promises.topk(min(JUDGED, promises.shape[1]), 1)
        judged = scheduled_values(
            problems, tables, owner, states, torch.where(best.isfinite(), actions, -1), self.size.objective
        )
        fits = judged.isfinite()
        shift = torch.where(fits, best - judged, 0.0).sum(1, keepdim=True) / fits.sum(1, keepdim=True).clamp(min=1)
        lowest = torch.where(fits, judged, torch.inf).amin(1, keepdim=True)
        others = torch.minimum(promises - shift, lowest)
        followed = torch.where(fits, judged.clamp(min=targets.LOG_FLOOR), targets.LOG_OUT_OF_MEMORY)
        values = others.scatter(1, actions, followed)
        return torch.where(promises.isfinite(), values, -torch.inf)

    def _promise_of_cuts(self, problems: Problems, partial: Partial) -> tuple[Tensor, ...]:
        return (_promised(self.teacher.describe_cuts(problems, partial)),)

    def _promise_of_device_cuts(self, problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, ...]:
        return (_promised(self.teacher.describe_device_cuts(problems, partial, first)),)


def _look(
    looks: list[Fused], some: Callable[[Tensor], Problems], states: Partial, problems: Problems, limit: int
) -> tuple[Tensor, ...]:
    """The tensors of one of two functions, that of cuts and that of device cuts, for states of one kind."""
    index = torch.arange(len(states.step), device=states.step.device)
    if int(states.step[0]) % 2 == 0:
        return looks[0](index, lambda rows: (some(rows), states.take(rows)))
    first = device_cuts(problems, limit)
    return looks[1](index, lambda rows: (some(rows), states.take(rows), first))


def _promised(described: Described) -> Tensor:
    return torch.where(described.legal, targets.log_rescale(described.estimate), -torch.inf)


def legal_first(described: Described) -> tuple[Described, Tensor]:
    """The same candidates, legal ones first, as many as the state with the most of them has; and which they were.

    Values do not depend on the order of candidates, and what is illegal costs as much time as what is not.

    Returns:
        The candidates, and int64 [B, K] their numbers.
    """
    count = int(described.legal.sum(1).max())
    order = described.legal.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :count]
    features = described.features.gather(1, order.unsqueeze(2).expand(-1, -1, described.features.shape[2]))
    return (
        Described(
            features,
            described.global_features,
            described.legal.gather(1, order),
            described.estimate.gather(1, order),
            described.exact,
        ),
        order,
    )


class Lesson(NamedTuple):
    """B states of one kind, those that cut points or those that cut devices, and what is to be learned of them.

    owner: int64 [B] which problem each is of; candidates: legal ones first; values: [B, K] the teacher's, in log
    reward, -∞ where illegal.
    """

    owner: Tensor
    states: Partial
    candidates: Described
    values: Tensor

    @property
    def kind(self) -> int:
        """0 where points are cut, 1 where devices are."""
        return int(self.states.step[0]) % 2


@torch.no_grad()
def played(
    agent: PipelineAgent,
    lessons: Lessons,
    problems: Problems,
    episodes: int,
    epsilon: float,
    generator: torch.Generator,
    skip_last: int = 2,
) -> tuple[list[Lesson], Tensor]:
    """Episodes of the pupil with the teacher's values of every state on the way that the pupil has to learn.

    Args:
        agent: whose online network plays.
        lessons: of the pupil and its teacher.
        problems: [B] to plan.
        episodes: played on each problem.
        epsilon: share of decisions that explore.
        generator: of random draws.
        skip_last: decisions at an episode's end that the pupil takes without having to learn them.

    Returns:
        Every different state, and what the teacher promises after the last decision of each episode that was learned,
        as a reward.
    """
    learned: list[Lesson] = []
    promised = []
    for some, limit, fineness in lessons.classes(problems):
        here = lessons.prepare(problems.take(some), fineness)
        until = episode_steps(here) - skip_last
        owner = (until > 0).nonzero().squeeze(1).repeat_interleave(episodes)
        states = agent.env.reset(problems.take(some[owner]))  # without the tables
        while len(owner):
            alike, states, owner = _different(owner, states)
            described = lessons.seen(here, owner, states, limit)
            promises = lessons.promised(here, owner, states, limit)
            candidates, order = legal_first(described)
            values = promises.gather(1, order)
            learned.append(Lesson(some[owner], states, candidates, values))
            half = half_of(lessons.online, learned[-1].kind)
            q = half(candidates)[alike]
            choice, _ = explore(q, candidates.legal[alike], epsilon, agent.config, generator)
            action = order[alike].gather(1, choice.unsqueeze(1)).squeeze(1)
            first = problems.points if learned[-1].kind else 0
            owner, states = owner[alike], apply(states.take(alike), action + first, problems.points)
            going = states.step < until[owner]
            promised.append(values[alike].gather(1, choice.unsqueeze(1)).squeeze(1)[~going].exp())
            owner, states = owner[going], states.take(going)
    return learned, torch.cat(promised)


def _different(owner: Tensor, states: Partial) -> tuple[Tensor, Partial, Tensor]:
    """Which of the different ones each state is, and these with their owners; all have made as many decisions."""
    rows = torch.cat([owner.unsqueeze(1), states.cuts, states.device_cuts], 1)
    different, alike = torch.unique(rows, dim=0, return_inverse=True)
    owner, cuts, device_cuts_made = different.split([1, states.cuts.shape[1], states.device_cuts.shape[1]], 1)
    return alike, Partial(cuts, device_cuts_made, states.step[:1].expand(len(different))), owner.squeeze(1)


def half_of(online: OneStepQNetwork, step: int) -> ConsequencesNetwork:
    """The half of the network that makes a decision."""
    return online.device_cut if step % 2 else online.cut
