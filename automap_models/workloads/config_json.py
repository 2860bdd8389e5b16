"""A Hugging Face config.json as a model: the sizes in it, in the words of its family.

Only the file is read. What changes neither shapes nor costs is ignored: initialisation, the scaling of rotary positions
to longer sequences, how a router limits and balances the experts it chooses. What does and is not priced, such as
windows of attention, is named (config_notes.py). Dropout of BERT and GPT-2 is left out unless it is asked for: few
models are trained with it any more, whatever their files say.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, UnsetType

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, decode_json, read_bytes, wrong
from automap_models.workloads.config_families import FAMILIES, HAVE_DROPOUT
from automap_models.workloads.config_fields import FACTORY, Dtype
from automap_models.workloads.config_notes import config_notes

if TYPE_CHECKING:
    from automap_models.workloads.training import Architecture

LARGEST_CONFIG_BYTES = 1 << 20
LONGEST_DEFAULT = 8192
"""Tokens of a sample where a model has positions for more and nothing else is asked for."""
UNLIMITED_DEFAULT = 512
"""Tokens of a sample where a model has no limit and nothing else is asked for."""
_DO = "give the config.json of a model that is known: model_type {}"


class ConfiguredModel(NamedTuple):
    """A model of a config.json.

    Attributes:
        name: the name of its folder, or of the file where that is not config.json.
        architecture: its sizes.
        sequence: tokens of a sample unless another number is asked for.
        longest: tokens that the model has learned positions for; None: any number.
        dtype: that it is published in.
        notes: on what the file says and nothing prices, for samples of `sequence` tokens.
    """

    name: str
    architecture: Architecture
    sequence: int
    longest: int | None
    dtype: Dtype
    notes: tuple[str, ...]


def is_config(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a Hugging Face config: by its name, or as a small JSON mapping with the key model_type.

    Raises:
        BadInput: the file cannot be read.
    """
    if Path(path).name == "config.json":
        return True
    if Path(path).suffix != ".json" or Path(path).stat().st_size > LARGEST_CONFIG_BYTES:
        return False
    try:
        return not isinstance(decode_json(read_bytes(path), _Family, where=str(path)).model_type, UnsetType)
    except BadInput:
        return False


def read_config(path: str | os.PathLike[str], *, dropout: bool = False, sequence: int | None = None) -> ConfiguredModel:
    """The model of a config.json.

    Args:
        dropout: whether the model has the dropout that the file says, which bert and gpt2 can have.
        sequence: tokens of a sample; None: see `ConfiguredModel`.

    Raises:
        BadInput: the file cannot be read, is no JSON, names an unknown family, lacks a key of its family, or holds a
            size that cannot be meant; dropout is asked for of another family.
    """
    file = Path(path)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    content = read_bytes(path, LARGEST_CONFIG_BYTES)
    return decode_config(content, name, where=str(path), dropout=dropout, sequence=sequence)


def decode_config(
    content: bytes, name: str, *, where: str, dropout: bool = False, sequence: int | None = None
) -> ConfiguredModel:
    """The model of a config.json's content.

    Args:
        name: of the model; empty: that of its family.
        where: what messages call the content.
        dropout, sequence: see `read_config`.

    Raises:
        BadInput: see `read_config`.
    """
    known = ", ".join(FAMILIES)
    named = decode_json(content, _Family, where=where, do=_DO.format(known))
    kind = named.model_type
    if isinstance(kind, UnsetType):
        raise BadInput("$.model_type is missing", where=where, do=_DO.format(known))
    family = _family_of(kind, named.architectures)
    if family is None:
        do = f"give the config.json of a model of these, or {FACTORY}"
        raise wrong("$.model_type", kind, f"one of {known}", where, do)
    config = decode_json(content, FAMILIES[family], where=where, do="check the file against the published one")
    if not dropout:
        config = config.without_dropout()
    elif family not in HAVE_DROPOUT:
        do = "leave it out, or give a model of bert or gpt2"
        raise BadInput(f"is not known for models of {family}", where="`dropout`", do=do)
    positions, learned = config.positions()
    tokens = sequence or min(positions or UNLIMITED_DEFAULT, LONGEST_DEFAULT)
    return ConfiguredModel(
        name=name or family,
        architecture=config.architecture(where),
        sequence=tokens,
        longest=positions if learned else None,
        dtype=config.compute_dtype(),
        notes=config_notes(content, family, where=where, sequence=tokens),
    )


def described_config(config: object) -> str | None:
    """The text of a config object of transformers as config.json; None for what is none, or of an unknown family."""
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None:
        return None
    values = to_dict()
    if not isinstance(values, dict) or _family_of(values.get("model_type"), None) is None:
        return None
    return json.dumps({key: value for key, value in values.items() if _is_plain(value)}, sort_keys=True)


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


class _Family(Foreign):
    """What tells the families apart."""

    model_type: object | UnsetType = UNSET
    architectures: object = None


def _family_of(kind: object, architectures: object) -> str | None:
    """The family of a file: its model_type, or the one whose class it names; None where neither is known.

    Models that are one of another family in all but their name say so in `architectures`: Kimi K2's is DeepSeek V3's.
    """
    if isinstance(kind, str) and kind in FAMILIES:
        return kind
    if not isinstance(architectures, list) or not architectures:
        return None
    name = str(architectures[0]).removesuffix("ForCausalLM").lower()
    return next((family for family in FAMILIES if family.replace("_", "") == name), None)
