"""An encoder and a decoder that attends to what it makes, in closed form: BART and its relatives, and Whisper.

    tokens, or sound ──→ encoder's blocks ── norm ──→ memory ─────┐
                                       tokens ──→ decoder's blocks ──→ norm, logits

Of sound, two convolutions of three instants each are products of its windows, the second one of every other window
(arXiv 2212.04356, section 2.2): so they are computed, and their windows are what is saved.
"""

from __future__ import annotations

from automap_models.core.model_work import LayerWork
from automap_models.core.tuning import LayerTraining
from automap_models.workloads.decoder_blocks import Places, Trainings, block_of, decoder_block
from automap_models.workloads.ends import hidden_states, predictions
from automap_models.workloads.layer import Layer, Value
from automap_models.workloads.sizes import Seq2SeqConfig


def encoder_decoder(c: Seq2SeqConfig, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places]:
    """What the first layer hands on, and the blocks of both; alike ones are one object."""
    frames, encoder = c.frames or first.tokens, c.encoder.layers
    x = heard(first, c, frames) if c.mel else hidden_states(first, c.encoder)
    predictions(last, c.decoder)

    def encoding(training: LayerTraining) -> LayerWork:
        return decoder_block(c.encoder, "*-", frames, first.dtype, training, "encoder/block")

    kinds = [(i == 0, i < c.decoder.layers - 1, kind) for i, kind in enumerate(of_blocks[encoder:])]
    encoders = {kind: encoding(kind) for kind in dict.fromkeys(of_blocks[:encoder])}
    decoders = {kind: _decoding(c, first, frames, *kind) for kind in dict.fromkeys(kinds)}
    return x, [*(encoders[kind] for kind in of_blocks[:encoder]), *(decoders[kind] for kind in kinds)]


def _decoding(
    c: Seq2SeqConfig, start: Layer, frames: int, first: bool, hands_on: bool, training: LayerTraining
) -> LayerWork:
    """A block of the decoder.

    Args:
        start: what comes before all blocks.
        first: whether it has the encoder's last norm, and embeds what the decoder reads.
        hands_on: whether later blocks read the encoder's output.
    """
    layer = Layer(start.tokens, start.dtype, training, c.decoder.operations)
    memory, x = layer.value(c.width, rows=frames), layer.value(c.width)
    if first:
        memory = layer.norm(memory, layer_norm=not c.encoder.root_mean_square) if c.encoder.final_norm else memory
        hidden_states(layer, c.decoder, again=not c.mel)
    x = block_of(layer, x, c.decoder, "*x-", memory)
    if not first:
        layer.received(memory)
    return layer.work("decoder/block", [x, memory] if hands_on else [x])


def heard(layer: Layer, c: Seq2SeqConfig, frames: int) -> Value:
    """What the encoder reads of sound: of two instants a frame."""
    instants = layer.value(3 * c.mel, rows=2 * frames)
    layer.activation(layer.dense(instants, c.width, bias=True, data=True))
    windows = layer.value(3 * c.width, rows=frames)
    return layer.activation(layer.dense(windows, c.width, bias=True))
