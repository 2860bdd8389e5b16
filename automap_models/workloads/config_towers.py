"""The tower of images in a config.json: its sizes by towers.yaml, as a record of workloads.sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from automap_models.core.sublayer_sizes import Rotary
from automap_models.errors import BadInput
from automap_models.formats.schema import convert
from automap_models.workloads.config_families import Family, families
from automap_models.workloads.config_sizes import ConfiguredSizes, FamilySizes
from automap_models.workloads.sizes import DecoderConfig, ImageConfig, Step, Tower

USUAL_SIDE = 1008
"""Pixels of a side of an image where a tower takes any: about a million pixels, the most that ms-swift's examples of
Qwen2.5-VL give one (MAX_PIXELS=1003520)."""
_WORD = re.compile(r"(\w+?)(\+?)(?::(\w+))?")


Images = tuple[int, int | None]
"""Of a sample, and tokens of the text for each; None: as the file says, or of about USUAL_SIDE pixels a side."""


def read_tower(document: Mapping[str, Any], width: int, images: Images, where: str) -> Tower | None:
    """The tower of a model's images; None where its family is not known.

    Args:
        document: the file.
        width: of the decoder.
        images: see Images.
        where: its name, for messages.

    Raises:
        BadInput: it lacks a size, sizes do not fit each other, or all its images have as many tokens.
    """
    vision: dict[str, Any] = document["vision_config"]
    kind, described = str(document.get("model_type")), families("towers.yaml")
    named = re.sub("(_vision)?(_model)?$", "", str(vision.get("model_type")))
    dual = f"{kind}_dual"
    encoder = next((described[key] for key in (dual, named, kind) if key in described and described[key].stem), None)
    outer = described.get(dual, described.get(kind))
    if encoder is None or outer is None or not outer.projector:
        return None
    read = replace(encoder, keys=encoder.keys | outer.keys, fixed=encoder.fixed | outer.fixed)
    values = {**document, **vision} if "text_config" in document else vision
    sizes = FamilySizes(read, convert(values, read.schema(), where=where, do="check the file"), where)
    return _tower(sizes, encoder, outer, width, images)


def read_image(encoder: Family, values: Mapping[str, Any], where: str) -> ConfiguredSizes:
    """An encoder of images as a model of its own, which classifies; arguments and errors are those of `read_family`."""
    sizes = FamilySizes(encoder, convert(values, encoder.schema(), where=where, do="check the file"), where)
    model = ImageConfig(_tower(sizes, encoder, encoder, 0, (1, None)), sizes.labels, sizes.get("read", 1))
    return ConfiguredSizes(model, None, False, sizes.dtype)


def _tower(sizes: FamilySizes, encoder: Family, outer: Family, text: int, images: Images) -> Tower:
    """With these sizes."""
    patch, merge = _first(sizes["patch"]), _first(sizes.get("merge_side")) or 1
    (count, tokens), fixed = images, _first(sizes.get("image") if "positions" not in sizes else None)
    side = fixed or max(1, round(USUAL_SIDE / (patch * merge))) * patch * merge
    patches, extra = (side // patch) ** 2, sizes["extra"]
    if tokens is not None:
        if fixed or "pool" in outer.projector:
            what = "all images have as many tokens as the sizes of vision_config make"
            raise BadInput(what, where="`image_tokens`", do="leave it out")
        side, patches = round(tokens**0.5 * merge * patch), tokens * merge**2
    elif (side // patch) % merge:
        what = f"an image has {side // patch} patches a side, of which {merge} do not become one"
        raise BadInput(what, where=sizes.where, do="check the sizes of vision_config")
    position_side = sizes.get("position_side")
    rows = sizes.get("positions") or (position_side and position_side**2) or patches + extra
    named = {**sizes, "text": text, "merge": merge**2, "positions": rows, "pooled": sizes.get("pooled", 0)}
    series = [_steps(words, named) for words in (encoder.stem, encoder.ending, outer.projector, outer.further)]
    full, window = sizes.get("full_list") or (), sizes.get("window_side")
    reach = [
        min(patches, (window // patch) ** 2) if window and i not in full else patches + extra
        for i in range(sizes["layers"])
    ]
    return Tower(
        encoder=_encoder(sizes),
        images=count,
        side=side,
        patches=patches,
        patch_numbers=sizes["channels"] * patch**2 * (_first(sizes.get("frames")) or 1),
        extra=extra,
        reach=tuple(reach),
        stem=series[0],
        ending=series[1],
        projector=series[2],
        further=(series[3],) * len(sizes.get("further_list") or ()),
    )


def _encoder(sizes: FamilySizes) -> DecoderConfig:
    """Sizes of the blocks."""
    sizes.require_divides("heads", "width")
    options = ("attention_bias", "output_bias", "feed_forward_bias", "gated", "root_mean_square", "scaled_changes")
    width, heads, ratio = sizes["width"], sizes["heads"], sizes.get("feed_ratio")
    return DecoderConfig(
        width=width,
        heads=heads,
        layers=sizes["layers"],
        vocabulary=1,
        positions=None,
        feed_forward=ratio * width if ratio else sizes["feed_forward"],
        activation=sizes.activation(),
        operations=sizes.operations(),
        query_norm="heads" if sizes.get("normed_all") else None,
        rotary=Rotary(width // heads, 10000.0) if sizes.get("turned") else None,
        causal=False,
        tied=False,
        **{name: sizes[name] for name in options if name in sizes},
    )


def _steps(words: str, sizes: Mapping[str, Any]) -> tuple[Step, ...]:
    """Of a series of words; `same` is as many columns as there are."""
    steps, columns = list[Step](), int(sizes["width"])
    for word in words.split() if words != "none" else ():
        kind, bias, size = _WORD.fullmatch(word).groups()  # type: ignore[union-attr]
        count = columns if size == "same" else int(sizes.get(size or kind, 0) or 0)
        columns = {"dense": count or columns, "gated": count, "merge": columns * count}.get(kind, columns)
        steps.append(Step(kind, columns if kind == "dense" else count, bool(bias)))
    return tuple(steps)


def _first(size: Any) -> Any:
    """Of a side, where a file says both."""
    return size[0] if isinstance(size, list) else size
