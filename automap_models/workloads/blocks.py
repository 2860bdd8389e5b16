"""What the models share: layers of transformers, and shapes of what a step reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.core.sublayer_sizes import Latent, Rotary
from automap_models.hlo.locations import ATTENTION_CORE
from automap_models.workloads.sizes import Activation, QueryNorm

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "gelu": partial(nn.gelu, approximate=False),
    "gelu_tanh": nn.gelu,
    "relu": nn.relu,
    "relu2": lambda x: jnp.square(nn.relu(x)),
    "silu": nn.silu,
}


class Attention(nn.Module):
    """Multi-head attention (arXiv 1706.03762, equation 1) with four matrices q, k, v and o.

    Attributes:
        heads, head_width: the projections have heads · head_width columns, head by head.
        use_bias: whether they have biases.
        scale: what scores are multiplied with; None: 1 over the root of head_width.
        kv_heads: heads of k and v, each of which several heads of q share (arXiv 2305.13245); None: as many as of q.
        output_bias: whether o has a bias; None: where the others have.
        rotary: how q and k are turned by their positions; None: not at all.
        query_norm: how q and k are normed; None: not at all.
        epsilon: of these norms.
        score_cap: beyond which no score gets (arXiv 2408.00118, section 2); None: there is no such limit.
        dropout: share of the weights that are left out.
    """

    heads: int
    head_width: int
    use_bias: bool
    dtype: jnp.dtype
    scale: float | None = None
    kv_heads: int | None = None
    output_bias: bool | None = None
    rotary: Rotary | None = None
    query_norm: QueryNorm | None = None
    epsilon: float = 1e-6
    score_cap: float | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None, bias: jax.Array | None = None) -> jax.Array:
        """[batch, queries, width], memory [batch, keys, …], bias [1, heads or 1, queries, keys] → like x.

        Without memory, x attends to itself. The softmax is taken in float32.
        """

        def project(name: str, y: jax.Array, heads: int) -> jax.Array:  # a method would add its name to the module path
            columns = nn.Dense(heads * self.head_width, self.use_bias, self.dtype, name=name)(y)
            return columns.reshape(*y.shape[:2], heads, self.head_width)

        def normed(name: str, y: jax.Array) -> jax.Array:
            layer = norm(name, True, self.epsilon, self.dtype)
            flat = y if self.query_norm == "head" else y.reshape(*y.shape[:2], -1)
            result: jax.Array = layer(flat)
            return result.reshape(y.shape)

        memory = x if memory is None else memory
        shared = self.kv_heads or self.heads
        q, k, v = project("q", x, self.heads), project("k", memory, shared), project("v", memory, shared)
        if self.query_norm is not None:
            q, k = normed("q_norm", q), normed("k_norm", k)
        if self.rotary is not None:
            q, k = turned((q, k), self.rotary)
        if self.scale != 1.0:
            q = q * (self.head_width**-0.5 if self.scale is None else self.scale)
        groups = self.heads // shared
        if groups > 1:
            q = q.reshape(*q.shape[:2], shared, groups, self.head_width)
            bias = None if bias is None else bias[:, :, None]
        with jax.named_scope(ATTENTION_CORE):
            scores = jnp.einsum("bqhgd,bkhd->bhgqk" if groups > 1 else "bqhd,bkhd->bhqk", q, k)
            scores = capped(scores, self.score_cap)
            weights = dropped("dropout", self.dropout, attention_weights(scores, bias, self.dtype))
            mixed = jnp.einsum("bhgqk,bkhd->bqhgd" if groups > 1 else "bhqk,bkhd->bqhd", weights, v)
        output_bias = self.use_bias if self.output_bias is None else self.output_bias
        return nn.Dense(x.shape[-1], output_bias, self.dtype, name="o")(mixed.reshape(*mixed.shape[:2], -1))


class LatentAttention(nn.Module):
    """Attention through latents, with matrices from hidden states down to them and up again.

    Attributes:
        use_bias: whether the matrices down, and o, have biases.
        epsilon: of the norms of the latents.
    """

    heads: int
    latent: Latent
    use_bias: bool
    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """[batch, n, width], bias [1, 1, n, n] → like x."""
        c = self.latent
        plain, rotary = c.plain_width, c.rotary.width

        def up(name: str, y: jax.Array, width: int) -> jax.Array:
            columns = nn.Dense(self.heads * width, False, self.dtype, name=name)(y)
            return columns.reshape(*y.shape[:2], self.heads, width)

        queries = x
        if c.query_rank is not None:
            queries = nn.Dense(c.query_rank, self.use_bias, self.dtype, name="q_down")(x)
            queries = norm("q_norm", True, self.epsilon, self.dtype)(queries)
        q = up("q", queries, plain + rotary)
        down = nn.Dense(c.rank + rotary, self.use_bias, self.dtype, name="kv_down")(x)
        kv = up("kv", norm("kv_norm", True, self.epsilon, self.dtype)(down[..., : c.rank]), plain + c.value_width)
        turned_q, turned_k = turned((q[..., plain:], down[..., None, c.rank :]), c.rotary)
        plain_q, plain_k, turned_k, v = q[..., :plain], kv[..., :plain], turned_k[:, :, 0], kv[..., plain:]
        with jax.named_scope(ATTENTION_CORE):
            scores = jnp.einsum("bqhd,bkhd->bhqk", plain_q, plain_k) + jnp.einsum("bqhd,bkd->bhqk", turned_q, turned_k)
            weights = attention_weights(scores * (plain + rotary) ** -0.5, bias, self.dtype)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return nn.Dense(x.shape[-1], self.use_bias, self.dtype, name="o")(mixed.reshape(*mixed.shape[:2], -1))


def attention_weights(scores: jax.Array, bias: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """[…, queries, keys] → softmax of the biased scores over the keys, taken in float32."""
    if bias is not None:
        scores = scores + bias
    return nn.softmax(scores.astype(jnp.float32)).astype(dtype)


def capped(x: jax.Array, cap: float | None) -> jax.Array:
    """Numbers that come no further than the cap from 0."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def dropped(name: str, rate: float, x: jax.Array) -> jax.Array:
    """Dropout (arXiv 1207.0580): a share of the numbers is left out, the others grow by as much."""
    return nn.Dropout(rate, deterministic=False, name=name)(x) if rate else x


