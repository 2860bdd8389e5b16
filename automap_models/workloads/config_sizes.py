"""The sizes in a config.json, as records of workloads.sizes: what groups of keys mean together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT

from automap_models.core.sublayer_sizes import (
    Compressed,
    GatedDelta,
    Indexer,
    Latent,
    Mamba,
    Mixture,
    Operations,
    Recurrence,
    Rotary,
    SelectiveScan,
    ShortConvolution,
    Window,
)
from automap_models.errors import BadInput
from automap_models.formats.schema import convert, wrong
from automap_models.workloads.catalogue import FACTORY, Dtype
from automap_models.workloads.config_families import Family, Rope, read_key
from automap_models.workloads.sizes import (
    Activation,
    BertConfig,
    DecoderConfig,
    Seq2SeqConfig,
    T5Config,
    Transformer,
)

_ACTIVATIONS: dict[str, tuple[Activation, int]] = {
    "gelu": ("gelu", 0),
    "gelu_fast": ("gelu_tanh", 6),
    "gelu_python": ("gelu", 2),
    "gelu_new": ("gelu_tanh", 3),
    "gelu_pytorch_tanh": ("gelu_tanh", 0),
    "relu": ("relu", 0),
    "relu2": ("relu2", 0),
    "quick_gelu": ("gelu_tanh", 1),
    "silu": ("silu", 0),
    "swigluoai": ("silu", 0),
    "swiglu": ("silu", 0),
    "swish": ("silu", 0),
}
"""Hugging Face's word for an activation → ours, and `Operations.activation_copies`."""
_LETTERS: dict[str | int, str] = {
    **{"attention": "*", "full_attention": "*", "global": "*", "sliding_attention": "w", "chunked_attention": "w"},
    **{"local": "w", "indexed_attention": "s", "minimax_m3_sparse": "s", "mamba": "M", "linear_attention": "M"},
    **{"mlp": "-", "moe": "E", "conv": "M", "compressed_sparse_attention": "s", "heavily_compressed_attention": "*"},
}
"""Hugging Face's word for a sublayer → its letter in `DecoderConfig.blocks`."""
_SPARSE = {"dense": False, "sparse": True, 0: False, 1: True}
"""A word or a number of a block → whether it has experts."""


class ConfiguredSizes(NamedTuple):
    """What a file says of a model.

    Attributes:
        architecture: its sizes.
        context: tokens that it was made for; None: any number.
        learned: whether it has a learned position for each.
        dtype: that it is published in; float32 where the file does not say, or says what nothing computes in.
    """

    architecture: Transformer
    context: int | None
    learned: bool
    dtype: Dtype


def read_family(family: Family, values: Mapping[str, Any], where: str, *, dropout: bool) -> ConfiguredSizes:
    """The sizes in a file.

    Args:
        values: by their keys.
        where: its name, for messages.
        dropout: whether the model has the dropout that the file says.

    Raises:
        BadInput: it lacks a size, or sizes do not fit each other.
    """
    config = convert(values, family.schema(), where=where, do="check the file against the published one")
    sizes = FamilySizes(family, config, where)
    for size in () if dropout else ("attention_dropout", "residual_dropout", "embedding_dropout"):
        sizes.pop(size, None)
    context, learned = sizes.pop("context", None), sizes.pop("learned", False)
    reserved = sizes.pop("reserved", 0)
    offset = sizes.pop("offset", reserved)
    context = context and context - reserved
    sizes["activation"], sizes["operations"] = sizes.activation(), sizes.operations()
    if family.record == "t5":
        return ConfiguredSizes(sizes.t5(), context, learned, sizes.dtype)
    if sizes.get("head_width") is None and "rank" not in sizes:
        sizes.require_divides("heads", "width")
    positions = context + offset if context and learned else None
    match family.record:
        case "bert":
            record: Transformer = BertConfig(**sizes, positions=positions or context)
        case "seq2seq":
            record = sizes.seq2seq(positions)
        case _:
            record = sizes.decoder(positions)
    return ConfiguredSizes(record, context, learned, sizes.dtype)


