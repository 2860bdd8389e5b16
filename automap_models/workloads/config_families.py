"""The families of Hugging Face's config.json, by their description in families.yaml.

    file ── keys of its family ──→ sizes in our words ── groups: rotary, latent, … ──→ a record of workloads.sizes

What a file holds is checked against a schema made of the description: every size has one type, whatever its key.
Sliding windows of attention are not modelled, and noted: every layer attends to all positions before.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import yaml
from msgspec import NODEFAULT, Meta, field

from automap_models.core.sublayer_sizes import GatedDelta, Latent, Mamba, Mixture, Recurrence, Rotary
from automap_models.errors import BadInput
from automap_models.formats.schema import Document, Foreign, Positive, Share, decode_json, read_yaml, wrong
from automap_models.workloads.catalogue import FACTORY, Dtype
from automap_models.workloads.sizes import (
    Activation,
    BertConfig,
    DecoderConfig,
    T5Config,
    Transformer,
)

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
"""Of one dimension of a parameter."""
Heads = Annotated[int, Meta(ge=1, le=1 << 14)]
Layers = Annotated[int, Meta(ge=1, le=1000)]
Few = Annotated[int, Meta(ge=1, le=64)]
"""Experts of a token: each is chosen by operations of its own."""
Epsilon = Annotated[float, Meta(gt=0, lt=1)]
Dropout = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=0, le=1000)]


Pattern = (
    Annotated[str, Meta(min_length=1, max_length=1000)] | Annotated[list[str], Meta(min_length=1, max_length=1000)]
)
"""Blocks' sublayers, or what is in place of attention: a letter or a word of `_LETTERS` for each block."""


class Rope(Foreign):
    """Rotary positions, as files of transformers 5 have them."""

    rope_theta: Positive = 10000.0
    partial_rotary_factor: Share | None = None


_KINDS: dict[Any, str] = {
    Size: "vocabulary width feed_forward head_width context types rank query_rank plain_width rope_width value_width "
    "expert_width max_distance latent state state_head_width key_width kernel chunk",
    Heads: "heads kv_heads experts state_heads key_heads value_heads groups",
    Layers: "layers decoder_layers interval",
    Few: "per_token",
    Count: "dense_layers shared_experts",
    Annotated[int, Meta(ge=0, le=1 << 24)]: "shared_width",
    Annotated[int, Meta(ge=4, le=1 << 16)]: "buckets",
    Epsilon: "epsilon",
    Dropout: "attention_dropout residual_dropout embedding_dropout",
    Positive: "rope_base scale score_width score_cap logit_cap",
    Share: "rope_share",
    bool: "tied scaled parallel attention_bias output_bias feed_forward_bias normalised normed_heads convolution_bias",
    str: "activation",
    list[int]: "dense_list",
    Pattern: "pattern",
    Rope: "rope",
}
TYPES = {size: kind for kind, sizes in _KINDS.items() for size in sizes.split()}
"""Our word for a size → what it is in a file."""
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's word for an activation → ours."""
_LETTERS = {"attention": "*", "full_attention": "*", "mamba": "M", "linear_attention": "M", "mlp": "-", "moe": "E"}
"""Hugging Face's word for a sublayer → its letter in `DecoderConfig.blocks`."""


class Family(Document):
    """A family of files, as families.yaml describes it.

    Attributes:
        like: the family that it has what is not here from.
        record: whose sizes they are: of a `decoder`, `bert` or `t5`.
        keys: our word for a size → the keys that may have it, and what it is without: `a|b = 2`.
        fixed: sizes and options that files do not say.
        only: keys that change a model → the value of each that is known.
        classifies: whether models that classify sequences are known.
    """

    like: str | None = None
    record: Literal["decoder", "bert", "t5"] = "decoder"
    keys: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    only: dict[str, Any] = field(default_factory=dict)
    classifies: bool = False

    def after(self, base: Family) -> Family:
        """The family, with what it does not say from another."""
        keys = {size: text for size, text in base.keys.items() if size not in self.fixed}
        fixed = {size: value for size, value in base.fixed.items() if size not in self.keys}
        return Family(
            record=base.record,
            keys=keys | self.keys,
            fixed=fixed | self.fixed,
            only=base.only | self.only,
            classifies=base.classifies,
        )

    def schema(self) -> type[msgspec.Struct]:
        """What its files hold: sizes of several keys, and those that have to be there, are None where they are not."""
        fields: dict[str, tuple[str, Any, Any]] = {key: (key, kind | None, None) for key, kind in _SHARED_KEYS.items()}
        fields |= {key: (key, type(value), value) for key, value in self.only.items()}
        for size, text in self.keys.items():
            keys, default = read_key(text)
            for key in keys:
                either = len(keys) > 1 or default is None
                usual = None if len(keys) > 1 else default
                fields[key] = (key, TYPES[size] | None, usual) if either else (key, TYPES[size], usual)
        return msgspec.defstruct("Config", fields.values(), bases=(Foreign,), kw_only=True)


