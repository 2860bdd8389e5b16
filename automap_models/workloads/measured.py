"""The model that a measured step trained, or that a profile was measured of, and its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from automap_models.core.microbatch import required_size
from automap_models.core.model_work import ModelWork
from automap_models.core.profile import LARGEST_S, Profile
from automap_models.core.strategy import Precision
from automap_models.core.sublayer_sizes import GatedDelta, Mamba, Rotary, Window
from automap_models.cost.measured_step import DescribedModel, MeasuredModel, MeasuredPasses, MeasuredStep
from automap_models.errors import BadInput
from automap_models.workloads.config_json import decode_config
from automap_models.workloads.registry import SizedModel, configured, sized
from automap_models.workloads.sizes import Architecture, BertConfig, DecoderConfig
from automap_models.workloads.transformer import model_work

DTYPES: Mapping[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""What layers compute in → the precision of a strategy."""


def architecture_of(model: MeasuredModel) -> Architecture:
    """The model of a family with these sizes; as many positions as a sample has tokens, where it learns them."""
    shape = model.shape
    sizes: dict[str, Any] = {
        **{"width": shape.hidden, "heads": shape.heads, "layers": shape.layers},
        **{"vocabulary": shape.vocabulary, "feed_forward": shape.ffn},
    }
    if model.family == "llama":
        sizes |= _llama(model)
    else:  # shares as in GPT-2's and BERT's published models; they change no cost
        sizes |= dict.fromkeys(
            ("attention_dropout", "residual_dropout", "embedding_dropout"), 0.1 if model.dropout else 0.0
        )
        sizes["positions"] = shape.sequence
    if model.family == "bert":
        return BertConfig(**sizes)
    if model.mixture:
        sizes |= {"mixture": model.mixture, "dense_layers": model.dense_layers, "feed_forward": model.dense_width}
    return DecoderConfig(**sizes, kv_heads=shape.kv_heads, tied=model.tied)


def _llama(model: MeasuredModel) -> dict[str, Any]:
    shape, latent = model.shape, model.latent
    width = latent.rotary.width if latent else model.head_width or shape.hidden // shape.heads
    if width % 2:
        raise BadInput(f"a head of {width} numbers has no pairs for rotary positions", where=f"model {shape.name}")
    return {
        "positions": None,
        **dict.fromkeys(("attention_bias", "output_bias", "feed_forward_bias"), False),
        **{"activation": "silu" if model.gated else "relu2", "gated": model.gated, "root_mean_square": True},
        "rotary": None if isinstance(model.recurrence, Mamba) else Rotary(width, 500_000.0),  # the base changes no cost
        "head_width": model.head_width,
        "latent": latent,
        "window": None if model.window is None else Window(tokens=model.window),
        "predicting_layers": model.predicting_layers,
        **{"recurrence": model.recurrence, "blocks": model.blocks or _windowed_blocks(model)},
        "gated_attention": isinstance(model.recurrence, GatedDelta),
    }


def _windowed_blocks(model: MeasuredModel) -> tuple[str, ...] | None:
    """Blocks of which every second one, or all, have a window; None where none has."""
    layers, count = model.shape.layers, model.windowed_layers
    every = 1 if count == layers else 2
    mixers = ["w" if i % every == 0 and i < every * count else "*" for i in range(layers)]
    dense = model.dense_layers if model.mixture else layers
    return tuple(mixer + ("-" if i < dense else "E") for i, mixer in enumerate(mixers)) if count else None


def step_work(step: MeasuredStep) -> ModelWork:
    """The work of a step's model.

    Raises:
        BadInput: the model's heads are of an odd size, or it has not what is to be trained.
    """
    shape, architecture = step.model.shape, architecture_of(step.model)
    return replace(model_work(architecture, shape.name, shape.sequence, "bfloat16", step.training), shape=shape)


def passes_work(passes: MeasuredPasses) -> ModelWork:
    """The work of the model of a profile that was measured.

    Raises:
        BadInput: what the profile says is no transformer that can be priced.
    """
    return _sized(passes.model, passes.sequence, passes.name).work()


def _sized(model: DescribedModel, sequence: int, name: str) -> SizedModel:
    sizes: dict[str, Any] = {"sequence": sequence, "dtype": "bfloat16"}  # other types' amounts follow from it
    if model.config is None:
        return sized(model.built_in or "", dropout=model.dropout, **sizes)
    read = decode_config(model.config.encode(), "", where=name, dropout=model.dropout, images=0, mtp=0)
    return configured(read, **sizes)


