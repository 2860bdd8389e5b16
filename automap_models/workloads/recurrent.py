"""RNNLM and GNMT, unrolled over time: every cell of every step is an operation of its own that can be placed.

RNNLM is a stack of LSTMs over one vocabulary (Jozefowicz et al., arXiv 1602.02410), GNMT an encoder whose first layer
reads both ways and a decoder with attention, with residual sums from the third layer on (Wu et al., arXiv 1609.08144).
Sizes are those of the placement papers (Mirhoseini et al., arXiv 1706.04972; GDP, arXiv 1910.01578).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from automap_models.workloads.blocks import token_shapes

Carry = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of a recurrent language model.

    Attributes:
        layers: LSTMs on top of each other.
        hidden: units of each, and of the embedding.
        vocabulary: words.
    """

    layers: int
    hidden: int = 2048
    vocabulary: int = 10_000

    def module(self, dtype: jnp.dtype) -> LanguageModel:
        """See sizes.JaxArchitecture."""
        return LanguageModel(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See sizes.JaxArchitecture."""
        return token_shapes(labels, "tokens", "labels")


@dataclass(frozen=True)
class TranslationConfig:
    """Sizes of a GNMT.

    Attributes:
        layers: of the encoder, and of the decoder.
        hidden: units of each.
        vocabulary: word pieces of either language.
    """

    layers: int
    hidden: int = 1024
    vocabulary: int = 32_000

    def module(self, dtype: jnp.dtype) -> TranslationModel:
        """See sizes.JaxArchitecture."""
        return TranslationModel(self, dtype)

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """See sizes.JaxArchitecture; both languages have as many words."""
        return token_shapes(labels, "source", "target", "labels")


RNNLM_2, RNNLM_4, RNNLM_8 = (RecurrentConfig(layers) for layers in (2, 4, 8))
GNMT_2, GNMT_4, GNMT_8 = (TranslationConfig(layers) for layers in (2, 4, 8))


class Cell(nn.Module):
    """An LSTM cell, the four gates from one product of what it reads and one of its state."""

    hidden: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
        """((c, h), x), each [batch, …] → ((c, h), h)."""
        c, h = carry
        gates = nn.Dense(4 * self.hidden, dtype=self.dtype, name="input")(x)
        gates = gates + nn.Dense(4 * self.hidden, use_bias=False, dtype=self.dtype, name="state")(h)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = nn.sigmoid(f + 1.0) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h


def unrolled(cell: Cell, inputs: list[jax.Array], *, reverse: bool = False) -> list[jax.Array]:
    """The outputs of a cell over all steps, in the order of the inputs."""
    zero = jnp.zeros((inputs[0].shape[0], cell.hidden), cell.dtype)
    carry, outputs = (zero, zero), []
    for x in reversed(inputs) if reverse else inputs:
        carry, y = cell(carry, x)
        outputs.append(y)
    return outputs[::-1] if reverse else outputs


class LanguageModel(nn.Module):
    """Embedding, LSTMs, softmax."""

    config: RecurrentConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[batch, sequence] → logits [batch, sequence, vocabulary]."""
        c = self.config
        embedded = nn.Embed(c.vocabulary, c.hidden, dtype=self.dtype, name="embedding")(tokens)
        steps = [embedded[:, t] for t in range(tokens.shape[1])]
        for layer in range(c.layers):
            steps = unrolled(Cell(c.hidden, self.dtype, name=f"lstm_{layer}"), steps)
        project = nn.Dense(c.vocabulary, dtype=self.dtype, name="softmax")
        return jnp.stack([project(y) for y in steps], axis=1)


class TranslationModel(nn.Module):
    """A bidirectional first layer and further LSTMs read; LSTMs with attention to them write."""

    config: TranslationConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        """[batch, sequence] twice → logits [batch, sequence, vocabulary]."""
        c = self.config
        read = nn.Embed(c.vocabulary, c.hidden, dtype=self.dtype, name="encoder_embedding")(source)
        steps = [read[:, t] for t in range(source.shape[1])]
        forwards = unrolled(Cell(c.hidden, self.dtype, name="encoder_0_forward"), steps)
        backwards = unrolled(Cell(c.hidden, self.dtype, name="encoder_0_backward"), steps, reverse=True)
        steps = [jnp.concatenate(both, axis=-1) for both in zip(forwards, backwards, strict=True)]
        for layer in range(1, c.layers):
            outputs = unrolled(Cell(c.hidden, self.dtype, name=f"encoder_{layer}"), steps)
            steps = [a + b for a, b in zip(steps, outputs, strict=True)] if layer > 1 else outputs
        return self._decoded(jnp.stack(steps, axis=1), target)

    def _decoded(self, memory: jax.Array, target: jax.Array) -> jax.Array:
        c = self.config
        keys = nn.Dense(c.hidden, use_bias=False, dtype=self.dtype, name="attention_keys")(memory)
        written = nn.Embed(c.vocabulary, c.hidden, dtype=self.dtype, name="decoder_embedding")(target)
        cells = [Cell(c.hidden, self.dtype, name=f"decoder_{layer}") for layer in range(c.layers)]
        query = nn.Dense(c.hidden, use_bias=False, dtype=self.dtype, name="attention_query")
        project = nn.Dense(c.vocabulary, dtype=self.dtype, name="softmax")
        zero = jnp.zeros((target.shape[0], c.hidden), self.dtype)
        carries, context, logits = [(zero, zero)] * c.layers, zero, []
        for t in range(target.shape[1]):
            x = written[:, t]
            for layer, cell in enumerate(cells):
                carries[layer], y = cell(carries[layer], jnp.concatenate([x, context], axis=-1))
                x = x + y if layer > 1 else y
                if layer == 0:
                    scores = jnp.einsum("bh,bsh->bs", query(y), keys)
                    context = jnp.einsum("bs,bsh->bh", nn.softmax(scores), keys)
            logits.append(project(x))
        return jnp.stack(logits, axis=1)
