"""Learning from a teacher that values every action of the states that the pupil itself comes through.

The pupil plays, and the teacher says of every legal action of every state on the way what it leads to (DAgger, Ross et
al. 2011, with all values in place of the best action). Behaviour cloning calls one of many equally long plans right and
the others wrong; here equal plans have equal values. A value in log reward is −log(L / ideal), so that differences of
values are relative differences of L. The teacher's cost-to-go tables are finer than those of a policy's file.

The loss compares the softmax of both over the legal actions at several temperatures: at each, differences far below it
do not count, actions far worse than the best hardly. The lowest decides between good actions; without the higher ones
nothing keeps bad actions at a distance that holds on other problems. What the pupil's own softmax at the lowest loses
on average may be added (`regret`): a divergence hardly tells a choice that costs 5 % from one that doubles L.

    episodes ──▶ their different states ──▶ candidates, legal ones first ──▶ replay ──▶ loss, by number of candidates

Every state is looked at once, however many episodes come through it, and only while there is something to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.cost_to_go import CostToGo
from automap_models.envs.pipeline.env import Partial, Problems, apply, device_cuts, episode_steps
from automap_models.envs.pipeline.fine_tables import Fineness, fine_cost_to_go
from automap_models.envs.pipeline.objective import LENGTH
from automap_models.rl import targets
from automap_models.rl.agent import explore
from automap_models.rl.fused import Fused
from automap_models.rl.networks.one_step import ConsequencesNetwork, OneStepQNetwork
from automap_models.rl.networks.pipeline import Described, LookAheadQNetwork, NetworkSize, best_legal
from automap_models.rl.offline import COMMON, PipelineAgent
from automap_models.rl.replay import Items

LOWEST = -60_000.0
"""Stands for an illegal action's value in a replay, whose values have half precision."""
FINE = (
    (32, Fineness(48, 32, (*range(1, 13), 14, 16, 20, 24, 28))),
    (None, Fineness(48, 128, (*range(1, 17), 18, 20, 22, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112))),
)
"""Most devices of a cluster → how fine its teacher's tables are."""
GROUPS = 4
"""Rows of a batch are learned in so many groups, by their number of candidates: few need not wait for many."""


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
        self.online, self.teacher, self.size = online, teacher, online.size
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
        tables = fine_cost_to_go(problems.scaled(), problems.cut_mask, self.size.max_stages, fineness)
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
    index = torch.arange(len(states.step))
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


@torch.no_grad()
def taught(
    agent: PipelineAgent,
    lessons: Lessons,
    index: Tensor,
    problems: Problems,
    episodes: int,
    epsilon: float,
    generator: torch.Generator,
    skip_last: int = 2,
) -> tuple[Items, Tensor]:
    """Episodes of the pupil with the teacher's values of every state on the way that the pupil has to learn.

    Args:
        index: int64 [B] which problem of the data set each is.
        episodes: played on each problem.
        skip_last: decisions at an episode's end that the pupil takes without having to learn them.

    Returns:
        Rows for the replay, one for every different state, and what the teacher promises after the last decision of
        each episode that was learned, as a reward.
    """
    parts, promised = [], []
    for some, limit, fineness in lessons.classes(problems):
        here = lessons.prepare(problems.take(some), fineness)
        until = episode_steps(here) - skip_last
        owner = (until > 0).nonzero().squeeze(1).repeat_interleave(episodes)
        states = agent.env.reset(here.take(owner))
        while len(owner):
            alike, states, owner = _different(owner, states)
            described = lessons.seen(here, owner, states, limit)
            promises = lessons.promised(here, owner, states, limit)
            candidates, order = legal_first(described)
            values = promises.gather(1, order)
            parts.append(_rows(lessons.size, index[some[owner].cpu()], states, candidates, values))
            half = half_of(lessons.online, int(states.step[0]))
            q = agent.expected(half(*candidates))[alike]
            choice, _ = explore(q, candidates.legal[alike], epsilon, agent.config, generator)
            action = order[alike].gather(1, choice.unsqueeze(1)).squeeze(1)
            first = 0 if int(states.step[0]) % 2 == 0 else problems.points
            owner, states = owner[alike], apply(states.take(alike), action + first, problems.points)
            going = states.step < until[owner]
            promised.append(values[alike].gather(1, choice.unsqueeze(1)).squeeze(1)[~going].exp())
            owner, states = owner[going], states.take(going)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, torch.cat(promised)