def row_model(described: Mapping[str, Any], name: str) -> tuple[dict[str, object], ModelWork]:
    """The model of a row of measured steps (formats.measured_rows), which `architecture_of` is the inverse of.

    Args:
        described: what `workloads.source.described` says of it.
        name: what it is called.

    Returns:
        The row's model, and the work of the model itself.

    Raises:
        BadInput: it is no transformer that rows have words for.
    """
    which = DescribedModel(described.get("built_in"), described.get("config"), described.get("dropout", False))
    model = _sized(which, described["sequence"], name)
    sizes, work = model.architecture, model.work()
    if not isinstance(sizes, DecoderConfig | BertConfig):
        raise BadInput("is neither a decoder nor a BERT", where=name)
    shape, decoder = work.shape, sizes if isinstance(sizes, DecoderConfig) else None
    mixture = decoder.mixture if decoder else None
    return {
        **{"name": name, "arch": "bert" if decoder is None else "llama" if decoder.rotary else "gpt"},
        **{key: getattr(shape, key) for key in ("layers", "hidden", "ffn", "heads", "kv_heads", "experts")},
        **{"seq": shape.sequence, "vocab": shape.vocabulary, "head_dim": decoder and decoder.head_width},
        "topk": mixture and mixture.per_token,
    }, work


def parameters_of(work: ModelWork) -> float:
    """How many are trained."""
    return sum(float(work.layers[place].parameters.values.sum()) for place in work.order)


def measured_passes(
    profile: Profile, name: str, model: DescribedModel | None = None, sequence: int | None = None
) -> MeasuredPasses:
    """The passes of a profile that was measured.

    Args:
        profile: of a transformer.
        name: what it is called.
        model: which model it is, where the profile does not say.
        sequence: tokens of a sample, where the profile does not say.

    Raises:
        BadInput: its times were not measured, or it says too little.
    """
    meta = profile.meta
    if not str(meta.get("times", "")).startswith("measured"):
        raise BadInput("its times are not measured", where=name, do="make it with automap profile and `measure`")
    transformer = meta.get("transformer")
    described = transformer if isinstance(transformer, Mapping) else {}
    if model is None:
        texts = (described.get(key) for key in ("built_in", "config"))
        built_in, config = (text if isinstance(text, str) else None for text in texts)
        model = DescribedModel(built_in, config, bool(described.get("dropout", False)))
    tokens = sequence or described.get("sequence")
    if model.built_in is None and model.config is None:
        do = "say which one by `model` and `sequence`"
        raise BadInput("does not say which transformer it is of", where=name, do=do)
    if not isinstance(tokens, int) or tokens < 1:
        raise BadInput("does not say how many tokens a sample has", where=name, do="give `sequence`")
    if profile.dtype not in DTYPES:
        raise BadInput(f"computes in {profile.dtype}", where=name, do=f"measure it in one of {', '.join(DTYPES)}")
    forward_s, step_s = float(profile.C_fwd.sum()), float(profile.C.sum())
    if not 0.0 < forward_s < step_s:
        raise BadInput("has no time for one of its passes", where=name, do="measure the model again")
    update_s = meta.get("update_per_step_s")
    in_fp32 = profile.dtype == "float32" and isinstance(update_s, float) and 0.0 < update_s < LARGEST_S
    return MeasuredPasses(
        name=name,
        device=profile.device,
        model=model,
        sequence=tokens,
        micro_batch=required_size(profile),
        precision=DTYPES[profile.dtype],
        flash=bool(described.get("flash", meta.get("framework") == "torch")),
        forward_s=forward_s,
        backward_s=step_s - forward_s,
        update_s=float(update_s) if in_fp32 and isinstance(update_s, float) else None,
    )


def described_model(what: str) -> DescribedModel:
    """A built-in model by its name, or the one of a config.json.

    Raises:
        BadInput: it is neither, or no transformer.
    """
    from automap_models.workloads.source import Source, SourceKind, source_kind, transformer

    kind = source_kind(what)
    if kind is SourceKind.CONFIG:
        return DescribedModel(config=Path(what).read_text())
    model = transformer(Source(what, kind))
    model.work()
    return DescribedModel(built_in=model.name)
