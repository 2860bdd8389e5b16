"""A Hugging Face config.json as a model: the sizes in it, in the words of its family.

Only the file is read. What changes neither shapes nor costs is ignored: initialisation, the scaling of rotary positions
to longer sequences, how a router limits and balances the experts it chooses. What does and is not priced is named
(workloads.config_notes). A file with a `text_config` is read as the model of that, with its tower of images in front
(workloads.config_towers). Dropout of BERT and GPT-2 is left
out unless it is asked for: few models are trained with it any more, whatever their files say.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from automap_models.core.sublayer_sizes import SelectiveScan
from automap_models.errors import BadInput
from automap_models.formats.schema import decode_json, read_bytes, wrong
from automap_models.workloads.catalogue import FACTORY, HAVE_DROPOUT, MODEL_TYPES, Dtype
from automap_models.workloads.config_families import family_named
from automap_models.workloads.config_notes import GROUPS, UNPRICED, config_notes, family_of, left_out, nearest_family
from automap_models.workloads.config_parts import ConfigOptions, further
from automap_models.workloads.config_sizes import read_family
from automap_models.workloads.config_towers import read_image
from automap_models.workloads.sizes import DecoderConfig

if TYPE_CHECKING:
    from automap_models.workloads.sizes import Transformer

LARGEST_CONFIG_BYTES = 4 << 20
_NAMES = ("config.json", "adapter_config.json")
_DO = f"give the config.json of a model that is known: model_type {', '.join(MODEL_TYPES)}"


class ConfiguredModel(NamedTuple):
    """A model of a config.json.

    Attributes:
        name: the name of its folder, or of the file where that is not config.json.
        architecture: its sizes.
        sequence: tokens of a sample unless another number is asked for: as many as the model has positions for, at most
            8192, or 512 where it has no limit; None of images.
        longest: tokens that the model has learned positions for; None: any number.
        dtype: that it is published in.
        notes: on what the file says and nothing prices.
    """

    name: str
    architecture: Transformer
    sequence: int | None
    longest: int | None
    dtype: Dtype
    notes: tuple[str, ...]


def is_config(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a Hugging Face config: by its name, or as a small JSON mapping with the key model_type.

    So is a folder that holds one.

    Raises:
        BadInput: the file cannot be read.
    """
    if config_file(path).name in _NAMES:
        return True
    if Path(path).suffix != ".json" or Path(path).stat().st_size > LARGEST_CONFIG_BYTES:
        return False
    try:
        return "model_type" in _values(read_bytes(path), str(path))
    except BadInput:
        return False


def read_config(path: str | os.PathLike[str], **options: Any) -> ConfiguredModel:
    """The model of a config.json, or of a folder with one.

    Args:
        options: fields of ConfigOptions.

    Raises:
        BadInput: the file cannot be read, is no JSON, names an unknown family, lacks a key of its family, or holds a
            size that cannot be meant; an option is asked for of a model that has nothing of it.
    """
    file = config_file(path)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    content = read_bytes(file, LARGEST_CONFIG_BYTES)
    return decode_config(content, name, where=str(file), **options)


def config_file(path: str | os.PathLike[str]) -> Path:
    """The file; of a folder, such as those that are downloaded from the hub, its config.json, or that of an adapter."""
    inside = (Path(path) / name for name in _NAMES)
    return next((file for file in inside if file.is_file()), Path(path))