def _different(owner: Tensor, states: Partial) -> tuple[Tensor, Partial, Tensor]:
    """Which of the different ones each state is, and these with their owners; all have made as many decisions."""
    rows = torch.cat([owner.unsqueeze(1), states.cuts, states.device_cuts], 1)
    different, alike = torch.unique(rows, dim=0, return_inverse=True)
    owner, cuts, device_cuts_made = different.split([1, states.cuts.shape[1], states.device_cuts.shape[1]], 1)
    return alike, Partial(cuts, device_cuts_made, states.step[:1].expand(len(different))), owner.squeeze(1)


def half_of(online: OneStepQNetwork, step: int) -> ConsequencesNetwork:
    """The half of the network that makes a decision."""
    return online.device_cut if step % 2 else online.cut


def _rows(size: NetworkSize, index: Tensor, states: Partial, candidates: Described, values: Tensor) -> Items:
    """Rows for the replay from states of one kind, their candidates in the order of `legal_first` and their values."""
    items = {
        "problem": index,
        "cuts": states.cuts.short(),
        "device_cuts": states.device_cuts.short(),
        "step": states.step.short(),
        "values": functional.pad(
            values.clamp(min=LOWEST), (0, most_candidates(size) - values.shape[1]), value=LOWEST
        ).half(),
    }
    return {name: column.cpu().numpy() for name, column in items.items()} | _derived(size, candidates)


def _derived(size: NetworkSize, candidates: Described) -> Items:
    """The columns DERIVED of states of one kind, candidates in the order of `legal_first`."""
    features, globally = candidates.features.half().flatten(1), candidates.global_features
    items = {
        "features": functional.pad(features, (0, features_size(size) - features.shape[1])),
        "globally": functional.pad(globally, (0, GLOBALLY - globally.shape[1])),
        "level": best_legal(targets.log_rescale(candidates.estimate), candidates.legal).squeeze(1),
    }
    return {name: column.cpu().numpy() for name, column in items.items()}


@torch.no_grad()
def derived(lessons: Lessons, problems: Problems, items: Items) -> Items:
    """The columns DERIVED of rows of `taught`, from their problems, in their order."""
    states = Partial(*(torch.from_numpy(items[name]).long() for name in ("cuts", "device_cuts", "step")))
    empty, count = empty_lesson(lessons.size), len(states.step)
    filled = {name: np.zeros((count, *empty[name].shape), dtype=empty[name].dtype) for name in DERIVED}
    for some, limit, _ in lessons.classes(problems):
        for kind in range(2):
            rows = some[states.step[some] % 2 == kind]
            if len(rows):
                candidates, _ = legal_first(lessons.seen(problems, rows, states.take(rows), limit))
                for name, column in _derived(lessons.size, candidates).items():
                    filled[name][rows.numpy()] = column
    return filled


def most_candidates(size: NetworkSize) -> int:
    """Candidates of a state, at most."""
    return max(size.points, size.max_devices - 1)


def features_size(size: NetworkSize) -> int:
    """Numbers that describe the candidates of a state, at most."""
    return max(size.points * one_step.INSTRUCTION_FEATURES, (size.max_devices - 1) * one_step.DEVICE_FEATURES)


GLOBALLY = max(one_step.GLOBAL_FEATURES, one_step.DEVICE_GLOBAL_FEATURES)
DERIVED = ("features", "globally", "level")
"""Columns that follow from a row's problem and partial plan."""


