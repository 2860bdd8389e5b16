"""Dueling Q-networks.

All networks answer `describe(problems, partial)`, which has no weights in it, and `forward(described) -> [B, A]`, the
action values. Illegal actions are masked by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from automap_models.envs.pipeline import env as pipeline
from automap_models.envs.pipeline import features as pipeline_features
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.envs.pipeline.objective import LENGTH
from automap_models.rl import targets


def masked_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """[B, K, H], [B, K] → [B, 2H]: mean and maximum over the legal candidates (zero where there is none).

    Two thirds of the time of a product, a sum and `amax`, whose gradients each go through the whole tensor.
    """
    total = mask.to(hidden.dtype).unsqueeze(1).matmul(hidden).squeeze(1)
    mean = total / mask.sum(1, keepdim=True).clamp(min=1)
    largest = torch.where(mask.unsqueeze(2), hidden, -1e9).max(1).values
    return torch.cat([mean, torch.where(mask.any(1, keepdim=True), largest, 0.0)], 1)


def dueling(value: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Q = V + A - mean A over legal actions (Wang et al. 2016, eq. 9): [B, 1], [B, K], [B, K] → [B, K]."""
    mean = (advantage * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return value + advantage - mean


HOPELESS = 0.15
"""Values this much below the best estimate of a state are not told apart: they would only drown the small differences
among good actions, which decide the plan."""


def best_legal(values: Tensor, mask: Tensor) -> Tensor:
    """[B, 1] the largest value of a legal candidate; 0 where there is none."""
    best = torch.where(mask, values, -torch.inf).amax(1, keepdim=True)
    return torch.where(mask.any(1, keepdim=True), best, 0.0)


@dataclass(frozen=True)
class NetworkSize:
    """Sizes of a Q-network.

    `residual` adds the look-ahead's estimate to the values: "none", "linear" as a reward, "log" as its rescaled value.
    `reward` is the environment's (one of envs.pipeline.env.REWARDS), in which estimates and values are. `objective` is
    the environment's, too (one of envs.pipeline.objective.OBJECTIVES); estimates are of the length L whatever it is.
    """

    points: int = 128
    max_stages: int = 4
    max_devices: int = 32
    hidden: int = 64
    dueling: bool = True
    residual: str = "log"
    reward: str = pipeline.IDEAL_OVER_LENGTH
    objective: str = LENGTH


class Described(NamedTuple):
    """Candidates of a batch of states, as networks that value candidates take them.

    features: [B, K, F]; global_features: [B, G]; legal: bool [B, K]; estimate: [B, K] rewards; exact: bool [B].
    """

    features: Tensor
    global_features: Tensor
    legal: Tensor
    estimate: Tensor
    exact: Tensor


class CandidateNetwork(nn.Module):
    """One small network shared by all candidates, which see each other through pooled context.

    The look-ahead's estimated reward enters the action values directly (`residual`), so that learning starts from the
    one-step greedy planner and corrects it; where the look-ahead is exact there is nothing to correct.
    """

    def __init__(self, features: int, global_features: int, size: NetworkSize) -> None:
        super().__init__()
        self.size = size
        hidden = size.hidden
        self.embed = nn.Linear(features, hidden)
        self.embed_global = nn.Linear(global_features, hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.context = nn.Linear(2 * hidden, hidden)
        self.advantage = nn.Linear(hidden, 1)
        rate = nn.Linear(hidden, 1)
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), rate)
        for last in (self.advantage, rate):
            nn.init.normal_(last.weight, std=1e-2)
            nn.init.zeros_(last.bias)

    def forward(self, described: Described) -> Tensor:
        """[B, K]."""
        features, global_features, mask, estimate, exact = described
        hidden = torch.relu(self.embed(features) + self.embed_global(global_features).unsqueeze(1))
        context = self.context(masked_pool(hidden, mask)).unsqueeze(1)
        hidden = torch.relu(self.mix(hidden) + context)
        values: Tensor = self.advantage(hidden).squeeze(2)
        if self.size.dueling:
            values = dueling(self.value(masked_pool(hidden, mask)), values, mask)
        if self.size.residual == "none":
            return values
        return torch.where(exact.unsqueeze(1), 0.0, values) + self.base(mask, estimate)

    def base(self, mask: Tensor, estimate: Tensor) -> Tensor:
        """[B, K] what the residual is added to: the estimate, cut off where it is hopelessly worse than the best."""
        base = targets.log_rescale(estimate) if self.size.residual == "log" else estimate
        return torch.maximum(base, best_legal(base, mask) - HOPELESS)