def decode_config(content: bytes, name: str, *, where: str, **options: Any) -> ConfiguredModel:
    """The model of a config.json's content.

    Args:
        name: of the model; empty: that of its family.
        where: what messages call the content.
        options: fields of ConfigOptions.

    Raises:
        BadInput: see `read_config`.
    """
    meant, document = ConfigOptions(**options), _values(content, where)
    values = _text_values(document)
    if "peft_type" in document:
        what = f"is an adapter of {document.get('base_model_name_or_path') or 'a model'}"
        raise BadInput(what, where=where, do="give the config.json of that, and the adapter's rank, `lora`")
    if "model_type" not in values:
        raise BadInput("$.model_type is missing", where=where, do=_DO)
    family = _required_family(values, where)
    if meant.dropout and family not in HAVE_DROPOUT:
        do = "leave it out, or give a model of bert, its relatives, bloom or gpt2"
        raise BadInput(f"is not known for models of {family}", where="`dropout`", do=do)
    entry = family_named(family)
    if entry.record == "image":
        config = read_image(entry, values, where)
    else:
        config = read_family(entry, values, where, dropout=meant.dropout)
    tokens = meant.sequence or min(config.context or 512, 8192)
    notes, architecture = [*config_notes(values, family)], config.architecture
    if isinstance(architecture, DecoderConfig):
        architecture, of_parts = further(architecture, document, values, tokens, meant, where)
        if isinstance(architecture.recurrence, SelectiveScan):
            of_parts.append("the scan counts by the bytes it moves: its exponentials, which take longer, are left out")
        notes = [*of_parts, *left_out(document, architecture.tower is not None), *notes]
    elif option := next((name for name in ("images", "image_tokens", "mtp") if getattr(meant, name)), ""):
        raise BadInput(f"is not known for models of {family}", where=f"`{option}`", do="leave it out")
    return ConfiguredModel(
        name=name or family,
        architecture=architecture,
        sequence=None if entry.record == "image" else tokens,
        longest=config.context if config.learned else None,
        dtype=config.dtype,
        notes=tuple(notes),
    )


def described_config(config: object) -> str | None:
    """The text of a config object of transformers as config.json; None for what is none, or of an unknown family."""
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None:
        return None
    values = to_dict()
    if not isinstance(values, dict) or family_of(values.get("model_type"), None) is None:
        return None
    return json.dumps({key: value for key, value in values.items() if _is_plain(value)}, sort_keys=True)


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _values(content: bytes, where: str) -> dict[str, Any]:
    """The keys and values of a file, in which Python's json has written Infinity for what no JSON has."""
    if b"Infinity" in content:
        with contextlib.suppress(ValueError):
            content = json.dumps(json.loads(content, parse_constant=lambda _: None)).encode()
    return decode_json(content, dict[str, Any], where=where, do=_DO)


def _text_values(document: dict[str, Any]) -> dict[str, Any]:
    """Those of the language model: groups of keys in the place of the group's own."""
    outer: dict[str, Any] = {
        key: document[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in document
    }
    text = document.get("text_config")
    values: dict[str, Any] = (
        {"model_type": f"{document.get('model_type')}_text", **outer, **text} if isinstance(text, dict) else document
    )
    groups = [values[key] for key in GROUPS if isinstance(values.get(key), dict)]
    group = {key: value for group in groups for key, value in group.items()}
    layers = values.get("per_layer_config")  # files of transformers 5 have there what layers without a window differ in
    if isinstance(layers, dict) and layers:
        names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        group = {names.get(key, key): value for key, value in next(iter(layers.values())).items()}
    return {**group, **values}


def _required_family(values: dict[str, Any], where: str) -> str:
    """The family that the values are read as.

    Raises:
        BadInput: there is none.
    """
    kind = values["model_type"]
    if isinstance(kind, str) and kind in UNPRICED:
        what = f"models of {kind} have {UNPRICED[kind]}, which nothing prices"
        raise BadInput(what, where=f"{where}: $.model_type", do=f"give {FACTORY}")
    family, unread = family_of(kind, values.get("architectures")), list[str]()
    if family is None and isinstance(kind, str):
        family, unread = nearest_family(values)
    if family is None:
        keys = f" and no family reads {', '.join(unread[:6])}" if unread else ""
        do = f"give the config.json of a model of these, or {FACTORY}"
        raise wrong("$.model_type", kind, f"one of {', '.join(MODEL_TYPES)}{keys}", where, do)
    return family
