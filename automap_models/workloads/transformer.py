"""The layers of transformers in closed form, from their sizes alone: what strategies are priced from.

    sizes (workloads.sizes) ── this module ──→ operations of each layer (workloads.layer) ──→ ModelWork

The models are those of decoder.py, bert.py and t5.py, whose traces tests hold these forms against.
"""

from __future__ import annotations

from automap_models.core.model_work import LayerWork, Mark, ModelWork, SharedWork
from automap_models.core.tuning import ALL, FULL, LayerTraining, Training
from automap_models.workloads.decoder_blocks import block_of
from automap_models.workloads.layer import FIXED, FLOAT32, FORWARD, INPUT, WEIGHT, Layer, Value
from automap_models.workloads.sizes import (
    Architecture,
    BertConfig,
    DecoderConfig,
    T5Config,
    required_transformer,
    transformer_shape,
)
from automap_models.workloads.sublayers import (
    TENSOR,
    core,
    feed_forward,
    switched,
    turned,
    windowed,
)
from automap_models.workloads.tower import tower_layers

Places = list[LayerWork]
Trainings = list[LayerTraining]
"""What of each block is trained."""


def model_work(config: Architecture, name: str, sequence: int, dtype: str, training: Training = FULL) -> ModelWork:
    """The work of a transformer by layers.

    Args:
        config: its sizes.
        name: for people.
        sequence: tokens of a sample.
        dtype: what its layers compute in.
        training: what of it is trained.

    Raises:
        BadInput: it is no transformer, or has not what is to be trained.
    """
    sizes = required_transformer(name, config)
    shape = transformer_shape(sizes, name, sequence)
    tower, ties = (sizes.tower, sizes.ties) if isinstance(sizes, DecoderConfig) else (None, True)
    *of_tower, of_first = (trained := training.layers(shape.layers, ties, tower is not None))[: -shape.layers - 1]
    *of_blocks, of_last = trained[-shape.layers - 1 :]
    first, last = Layer(sequence, dtype, of_first), Layer(sequence, dtype, of_last)
    match sizes:
        case DecoderConfig():
            x, blocks, tied = _decoder(sizes, first, last, of_blocks)
        case BertConfig():
            x, blocks, tied = _bert(sizes, first, last, of_blocks)
        case T5Config():
            x, blocks, tied = _t5(sizes, first, last, of_blocks)
    places = (first.work("embedding", [x]), *blocks, last.work("head"))
    layers = list(dict.fromkeys(places))  # those that are one object are one of its layers
    order = tuple(layers.index(layer) for layer in places)
    of_both_ends = float(shape.vocabulary * shape.hidden) if tied else 0.0
    shared: tuple[SharedWork, ...] = ()
    if tied and not of_first.trains("embedding"):
        shared = (SharedWork(0.0, of_both_ends * first.item_bytes, (0, len(order) - 1)),)
        of_both_ends = 0.0
    elif shape.mtp_layers and not tied:  # Megatron's last rank has a copy of the embedding, for further tokens
        table = float(shape.vocabulary * shape.hidden)
        trains = of_first.trains("embedding")
        shared = (SharedWork(table * trains, table * first.item_bytes * (not trains), (0, len(order) - 1), False),)
    recurrent = isinstance(sizes, DecoderConfig) and sizes.recurrence is not None
    before = tower_layers(tower, dtype, *of_tower) if tower else ()
    return ModelWork(shape, tuple(layers), order, dtype, of_both_ends, shared, recurrent, training, before)


def _decoder(config: DecoderConfig, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places, bool]:
    """What the first layer hands on, the blocks, and whether logits are taken with the word embedding."""
    x = embedded(first, config.vocabulary, config.width, positions=config.positions, tied=config.ties)
    if config.embedding_norm:
        x = first.norm(x, layer_norm=not config.root_mean_square)
    first.dropout(x, config.embedding_dropout)
    final = last.norm(last.value(config.width), layer_norm=not config.root_mean_square)
    classes, mark = (config.vocabulary, TENSOR) if config.classes is None else (config.classes, FIXED)
    capped = config.logit_cap is not None
    logits = classified(last, final, classes, mark, tied=config.ties, capped=capped)
    if config.head_bias and config.classes is None:
        last.bias(logits)
    for _ in range(config.predicting_layers):
        states, embedding = (last.norm(last.value(config.width), layer_norm=False) for _ in range(2))
        x_next = last.dense(last.value(states.width + embedding.width), config.width)
        x_next = block_of(last, x_next, config, "*E" if config.mixture else "*-")
        predicted = last.norm(x_next, layer_norm=not config.root_mean_square)
        classified(last, predicted, classes, mark, tied=True, capped=capped)
    return x, _decoder_blocks(config, first.tokens, first.dtype, of_blocks), config.ties


def _bert(config: BertConfig, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places, bool]:
    """The same."""
    x = embedded(first, config.vocabulary, config.width, positions=config.positions, types=config.types, tied=True)
    x = first.norm(x, layer_norm=True)
    first.dropout(x, config.embedding_dropout)
    predicted = last.activation(last.dense(last.value(config.width), config.width, bias=True))
    logits = classified(last, last.norm(predicted, layer_norm=True), config.vocabulary, tied=True)
    last.bias(logits)
    blocks = {kind: bert_block(config, first.tokens, first.dtype, kind) for kind in dict.fromkeys(of_blocks)}
    return x, [blocks[kind] for kind in of_blocks], True


