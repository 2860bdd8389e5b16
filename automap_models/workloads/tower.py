"""Towers of images in closed form: the layers in front of a decoder that turn patches into its tokens.

    patches ── stem ──→ blocks ── ending ──→ projector ──→ rows among the decoder's tokens
                          └─ single blocks ──→ further projectors

Blocks are those of a decoder whose attention reads all of an image, or a window of it, and no other image.

Megatron keeps a tower on the first rank of the pipeline, with the tensor parallelism of the decoder; each device of
context parallelism runs it on all images, and sequence parallelism is switched off in it (pretrain_vlm.py). It
recomputes what the decoder does, as its sizes are a copy of the decoder's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from automap_models.core.model_work import Mark, TowerLayers, undivided
from automap_models.core.sublayer_sizes import Window
from automap_models.core.tuning import LayerTraining
from automap_models.workloads.decoder_blocks import Places, Trainings, block_of, decoder_block
from automap_models.workloads.ends import classified
from automap_models.workloads.layer import FIXED, FORWARD, INPUT, WEIGHT, Layer, Value
from automap_models.workloads.sizes import ImageConfig, Step, Tower

STEPS = {
    "dense": "a product with a matrix",
    "gated": "two, of which one gates the other",
    "norm": "a layer norm",
    "rms": "one without mean and bias",
    "act": "an activation",
    "merge": "neighbouring patches side by side in one row",
    "pool": "means of neighbouring patches",
    "attend": "what a learned query reads of each image",
    "class": "a learned token before the patches",
    "positions": "a learned vector for each token",
    "token": "a learned vector that few samples use",
}
"""Kinds of steps."""


def tower_layers(c: Tower, dtype: str, of_tower: LayerTraining, of_projector: LayerTraining) -> tuple[TowerLayers, ...]:
    """The stem, the blocks, and what follows them, of all images of a sample.

    Args:
        dtype: what they compute in.
        of_tower, of_projector: what of them is trained.
    """
    tokens, width = c.images * (c.patches + c.extra), c.encoder.width

    def stepped(x: Value, layer: Layer, *series: Sequence[Step]) -> TowerLayers:
        ends = [_stepped(layer, x, steps, c.images, data=layer is stem) for steps in series]
        return TowerLayers(undivided(layer.work("vision/steps", ends, causal=False)))

    def block(reach: int) -> TowerLayers:
        layer = Layer(tokens, dtype, of_tower, c.encoder.operations)
        sizes = replace(c.encoder, window=Window(tokens=reach, chunked=True))
        x = block_of(layer, layer.value(width), sizes, "w-")
        return TowerLayers(undivided(layer.work("vision/block", [x], causal=False)), c.reach.count(reach), True)

    stem, ending, after = (
        Layer(tokens, dtype, part, c.encoder.operations) for part in (of_tower, of_tower, of_projector)
    )
    rows = c.images * c.patches
    parts = [stepped(stem.value(c.patch_numbers, rows=rows), stem, c.stem), *map(block, Counter(c.reach))]
    parts += [stepped(ending.value(width), ending, c.ending)] * bool(c.ending)
    return (*parts, stepped(after.value(width, rows=rows), after, c.projector, *c.further))


def image_encoder(c: ImageConfig, first: Layer, last: Layer, of_blocks: Trainings) -> tuple[Value, Places]:
    """Of a tower as a model of its own what the first layer hands on, and the blocks; alike ones are one object."""
    tower, encoder = c.tower, c.tower.encoder
    x = _stepped(first, first.value(tower.patch_numbers, rows=tower.patches), tower.stem, 1, data=True)
    _stepped(last, last.value(c.width), tower.ending, 1, data=False)
    last.bias(classified(last, last.value(c.read * c.width, rows=1), c.classes, FIXED, tied=False))
    blocks = {kind: decoder_block(encoder, "*-", c.tokens, first.dtype, kind) for kind in dict.fromkeys(of_blocks)}
    return x, [blocks[kind] for kind in of_blocks]


def _stepped(layer: Layer, x: Value, steps: Sequence[Step], images: int, data: bool) -> Value:
    """What steps make of the tokens of all images; of a perceptron devices share the columns between its products."""
    for number, step in enumerate(steps):
        inner = steps[number + 1 : number + 2] == (Step("act"),)
        rows, width, of_rows = x.shape[1], x.width, x.mark & ~Mark.TENSOR
        match step.kind:
            case "dense":
                mark = Mark.TENSOR if inner else FIXED
                x = layer.dense(x, step.size, mark, bias=step.bias, data=data and not number)
            case "gated":
                gate, up = (layer.dense(x, step.size, Mark.TENSOR, bias=step.bias) for _ in range(2))
                x = layer.gated(gate, up)
            case "norm" | "rms":
                x = layer.norm(x, layer_norm=step.kind == "norm")
            case "act":
                x = layer.activation(x)
            case "merge":
                x = Value((1, rows / step.size, width * step.size), of_rows, x.item_bytes)
            case "pool":
                y = Value((1, images * step.size, width), of_rows, x.item_bytes)
                layer.memory(FORWARD, y, x)
                layer.memory(INPUT, x, y)
                x = y
            case "attend":
                layer.dense(x, 2 * width, bias=True)
                layer.hold(width, FIXED, "embedding")
                y = Value((1, images, width), of_rows, x.item_bytes)
                layer.memory(FORWARD, y, x, x)
                layer.memory(INPUT, x, x, y, x, x)
                x = layer.dense(layer.dense(y, int(width), bias=True), int(width), bias=True)
            case "class":
                x = Value((1, rows + images, width), of_rows, x.item_bytes)
                layer.memory(FORWARD, x, x)
                layer.hold(width, FIXED, "embedding")
            case "positions":
                table = layer.weights(step.size * width)
                layer.memory(FORWARD, x, x, table)
                layer.memory(WEIGHT, table, x, name="embedding")
                layer.hold(*table.size, "embedding")
            case "token":
                layer.hold(step.size or width, FIXED, "embedding")
    return x