_SHARED_KEYS: dict[str, Any] = {
    **{"torch_dtype": str, "dtype": str, "architectures": tuple[str, ...]},
    **{"num_labels": Size, "id2label": dict[str, Any]},
}
"""Keys of all families."""


def read_key(text: str) -> tuple[list[str], Any]:
    """The keys of a size, and what it is without; NODEFAULT where one of them has to be there."""
    keys, _, default = text.partition(" = ")
    return keys.split("|"), yaml.safe_load(default) if default else NODEFAULT


@cache
def families() -> dict[str, Family]:
    """Value of model_type → the family."""
    described = read_yaml(Path(__file__).with_name("families.yaml"), dict[str, Family], do="install the package again")
    members: dict[str, Family] = {}
    for name, family in described.items():
        members[name] = family if family.like is None else family.after(members[family.like])
    return dict(sorted(members.items()))


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


def read_family(family: Family, content: bytes, where: str, *, dropout: bool) -> ConfiguredSizes:
    """The sizes in a file.

    Args:
        where: its name, for messages.
        dropout: whether the model has the dropout that the file says.

    Raises:
        BadInput: it lacks a size, or sizes do not fit each other.
    """
    config = decode_json(content, family.schema(), where=where, do="check the file against the published one")
    sizes = _Sizes(family, config, where)
    for size in () if dropout else ("attention_dropout", "residual_dropout", "embedding_dropout"):
        sizes.pop(size, None)
    context, learned = sizes.pop("context", None), sizes.pop("learned", False)
    sizes["activation"] = sizes.activation()
    if family.record == "t5":
        return ConfiguredSizes(sizes.t5(), context, learned, sizes.dtype)
    if sizes.get("head_width") is None and "rank" not in sizes:
        sizes.require_divides("heads", "width")
    record = BertConfig(**sizes, positions=context) if family.record == "bert" else sizes.decoder(context, learned)
    return ConfiguredSizes(record, context, learned, sizes.dtype)


