"""Learning from a teacher that values every action of the states that the pupil itself comes through.

The pupil plays, and the teacher says of every legal action of every state on the way what it leads to (DAgger, Ross et
al. 2011, with all values in place of the best action). Behaviour cloning calls one of many equally long plans right and
the others wrong; here equal plans have equal values. A value in log reward is −log(L / ideal), so that differences of
values are relative differences of L. The teacher's cost-to-go tables are finer than those of a policy's file.

The loss compares the softmax of both over the legal actions at several temperatures: at each, differences far below it
do not count, actions far worse than the best hardly. The lowest decides between good actions; without the higher ones
nothing keeps bad actions at a distance that holds on other problems. What the pupil's own softmax at the lowest loses
on average may be added (`regret`): a divergence hardly tells a choice that costs 5 % from one that doubles L.

    episodes ──▶ lessons (rl.lessons) ──▶ replay ──▶ loss, by number of candidates
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.rl import targets
from automap_models.rl.lessons import Lesson, Lessons, half_of, legal_first, played
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import Described, NetworkSize, best_legal
from automap_models.rl.offline import COMMON, PipelineAgent
from automap_models.rl.replay import Items

LOWEST = -60_000.0
"""Stands for an illegal action's value in a replay, whose values have half precision."""
GROUPS = 4
"""Rows of a batch are learned in so many groups, by their number of candidates: few need not wait for many."""


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
    """Rows for the replay, one for every different state of episodes that the pupil plays (rl.lessons.played).

    Args:
        index: int64 [B] which problem of the data set each is.

    Returns:
        The rows, and what the teacher promises at the end of every episode.
    """
    learned, promised = played(agent, lessons, problems, episodes, epsilon, generator, skip_last)
    parts = [_rows(lessons.size, index[lesson.owner.cpu()], lesson) for lesson in learned]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, promised


def _rows(size: NetworkSize, index: Tensor, lesson: Lesson) -> Items:
    """Rows for the replay from states of one kind and of the problems of these numbers."""
    values = lesson.values
    items = {
        "problem": index,
        "cuts": lesson.states.cuts.short(),
        "device_cuts": lesson.states.device_cuts.short(),
        "step": lesson.states.step.short(),
        "values": functional.pad(
            values.clamp(min=LOWEST), (0, most_candidates(size) - values.shape[1]), value=LOWEST
        ).half(),
    }
    return {name: column.cpu().numpy() for name, column in items.items()} | _derived(size, lesson.candidates)


def _derived(size: NetworkSize, candidates: Described) -> Items:
    """The columns DERIVED of states of one kind, candidates in the order of `legal_first`."""
    features, globally = candidates.features.half().flatten(1), candidates.global_features
    items = {
        "features": functional.pad(features, (0, features_size(size) - features.shape[1])),
        "globally": functional.pad(globally, (0, GLOBALLY - globally.shape[1])),
        "estimate": best_legal(candidates.estimate, candidates.legal).squeeze(1),
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
DERIVED = ("features", "globally", "estimate")
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
        "estimate": np.zeros((), dtype=np.float32),
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
            features = columns["features"][rows, : most * width].to(device).float().view(-1, most, width)
            candidates = Described(
                features,
                columns["globally"][rows, :globally].to(device),
                wanted > LOWEST / 2,
                columns["estimate"][rows].to(device).unsqueeze(1).expand(-1, most),
                torch.zeros(len(rows), dtype=torch.bool, device=device),
            )
            q = half_of(online, kind)(candidates)
            loss, error = _loss(q, wanted, candidates.legal, settings)
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
