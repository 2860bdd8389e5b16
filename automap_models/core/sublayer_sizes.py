"""The sizes of what blocks of a decoder are made of, in plain records: attention, experts, recurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (arXiv 2104.09864).

    Attributes:
        width: numbers of a head that are turned, an even number; the others stay.
        base: of the frequencies.
    """

    width: int
    base: float = 10000.0


@dataclass(frozen=True)
class Latent:
    """Attention whose queries, keys and values are made of narrow latents (arXiv 2405.04434, section 2.1).

    Attributes:
        query_rank: width of the latent of the queries; None: they are made of the hidden states.
        rank: width of the latent of keys and values.
        plain_width: numbers of a head of queries and keys without a position.
        rotary: those with one; the keys' are the same for all heads.
        value_width: numbers of a head of values.
    """

    query_rank: int | None
    rank: int
    plain_width: int
    rotary: Rotary
    value_width: int


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """Attention of one head of keys to a window and to means of tokens before, as DeepSeek-V4 has it (its report, 2.3).

    Attributes:
        query_rank: width of the latent of the queries.
        groups: of heads, each of which becomes a latent of what attention gives.
        rank: width of such a latent.
        few, many: tokens of a mean where queries choose some of them, and where they read all.
    """

    query_rank: int
    groups: int
    rank: int
    few: int = 4
    many: int = 128


@dataclass(frozen=True, kw_only=True)
class Window:
    """Attention that reads a part of the tokens before, by what is different from that which reads all.

    Attributes:
        tokens: that a query reads, its own among them.
        chunked: whether it reads those of its chunk of so many tokens, and not the last ones.
        heads, kv_heads, head_width, value_width: None: those of attention to all tokens.
        sinks: whether each head has a number that takes a share of the weights (arXiv 2309.17453).
        keys_as_values: whether values are the keys, without a matrix of their own.
    """

    tokens: int
    chunked: bool = False
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    value_width: int | None = None
    sinks: bool = False
    keys_as_values: bool = False


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """What chooses the tokens that a query reads (arXiv 2512.02556, section 2.1).

    Attributes:
        heads, width: of its queries; its keys have one head.
        tokens: that a query reads.
        weighted: whether a product of the hidden states weighs the heads.
    """

    heads: int
    width: int
    tokens: int
    weighted: bool = True


@dataclass(frozen=True)
class Mixture:
    """Sizes of a mixture of experts.

    Attributes:
        experts: that tokens are routed to.
        per_token: how many of them take a token.
        width: of an expert's feed-forward layer.
        shared_width: of a feed-forward layer that takes every token; 0: none does.
        scores: what the router makes of its logits.
        normalised: whether the weights of a token's experts sum to 1.
        scale: of the weights.
        latent: width in which tokens travel to experts and these work; None: that of the hidden states.
        shared_gate: whether a number of each token gates the shared feed-forward layer.
        bias: whether the router and the experts have biases.
        normed: whether what experts read, and what they and the shared layer give, have norms of their own.
    """

    experts: int
    per_token: int
    width: int
    shared_width: int = 0
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    scale: float = 1.0
    latent: int | None = None
    shared_gate: bool = False
    bias: bool = False
    normed: bool = False


@dataclass(frozen=True, kw_only=True)
class Mamba:
    """Sizes of a Mamba-2 layer (arXiv 2405.21060, section 7).

    Attributes:
        heads: that the state has.
        head_width: numbers of a token in a head.
        state: numbers of the state for each of those.
        groups: of heads that share what writes to the state and reads from it, B and C.
        kernel: tokens that the convolution before reads.
        chunk: tokens that are computed at once.
        convolution_bias: whether the convolution has one.
        normed: whether a norm follows.
    """

    heads: int
    head_width: int
    state: int
    groups: int = 1
    kernel: int = 4
    chunk: int = 128
    convolution_bias: bool = True
    normed: bool = True


@dataclass(frozen=True, kw_only=True)
class GatedDelta:
    """Sizes of a gated delta network (arXiv 2412.06464, section 3).

    Attributes:
        heads: of values, each with a state of its own.
        key_heads: of queries and keys.
        key_width, value_width: numbers of a head.
        kernel: tokens that the convolution before reads.
        chunk: tokens that are computed at once.
    """

    heads: int
    key_heads: int
    key_width: int
    value_width: int
    kernel: int = 4
    chunk: int = 64


@dataclass(frozen=True, kw_only=True)
class SelectiveScan:
    """Sizes of a layer of the first Mamba (arXiv 2312.00752, section 3).

    Attributes:
        inner: width of what is scanned.
        state: numbers of the state for each column of it.
        rank: of the product that makes steps.
        kernel: tokens that the convolution before reads.
        convolution_bias: whether the convolution has one.
        bias: whether the first and the last product have one.
        normed: whether norms follow the product that makes steps, B and C, as in Jamba (arXiv 2403.19887).
    """

    inner: int
    state: int
    rank: int
    kernel: int = 4
    convolution_bias: bool = True
    bias: bool = False
    normed: bool = False


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A convolution of so many tokens between two gates, as in LFM2 (arXiv 2511.23404, section 2)."""

    kernel: int = 3


@dataclass(frozen=True, kw_only=True)
class Operations:
    """What small operations of a torch program save where none are fused, beside what fused ones save.

    Attributes:
        norm_bytes: of each number that a norm without mean reads, as its copies in fp32 have.
        scale_bytes: of each number that the scale of such a norm multiplies, saved where that is trained.
        activation_copies: values as large as what an activation reads that it saves, too.
        gate_copies: values as large as a gate that are saved where it multiplies another value.
        joined: whether queries, keys and values are parts of one value, which is saved as long as values are.
        mixed_copy: whether the last product of attention reads a copy of what attention gives, in another order.
        wide_router: whether a router saves what it reads in fp32.
    """

    norm_bytes: int = 2
    scale_bytes: int = 2
    activation_copies: int = 0
    gate_copies: int = 1
    joined: bool = False
    mixed_copy: bool = False
    wide_router: bool = False


UNFUSED = Operations()
"""Those of Llama, whose activation is one kernel."""

Recurrence = Mamba | GatedDelta | SelectiveScan | ShortConvolution
