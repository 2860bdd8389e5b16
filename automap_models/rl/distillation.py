"""Learning from a teacher that values every action of the states that the pupil itself comes through.

The pupil plays, and the teacher says of every legal action of every state on the way what it leads to (DAgger, Ross et
al. 2011, with all values in place of the best action). Behaviour cloning calls one of many equally long plans right and
the others wrong; here equal plans have equal values. A value in log reward is −log(L / ideal), so that differences of
values are relative differences of L.

The loss compares the softmax of both over the legal actions at several temperatures: at each, differences far below it
do not count, actions far worse than the best hardly. The lowest decides between good actions; without the higher ones
nothing keeps bad actions at a distance that holds on other problems. All are least where both values differ by a
constant, and the network goes on to learn from its own episodes with the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.env import Partial, Problems, episode_steps
from automap_models.rl import targets
from automap_models.rl.agent import explore
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import (
    Described,
    Description,
    LookAheadQNetwork,
    NetworkSize,
    best_legal,
)
from automap_models.rl.offline import COMMON, PipelineAgent
from automap_models.rl.replay import Items

LOWEST = -60_000.0
"""Stands for an illegal action's value in a replay, whose values have half precision."""


@torch.no_grad()
def taught(
    agent: PipelineAgent,
    teacher: LookAheadQNetwork,
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
        Rows for the replay, and the rewards of the episodes, [B · episodes].
    """
    problems = teacher.prepare(problems)
    rows = torch.arange(len(index), device=problems.stages.device).repeat_interleave(episodes)
    index, problems = index.repeat_interleave(episodes), problems.take(rows)
    reward = torch.zeros(len(rows), device=rows.device)
    rows, states, parts = torch.arange(len(rows), device=rows.device), agent.env.reset(problems), []
    while len(rows):
        here = problems.take(rows)
        described = agent.online.describe(here, states)
        q = agent.expected(agent.online(described))
        action, _ = explore(q, agent.env.legal(here, states), epsilon, agent.config, generator)
        learned = (states.step < episode_steps(here) - skip_last).nonzero().squeeze(1)
        if len(learned):
            parts.append(
                lesson_rows(
                    index[rows[learned].cpu()],
                    teacher,
                    here.take(learned),
                    states.take(learned),
                    one_kind(described, learned),
                )
            )
        states, earned, ended = agent.env.step(here, states, action)
        reward[rows] = earned
        rows, states = rows[~ended], states.take(~ended)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, reward


def one_kind(described: Description, rows: Tensor | None = None) -> Described:
    """The half of a description all of whose states cut the same, in their order."""
    half = described.cut if len(described.cut_rows) else described.device
    return half if rows is None else Described(*(tensor[rows] for tensor in half))


def lesson_rows(
    index: Tensor, teacher: LookAheadQNetwork, problems: Problems, states: Partial, described: Described
) -> Items:
    """Rows for the replay from states of one kind and their description."""
    items = {
        "problem": index,
        "cuts": states.cuts.short(),
        "device_cuts": states.device_cuts.short(),
        "step": states.step.short(),
        "values": teacher_values(teacher, problems, states).clamp(min=LOWEST).half(),
    }
    return {name: column.cpu().numpy() for name, column in items.items()} | _derived(teacher.size, described)


def _derived(size: NetworkSize, described: Described) -> Items:
    """The columns DERIVED of states of one kind."""
    features, globally = described.features.half().flatten(1), described.global_features
    items = {
        "features": functional.pad(features, (0, features_size(size) - features.shape[1])),
        "globally": functional.pad(globally, (0, GLOBALLY - globally.shape[1])),
        "level": best_legal(targets.log_rescale(described.estimate), described.legal).squeeze(1),
    }
    return {name: column.cpu().numpy() for name, column in items.items()}


@torch.no_grad()
def derived(online: OneStepQNetwork, problems: Problems, items: Items) -> Items:
    """The columns DERIVED of rows of `taught`, from their problems, in their order."""
    device = problems.stages.device
    states = Partial(*(torch.from_numpy(items[name]).long().to(device) for name in ("cuts", "device_cuts", "step")))
    empty, count = empty_lesson(online.size), len(states.step)
    filled = {name: np.zeros((count, *empty[name].shape), dtype=empty[name].dtype) for name in DERIVED}
    for kind in range(2):
        rows = (states.step % 2 == kind).nonzero().squeeze(1)
        if len(rows):
            described = one_kind(online.describe(problems.take(rows), states.take(rows)))
            for name, column in _derived(online.size, described).items():
                filled[name][rows.cpu().numpy()] = column
    return filled


def features_size(size: NetworkSize) -> int:
    """Numbers that describe the candidates of a state."""
    return max(size.points * one_step.INSTRUCTION_FEATURES, (size.max_devices - 1) * one_step.DEVICE_FEATURES)


GLOBALLY = max(one_step.GLOBAL_FEATURES, one_step.DEVICE_GLOBAL_FEATURES)
DERIVED = ("features", "globally", "level")
"""Columns that follow from a row's problem and partial plan."""


def teacher_values(teacher: LookAheadQNetwork, problems: Problems, states: Partial) -> Tensor:
    """[B, A] what the teacher's look-ahead promises for every action of states of one kind; -∞ where it is illegal."""
    points, others = teacher.size.points, teacher.size.max_devices - 1
    values = torch.full((len(states.step), points + others), -torch.inf, device=states.step.device)
    for some in torch.split(torch.arange(len(values), device=values.device), STATES):
        half = one_kind(teacher.describe(problems.take(some), states.take(some)))
        first = 0 if int(states.step[0]) % 2 == 0 else points
        estimate = torch.where(half.legal, targets.log_rescale(half.estimate), -torch.inf)
        values[some, first : first + estimate.shape[1]] = estimate
    return values


STATES = 32
"""States that the teacher looks at together: what it computes stays in a processor's cache."""


def empty_lesson(size: NetworkSize) -> Items:
    """One row of `taught` as the replay wants to know it."""
    cuts = np.zeros(size.max_stages - 1, dtype=np.int16)
    return {
        "problem": np.zeros((), dtype=np.int64),
        "cuts": cuts,
        "device_cuts": cuts,
        "step": np.zeros((), dtype=np.int16),
        "values": np.zeros(size.points + size.max_devices - 1, dtype=np.float16),
        "features": np.zeros(features_size(size), dtype=np.float16),
        "globally": np.zeros(GLOBALLY, dtype=np.float32),
        "level": np.zeros((), dtype=np.float32),
    }


def lesson_loss(
    online: OneStepQNetwork, items: Items, weights: Tensor, temperatures: Sequence[float], huber: float
) -> tuple[Tensor, Tensor]:
    """Weighted loss of replayed rows of `taught`, and each row's divergence [B], which becomes its priority.

    Args:
        online: the pupil.
        items: rows of `taught`.
        weights: [B].
        temperatures: differences of values that count, the first for priorities; > 0.
        huber: error of the best value from which its loss grows linearly.
    """
    device, points = weights.device, online.size.points
    columns = {name: torch.from_numpy(items[name]).to(device) for name in ("values", "step", *DERIVED)}
    total, errors = weights.new_zeros(()), torch.zeros_like(weights)
    halves = (
        (online.cut, one_step.INSTRUCTION_FEATURES, one_step.GLOBAL_FEATURES, slice(points)),
        (online.device_cut, one_step.DEVICE_FEATURES, one_step.DEVICE_GLOBAL_FEATURES, slice(points, None)),
    )
    for kind, (network, width, globally, actions) in enumerate(halves):
        rows = (columns["step"] % 2 == kind).nonzero().squeeze(1)
        if not len(rows):
            continue
        wanted = columns["values"][rows][:, actions].float()
        legal = wanted > LOWEST / 2
        wanted, legal = (t[:, : int(legal.any(0).nonzero().max()) + 1] for t in (wanted, legal))
        count = wanted.shape[1]
        features = columns["features"][rows][:, : count * width].float().view(-1, count, width)
        estimate = columns["level"][rows].exp().unsqueeze(1).expand(-1, count)
        known = torch.zeros_like(rows, dtype=torch.bool)
        q = network(features, columns["globally"][rows][:, :globally], legal, estimate, known).squeeze(2)
        loss, error = _loss(q, wanted, legal, temperatures, huber)
        total = total + (weights[rows] * loss).sum()
        errors[rows] = error
    return total / len(weights), errors


def _loss(
    q: Tensor, wanted: Tensor, legal: Tensor, temperatures: Sequence[float], huber: float
) -> tuple[Tensor, Tensor]:
    """[B] loss and [B] divergence of states at the first temperature."""
    best, choice = torch.where(legal, wanted, -torch.inf).max(1, keepdim=True)
    behind, scores = torch.where(legal, wanted - best, -torch.inf), targets.masked(q, legal)
    divergences = [divergence(behind / temperature, scores / temperature) for temperature in temperatures]
    common = targets.huber(q.gather(1, choice) - best, huber).squeeze(1)
    return torch.stack(divergences).sum(0) + COMMON * common / huber, divergences[0].detach().abs()


def divergence(wanted: Tensor, scores: Tensor) -> Tensor:
    """[B] Kullback-Leibler divergence of the softmax of scores from that of wanted ones, both [B, K], -∞ if illegal."""
    expected, chosen = wanted.softmax(1), scores.log_softmax(1)
    return torch.where(expected > 0, expected * (expected.clamp(min=1e-30).log() - chosen), 0.0).sum(1)