def _legal_only(features: Tensor, global_features: Tensor, legal: Tensor, estimate: Tensor, exact: Tensor) -> Described:
    """Illegal candidates have no consequences: their features, which may be infinite, become zero."""
    return Described(
        torch.where(legal.unsqueeze(2), features, 0.0),
        global_features,
        legal,
        torch.where(legal, estimate, 0.0),
        exact,
    )


def _as_paid(problems: Problems, estimate: Tensor, reward: str) -> Tensor:
    """Estimates [B, K] of ideal / L as the environment's reward; penalties stay what they are."""
    if reward == pipeline.IDEAL_OVER_LENGTH:
        return estimate
    length = pipeline.length_of_reward_one(problems, reward) / pipeline.ideal_length(problems)
    return torch.where(estimate > 0, estimate * length.unsqueeze(1), estimate)


class Description(NamedTuple):
    """What LookAheadQNetwork reads: the states that cut instructions and those that cut devices, and their rows."""

    cut_rows: Tensor
    cut: Described
    device_rows: Tensor
    device: Described


class SplitQNetwork(nn.Module):
    """Action values of candidates from their features; the same weights for every cluster size.

    Only the half of the action space that a step can choose from is computed; the other half is zero.

    Attributes:
        exact_last: decisions at the end of an episode that are taken, not learned: the look-ahead is the whole plan. It
            says that plan's length L: where the simulated step counts all decisions are learned.
    """

    cut: nn.Module
    device_cut: nn.Module

    def __init__(self, size: NetworkSize) -> None:
        super().__init__()
        self.size = size
        self.exact_last = 2 if size.objective == LENGTH else 0

    def prepare(self, problems: Problems) -> Problems:
        """Nothing serves all states of a problem."""
        return problems

    @torch.no_grad()
    def describe(self, problems: Problems, partial: Partial) -> Description:
        """The features of a batch of states; they depend on no weights, so that two networks can share them."""
        problems = self.prepare(problems)
        even = partial.step % 2 == 0
        cut_rows, device_rows = even.nonzero().squeeze(1), even.logical_not().nonzero().squeeze(1)
        first = pipeline.device_cuts(problems, int(problems.devices.max()))  # no larger than the largest cluster here
        return Description(
            cut_rows,
            self.describe_cuts(problems.take(cut_rows), partial.take(cut_rows)),
            device_rows,
            self.describe_device_cuts(problems.take(device_rows), partial.take(device_rows), first),
        )

    def instruction_features(self, problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
        """Features of ending the current stage at each point, of the state, and the estimated rewards."""
        raise NotImplementedError

    def device_features(self, problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same of starting the next stage at each of some devices, [a]."""
        raise NotImplementedError

    def describe_cuts(self, problems: Problems, partial: Partial) -> Described:
        """Candidates of states that cut instructions."""
        legal = pipeline.legal_cuts(problems, partial)
        features, globally, estimate = self.instruction_features(problems, partial)
        estimate = _as_paid(problems, estimate, self.size.reward)
        return _legal_only(features, globally, legal, estimate, self._is_exact(problems, partial))

    def describe_device_cuts(self, problems: Problems, partial: Partial, first: Tensor) -> Described:
        """Candidates of states that cut devices: the devices [a] that the next stage may begin with."""
        legal = pipeline.legal_device_cuts(problems, partial, first)
        features, globally, estimate = self.device_features(problems, partial, first)
        estimate = _as_paid(problems, estimate, self.size.reward)
        return _legal_only(features, globally, legal, estimate, self._is_exact(problems, partial))

    def _is_exact(self, problems: Problems, partial: Partial) -> Tensor:
        """bool [B]: one stage is left after the current one, so that the look-ahead is the whole plan and its length.

        For a cut on a cluster of more devices than the tables have units it is a real plan, if not the best of that
        cut.
        """
        last = 1 if self.exact_last else -1
        return problems.stages.long() - 1 - partial.step // 2 <= last

    def floor(self, described: Description) -> Tensor:
        """[B] values below this need not be told apart (HOPELESS); -∞ for a network that does without estimates."""
        return described.cut.estimate.new_full((len(described.cut_rows) + len(described.device_rows),), -torch.inf)

    def forward(self, described: Description) -> Tensor:
        """[B, P + max_devices - 1] action values."""
        points, others = self.size.points, self.size.max_devices - 1
        cut = functional.pad(self.cut(described.cut), (0, others))
        device = self.device_cut(described.device)
        device = functional.pad(device, (points, others - device.shape[1]))
        rows = torch.cat([described.cut_rows, described.device_rows])
        return torch.cat([cut, device]).index_select(0, rows.argsort())


class LookAheadQNetwork(SplitQNetwork):
    """Action values from features that look ahead by cost-to-go tables (envs.pipeline.features)."""

    cut: CandidateNetwork
    device_cut: CandidateNetwork

    def __init__(self, size: NetworkSize) -> None:
        super().__init__(size)
        globally = pipeline_features.GLOBAL_FEATURES
        self.cut = CandidateNetwork(pipeline_features.INSTRUCTION_FEATURES, globally, size)
        self.device_cut = CandidateNetwork(pipeline_features.DEVICE_FEATURES, globally, size)
        if size.residual == "none":  # the look-ahead is but a feature
            self.exact_last = 0

    @torch.no_grad()
    def prepare(self, problems: Problems) -> Problems:
        """The problems with what serves all their states: the cost-to-go tables."""
        return problems.with_cost_to_go(self.size.max_stages)

    def instruction_features(self, problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.features."""
        return pipeline_features.instruction_features(problems, partial)

    def device_features(self, problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.features."""
        return pipeline_features.device_features(problems, partial, first)

    def floor(self, described: Description) -> Tensor:
        """[B] values below this need not be told apart (HOPELESS); -∞ for a network that does without estimates."""
        if self.size.residual == "none":
            return super().floor(described)
        floors = [
            best_legal(half.base(part.legal, part.estimate), part.legal).squeeze(1) - HOPELESS
            for half, part in ((self.cut, described.cut), (self.device_cut, described.device))
        ]
        rows = torch.cat([described.cut_rows, described.device_rows])
        return torch.cat(floors).index_select(0, rows.argsort())


class FlatQNetwork(nn.Module):
    """The paper's network: the whole state flattened, scaled to [0, 1] and concatenated (Auto-MAP §3.5).

    State: C, A, W, the device-to-device interconnect matrix, the partial plan, S, M and the step.
    """

    exact_last = 0

    def __init__(self, size: NetworkSize, layers: int = 2) -> None:
        super().__init__()
        self.size = size
        actions = size.points + size.max_devices - 1
        width = 3 * size.points + size.max_devices**2 + 2 * (size.max_stages - 1) + 4
        body: list[nn.Module] = []
        for _ in range(layers):
            body += [nn.Linear(width, size.hidden), nn.ReLU()]
            width = size.hidden
        self.body = nn.Sequential(*body)
        self.advantage = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)

    def prepare(self, problems: Problems) -> Problems:
        """This network derives nothing."""
        return problems

    @torch.no_grad()
    def describe(self, problems: Problems, partial: Partial) -> tuple[Tensor, Tensor]:
        """The flattened state and the legal actions."""
        return self.flatten(problems, partial), pipeline.legal_actions(problems, partial, self.size.max_devices)

    def floor(self, described: tuple[Tensor, Tensor]) -> Tensor:
        """[B] no values are hopeless here: -∞."""
        return torch.full_like(described[0][:, 0], -torch.inf)

    def forward(self, described: tuple[Tensor, Tensor]) -> Tensor:
        """[B, P + max_devices - 1] action values."""
        flat, legal = described
        hidden = self.body(flat)
        advantage: Tensor = self.advantage(hidden)
        return dueling(self.value(hidden), advantage, legal) if self.size.dueling else advantage

    def flatten(self, problems: Problems, partial: Partial) -> Tensor:
        """[B, width] in [0, 1]."""
        size = self.size
        plan = [(partial.cuts + 1) / size.points, partial.device_cuts.clamp(min=0) / size.max_devices]
        scalars = [
            problems.stages / size.max_stages,
            1 / problems.micro_batches,
            partial.step / (2 * size.max_stages),
            problems.state_over_memory / (1 + problems.state_over_memory),
        ]
        matrix = pipeline.interconnect_matrix(problems, size.max_devices).flatten(1)
        return torch.cat([problems.arrays[:, :3].flatten(1), matrix, *plan, torch.stack(scalars, 1)], 1)