def turned(heads: tuple[jax.Array, ...], rotary: Rotary) -> tuple[jax.Array, ...]:
    """Arrays [batch, n, heads, head_width] with pairs of numbers, half of `width` apart, turned by their positions."""
    half = rotary.width // 2
    frequency = rotary.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (jnp.arange(heads[0].shape[1])[:, None] * frequency)[None, :, None]
    cos, sin = jnp.cos(angle).astype(heads[0].dtype), jnp.sin(angle).astype(heads[0].dtype)

    def turn(x: jax.Array) -> jax.Array:
        first, second = x[..., :half], x[..., half : rotary.width]
        parts = [first * cos - second * sin, second * cos + first * sin, x[..., rotary.width :]]
        return jnp.concatenate(parts if x.shape[-1] > rotary.width else parts[:2], axis=-1)

    return tuple(turn(x) for x in heads)


def norm(name: str, root_mean_square: bool, epsilon: float, dtype: jnp.dtype) -> nn.Module:
    """A layer norm, or one without mean and bias (arXiv 1910.07467)."""
    if root_mean_square:
        return nn.RMSNorm(epsilon=epsilon, dtype=dtype, name=name)
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, name=name)


class FeedForward(nn.Module):
    """Two matrices, wi and wo, with an activation between them; or three, where the activation of one gates wi's."""

    width: int
    use_bias: bool
    activation: Activation
    dtype: jnp.dtype
    gated: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., w] → [..., w], through [..., width]."""
        activation = ACTIVATIONS[self.activation]
        inner = nn.Dense(self.width, self.use_bias, self.dtype, name="wi")(x)
        if self.gated:
            inner = activation(nn.Dense(self.width, self.use_bias, self.dtype, name="gate")(x)) * inner
        else:
            inner = activation(inner)
        return nn.Dense(x.shape[-1], self.use_bias, self.dtype, name="wo")(inner)


def causal_bias(length: int, dtype: jnp.dtype) -> jax.Array:
    """[1, 1, length, length]: 0 where a query may see a key, which is not after it, else the lowest number."""
    position = jnp.arange(length)
    lowest = jnp.finfo(dtype).min  # type: ignore[no-untyped-call]
    visible = position[:, None] >= position[None, :]
    return jnp.where(visible, 0, lowest).astype(dtype)[None, None]


def linear_bias(heads: int, length: int, dtype: jnp.dtype) -> jax.Array:
    """[1, heads, 1, length]: what attention with linear biases adds to the scores of each key (arXiv 2108.12409).

    The slopes of h heads are 2^(-8/h), 2^(-16/h), …; of a number that is no power of two, those of the power below it,
    and every other one of the next power. Softmax does not tell the distance to a key from the key's position.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(heads - power)]
    position = jnp.arange(length, dtype=jnp.float32)
    return (jnp.array(slopes, jnp.float32)[:, None, None] * position).astype(dtype)[None]


def token_shapes(labels: tuple[int, ...], *names: str, random: bool = False) -> dict[str, jax.ShapeDtypeStruct]:
    """Name → int32 [batch, sequence] for each name, with labels = (batch, sequence).

    Args:
        random: whether the step also reads `key`, from which it draws random numbers.
    """
    keys = {"key": _array((2,), jnp.uint32)} if random else {}
    return {name: _array(labels, jnp.int32) for name in names} | keys


@dataclass(frozen=True, kw_only=True)
class ImageSizes:
    """Sizes of what a model of ImageNet reads and tells apart; `image` is height and width."""

    classes: int = 1000
    image: int = 224

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See sizes.JaxArchitecture: float32 images [batch, image, image, 3], and a class number for each."""
        images = _array((*labels, self.image, self.image, 3), jnp.float32)
        return {"images": images, "labels": _array(labels, jnp.int32)}


def _array(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