def _t5(config: T5Config, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places, bool]:
    """The same."""
    x = embedded(first, config.vocabulary, config.width, tied=True)
    relative_bias(first, config)
    final = last.norm(last.value(config.width), layer_norm=False)
    classified(last, final, config.vocabulary, tied=config.tied)
    encoder = config.stacks[0].layers
    blocks = _t5_blocks(config, first.tokens, first.dtype, of_blocks[:encoder], decoder=False)
    return x, blocks + _t5_blocks(config, first.tokens, first.dtype, of_blocks[encoder:], decoder=True), config.tied


# --- blocks


def _decoder_blocks(c: DecoderConfig, sequence: int, dtype: str, of_blocks: Trainings) -> Places:
    """Of a decoder; alike ones are one object."""
    alike = c.window is None or (c.window.tokens >= sequence and windowed(c) == c)
    kinds = [kind.replace("w", "*") if alike else kind for kind in c.sublayers]
    trained = list(zip(kinds, of_blocks, strict=True))
    blocks = {kind: decoder_block(c, kind[0], sequence, dtype, kind[1]) for kind in dict.fromkeys(trained)}
    return [blocks[kind] for kind in trained]


def decoder_block(
    c: DecoderConfig, sublayers: str, sequence: int, dtype: str, training: LayerTraining = ALL
) -> LayerWork:
    """Its sublayers, see `DecoderConfig.blocks`."""
    layer = Layer(sequence, dtype, training)
    return layer.work("block", [block_of(layer, layer.value(c.width), c, sublayers)])


def bert_block(c: BertConfig, sequence: int, dtype: str, training: LayerTraining = ALL) -> LayerWork:
    """Attention and feed-forward layers, a layer norm after each residual sum."""
    layer = Layer(sequence, dtype, training)
    x = layer.value(c.width)
    q, k, v = (layer.dense(x, c.width, TENSOR, bias=True, name=name) for name in "qkv")
    change = core(layer, turned(layer, q), turned(layer, k, False), v, c.heads, dropout=c.attention_dropout)
    change = layer.dense(change, c.width, bias=True, name="o")
    x = layer.norm(layer.add(x, change, *layer.dropout(change, c.residual_dropout)), layer_norm=True)
    change = feed_forward(layer, x, c.feed_forward or 4 * c.width, False, c.activation, True)
    x = layer.norm(layer.add(x, change, *layer.dropout(change, c.residual_dropout)), layer_norm=True)
    return layer.work("block", [x], causal=False)


def _t5_blocks(c: T5Config, sequence: int, dtype: str, of_blocks: Trainings, *, decoder: bool) -> Places:
    """The blocks of one stack; alike ones are one object."""
    count = len(of_blocks)
    kinds = [
        (decoder and i == 0, decoder and i < count - 1, c.experts > 0 and i % 2 == 1, of_blocks[i])
        for i in range(count)
    ]
    blocks = {kind: t5_block(c, sequence, dtype, decoder, *kind) for kind in dict.fromkeys(kinds)}
    return [blocks[kind] for kind in kinds]


def t5_block(
    c: T5Config,
    sequence: int,
    dtype: str,
    decoder: bool,
    first: bool,
    hands_on: bool,
    sparse: bool,
    training: LayerTraining = ALL,
) -> LayerWork:
    """Attention, in the decoder to the encoder's output, too, and feed-forward layers.

    Args:
        first: whether it has the encoder's last norm, and embeds what the decoder reads.
        hands_on: whether later blocks read the encoder's output.
        sparse: whether it has experts.
    """
    layer = Layer(sequence, dtype, training)
    memory = layer.value(c.width)
    if first:
        layer.norm(layer.value(c.width), layer_norm=False)
        embedded(layer, c.vocabulary, c.width, tied=True, again=True)
        relative_bias(layer, c)

    def attended(x: Value, source: Value | None = None) -> Value:
        read = layer.norm(x, layer_norm=False)
        q = layer.dense(read, c.heads * c.head_width, TENSOR, name="q")
        k, v = (layer.dense(source or read, c.heads * c.head_width, TENSOR, name=name) for name in "kv")
        mixed = core(layer, turned(layer, q, False), turned(layer, k, False), v, c.heads, biased=source is None)
        return layer.add(x, layer.dense(mixed, c.width, name="o"))

    x = attended(layer.value(c.width))
    if decoder:
        x = attended(x, memory)
        if not first:
            layer.received(memory)
    read = layer.norm(x, layer_norm=False)
    if sparse:
        change = switched(layer, read, c.experts, c.feed_forward)
    else:
        change = feed_forward(layer, read, c.feed_forward, c.gated, c.activation)
    x = layer.add(x, change)
    name = "decoder/block" if decoder else "encoder/block"
    return layer.work(name, [x, memory] if hands_on else [x], causal=decoder)


# --- what comes before and after the blocks


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
        again: whether another layer has it among its parameters.
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
        if not again:
            layer.hold(rows * width, mark, "embedding")
    layer.memory(FORWARD, x, *(read for _, read, *_ in tables))
    if positions is not None:
        layer.memory(WEIGHT, row, x, name="embedding")
    layer.sums_forward.append(x)
    return x


def relative_bias(layer: Layer, c: T5Config) -> None:
    """A number for each head and distance (arXiv 1910.10683, section 2.1), as a table with queries and keys."""
    tokens, mark = layer.tokens, Mark.TOKENS | TENSOR
    bias = Value((c.heads, tokens, tokens), mark, layer.item_bytes)
    layer.memory(FORWARD, bias, bias)
    layer.memory(FORWARD, bias, bias)
    layer.memory(WEIGHT, bias, bias)
    layer.memory(WEIGHT, bias, bias, bias)
    layer.hold(c.buckets * c.heads, TENSOR)


def classified(layer: Layer, x: Value, classes: int, mark: Mark = TENSOR, *, tied: bool, capped: bool = False) -> Value:
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
