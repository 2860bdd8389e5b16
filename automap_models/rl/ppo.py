"""Proximal policy optimisation for one-step episodes whose action has many independent parts (a placement).

Schulman et al., arXiv 1707.06347, equation 7, with the mean of the batch of the same problem as the baseline, as GDP
has it (arXiv 1910.01578, §3.4). The ratio is taken part by part, so that its clip means the same for 20 groups as for
256; all parts share the advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PpoConfig:
    """Settings of the learner.

    Attributes:
        samples: placements drawn for a problem at a time.
        epochs: passes over a batch.
        clip: of the ratio.
        entropy: weight of the entropy bonus, per part.
    """

    samples: int = 32
    epochs: int = 3
    clip: float = 0.2
    entropy: float = 0.05


def advantages(rewards: Tensor) -> Tensor:
    """[S] rewards of one problem → [S] minus their mean, in units of their deviation."""
    centred = rewards - rewards.mean()
    deviation: Tensor = centred / (rewards.std() + 1e-6)
    return deviation


def ppo_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, entropy: Tensor, mask: Tensor, config: PpoConfig
) -> Tensor:
    """The clipped objective and the entropy bonus, to be minimised.

    Args:
        log_prob, old_log_prob: [S, G] of the parts of S actions, now and when they were drawn.
        advantage: [S].
        entropy: [G] of the parts' distributions.
        mask: [G] 1 where there is a part.
        config: of the learner.
    """
    ratio = torch.exp(log_prob - old_log_prob)
    gain = advantage[:, None]
    clipped = torch.clamp(ratio, 1.0 - config.clip, 1.0 + config.clip)
    surrogate = torch.minimum(ratio * gain, clipped * gain)
    parts = mask.sum()
    loss: Tensor = -(surrogate * mask).sum(dim=1).mean() / parts - config.entropy * (entropy * mask).sum() / parts
    return loss
