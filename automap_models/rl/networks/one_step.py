"""A dueling Q-network that knows the consequences of one decision only (envs.pipeline.one_step)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.errors import BadInput
from automap_models.rl import targets
from automap_models.rl.networks.pipeline import NetworkSize, SplitQNetwork, best_legal, dueling, masked_pool

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
        self.advantage = nn.Linear(hidden, size.atoms)
        self.linear = nn.Linear(features, size.atoms, bias=False)
        nn.init.normal_(self.linear.weight, std=1e-2)
        last = nn.Linear(hidden, size.atoms)
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), last)
        nn.init.normal_(last.weight, std=1e-2)
        nn.init.zeros_(last.bias)

    def forward(
        self, features: Tensor, global_features: Tensor, mask: Tensor, estimate: Tensor, exact: Tensor
    ) -> Tensor:
        """[B, K, F], [B, G], [B, K], [B, K], [B] → [B, K, Z]."""
        hidden = torch.relu(self.embed(features) + self.embed_global(global_features).unsqueeze(1))
        for number, (mix, context) in enumerate(zip(self.mixes, self.contexts, strict=True)):
            more = torch.relu(mix(hidden) + context(masked_pool(hidden, mask)).unsqueeze(1))
            hidden = hidden + more if number else more
        values: Tensor = self.advantage(hidden) + self.linear(features)
        if self.dueling:
            values = dueling(self.value(masked_pool(hidden, mask)), values, mask)
        estimated = targets.log_rescale(estimate)
        known = exact.unsqueeze(1)
        values = torch.where(known.unsqueeze(2), 0.0, values)
        return values + torch.where(known, estimated, best_legal(estimated, mask)).unsqueeze(2)


class OneStepQNetwork(SplitQNetwork):
    """Action values from the consequences of each candidate action alone; no plan of the rest is looked up.

    Raises:
        BadInput: the size asks for a categorical head.
    """

    cut: ConsequencesNetwork
    device_cut: ConsequencesNetwork

    def __init__(self, size: NetworkSize) -> None:
        super().__init__(size)
        if size.atoms != 1:
            raise BadInput(f"is {size.atoms}", where="agent.size.atoms", do="set 1: this network has a scalar head")
        self.cut = ConsequencesNetwork(one_step.INSTRUCTION_FEATURES, one_step.GLOBAL_FEATURES, size)
        self.device_cut = ConsequencesNetwork(one_step.DEVICE_FEATURES, one_step.DEVICE_GLOBAL_FEATURES, size)

    def instruction_features(self, problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.one_step."""
        return one_step.instruction_features(problems, partial)

    def device_features(self, problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.one_step."""
        return one_step.device_features(problems, partial, first)
