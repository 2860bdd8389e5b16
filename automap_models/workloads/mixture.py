"""The Switch Transformer's mixture of experts (arXiv 2101.03961): each token goes to one expert.

Tokens are dispatched densely, by einsums with a one-hot tensor as in GShard (arXiv 2006.16668): all shapes are static.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

CAPACITY_FACTOR = 1.0
BALANCE = 0.01
"""Weight of the balancing loss: the paper's α."""


class SwitchFeedForward(nn.Module):
    """A router and `experts` feed-forward layers; in each sequence, an expert takes `capacity(...)` tokens at most."""

    experts: int
    width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, w] → [batch, tokens, w]; 0 for tokens that came too late. The router is float32."""
        logits = nn.Dense(self.experts, use_bias=False, dtype=jnp.float32, name="router")(x)
        probabilities = nn.softmax(logits)
        chosen = jax.nn.one_hot(probabilities.argmax(-1), self.experts)
        self.sow("losses", "balance", BALANCE * balancing_loss(probabilities, chosen))
        dispatch = dispatch_tensor(chosen, capacity(x.shape[1], self.experts)).astype(self.dtype)
        gate = probabilities.max(-1, keepdims=True).astype(self.dtype)
        routed = jnp.einsum("btec,btw->ebcw", dispatch, x)
        done = Experts(self.experts, self.width, self.dtype, name="experts")(routed)
        return gate * jnp.einsum("btec,ebcw->btw", dispatch, done)


class Experts(nn.Module):
    """One feed-forward layer without biases for each expert, their matrices stacked."""

    experts: int
    width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[experts, batch, capacity, w] → the same shape."""
        initial = nn.initializers.lecun_normal(batch_axis=(0,))
        wi = self.param("wi", initial, (self.experts, x.shape[-1], self.width)).astype(self.dtype)
        wo = self.param("wo", initial, (self.experts, self.width, x.shape[-1])).astype(self.dtype)
        inner = nn.relu(jnp.einsum("ebcw,ewf->ebcf", x, wi))
        return jnp.einsum("ebcf,efw->ebcw", inner, wo)


def capacity(tokens: int, experts: int) -> int:
    """Tokens of one sequence that an expert takes (equation 3; 64 of 512 with 8 experts, as published)."""
    return math.ceil(CAPACITY_FACTOR * tokens / experts)


def dispatch_tensor(chosen: jax.Array, capacity: int) -> jax.Array:
    """One-hot [batch, tokens, experts] → 0/1 [batch, tokens, experts, capacity]: each token's place in its expert.

    Tokens take places in order; those beyond the capacity have none.
    """
    place = (jnp.cumsum(chosen, axis=1) * chosen - 1).astype(jnp.int32)  # -1, which one_hot ignores: not this expert
    return jax.nn.one_hot(place, capacity)


def balancing_loss(probabilities: jax.Array, chosen: jax.Array) -> jax.Array:
    """[batch, tokens, experts] twice → [], 1 when tokens spread evenly (equations 4 to 6, a mean over sequences)."""
    experts = chosen.shape[-1]
    return experts * (chosen.mean(1) * probabilities.mean(1)).sum(-1).mean()
