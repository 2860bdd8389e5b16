"""Mixtures of experts: each token goes to one expert, or to a few; all shapes are static.

- The Switch Transformer's (arXiv 2101.03961) sends it to one and dispatches tokens densely, by einsums with a one-hot
  tensor as in GShard (arXiv 2006.16668).
- Mixtral's (arXiv 2401.04088) and DeepSeek's (arXiv 2401.06066) send it to several; tokens are gathered and scattered.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.core.sublayer_sizes import Mixture
from automap_models.workloads.blocks import ACTIVATIONS, FeedForward
from automap_models.workloads.sizes import Activation, capacity


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
        self.sow("losses", "balance", 0.01 * balancing_loss(probabilities, chosen))  # α of the paper
        dispatch = dispatch_tensor(chosen, capacity(x.shape[1], self.experts)).astype(self.dtype)
        gate = probabilities.max(-1, keepdims=True).astype(self.dtype)
        routed = jnp.einsum("btec,btw->ebcw", dispatch, x)
        done = Experts(self.experts, self.width, self.dtype, name="experts")(routed)
        return gate * jnp.einsum("btec,ebcw->btw", dispatch, done)


class RoutedFeedForward(nn.Module):
    """A router and gated feed-forward layers; in each sequence, an expert takes `capacity(...)` tokens at most.

    The experts with the highest scores take a token. What published models do besides, to balance the experts' loads,
    changes neither shapes nor costs and is left out.
    """

    mixture: Mixture
    activation: Activation
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, w] → [batch, tokens, w]. The router is float32."""
        c = self.mixture
        logits = nn.Dense(c.experts, use_bias=False, dtype=jnp.float32, name="router")(x)
        scores = nn.softmax(logits) if c.scores == "softmax" else nn.sigmoid(logits)
        chosen = highest(jax.lax.stop_gradient(scores), c.per_token)
        weights = scores * chosen
        if c.normalised:
            weights = weights / weights.sum(-1, keepdims=True)
        weights = (c.scale * weights).astype(self.dtype).swapaxes(1, 2)
        places = capacity(x.shape[1], c.experts, c.per_token)
        taken = jnp.argsort(1 - chosen.swapaxes(1, 2), axis=-1, stable=True)[..., :places]  # [batch, experts, places]
        routed = jax.vmap(_rows)(x, taken).swapaxes(0, 1)
        experts = Experts(c.experts, c.width, self.dtype, self.activation, True, name="experts")
        gate = jnp.take_along_axis(weights, taken, axis=-1, mode="promise_in_bounds")[..., None]
        done = experts(routed).swapaxes(0, 1) * gate
        total: jax.Array = jax.vmap(_added)(jnp.zeros_like(x), taken, done)
        if c.shared_width:
            shared = FeedForward(c.shared_width, False, self.activation, self.dtype, True, name="shared")
            total = total + shared(x)
        return total


class Experts(nn.Module):
    """One feed-forward layer without biases for each expert, their matrices stacked."""

    experts: int
    width: int
    dtype: jnp.dtype
    activation: Activation = "relu"
    gated: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[experts, batch, capacity, w] → the same shape."""
        initial = nn.initializers.lecun_normal(batch_axis=(0,))
        wi = self.param("wi", initial, (self.experts, x.shape[-1], self.width)).astype(self.dtype)
        wo = self.param("wo", initial, (self.experts, self.width, x.shape[-1])).astype(self.dtype)
        inner = jnp.einsum("ebcw,ewf->ebcf", x, wi)
        activation = ACTIVATIONS[self.activation]
        if self.gated:
            gate = self.param("gate", initial, (self.experts, x.shape[-1], self.width)).astype(self.dtype)
            inner = activation(jnp.einsum("ebcw,ewf->ebcf", x, gate)) * inner
        else:
            inner = activation(inner)
        return jnp.einsum("ebcf,efw->ebcw", inner, wo)


def highest(scores: jax.Array, count: int) -> jax.Array:
    """[..., n] scores above -1 → int32 [..., n] of 0 and 1, 1 for the `count` highest; of equal ones, the first."""
    chosen = jnp.zeros(scores.shape, jnp.int32)
    for _ in range(count):  # no sorting: nothing says how it can be partitioned
        best = jnp.where(chosen > 0, -1.0, scores).argmax(-1)
        chosen = chosen + jax.nn.one_hot(best, scores.shape[-1], dtype=jnp.int32)
    return chosen


def dispatch_tensor(chosen: jax.Array, capacity: int) -> jax.Array:
    """One-hot [batch, tokens, experts] → 0/1 [batch, tokens, experts, capacity]: each token's place in its expert.

    Tokens take places in order; those beyond the capacity have none.
    """
    place = (jnp.cumsum(chosen, axis=1) * chosen - 1).astype(jnp.int32)  # -1, which one_hot ignores: not this expert
    return jax.nn.one_hot(place, capacity)


def _rows(tokens: jax.Array, index: jax.Array) -> jax.Array:
    """[n, w], index [...] below n → [..., w]."""
    rows: jax.Array = tokens.at[index].get(mode="promise_in_bounds")
    return rows


def _added(total: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
    """[n, w], index [...] below n, rows [..., w] → the total with each row added at its index."""
    sums: jax.Array = total.at[index].add(rows, mode="promise_in_bounds")
    return sums


def balancing_loss(probabilities: jax.Array, chosen: jax.Array) -> jax.Array:
    """[batch, tokens, experts] twice → [], 1 when tokens spread evenly (equations 4 to 6, a mean over sequences)."""
    experts = chosen.shape[-1]
    return experts * (chosen.mean(1) * probabilities.mean(1)).sum(-1).mean()
