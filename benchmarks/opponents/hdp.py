"""A hierarchical placer trained by REINFORCE on one graph, for benchmarks/placer.py.

After HDP (Mirhoseini et al., "A Hierarchical Model for Device Placement", ICLR 2018):

    operations ── grouper: softmax over groups ── groups ── placer: LSTM both ways, LSTM with attention ── devices
                                                                            reward: -sqrt(step over the first one's)

Both networks are trained together, from nothing, on the graph that they place; the baseline is a moving average. What
differs: operations that share a device are grouped as one; sizes are smaller (64 groups, LSTMs of 64), since what is
placed here is simulated in milliseconds and the time counts.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from automap_models.core.placement import PlacementProblem
from automap_models.envs.placement.features import KINDS, opcode_kinds
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_search import score_of

GROUPS, HIDDEN, PLACEMENTS = 64, 64, 8
"""Groups; width of all layers; placements drawn for an update, of one grouping."""
LEARNING_RATE, MEMORY, CLIP, SPREAD = 2e-3, 0.9, 1.0, 5.0
"""Of Adam; of the moving average; of the gradient's norm; largest logit of a device, as in the paper."""
MISFIT = -10.0
"""Reward of a placement that does not fit."""


@dataclass(frozen=True)
class Trained:
    """What a training came to.

    Attributes:
        value_s: the best step met, infinite without any that fits.
        reached_s: processor time after which it was met.
        took_s: processor time in all.
        updates: of the networks.
    """

    value_s: float
    reached_s: float
    took_s: float
    updates: int


class Placer(nn.Module):
    """The grouper and the sequence-to-sequence placer."""

    def __init__(self, features: int, devices: int) -> None:
        super().__init__()
        self.group = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, GROUPS))
        self.encoder = nn.LSTM(features + 1 + GROUPS, HIDDEN // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTMCell(2 * HIDDEN, HIDDEN)
        self.before = nn.Embedding(devices + 1, HIDDEN)
        self.query, self.key, self.energy = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)
        self.device = nn.Linear(2 * HIDDEN, devices)
        self.devices = devices

    def place(self, groups: Tensor) -> tuple[Tensor, Tensor]:
        """[G, F] embeddings → [M, G] devices drawn, and [M] the logarithm of their probability."""
        states, _ = self.encoder(groups.unsqueeze(0))
        encoded = states.expand(PLACEMENTS, -1, -1)
        keys = self.key(encoded)
        h = c = encoded.new_zeros(PLACEMENTS, HIDDEN)
        last = torch.full((PLACEMENTS,), self.devices)
        drawn, log_prob = [], encoded.new_zeros(PLACEMENTS)
        for g in range(groups.shape[0]):
            h, c = self.decoder(torch.cat([encoded[:, g], self.before(last)], dim=1), (h, c))
            weights = torch.softmax(self.energy(torch.tanh(keys + self.query(h).unsqueeze(1))), dim=1)
            logits = self.device(torch.cat([h, (weights * encoded).sum(dim=1)], dim=1))
            choice: Any = torch.distributions.Categorical(logits=SPREAD * torch.tanh(logits / SPREAD))
            last = choice.sample()
            log_prob = log_prob + choice.log_prob(last)
            drawn.append(last)
        return torch.stack(drawn, dim=1), log_prob


def train(problem: PlacementProblem, budget_s: float, seed: int) -> Trained:
    """Train on one graph for so much processor time; the best step that is met counts."""
    begun_s = time.process_time()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    units = StepUnits.of(problem)
    features, adjacency = _features(units), units.adjacency
    network = Placer(features.shape[1], problem.devices)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    first_s = score_of(units, units.repaired(np.zeros(len(units), dtype=np.int64))).value_s
    best_s, reached_s, updates, baseline = math.inf, 0.0, 0, None
    while time.process_time() - begun_s < budget_s:
        choice: Any = torch.distributions.Categorical(logits=network.group(features))
        group_of = choice.sample()
        one_hot = nn.functional.one_hot(group_of, GROUPS).numpy()
        between = np.log1p(one_hot.T @ (adjacency @ one_hot))
        held = torch.from_numpy(one_hot).float()
        count = held.sum(dim=0).unsqueeze(1)
        mean = held.T @ features / count.clamp(min=1.0)
        links = torch.from_numpy(between / max(float(between.max()), 1.0)).float()
        devices, log_prob = network.place(torch.cat([mean, torch.log1p(count), links], dim=1))
        rewards = []
        for placement in devices.numpy():
            score = score_of(units, units.repaired(placement[group_of.numpy()]))
            fits = score.excess_bytes == 0
            rewards.append(-math.sqrt(score.value_s / first_s) if fits else MISFIT)
            if fits and score.value_s < best_s:
                best_s, reached_s = score.value_s, time.process_time() - begun_s
        reward = torch.tensor(rewards)
        baseline = float(reward.mean()) if baseline is None else MEMORY * baseline + (1 - MEMORY) * float(reward.mean())
        advantage = reward - baseline
        loss = -(advantage * log_prob).mean() - advantage.mean() * choice.log_prob(group_of).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
        updates += 1
    return Trained(best_s, reached_s, time.process_time() - begun_s, updates)


def _features(units: StepUnits) -> Tensor:
    """[u, F] kinds of operations of each class, and its time, outputs, memory, place and neighbours."""
    graph, count = units.problem.graph, len(units)
    kinds = np.zeros((count, len(KINDS)))
    np.add.at(kinds, (units.unit_of, opcode_kinds(graph.opcodes, len(graph))), 1.0)
    sent = np.bincount(units.unit_of, weights=graph.output_bytes, minlength=count)
    degree = np.diff(units.adjacency.indptr)
    columns = [units.time_s / max(units.time_s.max(), 1e-15), np.log1p(sent) / 20, np.log1p(units.memory_bytes) / 20]
    columns += [np.arange(count) / count, np.log1p(degree) / 5]
    return torch.from_numpy(np.concatenate([np.log1p(kinds), np.stack(columns, axis=1)], axis=1)).float()
