"""What comes before a transformer's blocks and after them, in the operations of workloads.layer."""

from __future__ import annotations

from automap_models.core.model_work import Mark
from automap_models.workloads.compressed import collapsed, widened
from automap_models.workloads.layer import FIXED, FLOAT32, FORWARD, INPUT, WEIGHT, Layer, Value
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.sublayers import TENSOR


def hidden_states(layer: Layer, c: DecoderConfig, *, again: bool = False) -> Value:
    """What the first block reads; `again` is that of `embedded`."""
    width = c.embedding_width or c.width
    x = embedded(layer, c.vocabulary, width, positions=c.positions, types=c.types, tied=c.ties or again, again=again)
    if c.embedding_norm:
        x = layer.norm(x, layer_norm=not c.root_mean_square)
    layer.dropout(x, c.embedding_dropout)
    x = x if width == c.width else layer.dense(x, c.width, bias=True)
    return x if c.streams == 1 else widened(layer, x, c.streams)


def predictions(layer: Layer, c: DecoderConfig) -> None:
    """What is made of what the last block gives."""
    x = layer.value(c.streams * c.width)
    if c.streams > 1:
        x = collapsed(layer, x, c.streams, mixes=False)
    if c.final_norm:
        x = layer.norm(x, layer_norm=not c.root_mean_square)
    if c.predictor:
        x = layer.activation(layer.dense(x, c.embedding_width or c.width, bias=c.predictor == "biased"))
        x = layer.norm(x, layer_norm=not c.root_mean_square)
    if c.temperatures:
        x = layer.value(c.width, rows=1)
    logits = class_logits(layer, x, c, tied=c.ties)
    if c.head_bias and (c.classes is None or c.temperatures):
        layer.bias(logits)
    for _ in range(c.temperatures):
        layer.hold(1, FIXED, "bias")


def class_logits(layer: Layer, x: Value, c: DecoderConfig, *, tied: bool) -> Value:
    """Logits of the vocabulary, or of the classes of a model that classifies; `tied` is that of `classified`."""
    classes, mark = (c.vocabulary, TENSOR) if c.classes is None else (c.classes, FIXED)
    return classified(layer, x, classes, mark, tied=tied, capped=c.logit_cap is not None)


def embedded(
    layer: Layer,
    vocabulary: int,
    width: int,
    *,
    positions: int | None = None,
    types: int = 0,
    tied: bool = False,
    again: bool = False,
) -> Value:
    """The rows of tokens, added to those of their positions and types.

    Args:
        positions, types: that have rows of their own.
        tied: whether another layer adds to the gradients of the table.
        again: whether another layer has the table of tokens among its parameters.
    """
    x, row = layer.value(width), layer.value(width, Mark.TOKENS)
    tables = [(vocabulary, x, TENSOR, tied)] + [(types, x, FIXED, False)] * bool(types)
    tables += [(positions or 0, row, FIXED, False)] * (positions is not None)
    for rows, read, mark, more in tables:
        table = layer.weights(rows * width, mark)
        layer.memory(FORWARD, read, read)
        layer.memory(WEIGHT, table, name="embedding")
        layer.memory(WEIGHT, read, read, read, name="embedding")
        if more or layer.item_bytes < FLOAT32:
            of_parameters = layer.weights(rows * width, mark, FLOAT32)
            layer.memory(WEIGHT, of_parameters, table, *[of_parameters] * more, name="embedding")
        if not (again and more):
            layer.hold(rows * width, mark, "embedding")
    layer.memory(FORWARD, x, *(read for _, read, *_ in tables))
    if positions is not None:
        layer.memory(WEIGHT, row, x, name="embedding")
    layer.sums_forward.append(x)
    return x


def classified(layer: Layer, x: Value, classes: int, mark: int = TENSOR, *, tied: bool, capped: bool = False) -> Value:
    """Logits, and the cross-entropy of them in float32, as JAX has it: a share of their gradients is of that type.

    Args:
        mark: TENSOR where devices share the classes.
        tied: whether the matrix is that of the embedding, which has the parameters.
        capped: whether logits have a limit.
    """
    logits = layer.dense(x, classes, mark, owned=not tied, name="logits")
    numbers = layer.value(1, item_bytes=FLOAT32)
    layer.memory(FORWARD, logits, numbers, *[logits] * (layer.item_bytes == FLOAT32))
    if capped:
        layer.memory(FORWARD, logits, logits)
    wide = layer.like(logits, FLOAT32)
    layer.memory(INPUT, wide)
    layer.memory(INPUT, logits, logits, wide, *[numbers] * 2)
    layer.save(logits)
    layer.sums_forward.extend([numbers] * 3)
    return logits
