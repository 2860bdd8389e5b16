"""A dueling Q-network that knows the consequences of one decision only (envs.pipeline.one_step)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from automap_models.envs.pipeline import one_step
from automap_models.envs.pipeline.env import Partial, Problems
from automap_models.envs.pipeline.features import COMPUTED
from automap_models.errors import BadInput
from automap_models.rl import targets
from automap_models.rl.networks.pipeline import Described, NetworkSize, SplitQNetwork, best_legal, dueling, masked_pool

LAYERS = 2
"""Times that candidates see each other."""
HEADS = 4
"""Of a layer of attention."""


class Attention(nn.Module):
    """A layer of attention and a layer behind it, each added to what comes in (Vaswani et al. 2017, norms first)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.norm_seen, self.norm_between = (nn.LayerNorm(hidden) for _ in range(3))
        self.query, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.between = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))

    def forward(self, hidden: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """[B, K, H] who looks, [B, P, H] what is seen, bool [B, K, P] by whom, one point at least → [B, K, H]."""
        query = self._heads(self.query(self.norm(hidden)))
        key, value = (self._heads(half) for half in self.key_value(self.norm_seen(seen)).chunk(2, 2))
        looked = nn.functional.scaled_dot_product_attention(query, key, value, mask.unsqueeze(1))
        hidden = hidden + self.out(looked.transpose(1, 2).flatten(2))
        between: Tensor = self.between(self.norm_between(hidden))
        return hidden + between

    def _heads(self, hidden: Tensor) -> Tensor:
        """[B, K, H] → [B, HEADS, K, H / HEADS]."""
        batch, count, width = hidden.shape
        return hidden.view(batch, count, HEADS, width // HEADS).transpose(1, 2)


class Ahead(nn.Module):
    """Candidates look at the points of the model behind them, which have looked at those behind themselves.

    A plan of the rest is a chain of such looks: from a cut to the best next one, whose worth those behind it decide.

        candidate ──▶ point ──▶ point ──▶ … ──▶ end of the model       later points only, as many times as layers
    """

    def __init__(self, global_features: int, size: NetworkSize) -> None:
        super().__init__()
        self.embed = nn.Linear(one_step.POINT_FEATURES, size.hidden)
        self.embed_global = nn.Linear(global_features, size.hidden)
        self.layers = nn.ModuleList(Attention(size.hidden) for _ in range(size.attention))
        self.look = Attention(size.hidden)

    def forward(self, hidden: Tensor, features: Tensor, global_features: Tensor, points: Tensor) -> Tensor:
        """[B, K, H], [B, K, F], [B, G], [B, P, T] → [B, K, H]."""
        computed, visible = points[:, :, 0], points[:, :, 1] > 0
        seen = torch.relu(self.embed(points) + self.embed_global(global_features).unsqueeze(1))
        last = torch.arange(points.shape[1], device=points.device) == points.shape[1] - 1  # never nothing
        mask = visible.unsqueeze(1) & (computed.unsqueeze(1) >= computed.unsqueeze(2)) | last
        for layer in self.layers:
            seen = layer(seen, seen, mask)
        behind = visible.unsqueeze(1) & (computed.unsqueeze(1) >= features[:, :, COMPUTED].unsqueeze(2)) | last
        looked: Tensor = self.look(hidden, seen, behind)
        return looked


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
        self.ahead = Ahead(global_features, size) if size.attention else None
        self.mixes = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(LAYERS))
        self.contexts = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(LAYERS))
        self.advantage = nn.Linear(hidden, size.atoms)
        self.linear = nn.Linear(features, size.atoms, bias=False)
        nn.init.normal_(self.linear.weight, std=1e-2)
        last = nn.Linear(hidden, size.atoms)
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), last)
        nn.init.normal_(last.weight, std=1e-2)
        nn.init.zeros_(last.bias)

    def forward(self, described: Described) -> Tensor:
        """[B, K, Z]."""
        features, global_features, mask, estimate, exact, points = described
        hidden = torch.relu(self.embed(features) + self.embed_global(global_features).unsqueeze(1))
        if self.ahead is not None:
            hidden = self.ahead(hidden, features, global_features, points)
        for number, (mix, context) in enumerate(zip(self.mixes, self.contexts, strict=True)):
            more = torch.relu(mix(hidden) + context(masked_pool(hidden, mask)).unsqueeze(1))
            hidden = hidden + more if number or self.ahead is not None else more
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
        BadInput: the size asks for a categorical head, or cannot be shared among the heads of attention.
    """

    cut: ConsequencesNetwork
    device_cut: ConsequencesNetwork

    def __init__(self, size: NetworkSize) -> None:
        super().__init__(size)
        if size.atoms != 1:
            raise BadInput(f"is {size.atoms}", where="agent.size.atoms", do="set 1: this network has a scalar head")
        if size.attention and size.hidden % HEADS:
            do = f"give a multiple of {HEADS}, or set agent.size.attention=0"
            raise BadInput(f"is {size.hidden}", where="agent.size.hidden", do=do)
        self.cut = ConsequencesNetwork(one_step.INSTRUCTION_FEATURES, one_step.GLOBAL_FEATURES, size)
        self.device_cut = ConsequencesNetwork(one_step.DEVICE_FEATURES, one_step.DEVICE_GLOBAL_FEATURES, size)

    def instruction_features(self, problems: Problems, partial: Partial) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.one_step."""
        return one_step.instruction_features(problems, partial)

    def device_features(self, problems: Problems, partial: Partial, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See envs.pipeline.one_step."""
        return one_step.device_features(problems, partial, first)

    def point_features(self, problems: Problems, partial: Partial) -> Tensor:
        """See envs.pipeline.one_step; nobody looks at them where there is no attention."""
        if not self.size.attention:
            return super().point_features(problems, partial)
        return one_step.point_features(problems, partial)
