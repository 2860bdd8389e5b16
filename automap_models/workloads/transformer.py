"""The layers of transformers in closed form, from their sizes alone: what strategies are priced from.

    sizes (workloads.sizes) ── this module ──→ operations of each layer (workloads.layer) ──→ ModelWork

The models are those of decoder.py, bert.py and t5.py, whose traces tests hold these forms against.
"""

from __future__ import annotations

from dataclasses import replace

from automap_models.core.model_work import LayerWork, Mark, ModelWork, SharedWork
from automap_models.core.sublayer_sizes import UNFUSED
from automap_models.core.tuning import ALL, FULL, LayerTraining, Training
from automap_models.errors import BadInput
from automap_models.workloads.compressed import collapsed, widened
from automap_models.workloads.decoder_blocks import Places, Trainings, block_of, decoder_block
from automap_models.workloads.encoder_decoder import encoder_decoder
from automap_models.workloads.ends import class_logits, classified, embedded, hidden_states, predictions
from automap_models.workloads.layer import FORWARD, WEIGHT, Layer, Value
from automap_models.workloads.sizes import (
    Architecture,
    BertConfig,
    DecoderConfig,
    ImageConfig,
    Seq2SeqConfig,
    T5Config,
    Transformer,
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
from automap_models.workloads.tower import image_encoder, tower_layers

Stacked = DecoderConfig | T5Config | Seq2SeqConfig | ImageConfig
"""Sizes of what has layers of its own: BERT's are of a decoder."""


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
    if isinstance(sizes, BertConfig):
        sizes = sizes.encoder
    document = training.packed or (sequence if training.sequences > 1 else None)
    sequence = sizes.tokens if isinstance(sizes, ImageConfig) else training.sequences * sequence
    sizes = _of_loss(sizes, name, sequence, training)
    shape = transformer_shape(sizes, name, sequence)
    tower = sizes.tower if isinstance(sizes, DecoderConfig) else None
    table, holders = tied_table(sizes)
    trained = training.layers(shape.layers, holders[:1] == (0,), tower is not None, document)
    of_tower, of_places = trained[: -shape.layers - 2], trained[-shape.layers - 2 :]
    of_first, *of_blocks, of_last = of_places
    operations = sizes.operations if isinstance(sizes, DecoderConfig | T5Config) else UNFUSED  # others have layer norms
    first, last = (Layer(sequence, dtype, part, operations) for part in (of_first, of_last))
    match sizes:
        case DecoderConfig():
            x, blocks = _decoder(sizes, first, last, of_blocks)
        case T5Config():
            x, blocks = _t5(sizes, first, last, of_blocks)
        case Seq2SeqConfig():
            x, blocks = encoder_decoder(sizes, first, last, of_blocks)
        case ImageConfig():
            x, blocks = image_encoder(sizes, first, last, of_blocks)
    places = (first.work("embedding", [x]), *blocks, last.work("head"))
    # Blocks that are alike are one object (_decoder): they are priced once, and counted by `order`.
    layers = list(dict.fromkeys(places))
    order = tuple(layers.index(layer) for layer in places)
    shared: tuple[SharedWork, ...] = ()
    trains = of_places[holders[0] if holders else 0].trains("embedding")
    of_both_ends = table if trains and holders == (0, -1) else 0.0
    frozen_bytes = first.item_bytes * ((not trains) + training.has_copy)
    if holders and (frozen_bytes or not of_both_ends):
        sharing = tuple(place % len(order) for place in holders)
        shared = (SharedWork(table * (trains and not of_both_ends), table * frozen_bytes, sharing),)
    elif shape.mtp_layers and not holders:  # Megatron's last rank has a copy of the embedding, for further tokens
        table = float(shape.vocabulary * shape.hidden)
        shared = (SharedWork(table * trains, table * frozen_bytes, (0, len(order) - 1), False),)
    recurrent = isinstance(sizes, DecoderConfig) and sizes.recurrence is not None
    before = tower_layers(tower, dtype, *of_tower) if tower else ()
    return ModelWork(shape, tuple(layers), order, dtype, of_both_ends, shared, recurrent, training, before)


def _of_loss(sizes: Stacked, name: str, sequence: int, training: Training) -> Stacked:
    """The sizes of what is trained by a loss on samples of so many tokens: of two sequences, which have images each.

    Raises:
        BadInput: a model without one stream of text has no documents, and one that is not causal no pairs.
    """
    packed, loss = training.packed, training.loss
    if packed > sequence:
        do = f"give at most the {sequence:,} tokens of a sample"
        raise BadInput(f"documents of {packed:,} tokens do not fit a sample", where="`packed`", do=do)
    if not packed and loss == "tokens":
        return sizes
    if not isinstance(sizes, DecoderConfig) or sizes.temperatures or not (sizes.causal or packed):
        where, what = ("`packed`", "a decoder or BERT") if packed else ("`loss`", "a decoder")
        raise BadInput(f"is of {what}, and {name} is none", where=where, do="leave it out")
    tower = sizes.tower and replace(sizes.tower, images=training.sequences * sizes.tower.images)
    sizes = replace(sizes, tower=tower)
    return replace(sizes, classes=1, predicting_layers=0) if loss == "reward" else sizes


def tied_table(sizes: Transformer) -> tuple[float, tuple[int, ...]]:
    """Parameters of the word embedding that is the output matrix, too, and the places that have it; none where not."""
    if isinstance(sizes, Seq2SeqConfig):
        count, (_, holders) = sizes.encoder.layers, tied_table(sizes.decoder)
        tokens = () if sizes.mel else (0,)
        return float(sizes.vocabulary * sizes.width), (*tokens, 1 + count, -1) if holders else ()
    if isinstance(sizes, DecoderConfig) and sizes.ties:
        return float(sizes.vocabulary * (sizes.embedding_width or sizes.width)), (0, -1)
    is_t5 = isinstance(sizes, T5Config) and sizes.tied
    return (float(sizes.vocabulary * sizes.width), (0, -1)) if is_t5 else (0.0, ())


def _decoder(config: DecoderConfig, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places]:
    """What the first layer hands on, and the blocks."""
    x = hidden_states(first, config)
    predictions(last, config)
    for _ in range(config.predicting_layers):
        states, embedding = (last.norm(last.value(config.width), layer_norm=False) for _ in range(2))
        x_next = last.dense(last.value(states.width + embedding.width), config.width)
        if config.streams > 1:
            x_next = widened(last, x_next, config.streams)
        x_next = block_of(last, x_next, config, "w*"[not config.compressed] + ("E" if config.mixture else "-"))
        if config.streams > 1:
            x_next = collapsed(last, x_next, config.streams, mixes=False)
        class_logits(last, last.norm(x_next, layer_norm=not config.root_mean_square), config, tied=True)
    return x, _decoder_blocks(config, first.tokens, first.dtype, of_blocks)


def _t5(config: T5Config, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places]:
    """The same."""
    x = embedded(first, config.vocabulary, config.width, tied=True)
    relative_bias(first, config)
    final = last.norm(last.value(config.width), layer_norm=False)
    classified(last, final, config.vocabulary, tied=config.tied)
    encoder = config.stacks[0].layers
    blocks = _t5_blocks(config, first.tokens, first.dtype, of_blocks[:encoder], decoder=False)
    return x, blocks + _t5_blocks(config, first.tokens, first.dtype, of_blocks[encoder:], decoder=True)


# --- blocks


def _decoder_blocks(c: DecoderConfig, sequence: int, dtype: str, of_blocks: Trainings) -> Places:
    """Of a decoder; alike ones are one object."""
    alike = not c.compressed and (c.window is None or (c.window.tokens >= sequence and windowed(c) == c))
    kinds = [kind.replace("w", "*") if alike else kind for kind in c.sublayers]
    trained = list(zip(kinds, of_blocks, strict=True))
    blocks = {kind: decoder_block(c, kind[0], sequence, dtype, kind[1]) for kind in dict.fromkeys(trained)}
    return [blocks[kind] for kind in trained]


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
    layer = Layer(sequence, dtype, training, c.operations)
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


def relative_bias(layer: Layer, c: T5Config) -> None:
    """A number for each head and distance (arXiv 1910.10683, section 2.1), as a table with queries and keys."""
    tokens, mark = layer.tokens, Mark.TOKENS | TENSOR
    bias = Value((c.heads, tokens, tokens), mark, layer.item_bytes)
    layer.memory(FORWARD, bias, bias)
    layer.memory(FORWARD, bias, bias)
    layer.memory(WEIGHT, bias, bias)
    layer.memory(WEIGHT, bias, bias, bias)
    layer.hold(c.buckets * c.heads, TENSOR)
