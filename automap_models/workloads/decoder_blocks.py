"""A decoder's blocks in closed form: the sublayers of `DecoderConfig.blocks`, their norms and their residual sums."""

from __future__ import annotations

from automap_models.core.sublayer_sizes import GatedDelta, Mamba
from automap_models.workloads.gated_delta import gated_delta
from automap_models.workloads.layer import Layer, Value
from automap_models.workloads.mamba import mamba
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


def block_of(layer: Layer, x: Value, c: DecoderConfig, sublayers: str) -> Value:
    """What a block makes of x, with norms before its sublayers, after them, or both."""

    def normed(x: Value, place: str) -> Value:
        if c.norms not in (place, "around"):
            return x
        return layer.norm(x, layer_norm=not c.root_mean_square, fused=place == "after")

    added: list[Value] = []
    for number, sublayer in enumerate(sublayers, 1):
        if number == 1 or not c.shared_norm:
            read = normed(x, "before")
        change = normed(_change(layer, read, c, sublayer), "after")
        if c.scaled_changes:
            change = layer.scale(change)
        added += [change, *layer.dropout(change, c.residual_dropout)]
        if not c.parallel or number == len(sublayers):
            x, added = layer.add(x, *added), []
        else:  # all are added at once, and summed among devices at once
            layer.sums_forward[:] = [value for value in layer.sums_forward if value is not change]
    return x


def _change(layer: Layer, x: Value, c: DecoderConfig, sublayer: str) -> Value:  # noqa: PLR0911
    """What a sublayer adds to the residual stream."""
    match sublayer, c.recurrence:
        case "*" | "s", _ if c.latent:
            return latent_attention(layer, x, c, c.indexer if sublayer == "s" else None)
        case "*", _:
            return attention(layer, x, c)
        case "w", _:
            assert c.window is not None
            return attention(layer, x, windowed(c), keys_read(layer.tokens, c.window))
        case "s", _:
            assert c.indexer is not None
            indexed(layer, x, c.indexer, x)
            return attention(layer, x, c, keys_read(layer.tokens, c.indexer))
        case "E", _:
            return routed(layer, x, c)
        case "M", Mamba() as sizes:
            return mamba(layer, x, sizes)
        case "M", GatedDelta() as sizes:
            return gated_delta(layer, x, sizes)
    return feed_forward(layer, x, c.feed_forward or 4 * c.width, c.gated, c.activation, c.feed_forward_bias)
