"""A dueling Q-network that knows the consequences of one decision only (envs.pipeline.one_step)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.rl import targets
from automap_models.rl.networks.pipeline import Described, NetworkSize, SplitQNetwork, best_legal, dueling, masked_pool

LAYERS = 2
"""Times that candidates see each other."""


class ConsequencesNetwork(nn.Module):
    """One network shared by all candidates, which see each other through pooled context, twice, beside a linear one.

    What all candidates of a state have in common starts from the best estimate among them; it orders nothing. How they
    differ is learned altogether. Where one stage is left there is nothing to learn: consequences are the whole plan.
    """

    def __init__(self, features: int, global_features: int, size: NetworkSize) -> None:
        super().__init__()
        hidden = size.hidden
        self.dueling = size.dueling
        self.embed = nn.Linear(features, hidden)
        self.embed_global = nn.Linear(global_features, hidden)
        self.mixes = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(LAYERS))
        self.contexts = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(LAYERS))
        self.advantage = nn.Linear(hidden, 1)
        self.linear = nn.Linear(features, 1, bias=False)
        nn.init.normal_(self.linear.weight, std=1e-2)
        last = nn.Linear(hidden, 1)
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), last)
        nn.init.normal_(last.weight, std=1e-2)
        nn.init.zeros_(last.bias)

    def forward(self, described: Described) -> Tensor:
        """[B, K]."""
        features, global_features, mask, estimate, exact = described
        hidden = torch.relu(self.embed(features) + self.embed_global(global_features).unsqueeze(1))
        for number, (mix, context) in enumerate(zip(self.mixes, self.contexts, strict=True)):
            more = torch.relu(mix(hidden) + context(masked_pool(hidden, mask)).unsqueeze(1))
            hidden = hidden + more if number else more
        values: Tensor = (self.advantage(hidden) + self.linear(features)).squeeze(2)
        if self.dueling:
            values = dueling(self.value(masked_pool(hidden, mask)), values, mask)
        estimated = targets.log_rescale(estimate)
        known = exact.unsqueeze(1)
        return torch.where(known, 0.0, values) + torch.where(known, estimated, best_legal(estimated, mask))


class OneStepQNetwork(SplitQNetwork):
    """Action values from the consequences of each candidate action alone; no plan of the rest is looked up."""

    cut: ConsequencesNetwork
    device_cut: ConsequencesNetwork

    def __init__(self, size: NetworkSize) -> None:
        super().__init__(size)
        self.cut = ConsequencesNetwork(one_step.INSTRUCTION_FEATURES, one_step.GLOBAL_FEATURES, size)
        self.device_cut = ConsequencesNetwork(one_step.DEVICE_FEATURES, one_step.DEVICE_GLOBAL_FEATURES, size)

    def instruction_features(self, problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.one_step."""
        return one_step.instruction_features(problems, partial)

    def device_features(self, problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.one_step."""
        return one_step.device_features(problems, partial, first)