class _Sizes(dict[str, Any]):
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
        if not any(name.endswith("ForSequenceClassification") for name in self.config.architectures or ()):
            return None
        return self.config.num_labels or len(self.config.id2label or {}) or 2

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
        return _ACTIVATIONS[name]

    def t5(self) -> T5Config:
        """The sizes of a T5."""
        least, distance = self["buckets"] // 2, self["max_distance"]
        if distance <= least:
            expected = f"more than half the buckets, {least}"
            raise wrong(f"$.{self.key('max_distance')}", distance, expected, self.where, "write the file again")
        scaled = self.pop("scaled")
        return T5Config(**{**self, "tied": self["tied"] and scaled})

    def decoder(self, context: int | None, learned: bool) -> DecoderConfig:
        """The sizes of a decoder that was made for so many tokens, whether or not it learned a position of each."""
        if self.get("kv_heads") is not None:
            self.require_divides("kv_heads", "heads")
        width = self["width"]
        if self.pop("normed_heads", False):
            self["query_norm"] = "head"
        rotary = self._rotary()
        latent = None if rotary is None else self._latent(rotary)
        score_width = self.pop("score_width", None)
        recurrence, mixture, dense_layers = self._recurrence(), self._mixture(), self._dense_layers()
        blocks = self._blocks(dense_layers if mixture else 1000)
        return DecoderConfig(
            positions=context if learned else None,
            classes=self.classes,
            embedding_scale=width**0.5 if self.pop("scaled_embedding", False) else 1.0,
            score_scale=None if score_width is None else score_width**-0.5,
            latent=latent,
            rotary=None if latent is not None else rotary,
            dense_layers=min(dense_layers, self["layers"]),
            mixture=mixture if blocks is None or "E" in "".join(blocks) else None,
            recurrence=recurrence,
            blocks=blocks,
            **self,
        )

    def _recurrence(self) -> Recurrence | None:
        """What some blocks have in place of attention."""
        if "state" in self:
            self.require_divides("groups", "state_heads")
            sizes = {size: self.pop(size) for size in ("state", "groups", "kernel", "chunk", "convolution_bias")}
            return Mamba(heads=self.pop("state_heads"), head_width=self.pop("state_head_width"), **sizes)
        if "value_heads" in self:
            self.require_divides("key_heads", "value_heads")
            sizes = {size: self.pop(size) for size in ("key_heads", "key_width", "value_width", "kernel")}
            return GatedDelta(heads=self.pop("value_heads"), **sizes)
        return None

    def _blocks(self, dense_layers: int) -> tuple[str, ...] | None:
        """Sublayers of each block; those before `dense_layers` have no mixture. None where all have attention."""
        if "pattern" not in self:
            return None
        path, pattern, interval = f"$.{self.key('pattern')}", self.pop("pattern"), self.pop("interval", None)
        if pattern is None:
            pattern = "".join("M" if (i + 1) % interval else "*" for i in range(self["layers"]))
        letters = [_LETTERS.get(word, word) for word in pattern]
        if unread := sorted(set(letters) - set(_LETTERS.values())):
            raise unsupported(self.where, path, unread[0], f"one of {', '.join([*_LETTERS, *'*M-E'])}")
        if self.pop("apart", False):
            self["layers"] = len(letters)
            return tuple(letters)
        if len(letters) != self["layers"]:
            what = f"{path} has {len(letters)} layers, $.{self.key('layers')} says {self['layers']}"
            raise BadInput(what, where=self.where, do="check both")
        return tuple(letter + ("-" if i < dense_layers else "E") for i, letter in enumerate(letters))

    def _latent(self, rotary: Rotary) -> Latent | None:
        """Attention through latents."""
        if "rank" not in self:
            return None
        widths = {size: self.pop(size) for size in ("query_rank", "rank", "plain_width", "value_width")}
        return Latent(**widths, rotary=rotary)

    def _rotary(self) -> Rotary | None:
        """Rotary positions of a share of a head's numbers, which are pairs; none where files do not say a base."""
        if "rope_base" not in self:
            return None
        rope: Rope | None = self.pop("rope")
        base, share = self.pop("rope_base"), self.pop("rope_share", 1.0)
        head = self.pop("rope_width", None) or self.get("head_width") or self["width"] // self["heads"]
        width = int(head * ((rope and rope.partial_rotary_factor) or share))
        if width < 2 or width % 2:
            what = f"{width} of a head's {head} numbers have rotary positions, which come in pairs"
            raise BadInput(what, where=self.where, do="give sizes that make their number even")
        return Rotary(width, base if rope is None else rope.rope_theta)

    def _dense_layers(self) -> int:
        """How many of the first layers have no experts."""
        listed = self.pop("dense_list", None)
        if listed is None:
            return int(self.pop("dense_layers", 0))
        if sorted(listed) != list(range(len(listed))) or len(listed) > self["layers"]:
            raise unsupported(self.where, f"$.{self.key('dense_list')}", list(listed), "the first layers")
        return len(listed)

    def _mixture(self) -> Mixture | None:
        """The experts of a layer."""
        if "experts" not in self:
            return None
        experts, per_token = self.pop("experts"), self.pop("per_token")
        if per_token > experts:
            what = f"$.{self.key('per_token')} is {per_token}, more than $.{self.key('experts')}, {experts}"
            raise BadInput(what, where=self.where, do="check both numbers")
        width = self.pop("expert_width", None) or self["feed_forward"]
        shared = self.pop("shared_width", None) or width * (self.pop("shared_experts", None) or 0)
        names = ("scores", "normalised", "scale", "latent", "shared_gate")
        options = {name: self.pop(name) for name in names if name in self}
        return Mixture(experts, per_token, width, shared, **options)


def unsupported(where: str, path: str, value: object, expected: str) -> BadInput:
    """What to say of a value that a model may well have and no family here knows."""
    return wrong(path, value, expected, where, f"give a model that has that, or {FACTORY}")
