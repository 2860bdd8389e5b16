"""The sizes of transformers, in plain records: no framework is needed to read them, or to plan with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from automap_models.core.strategy import TransformerShape
from automap_models.core.sublayer_sizes import (
    UNFUSED,
    Compressed,
    Indexer,
    Latent,
    Mixture,
    Operations,
    Recurrence,
    Rotary,
    Window,
)
from automap_models.errors import BadInput
from automap_models.hlo.block_labels import BlockStack

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from flax import linen as nn

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"]
"""Of feed-forward layers; relu2 is the square of ReLU (arXiv 2109.08668)."""
Norms = Literal["before", "after", "around", "sums"]
QueryNorm = Literal["head", "heads"]
"""Root-mean-square norms of queries and keys: of each head's numbers, or of those of all heads together."""


class JaxArchitecture(Protocol):
    """The sizes of a model that says itself how it is built."""

    def module(self, dtype: jnp.dtype) -> nn.Module:
        """The model whose layers compute in `dtype`; called with the batch's arrays but the labels, gives logits."""

    def inputs(self, labels: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
        """Name → shape of what a step reads, given the labels' shape: (batch,) for images, (batch, sequence) for text.

        `labels` are class numbers, below 0 where nothing is to be predicted; `key`, of models with dropout, is a random
        key.
        """


@dataclass(frozen=True, kw_only=True)
class Dropouts:
    """Shares that are left out.

    Attributes:
        attention_dropout: of the weights of plain attention.
        residual_dropout: of what attention and feed-forward layers give.
        embedding_dropout: of the embeddings.
    """

    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0

    @property
    def drops(self) -> bool:
        """Whether something is left out."""
        return any((self.attention_dropout, self.residual_dropout, self.embedding_dropout))


@dataclass(frozen=True)
class DecoderConfig(Dropouts):
    """Sizes and options of a decoder, or of an encoder where it is not causal; the defaults are GPT-2's.

    Attributes:
        causal: whether a token reads those before it alone.
        types: kinds of tokens, each with a row that is added to the embeddings (arXiv 1810.04805, section 3).
        embedding_width: None: that of the hidden states; else products lead to these and back (arXiv 2003.10555).
        feed_forward: width of the feed-forward layers; None: four times as wide as the hidden states.
        positions: that the model has learned embeddings for; None: it has none.
        head_width: None: the heads together are as wide as the hidden states.
        kv_heads: heads of keys and values; None: as many as of queries.
        value_width: numbers of a head of values; None: as many as of queries and keys.
        attention_bias, output_bias: whether q, k and v, and o, have biases.
        key_bias: whether k has one; None: as q and v.
        feed_forward_bias: whether the feed-forward layers have biases.
        gated: whether a third matrix gates the feed-forward layers.
        norms: where a block's norms are: before attention and feed-forward layers, after them, both, or after the sums.
        final_norm: whether a norm follows the last block.
        embedding_scale: what the embeddings are multiplied with.
        root_mean_square: whether norms leave out the mean and the bias.
        query_norm: how queries and keys are normed; None: not at all.
        score_scale: what attention's scores are multiplied with; None: 1 over the root of head_width.
        score_cap, logit_cap: beyond which no score and no logit gets; None: there is no such limit.
        rotary: rotary positions; None: none.
        linear_bias: whether scores grow with the position of the key, by a slope of each head (arXiv 2108.12409).
        embedding_norm: whether a norm follows the embeddings.
        parallel: whether attention and feed-forward read the same hidden states.
        shared_norm: whether they read them through one norm.
        tied: whether logits are taken with the word embedding.
        predictor: a product, an activation and a norm before the output matrix (arXiv 1810.04805); None: none of them.
        head_bias: whether the output matrix has a bias.
        classes: columns of the output matrix of a model that classifies, which is not tied; None: the vocabulary's.
        temperatures: numbers of a loss that compares texts with images, whose output matrix reads one token of each
            (arXiv 2103.00020, section 2.3); 0: it is another one.
        gated_attention: whether a part of the queries' product gates what attention gives (arXiv 2505.06708).
        gated_heads: whether a number of each head does.
        sinks, keys_as_values: of attention to all tokens, see `Window`.
        latent: attention through a narrow latent; None: plain attention.
        compressed: attention to means of tokens, which * reads all of, s those of the indexer, and w none; None: plain.
        streams: of hidden states side by side, of which sublayers read sums (arXiv 2512.24880).
        mixture: of experts in place of feed-forward layers; None: dense.
        dense_layers: with a mixture, the number of blocks before those that have it.
        recurrence: what M stands for in `blocks`.
        blocks: the sublayers of each block, one behind the other, each with its norms and its residual sum:
            * attention to all tokens, w within the window, s to those of the indexer, x to what an encoder makes,
            M the recurrence, H attention and it side by side, - the feed-forward layer, E the mixture; None:
            attention, and a mixture where a block has one, else a feed-forward layer.
        window: what w stands for in `blocks`.
        indexer: what chooses tokens where `blocks` has s.
        scaled_changes: whether what sublayers add is multiplied with a learned vector (arXiv 2103.17239, equation 4).
        tower: what encodes images; None: the model is of text alone.
        predicting_layers: blocks after the others that predict later tokens from the hidden states and the next
            token's embedding (arXiv 2412.19437, section 2.2), each with the output matrix once more.
        operations: what small ones save where they are not fused.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int = 50257
    positions: int | None = 1024
    feed_forward: int | None = None
    head_width: int | None = None
    kv_heads: int | None = None
    value_width: int | None = None
    attention_bias: bool = True
    key_bias: bool | None = None
    output_bias: bool = True
    feed_forward_bias: bool = True
    activation: Activation = "gelu_tanh"
    gated: bool = False
    root_mean_square: bool = False
    epsilon: float = 1e-5
    query_norm: QueryNorm | None = None
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    norms: Norms = "before"
    final_norm: bool = True
    causal: bool = True
    types: int = 0
    embedding_width: int | None = None
    embedding_scale: float = 1.0
    rotary: Rotary | None = None
    linear_bias: bool = False
    embedding_norm: bool = False
    parallel: bool = False
    shared_norm: bool = False
    tied: bool = True
    predictor: Literal["plain", "biased"] | None = None
    head_bias: bool = False
    classes: int | None = None
    temperatures: int = 0
    gated_attention: bool = False
    gated_heads: bool = False
    sinks: bool = False
    keys_as_values: bool = False
    latent: Latent | None = None
    compressed: Compressed | None = None
    streams: int = 1
    mixture: Mixture | None = None
    dense_layers: int = 0
    recurrence: Recurrence | None = None
    blocks: tuple[str, ...] | None = None
    window: Window | None = None
    indexer: Indexer | None = None
    scaled_changes: bool = False
    tower: Tower | None = None
    predicting_layers: int = 0
    operations: Operations = UNFUSED

    @property
    def ties(self) -> bool:
        """Whether logits are taken with the word embedding."""
        return self.tied and self.classes is None

    @property
    def sublayers(self) -> tuple[str, ...]:
        """Those of each block, see `blocks`."""
        dense = self.dense_layers if self.mixture else self.layers
        return self.blocks or tuple("*-" if i < dense else "*E" for i in range(self.layers))

    def windowed_blocks(self, tokens: int) -> int:
        """How many blocks have a window that is shorter than a sample of so many tokens."""
        reads_all = self.window is None or self.window.tokens >= tokens
        return 0 if reads_all else sum("w" in sublayers for sublayers in self.sublayers)

    @property
    def untraced(self) -> str | None:
        """What of it has closed forms alone, in words; None: workloads.decoder has all of it."""
        count = len(self.sublayers)  # of all blocks, where a few are traced
        dense = self.dense_layers if self.mixture else count
        plain = tuple(s.replace("w", "*") for s in self.sublayers) == ("*-",) * dense + ("*E",) * (count - dense)
        mixture, window = self.mixture, self.window
        missing = {
            "the attention to all tokens": not self.causal,
            "the layers": self.blocks is not None and not plain,
            "windows with heads or sinks of their own": window is not None
            and window != Window(tokens=window.tokens, chunked=window.chunked),
            "attention's sinks and gates": self.sinks or self.gated_attention or self.gated_heads,
            "values": self.keys_as_values or self.value_width not in (None, self.head_width),
            "the experts": mixture is not None and (mixture.shared_gate or mixture.bias or mixture.normed),
            "the norms": self.shared_norm,
            "the output matrix's bias": self.head_bias,
        }
        return next((what for what, is_missing in missing.items() if is_missing), None)

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Its repeated blocks, in the order in which the forward pass runs them."""
        return (BlockStack("block_", self.layers, self.dense_layers % self.layers if self.mixture else 0),)


class Step(NamedTuple):
    """What happens to the tokens of an image before or after the blocks of a tower, see workloads.tower.

    Attributes:
        kind: a key of `workloads.tower.STEPS`.
        size: columns of a product, patches of an image that become one, or rows of a table.
        bias: whether a product has one.
    """

    kind: str
    size: int = 0
    bias: bool = False


@dataclass(frozen=True)
class Tower:
    """An encoder of images in front of a decoder, and the projector between them (arXiv 2304.08485, section 4.1).

    Attributes:
        encoder: sizes of its blocks.
        images: of a sample.
        side: pixels of an image, which is a square.
        patches: of an image.
        patch_numbers: in a patch, of all its channels.
        extra: tokens of an image beside its patches.
        reach: tokens of an image that attention reads, of each block.
        stem, ending, projector: before the blocks, after them, and with the patches alone.
        further: projectors of results of single blocks, which the first blocks of the decoder add up.
    """

    encoder: DecoderConfig
    images: int
    side: int
    patches: int
    patch_numbers: int
    extra: int
    reach: tuple[int, ...]
    stem: tuple[Step, ...]
    ending: tuple[Step, ...]
    projector: tuple[Step, ...]
    further: tuple[tuple[Step, ...], ...] = ()

    @property
    def image_tokens(self) -> int:
        """Tokens of the decoder that stand for an image."""
        pools = [step.size for step in self.projector if step.kind == "pool"]
        return pools[0] if pools else self.patches // math.prod(s.size for s in self.projector if s.kind == "merge")


GPT2_MEDIUM = DecoderConfig(width=1024, heads=16, layers=24)
GPT2_XL = DecoderConfig(width=1600, heads=25, layers=48)
GPT3_7B = DecoderConfig(width=4096, heads=32, layers=32, positions=2048)
GPT3_13B = DecoderConfig(width=5120, heads=40, layers=40, positions=2048)
"""GPT-3 6.7B and 13B (arXiv 2005.14165, Table 2.1), all attention dense; 13B is as wide as its 40 heads of 128 are."""


@dataclass(frozen=True)
class BertConfig(Dropouts):
    """Sizes of a BERT.

    Attributes:
        types: kinds of tokens; 0: nothing tells them.
        feed_forward: width of the feed-forward layers; None: four times as wide as the hidden states.
        embedding_width: None: that of the hidden states.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    feed_forward: int | None = None
    activation: Activation = "gelu"
    epsilon: float = 1e-12
    embedding_width: int | None = None
    operations: Operations = UNFUSED

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Its repeated blocks, in the order in which the forward pass runs them."""
        return (BlockStack("block_", self.layers, causal=False),)

    @property
    def encoder(self) -> DecoderConfig:
        """The same, as an encoder among other ones."""
        sizes: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        post: dict[str, Any] = {"norms": "sums", "causal": False, "embedding_norm": True, "final_norm": False}
        return DecoderConfig(**sizes, **post, predictor="biased", head_bias=True)


BERT_48 = BertConfig(width=1024, heads=16, layers=48)


@dataclass(frozen=True)
class T5Config:
    """Sizes of a T5.

    Attributes:
        layers, decoder_layers: of the encoder, and of the decoder; None: as many.
        buckets, max_distance: of the relative position bias.
        gated: whether a third matrix gates the feed-forward layers (arXiv 2002.05202).
        tied: whether logits are taken with the word embedding.
        experts: in every second layer's feed-forward, from the second layer on; 0: none.
    """

    width: int
    heads: int
    head_width: int
    feed_forward: int
    layers: int
    vocabulary: int = 32128
    buckets: int = 32
    max_distance: int = 128
    experts: int = 0
    decoder_layers: int | None = None
    activation: Activation = "relu"
    gated: bool = False
    tied: bool = True
    epsilon: float = 1e-6
    operations: Operations = UNFUSED

    drops: ClassVar[bool] = False

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Its repeated blocks, in the order in which the forward pass runs them; with experts, two blocks repeat."""
        period = 2 if self.experts else 1
        decoder_layers = self.layers if self.decoder_layers is None else self.decoder_layers
        return (
            BlockStack("encoder/block_", self.layers, period=period, causal=False),
            BlockStack("decoder/block_", decoder_layers, period=period, size="decoder_layers"),
        )


T5_BASE = T5Config(width=768, heads=12, head_width=64, feed_forward=3072, layers=12)
T5_3B = T5Config(width=1024, heads=32, head_width=128, feed_forward=16384, layers=24)
T5_11B = T5Config(width=1024, heads=128, head_width=128, feed_forward=65536, layers=24)
SWITCH_BASE_8 = T5Config(width=768, heads=12, head_width=64, feed_forward=3072, layers=12, experts=8)


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Sizes of an encoder and of a decoder that attends to what it makes (arXiv 1706.03762), with one vocabulary.

    Attributes:
        encoder, decoder: of as wide hidden states; `positions`, `embedding_norm` and `final_norm` are of each.
        frames: tokens of the encoder; None: as many as of the decoder.
        mel: numbers of an instant of sound, of which two convolutions make each frame (arXiv 2212.04356, section 2.2);
            0: the encoder reads tokens.
    """

    encoder: DecoderConfig
    decoder: DecoderConfig
    frames: int | None = None
    mel: int = 0

    drops: ClassVar[bool] = False
    untraced: ClassVar[str] = "the encoder and decoder"

    @property
    def width(self) -> int:
        """Of the hidden states."""
        return self.decoder.width

    @property
    def vocabulary(self) -> int:
        """Of the decoder."""
        return self.decoder.vocabulary

    @property
    def feed_forward(self) -> int | None:
        """Of the decoder."""
        return self.decoder.feed_forward

    @property
    def heads(self) -> int:
        """What divides the heads of both."""
        return math.gcd(self.encoder.heads, self.decoder.heads)

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Its repeated blocks, in the order in which the forward pass runs them."""
        encoder = BlockStack("encoder/block_", self.encoder.layers, causal=False)
        return encoder, BlockStack("decoder/block_", self.decoder.layers)


@dataclass(frozen=True)
class ImageConfig:
    """An encoder of images as a model of its own, which classifies them (arXiv 2010.11929).

    Attributes:
        tower: of one image.
        classes: it tells apart.
        read: widths of what the output matrix reads of an image.
    """

    tower: Tower
    classes: int
    read: int = 1

    drops: ClassVar[bool] = False
    untraced: ClassVar[str] = "the encoder of images"

    @property
    def tokens(self) -> int:
        """Of an image."""
        return self.tower.patches + self.tower.extra

    @property
    def width(self) -> int:
        """Of the hidden states."""
        return self.tower.encoder.width

    @property
    def vocabulary(self) -> int:
        """Its classes."""
        return self.classes

    @property
    def feed_forward(self) -> int | None:
        """Of the blocks."""
        return self.tower.encoder.feed_forward

    @property
    def heads(self) -> int:
        """Of the blocks."""
        return self.tower.encoder.heads

    @property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Its repeated blocks."""
        return (BlockStack("block_", self.tower.encoder.layers, causal=False),)


Traced = DecoderConfig | BertConfig | T5Config
"""What JAX has models of; the others have closed forms alone."""
Transformer = Traced | Seq2SeqConfig | ImageConfig
Architecture = Transformer | JaxArchitecture


def transformer_shape(sizes: Transformer, name: str, sequence: int) -> TransformerShape:
    """What a strategy divides, of samples of so many tokens; with a mixture, `ffn` is the width of an expert."""
    mixture, tower = (sizes.mixture, sizes.tower) if isinstance(sizes, DecoderConfig) else (None, None)
    return TransformerShape(
        name=name,
        layers=sum(stack.layers for stack in sizes.stacks),
        hidden=sizes.width,
        heads=sizes.heads,
        kv_heads=(isinstance(sizes, DecoderConfig) and sizes.kv_heads) or sizes.heads,
        ffn=mixture.width if mixture else sizes.feed_forward or 4 * sizes.width,
        sequence=sequence,
        vocabulary=sizes.vocabulary,
        outputs=sizes.classes if isinstance(sizes, DecoderConfig) else None,
        tower_heads=tower.encoder.heads if tower else None,
        images=tower.images if tower else None,
        tower_layers=(tower and len(tower.further)) or None,
        mtp_layers=(isinstance(sizes, DecoderConfig) and sizes.predicting_layers) or None,
        experts=mixture.experts if mixture else (isinstance(sizes, T5Config) and sizes.experts) or None,
    )


def required_transformer(name: str, architecture: Architecture) -> Transformer:
    """The architecture itself.

    Raises:
        BadInput: it is no transformer.
    """
    if not isinstance(architecture, Transformer):
        do = "give a transformer: a decoder, BERT or T5"
        raise BadInput("has no layers that a strategy can divide", where=name, do=do)
    return architecture


def capacity(tokens: int, experts: int, per_token: int = 1) -> int:
    """Tokens of one sequence that an expert takes (equation 3, factor 1; 64 of 512 with 8 experts, as published)."""
    return math.ceil(per_token * tokens / experts)
