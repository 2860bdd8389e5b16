"""DeepSeek-V4's blocks in the operations of workloads.layer: attention to compressed tokens, and residual streams.

    x ─→ query latent ─→ queries ──────────────┐
    x ─→ keys, which are the values ─ window ──┤ core ─→ groups of heads, each to a latent ─→ product ─→ change
    x ─→ weighted means of m tokens ───────────┘

A query reads the keys of a window, and one of each m tokens before: all of those where m is 128, and where it is 4 the
ones that an indexer chooses, which has means and keys of its own. A mean of 4 reads 8 tokens, by two products.

Of n streams side by side (2512.24880) a sublayer reads a weighted sum, and the next ones are what it gives, weighted,
and sums of these before. All weights are of one product over all streams of a token, in fp32. The kernels save streams
and weights, and iterate the latter again: they are bound by their bytes.
"""

from __future__ import annotations

from automap_models.core.model_work import Mark
from automap_models.workloads.layer import FLOAT32, FORWARD, INPUT, WEIGHT, Layer, Value
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.sublayers import core, indexed, keys_read, turned

TENSOR = Mark.TENSOR


def compressed_attention(layer: Layer, x: Value, c: DecoderConfig, sublayer: str) -> Value:
    """Of one head of keys; `*` reads all means of many tokens, `s` chosen ones of a few, and `w` none."""
    sizes, width, document = c.compressed, c.head_width, layer.document
    assert sizes is not None and width is not None and c.window is not None
    narrow = layer.norm(layer.dense(x, sizes.query_rank), layer_norm=False)
    q = layer.dense(narrow, c.heads * width, TENSOR, name="q")
    layer.save(q)  # its norm has no scales
    q = turned(layer, q)
    k = turned(layer, layer.norm(layer.dense(x, width, name="k"), layer_norm=False))
    layer.hold(c.heads, TENSOR)  # sinks
    reach, rows = keys_read(document, c.window), float(layer.tokens)
    if sublayer != "w":
        rate = sizes.few if sublayer == "s" else sizes.many
        means(layer, x, width, rate, 1 + (sublayer == "s"))
        rows += layer.tokens / rate
        reach += document / rate if sublayer == "*" else _chosen(layer, x, narrow, c, rate)
        k = layer.value(width, rows=rows)
        layer.memory(FORWARD, k, k)  # those of single tokens and means in one
        layer.memory(INPUT, k, k)
    layer.sums_backward.append(k)  # all heads read it
    mixed = turned(layer, core(layer, q, k, k, c.heads, 1, reach=reach))
    return layer.dense(layer.dense(mixed, sizes.groups * sizes.rank, groups=sizes.groups), c.width, name="o")


def means(layer: Layer, x: Value, width: int, rate: int, overlapping: int) -> Value:
    """Of so many tokens each, weighted by a softmax of their own for every column, and normed.

    Args:
        overlapping: 2 where a mean reads as many tokens before these, too.
    """
    values, weights = (layer.dense(x, overlapping * width) for _ in range(2))
    mean = layer.value(width, rows=layer.tokens / rate)
    layer.hold(rate * weights.width, 0)  # by the place of a token
    layer.memory(FORWARD, mean, values, weights)
    layer.memory(INPUT, values, weights, mean, values, weights)
    layer.memory(WEIGHT, layer.weights(rate * weights.width), weights)
    layer.save(values, weights)
    return turned(layer, layer.norm(mean, layer_norm=False))


def _chosen(layer: Layer, x: Value, queries: Value, c: DecoderConfig, rate: int) -> float:
    """Means that a query reads, chosen by the scores of all before it."""
    indexer = c.indexer
    assert indexer is not None
    keys = means(layer, x, indexer.width, rate, 2)
    indexed(layer, x, indexer, queries, keys)
    return keys_read(layer.document // rate, indexer)


# --- streams


def widened(layer: Layer, x: Value, streams: int) -> Value:
    """As many streams, all of them x."""
    y = layer.value(streams * x.width)
    layer.memory(FORWARD, y, x)
    layer.memory(INPUT, x, y)
    return y


def collapsed(layer: Layer, x: Value, streams: int, *, mixes: bool = True) -> Value:
    """What a sublayer reads of all streams; `mixes` is whether what it gives goes back into them, by weights too."""
    weights = streams * (2 + streams if mixes else 1)
    layer.dense(x, weights, float32=True)
    layer.hold(weights + (3 if mixes else 1), 0, "bias")
    y = layer.value(x.width / streams)
    layer.memory(FORWARD, y, x)
    layer.memory(INPUT, x, y, x)
    layer.save(x, layer.value(weights, item_bytes=FLOAT32))
    return y


def joined(layer: Layer, x: Value, change: Value) -> Value:
    """The streams after a sublayer: sums of them, and what it gives."""
    y = layer.like(x)
    layer.memory(FORWARD, y, x, change)
    layer.memory(INPUT, x, change, y, x, change)
    layer.reads(x)
    layer.save(x, change)
    return y
