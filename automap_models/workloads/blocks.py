"""What the models share: layers of transformers, and shapes of what a step reads."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn


class Attention(nn.Module):
    """Multi-head attention (arXiv 1706.03762, equation 1) with four matrices q, k, v and o.

    Attributes:
        heads, head_width: the projections have heads · head_width columns, head by head.
        use_bias: whether they have biases.
        scaled: whether scores are divided by the root of head_width (T5 leaves that out).
    """

    heads: int
    head_width: int
    use_bias: bool
    scaled: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None, bias: jax.Array | None = None) -> jax.Array:
        """[batch, queries, width], memory [batch, keys, …], bias [1, heads or 1, queries, keys] → like x.

        Without memory, x attends to itself. The softmax is taken in float32.
        """

        def project(name: str, y: jax.Array) -> jax.Array:  # a method would add its name to the module path
            columns = nn.Dense(self.heads * self.head_width, self.use_bias, self.dtype, name=name)(y)
            return columns.reshape(*y.shape[:2], self.heads, self.head_width)

        memory = x if memory is None else memory
        q, k, v = project("q", x), project("k", memory), project("v", memory)
        if self.scaled:
            q = q * self.head_width**-0.5
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        if bias is not None:
            scores = scores + bias
        weights = nn.softmax(scores.astype(jnp.float32)).astype(self.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return nn.Dense(x.shape[-1], self.use_bias, self.dtype, name="o")(mixed.reshape(*mixed.shape[:2], -1))


class FeedForward(nn.Module):
    """Two matrices, wi and wo, with an activation between them."""

    width: int
    use_bias: bool
    activation: Callable[[jax.Array], jax.Array]
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., w] → [..., w], through [..., width]."""
        inner = self.activation(nn.Dense(self.width, self.use_bias, self.dtype, name="wi")(x))
        return nn.Dense(x.shape[-1], self.use_bias, self.dtype, name="wo")(inner)


def causal_bias(length: int, dtype: jnp.dtype) -> jax.Array:
    """[1, 1, length, length]: 0 where a query may see a key, which is not after it, else the lowest number."""
    position = jnp.arange(length)
    lowest = jnp.finfo(dtype).min  # type: ignore[no-untyped-call]
    visible = position[:, None] >= position[None, :]
    return jnp.where(visible, 0, lowest).astype(dtype)[None, None]


def token_shapes(labels: tuple[int, ...], *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Name → int32 [batch, sequence] for each name, with labels = (batch, sequence)."""
    return {name: _array(labels, jnp.int32) for name in names}


def image_shapes(labels: tuple[int, ...], size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Float32 images [batch, size, size, 3] and a class number for each, with labels = (batch,)."""
    return {"images": _array((*labels, size, size, 3), jnp.float32), "labels": _array(labels, jnp.int32)}


def _array(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