class FamilySizes(dict[str, Any]):
    """The values of a file by our words for them, those of `fixed` among them."""

    def __init__(self, family: Family, config: Any, where: str) -> None:
        self.config, self.where, self.family = config, where, family
        for key, value in family.only.items():
            if getattr(config, key) != value:
                expected = f"{msgspec.json.encode(value).decode()}, the only one that is known"
                raise unsupported(where, f"$.{key}", getattr(config, key), expected)
        super().__init__(family.fixed)
        for size, text in family.keys.items():
            keys, default = read_key(text)
            given = (getattr(config, key) for key in keys)
            self[size] = next((value for value in given if value is not None), default)
            if self[size] is NODEFAULT:
                raise BadInput(f"$.{' or $.'.join(keys)} is missing", where=where, do="add it")

    def key(self, size: str) -> str:
        """The key that a size has in the file."""
        keys, _ = read_key(self.family.keys[size])
        return next((key for key in keys if getattr(self.config, key) is not None), keys[0])

    def require_divides(self, size: str, multiple: str) -> None:
        """Refuse a size that does not divide another."""
        count, divisor = self[size], self[multiple]
        if divisor % count:
            what = f"$.{self.key(size)} is {count}, which does not divide $.{self.key(multiple)}, {divisor}"
            raise BadInput(what, where=self.where, do="check both numbers")

    @property
    def dtype(self) -> Dtype:
        """What the model is published in."""
        published = self.config.torch_dtype or self.config.dtype
        return published if published in ("bfloat16", "float16") else "float32"

    @property
    def classes(self) -> int | None:
        """Columns of the matrix that is in place of the vocabulary's; None where the model has the vocabulary's."""
        named = (name.endswith("ForSequenceClassification") for name in self.config.architectures or ())
        return self.labels if self.family.classifies and any(named) else None

    @property
    def labels(self) -> int:
        """Classes of a model that classifies."""
        count: int = self.config.num_labels or len(self.config.id2label or {}) or 2
        return count

    def activation(self) -> Activation:
        """Our word for the activation of feed-forward layers; of T5's, that of what gates them."""
        name: str = self["activation"]
        if self.family.record == "t5":
            gated, _, name = name.rpartition("-")
            if gated not in ("", "gated"):
                raise unsupported(
                    self.where, "$.feed_forward_proj", self["activation"], "an activation, or gated-… one"
                )
            self["gated"] = bool(gated)
            name = "gelu_new" if gated and name == "gelu" else name  # as transformers reads it
        if name not in _ACTIVATIONS:
            raise unsupported(self.where, f"$.{self.key('activation')}", name, f"one of {', '.join(_ACTIVATIONS)}")
        activation, self["activation_copies"] = _ACTIVATIONS[name]
        return activation

    def operations(self) -> Operations:
        """What small operations save."""
        names = (field.name for field in fields(Operations))
        return Operations(**{name: self.pop(name) for name in names if name in self})

    def t5(self) -> T5Config:
        """The sizes of a T5."""
        least, distance = self["buckets"] // 2, self["max_distance"]
        if distance <= least:
            expected = f"more than half the buckets, {least}"
            raise wrong(f"$.{self.key('max_distance')}", distance, expected, self.where, "write the file again")
        scaled = self.pop("scaled")
        return T5Config(**{**self, "tied": self["tied"] and scaled})

    def seq2seq(self, positions: int | None) -> Seq2SeqConfig:
        """The sizes of an encoder and a decoder that have learned so many positions each."""
        self.require_divides("decoder_heads", "width")
        of_decoder = {name: self.pop(f"decoder_{name}") for name in ("layers", "heads", "feed_forward")}
        frames, mel = self.pop("source", None), self.pop("mel", 0)
        encoder = DecoderConfig(**self, positions=None if mel else positions, causal=False)
        blocks = ("*x-",) * of_decoder["layers"]
        return Seq2SeqConfig(
            encoder, replace(encoder, **of_decoder, positions=positions, causal=True, blocks=blocks), frames, mel
        )

    def decoder(self, positions: int | None) -> DecoderConfig:
        """The sizes of a decoder that has learned so many positions, or of an encoder."""
        if self.get("kv_heads") is not None:
            self.require_divides("kv_heads", "heads")
        width = self["width"]
        multiple, multiplier = self.pop("multiple", 1), self.pop("multiplier", 1.0)
        if self.pop("adjusted", False):  # as transformers does for LFM2
            adjusted = int(multiplier * int(2 * self["feed_forward"] / 3))
            self["feed_forward"] = multiple * math.ceil(adjusted / multiple)
        # Embeddings of another width need a projection, which no layer here has.
        if self.pop("embedding_width", None) not in (None, width):
            raise unsupported(self.where, f"$.{self.key('embedding_width')}", "another", f"$.hidden_size, {width}")
        if self.pop("normed_heads", False):
            self["query_norm"] = "head"
        if self.pop("normed_all", False):
            self["query_norm"] = "heads"
        rotary = self._rotary()
        latent = None if rotary is None else self._latent(rotary)
        score_width, compressed = self.pop("score_width", None), self._compressed()
        recurrence, mixture, indexer = self._recurrence(), self._mixture(), self._indexer()
        window = self._window()
        mixers, sparse = self._mixers(window, indexer), self._sparse(mixture)
        blocks = mixers if self.pop("apart", False) else tuple(m + "-E"[s] for m, s in zip(mixers, sparse, strict=True))
        dense_layers = sparse.index(True) if True in sparse else self["layers"]
        standard = tuple("*E" if i >= dense_layers else "*-" for i in range(self["layers"]))
        return DecoderConfig(
            positions=positions,
            classes=self.pop("outputs", None) or (width if self.get("temperatures") else self.classes),
            embedding_scale=width**0.5 if self.pop("scaled_embedding", False) else 1.0,
            score_scale=None if score_width is None else score_width**-0.5,
            latent=latent,
            compressed=compressed,
            rotary=None if latent is not None else rotary,
            dense_layers=dense_layers if mixture else 0,
            mixture=mixture if "E" in "".join(blocks) else None,
            recurrence=recurrence,
            blocks=None if blocks == standard else blocks,
            window=window if compressed or "w" in "".join(blocks) else None,
            indexer=indexer,
            **self,
        )

    def _recurrence(self) -> Recurrence | None:
        """What some blocks have in place of attention."""
        if "steps_rank" in self:
            rank, bias, normed = (self.pop(size, False) for size in ("steps_rank", "projection_bias", "state_normed"))
            inner = self.pop("expand") * self["width"]
            inner = self.pop("inner", None) or inner
            sizes = {size: self.pop(size) for size in ("state", "kernel", "convolution_bias")}
            rank = math.ceil(self["width"] / 16) if rank == "auto" else rank
            return SelectiveScan(inner=inner, rank=rank, bias=bias, normed=normed, **sizes)
        if "kernel" in self and "value_heads" not in self and "state" not in self:
            return ShortConvolution(kernel=self.pop("kernel"))
        if "state" in self:
            self.require_divides("groups", "state_heads")
            sizes = {size: self.pop(size) for size in ("state", "groups", "kernel", "chunk", "convolution_bias")}
            sizes["normed"] = self.pop("state_normed", True)
            return Mamba(heads=self.pop("state_heads"), head_width=self.pop("state_head_width"), **sizes)
        if "value_heads" in self:
            self.require_divides("key_heads", "value_heads")
            sizes = {size: self.pop(size) for size in ("key_heads", "key_width", "value_width", "kernel")}
            return GatedDelta(heads=self.pop("value_heads"), **sizes)
        return None

    def _mixers(self, window: Window | None, indexer: Indexer | None) -> tuple[str, ...]:
        """The letter of what mixes the tokens of each block, or of its one sublayer."""
        path, layers = f"$.{self.key('pattern')}" if "pattern" in self.family.keys else "", self["layers"] or 0
        pattern, interval = self.pop("pattern", None), self.pop("interval", None)
        offset, mixer, full_list = self.pop("interval_offset", -1), self.pop("mixer", None), self.pop("full_list", None)
        windows, has_windows = self._windows() if layers else [], "window" in self.family.keys
        if pattern is None:
            full = "s" if indexer else "*"
            if interval:
                return tuple("M" if (i - offset) % interval else "*" for i in range(layers))
            if full_list is not None:
                return tuple("*" if i in full_list else "M" for i in range(layers))
            if mixer:
                return (mixer,) * layers
            return tuple("w" if window and has_window else full for has_window in windows)
        # Lists of numbers say which blocks have the one special kind, 1: windows, or else sparse attention.
        numbered = {0: "*", 1: "w" if window else "s"}
        if "few" in self:
            numbered = {0: "w", self.pop("few"): "s", self.pop("many"): "*"}
        letters = [(_LETTERS | numbered).get(word, word) for word in pattern]
        meant = set("*sMB-E" + "w" * has_windows)
        if unread := sorted(str(word) for word, letter in zip(pattern, letters, strict=True) if letter not in meant):
            raise unsupported(self.where, path, unread[0], f"one of {', '.join(map(str, [*_LETTERS, *'*M-E']))}")
        # Of blocks of one sublayer each the list says how many there are; elsewhere more are of further tokens.
        if self.get("apart"):
            self["layers"] = len(letters)
        elif len(letters) < layers:
            what = f"{path} has {len(letters)} layers, $.{self.key('layers')} says {layers}"
            raise BadInput(what, where=self.where, do="check both")
        return tuple("*" if letter == "w" and window is None else letter for letter in letters[: self["layers"]])

    def _windows(self) -> list[bool]:
        """Which blocks have a window where no list says it, by the rules of transformers' configurations."""
        layers, every = self["layers"], self.pop("full_interval", None)
        first, is_on = self.pop("window_from", 0) or 0, self.pop("window_on", True)
        offset = self.pop("full_offset", 1)
        if isinstance(every, str):  # LLLG: windows are local
            return [every[i % len(every)] == "L" for i in range(layers)]
        return [bool(is_on) and i >= first and not (every and (i + offset) % every == 0) for i in range(layers)]

    def _window(self) -> Window | None:
        """The window of some blocks."""
        tokens = self.pop("window", None)
        names = ("heads", "kv_heads", "head_width", "value_width")
        sizes = {name: self.pop(f"window_{name}", None) for name in names}
        options = {name: self.pop(f"window_{name}") for name in ("sinks", "chunked") if f"window_{name}" in self}
        factor = self.pop("window_kv_factor", None)
        sizes["kv_heads"] = sizes["kv_heads"] or (factor and factor * self["kv_heads"])
        return Window(tokens=tokens, **sizes, **options) if tokens else None

    def _sparse(self, mixture: Mixture | None) -> list[bool]:
        """Whether each block has the mixture."""
        layers, dense_layers = self["layers"] or 0, self.pop("dense_layers", 0)
        interval, offset = self.pop("mixture_interval", None) or 1, self.pop("mixture_offset", 1)
        dense, listed = self.pop("dense_list", None) or (), self.pop("mixture_list", None)
        pattern = self.pop("mixture_pattern", None)
        if pattern is not None and len(pattern) >= layers:
            return [mixture is not None and bool(_SPARSE.get(word)) for word in pattern[:layers]]
        chosen = range(dense_layers, layers) if listed is None else listed
        places = {i for i in chosen if i not in dense and (i + offset) % interval == 0}
        return [mixture is not None and i in places for i in range(layers)]

    def _indexer(self) -> Indexer | None:
        """What chooses the tokens that a query reads."""
        if self.get("index_tokens") is None:
            return None
        if (pattern := self.pop("index_pattern", None)) and set(pattern) != {"full"}:
            raise unsupported(self.where, f"$.{self.key('index_pattern')}", pattern, "full for every layer")
        sizes = {"heads": self.pop("index_heads"), "width": self.pop("index_width")}
        tokens = self.pop("index_tokens") * self.pop("index_block", 1)
        return Indexer(**sizes, tokens=tokens, weighted=self.pop("index_weighted", True))

    def _latent(self, rotary: Rotary) -> Latent | None:
        """Attention through latents."""
        if "rank" not in self:
            return None
        widths = {size: self.pop(size) for size in ("query_rank", "rank", "plain_width", "value_width")}
        return Latent(**widths, rotary=rotary)

    def _compressed(self) -> Compressed | None:
        """Attention to means of tokens."""
        if "head_groups" not in self:
            return None
        rank, few, many = self.pop("head_rank"), self["few"], self["many"]
        self.require_divides("head_groups", "heads")
        if not self["window"]:
            raise wrong(f"$.{self.key('window')}", self["window"], "1 or more tokens", self.where, "check the file")
        return Compressed(
            query_rank=self.pop("query_rank"), groups=self.pop("head_groups"), rank=rank, few=few, many=many
        )

    def _rotary(self) -> Rotary | None:
        """Rotary positions of a share of a head's numbers, which are pairs; none where files do not say a base."""
        if "rope_base" not in self:
            return None
        rope: Rope | None = self.pop("rope", None)
        rope = rope and (rope.full_attention or rope)
        base, share = self.pop("rope_base"), self.pop("rope_share", 1.0)
        head = self.pop("rope_width", None) or self.get("head_width") or self["width"] // self["heads"]
        width = int(head * ((rope and rope.partial_rotary_factor) or share))
        if width < 2 or width % 2:
            what = f"{width} of a head's {head} numbers have rotary positions, which come in pairs"
            raise BadInput(what, where=self.where, do="give sizes that make their number even")
        return Rotary(width, base if rope is None else rope.rope_theta)

    def _mixture(self) -> Mixture | None:
        """The experts of a layer."""
        sizes = {size: self.pop(size, None) for size in ("experts", "per_token", "expert_width", "shared_width")}
        shared_experts = self.pop("shared_experts", None) or 0
        names = ("scores", "normalised", "scale", "latent", "shared_gate", "bias", "normed")
        options = {name: value for name in names if (value := self.pop(name, None)) is not None}
        shared_dense = self.pop("shared_dense", False)
        experts, per_token = sizes["experts"], sizes["per_token"]
        if not experts:
            return None
        if isinstance(per_token, list):
            per_token = max(per_token)
        if per_token > experts:
            what = f"$.{self.key('per_token')} is {per_token}, more than $.{self.key('experts')}, {experts}"
            raise BadInput(what, where=self.where, do="check both numbers")
        width = sizes["expert_width"] or self["feed_forward"]
        shared = self["feed_forward"] if shared_dense else sizes["shared_width"] or width * shared_experts
        return Mixture(experts, per_token, width, shared, **options)


def unsupported(where: str, path: str, value: object, expected: str) -> BadInput:
    """What to say of a value that a model may well have and no family here knows."""
    return wrong(path, value, expected, where, f"give a model that has that, or {FACTORY}")
