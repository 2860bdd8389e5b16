"""What a model has beside its text: a tower of images before the blocks, and layers that predict further tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from automap_models.errors import BadInput
from automap_models.workloads.config_towers import read_tower
from automap_models.workloads.sizes import DecoderConfig, Tower

FURTHER = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys that say how many layers predict further tokens."""


class ConfigOptions(NamedTuple):
    """What of a file is meant, beside its sizes.

    Attributes:
        dropout: whether the model has the dropout that the file says, which bert and gpt2 can have.
        sequence: tokens of a sample; None: see `ConfiguredModel`.
        images: of a sample; 0 leaves the tower out; None is 1.
        image_tokens: of the text that stand for an image, in the mean, where a tower takes images of any size; None:
            those of about a million pixels.
        mtp: layers that predict further tokens; None: as many as the file says.
    """

    dropout: bool = False
    sequence: int | None = None
    images: int | None = None
    image_tokens: int | None = None
    mtp: int | None = None


def further(
    decoder: DecoderConfig,
    document: Mapping[str, Any],
    values: Mapping[str, Any],
    tokens: int,
    options: ConfigOptions,
    where: str,
) -> tuple[DecoderConfig, list[str]]:
    """A decoder with what else its file says of it, and sentences on that.

    Args:
        document, values: the file, and what of it is of the text.
        tokens: of a sample.
        where: the file's name, for messages.

    Raises:
        BadInput: the tower lacks a size, its images take more tokens than a sample has, or an option is out of range.
    """
    notes = list[str]()
    layers = 0 if decoder.classes else _number(next((values[key] for key in FURTHER if values.get(key)), 0))
    if options.mtp is not None:
        layers = options.mtp
    elif layers:
        notes.append(
            f"{layers} layer{'s' * (layers > 1)} of multi-token prediction "
            "on the last rank, as the file says and Megatron-Bridge trains it; `mtp` 0 leaves it out"
        )
    if layers < 0 or layers > 16:
        raise BadInput(f"must be 0 to 16, is {layers}", where="`mtp`")
    tower = _tower(decoder, document, options, where)
    if tower is None:
        return replace(decoder, predicting_layers=layers), notes
    taken = 0 if decoder.temperatures else tower.images * tower.image_tokens
    pixels = f"{tower.images:,} image{'s' * (tower.images > 1)} of {tower.side:,} x {tower.side:,} pixels"
    if taken > tokens:
        what = f"{pixels} are {taken:,} tokens, and a sample has {tokens:,}"
        if options.images:
            raise BadInput(what, where="`images`", do="give fewer, or a longer `sequence`")
        return replace(decoder, predicting_layers=layers), [*notes, f"no image is priced: {what}"]
    if decoder.temperatures:
        notes.append(
            "the scores of all texts of a step against all its images are left out, and a micro-batch compares its own"
        )
    notes.append(
        f"a sample has {pixels} (`images`): {tower.patches:,} patches each in a tower of {len(tower.reach)} layers "
        f"on the first rank, {taken:,} of the {tokens:,} tokens"
    )
    return replace(decoder, tower=tower, predicting_layers=layers), notes


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _tower(decoder: DecoderConfig, document: Mapping[str, Any], options: ConfigOptions, where: str) -> Tower | None:
    """What encodes the images that are asked for, or one; None where nothing is known of it, or nothing asked for."""
    images = 1 if options.images is None else options.images
    if not 0 <= images <= 10_000:
        raise BadInput(f"must be 0 to 10000, is {images}", where="`images`")
    has_images = isinstance(document.get("vision_config"), dict)
    size = options.image_tokens
    if size is not None and not 1 <= size <= 100_000:
        raise BadInput(f"must be 1 to 100000, is {size}", where="`image_tokens`")
    tower = read_tower(document, decoder.width, (images, size), where) if has_images and images else None
    if size and not images:
        raise BadInput("is of images, and there are none", where="`image_tokens`", do="leave it out, or `images` 0")
    if (options.images or size) and tower is None:
        what = "has a tower that is not known" if has_images else "has no tower of images"
        do = f"leave `{'images' if options.images else 'image_tokens'}` out: the language model alone is priced"
        if str(document.get("model_type")).endswith("_text"):
            what, do = "is a language model alone", "give the config.json of the model with its images"
        raise BadInput(what, where=where, do=do)
    return tower
