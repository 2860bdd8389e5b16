"""A decoder's blocks in closed form: the sublayers of `DecoderConfig.blocks`, their norms and their residual sums."""

from __future__ import annotations

from automap_models.core.model_work import LayerWork
from automap_models.core.sublayer_sizes import GatedDelta, Mamba, SelectiveScan, ShortConvolution
from automap_models.core.tuning import ALL, LayerTraining
from automap_models.workloads.compressed import collapsed, compressed_attention, joined
from automap_models.workloads.gated_delta import gated_delta
from automap_models.workloads.layer import FORWARD, Layer, Value
from automap_models.workloads.mamba import mamba
from automap_models.workloads.selective_scan import selective_scan, short_convolution
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.sublayers import (
    attention,
    feed_forward,
    indexed,
    keys_read,
    latent_attention,
    routed,
    windowed,
)

Places = list[LayerWork]
Trainings = list[LayerTraining]
"""What of each block is trained."""


def decoder_block(
    c: DecoderConfig, sublayers: str, sequence: int, dtype: str, training: LayerTraining = ALL, name: str = "block"
) -> LayerWork:
    """Its sublayers, see `DecoderConfig.blocks`."""
    layer = Layer(sequence, dtype, training, c.operations)
    return layer.work(name, [block_of(layer, layer.value(c.streams * c.width), c, sublayers)], causal=c.causal)


def block_of(layer: Layer, x: Value, c: DecoderConfig, sublayers: str, memory: Value | None = None) -> Value:
    """What a block makes of x, with norms before its sublayers, after them, both, or after sums.

    Args:
        memory: what an encoder makes.
    """
    places = ("before", "after") if c.norms == "around" else (c.norms,)

    def normed(x: Value, place: str) -> Value:
        if place not in places:
            return x
        return layer.norm(x, layer_norm=not c.root_mean_square, fused=place == "after")

    added, read = list[Value](), x
    for number, sublayer in enumerate(sublayers, 1):
        if number == 1 or not c.shared_norm:
            with layer.module(_norm_module(c, sublayer)):
                read = normed(x if c.streams == 1 else collapsed(layer, x, c.streams), "before")
        change = _change(layer, read, c, sublayer, memory)
        layer.hand_on(change)
        change = normed(change, "after")
        if c.scaled_changes:
            change = layer.scale(change)
        added += [change, *layer.dropout(change, c.residual_dropout)]
        if c.streams > 1:
            x, added = joined(layer, x, change), []
        elif not c.parallel or number == len(sublayers):
            x, added = normed(layer.add(x, *added), "sums"), []
        else:  # all are added at once, and summed among devices at once
            layer.sums_forward[:] = [value for value in layer.sums_forward if value is not change]
    return x


def _norm_module(c: DecoderConfig, sublayer: str) -> str:
    """What recomputes the norm before a sublayer: Transformer Engine's first product has it but for these two."""
    if sublayer == "E" or (c.latent and sublayer in ("*", "s")):
        return "layernorm"
    return "mlp" if sublayer == "-" else "none"


def _change(layer: Layer, x: Value, c: DecoderConfig, sublayer: str, memory: Value | None) -> Value:  # noqa: PLR0911
    """What a sublayer adds to the residual stream."""
    match sublayer, c.recurrence:
        case "*" | "s" | "w", _ if c.compressed:
            return compressed_attention(layer, x, c, sublayer)
        case "*" | "s", _ if c.latent:
            return latent_attention(layer, x, c, c.indexer if sublayer == "s" else None)
        case "*", _:
            return attention(layer, x, c)
        case "w", _:
            assert c.window is not None
            return attention(layer, x, windowed(c), keys_read(layer.document, c.window, c.causal))
        case "x", _:
            return attention(layer, x, c, source=memory)
        case "s", _:
            assert c.indexer is not None
            indexed(layer, x, c.indexer, x)
            return attention(layer, x, c, keys_read(layer.document, c.indexer))
        case "E", _:
            with layer.module("moe"):
                return routed(layer, x, c)
        case "M", Mamba() as sizes:
            return mamba(layer, x, sizes)
        case "M", GatedDelta() as sizes:
            return gated_delta(layer, x, sizes)
        case "M", SelectiveScan() as sizes:
            return selective_scan(layer, x, sizes)
        case "M", ShortConvolution() as sizes:
            return short_convolution(layer, x, sizes)
        case "H", _:
            both = [_change(layer, x, c, part, memory) for part in "*M"]
            layer.memory(FORWARD, *both, both[0])
            return both[0]
    with layer.module("mlp"):
        return feed_forward(layer, x, c.feed_forward or 4 * c.width, c.gated, c.activation, c.feed_forward_bias)
