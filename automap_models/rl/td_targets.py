"""Learning targets as functions of values; shapes are checked, nothing else is known here."""

from __future__ import annotations

import torch
from torch import Tensor

ILLEGAL = -torch.inf


def masked(q: Tensor, legal: Tensor) -> Tensor:
    """[B, A] action values with -∞ for illegal actions (cost-model.md)."""
    if q.shape != legal.shape:
        raise ValueError(f"values {tuple(q.shape)} and mask {tuple(legal.shape)} differ in shape")
    return torch.where(legal, q, ILLEGAL)


def rated_choice(q_chooser: Tensor, rated: Tensor, legal: Tensor) -> Tensor:
    """What one network says of the action that another would take: [B, A], [B, A], [B, A] → [B].

    Double Q-learning lets the online network choose and the target network rate (van Hasselt et al. 2016, eq. 4);
    with one network for both it is the largest value (Mnih et al. 2015). 0 where no action is legal: an episode's end.
    """
    best = masked(q_chooser, legal).argmax(1)
    value = rated.gather(1, best.unsqueeze(1)).squeeze(1)
    return torch.where(legal.any(1), value, 0.0)


def n_step_target(r_t: Tensor, discount_t: Tensor, value_t: Tensor) -> Tensor:
    """[B] r_t + discount_t · v(s_t): r_t sums the rewards of n steps, discount_t = γⁿ or 0 after the end."""
    if not r_t.shape == discount_t.shape == value_t.shape:
        raise ValueError(f"shapes {tuple(r_t.shape)}, {tuple(discount_t.shape)}, {tuple(value_t.shape)} differ")
    return r_t + discount_t * value_t


def log_rescale(reward: Tensor) -> Tensor:
    """h(r) = log r on [e^-5, 1], -6 for a penalty: equal ratios of L become equal differences of value.

    A transformed Bellman operator (Pohlen et al. 2018) with γ = 1 and one reward at the end needs no inverse.
    Without it plans that communication dominates, whose rewards are all small, hardly count in the loss.
    """
    return torch.where(reward > 0, reward.clamp(min=1e-9).log().clamp(min=-5.0), -6.0)


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Elementwise Huber loss of an error."""
    return torch.where(error.abs() <= delta, 0.5 * error**2, delta * (error.abs() - 0.5 * delta))