def empty_lesson(size: NetworkSize) -> Items:
    """One row of `taught` as the replay wants to know it."""
    cuts = np.zeros(size.max_stages - 1, dtype=np.int16)
    return {
        "problem": np.zeros((), dtype=np.int64),
        "cuts": cuts,
        "device_cuts": cuts,
        "step": np.zeros((), dtype=np.int16),
        "values": np.zeros(most_candidates(size), dtype=np.float16),
        "features": np.zeros(features_size(size), dtype=np.float16),
        "globally": np.zeros(GLOBALLY, dtype=np.float32),
        "level": np.zeros((), dtype=np.float32),
    }


class LossSettings(NamedTuple):
    """How values are compared.

    temperatures: differences of values that count, the first for priorities; > 0. huber: error of the best value from
    which its loss grows linearly. regret: weight of what the pupil's softmax at the first temperature loses.
    """

    temperatures: Sequence[float]
    huber: float
    regret: float = 0.0


def lesson_loss(
    online: OneStepQNetwork, items: Items, weights: Tensor, settings: LossSettings
) -> tuple[Tensor, Tensor]:
    """Weighted loss of replayed rows of `taught`, and each row's divergence [B], which becomes its priority.

    Args:
        online: the pupil.
        items: rows of `taught`.
        weights: [B].
        settings: of the loss.
    """
    device = weights.device
    columns = {name: torch.from_numpy(items[name]) for name in ("values", "step", *DERIVED)}
    total, errors = weights.new_zeros(()), torch.zeros_like(weights)
    count = (columns["values"] > LOWEST / 2).sum(1)
    widths = (
        (one_step.INSTRUCTION_FEATURES, one_step.GLOBAL_FEATURES),
        (one_step.DEVICE_FEATURES, one_step.DEVICE_GLOBAL_FEATURES),
    )
    for kind, (width, globally) in enumerate(widths):
        own = (columns["step"] % 2 == kind).nonzero().squeeze(1)
        for rows in own[count[own].argsort()].tensor_split(GROUPS):
            if not len(rows):
                continue
            most = int(count[rows].max())
            wanted = columns["values"][rows, :most].to(device).float()
            legal = wanted > LOWEST / 2
            features = columns["features"][rows, : most * width].to(device).float().view(-1, most, width)
            estimate = columns["level"][rows].to(device).exp().unsqueeze(1).expand(-1, most)
            known = torch.zeros(len(rows), dtype=torch.bool, device=device)
            network = half_of(online, kind)
            q = network(features, columns["globally"][rows, :globally].to(device), legal, estimate, known).squeeze(2)
            loss, error = _loss(q, wanted, legal, settings)
            total = total + (weights[rows] * loss).sum()
            errors[rows] = error
    return total / len(weights), errors


def _loss(q: Tensor, wanted: Tensor, legal: Tensor, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """[B] loss and [B] divergence of states at the first temperature."""
    best, choice = torch.where(legal, wanted, -torch.inf).max(1, keepdim=True)
    behind, scores = torch.where(legal, wanted - best, -torch.inf), targets.masked(q, legal)
    divergences = [divergence(behind / temperature, scores / temperature) for temperature in settings.temperatures]
    common = targets.huber(q.gather(1, choice) - best, settings.huber).squeeze(1)
    loss = torch.stack(divergences).sum(0) + COMMON * common / settings.huber
    if settings.regret:
        lost = torch.where(legal, best - wanted, 0.0)
        loss = loss + settings.regret * ((scores / settings.temperatures[0]).softmax(1) * lost).sum(1)
    return loss, divergences[0].detach().abs()


def divergence(wanted: Tensor, scores: Tensor) -> Tensor:
    """[B] Kullback-Leibler divergence of the softmax of scores from that of wanted ones, both [B, K], -∞ if illegal."""
    expected, chosen = wanted.softmax(1), scores.log_softmax(1)
    return torch.where(expected > 0, expected * (expected.clamp(min=1e-30).log() - chosen), 0.0).sum(1)
