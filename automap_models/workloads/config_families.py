"""The families of Hugging Face's config.json, by their description in families.yaml.

    file ── keys of its family ──→ sizes in our words ── workloads.config_sizes ──→ a record of workloads.sizes

What a file holds is checked against a schema made of the description: every size has one type, whatever its key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import NODEFAULT, Meta, field

from automap_models.formats.schema import Document, Foreign, Positive, Share, convert, parse_yaml

FAMILIES = "families.yaml"
_DO = "install the package again"
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
    Annotated[str, Meta(min_length=1, max_length=1000)]
    | Annotated[list[str | int], Meta(min_length=1, max_length=1000)]
)
"""A letter, a word or a number for each block."""
Optional = Annotated[int, Meta(ge=0, le=1 << 24)]
"""A size that is 0 where there is none of it."""


class Rope(Foreign):
    """Rotary positions, as files of transformers 5 have them."""

    rope_theta: Positive = 10000.0
    partial_rotary_factor: Share | None = None
    full_attention: Rope | None = None


_KINDS: dict[Any, str] = {
    Size: "vocabulary width feed_forward head_width context types rank query_rank plain_width rope_width value_width "
    "expert_width max_distance latent state state_head_width key_width kernel chunk window_head_width "
    "window_value_width multiple mel source decoder_feed_forward index_width index_tokens index_block embedding_width "
    "first second inner result pooled positions head_rank few many outputs",
    Size | Annotated[list[Size], Meta(min_length=1)]: "patch image frames merge_side",
    Size | str: "steps_rank",
    Few: "feed_ratio channels expand streams",
    Heads: "heads kv_heads state_heads key_heads value_heads groups window_heads window_kv_heads index_heads "
    "position_side decoder_heads head_groups",
    Layers: "layers decoder_layers interval mixture_interval",
    Few | Annotated[list[Few], Meta(min_length=1)]: "per_token",
    Count: "interval_offset dense_layers shared_experts window_from experts",
    Optional: "shared_width window window_side",
    Annotated[int, Meta(ge=4, le=1 << 16)]: "buckets",
    Epsilon: "epsilon",
    Dropout: "attention_dropout residual_dropout embedding_dropout",
    Share: "rope_share",
    bool: "tied scaled parallel attention_bias output_bias feed_forward_bias normalised normed_heads convolution_bias "
    "window_on keys_as_values head_bias normed_all state_normed adjusted projection_bias",
    str: "activation",
    list[int]: "dense_list mixture_list full_list further_list",
    Positive: "rope_base scale score_width score_cap logit_cap multiplier",
    Pattern: "pattern mixture_pattern index_pattern",
    Annotated[int, Meta(ge=1, le=1000)] | str: "full_interval",
    Rope: "rope",
}
TYPES = {size: kind for kind, sizes in _KINDS.items() for size in sizes.split()}
"""Our word for a size → what it is in a file."""


class Family(Document):
    """A family of files, as families.yaml describes it.

    Attributes:
        like: the family that it has what is not here from.
        record: whose sizes they are: of a `decoder`, a `bert`, a `t5`, a `seq2seq` or an encoder of an `image`.
        keys: our word for a size → the keys that may have it, and what it is without: `a|b = 2`.
        fixed: sizes and options that files do not say.
        only: keys that change a model → the value of each that is known.
        classifies: whether models that classify sequences are known.
        stem, ending, projector, further: words of steps of a tower of images, see towers.yaml.
    """

    like: str | None = None
    record: Literal["decoder", "bert", "t5", "seq2seq", "image"] = "decoder"
    keys: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    only: dict[str, Any] = field(default_factory=dict)
    classifies: bool | None = None
    stem: str = ""
    ending: str = ""
    projector: str = ""
    further: str = ""

    def after(self, base: Family) -> Family:
        """The family, with what it does not say from another."""
        keys = {size: text for size, text in base.keys.items() if size not in self.fixed}
        fixed = {size: value for size, value in base.fixed.items() if size not in self.keys}
        return msgspec.structs.replace(
            self,
            like=None,
            record=base.record,
            keys=keys | self.keys,
            fixed=fixed | self.fixed,
            only=base.only | self.only,
            classifies=base.classifies if self.classifies is None else self.classifies,
            **{name: getattr(self, name) or getattr(base, name) for name in SERIES},
        )

    def schema(self) -> type[msgspec.Struct]:
        """What its files hold: sizes of several keys, and those that have to be there, are None where they are not."""
        fields: dict[str, tuple[str, Any, Any]] = {key: (key, kind | None, None) for key, kind in _SHARED_KEYS.items()}
        fields |= {key: (key, type(value), value) for key, value in self.only.items()}
        for size, text in self.keys.items():
            keys, default = read_key(text)
            for key in keys:
                either = len(keys) > 1 or default is None
                usual = None if len(keys) > 1 else tuple(default) if isinstance(default, list) else default
                fields[key] = (key, TYPES[size] | None, usual) if either else (key, TYPES[size], usual)
        return msgspec.defstruct("Config", fields.values(), bases=(Foreign,), kw_only=True)

    def is_complete(self, values: Mapping[str, Any]) -> bool:
        """Whether values have all that has to be there."""
        required = (keys for keys, default in map(read_key, self.keys.values()) if default is NODEFAULT)
        return all(any(values.get(key) is not None for key in keys) for keys in required)


_SHARED_KEYS: dict[str, Any] = {
    **{"torch_dtype": str, "dtype": str, "architectures": tuple[str, ...]},
    **{"num_labels": Size, "id2label": dict[str, Any]},
}
"""Keys of all families."""


@lru_cache(maxsize=1024)
def read_key(text: str) -> tuple[list[str], Any]:
    """The keys of a size, and what it is without; NODEFAULT where one of them has to be there."""
    keys, _, default = text.partition(" = ")
    return keys.split("|"), yaml.safe_load(default) if default else NODEFAULT


SERIES = ("stem", "ending", "projector", "further")
"""Of steps."""


@cache
def families(file: str = FAMILIES) -> dict[str, Family]:
    """Value of model_type → the family, of a file beside this one, in the order of their names."""
    return {name: family_named(name, file) for name in sorted(_entries(file))}


@cache
def family_named(name: str, file: str = FAMILIES) -> Family:
    """One of them, of which alone, and of those that it is like, the description is read: the others take a while."""
    described = parse_yaml(_entries(file)[name].encode(), file, _DO)
    entry = convert(described, dict[str, Family], where=file, do=_DO)[name]
    return entry if entry.like is None else entry.after(family_named(entry.like, file))


@cache
def _entries(file: str) -> dict[str, str]:
    """Value of model_type → its lines of a file, the first of which begins with it."""
    entries = re.split(r"^(?=\w)", Path(__file__).with_name(file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {lines.partition(":")[0]: lines for lines in entries[1:]}
