"""PPO on placements: its gradient against the policy gradient, its clip, and a problem that it must solve."""

from __future__ import annotations

import torch

from automap_models.rl.ppo import PpoConfig, advantages, ppo_loss


def test_at_the_first_step_the_gradient_is_the_policy_gradient() -> None:
    """The ratio is 1, so d loss = - mean of advantage · d log π, by hand."""
    torch.manual_seed(0)
    old, gains = torch.randn(6, 3), torch.randn(6)
    now = old.clone().requires_grad_()
    ppo_loss(now, old, gains, torch.zeros(3), torch.ones(3), PpoConfig(entropy=0.0)).backward()
    assert torch.allclose(now.grad, -(gains[:, None] / 6 / 3).expand(6, 3))


def test_beyond_the_clip_there_is_no_gradient_and_masked_parts_have_none() -> None:
    old = torch.zeros(2, 2)
    now = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], requires_grad=True)
    mask = torch.tensor([1.0, 0.0])
    ppo_loss(now, old, torch.tensor([1.0, -1.0]), torch.zeros(2), mask, PpoConfig(entropy=0.0)).backward()
    assert now.grad.abs().sum() == 0


def test_advantages_have_no_mean() -> None:
    assert advantages(torch.tensor([-1.0, -2.0, -10.0])).mean().abs() < 1e-6


def test_it_learns_which_of_two_devices_each_part_belongs_to() -> None:
    """The reward is the share of parts on the right device: a sum that a gradient must take apart."""
    generator = torch.Generator().manual_seed(1)
    right = torch.randint(0, 2, (12,), generator=generator)
    logits = torch.zeros(12, 2, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    config = PpoConfig(entropy=0.001)
    for _ in range(60):
        with torch.no_grad():
            before = torch.log_softmax(logits, -1)
        drawn = torch.multinomial(before.exp(), 32, replacement=True, generator=generator).T
        gains = advantages((drawn == right).float().mean(dim=1))
        for _ in range(config.epochs):
            log = torch.log_softmax(logits, -1)
            entropy = -(log.exp() * log).sum(-1)
            loss = ppo_loss(
                log.gather(1, drawn.T).T, before.gather(1, drawn.T).T, gains, entropy, torch.ones(12), config
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert (logits.argmax(-1) == right).all()
