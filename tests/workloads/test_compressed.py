"""DeepSeek-V4's layers: products as torch counts them, keys counted one by one, streams and what devices share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from automap_models.core.model_work import LayerWork, Mark, WorkKind, WorkPass
from automap_models.core.sublayer_sizes import Compressed, Indexer, Mixture, Window
from automap_models.core.tuning import LayerTraining, Training
from automap_models.errors import BadInput
from automap_models.workloads.config_json import decode_config, read_config
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.transformer import decoder_block, model_work

from . import hugging_face

TOKENS, WIDTH, HEADS, HEAD, STREAMS = 512, 64, 4, 32, 3
SIZES = DecoderConfig(
    width=WIDTH,
    heads=HEADS,
    layers=3,
    vocabulary=96,
    positions=None,
    head_width=HEAD,
    root_mean_square=True,
    gated=True,
    attention_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    tied=False,
    compressed=Compressed(query_rank=24, groups=2, rank=11, few=4, many=32),
    window=Window(tokens=48),
    indexer=Indexer(heads=2, width=6, tokens=40),
    streams=STREAMS,
    mixture=Mixture(4, 4, 20, 20),
    blocks=("wE", "*E", "sE"),
)


def products(layer: LayerWork, *, core: bool) -> list[list[float]]:
    """Sizes of those of the forward pass, of attention cores or not."""
    k = layer.kernels
    chosen = (k.kinds == WorkKind.PRODUCT) & (k.passes == WorkPass.FORWARD) & (k.core == core)
    sizes: list[list[float]] = k.sizes[chosen].tolist()
    return sizes


def test_products_are_those_that_torch_counts(tmp_path: Path) -> None:
    """Of transformers' model, which computes all scores and masks them, mixes streams by products of n × n numbers, and
    whose products of experts torch does not count."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter")
    tokens, width = 256, 64
    changes = {"sliding_window": tokens, "index_topk": tokens, "max_position_embeddings": 512, "hidden_size": width}
    config = hugging_face.configuration("deepseek_v4", **changes)
    model = hugging_face.model_of(config, attn_implementation="eager")
    with counter.FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.zeros((1, tokens), dtype=torch.int64), use_cache=False)
    work = model_work(read_config(hugging_face.written(config, tmp_path)).architecture, "m", tokens, "float32")
    ours = sum(
        2 * float(np.prod(product))
        for i in work.order
        for core in (False, True)
        for product in products(work.layers[i], core=core)
    )
    routed = 4 * 2 * 3 * config.num_experts_per_tok * tokens * width * config.moe_intermediate_size
    mixing = 4 * 2 * 2 * tokens * config.hc_mult**2 * width
    assert ours - routed + mixing == pytest.approx(counted.get_total_flops())


@pytest.mark.parametrize(("sublayer", "rate"), [("w", 0), ("*", 32), ("s", 4)])
def test_keys_that_a_query_reads_are_counted_one_by_one(sublayer: str, rate: int) -> None:
    """Those of the window, and means of tokens before the query, of which at most 40 are chosen where m is 4."""
    query = np.arange(TOKENS)
    read = np.minimum(query + 1, 48).astype(float)
    if rate:
        read += np.minimum((query + 1) // rate, 40 if sublayer == "s" else TOKENS)
    (*_, scores, _) = products(decoder_block(SIZES, sublayer, TOKENS, "bfloat16"), core=True)
    assert scores[2:] == [HEADS * TOKENS, HEAD]
    assert scores[0] * scores[1] / 2 == pytest.approx(read.mean(), rel=0.02)


def test_means_are_of_as_many_tokens_as_a_document_has() -> None:
    packed = decoder_block(SIZES, "*", TOKENS, "bfloat16", LayerTraining(document=128))
    (scores, _) = products(packed, core=True)
    (alone, _) = products(decoder_block(SIZES, "*", 128, "bfloat16"), core=True)
    assert scores[1] == alone[1]


def test_streams_are_what_layers_hand_on_and_save() -> None:
    """n hidden states a token, and 2 n + n² weights of a product of all of them, for each of two sublayers."""
    block = decoder_block(SIZES, "wE", TOKENS, "bfloat16")
    assert block.boundary.values.tolist() == [2.0 * TOKENS * STREAMS * WIDTH]
    weights = STREAMS * (2 + STREAMS)
    assert products(block, core=False).count([1.0, TOKENS, weights, STREAMS * WIDTH]) == 2
    one = decoder_block(DecoderConfig(**{**vars(SIZES), "streams": 1}), "wE", TOKENS, "bfloat16")
    more = 2 * (weights * STREAMS * WIDTH + weights + 3)
    assert block.parameters.values.sum() - one.parameters.values.sum() == more


def test_devices_share_groups_of_heads_and_sum_what_these_give_once() -> None:
    """A group's matrix is on one device; the product after all of them is what is summed."""
    block = decoder_block(SIZES, "w", TOKENS, "bfloat16")
    k = block.kernels
    grouped = [i for i, sizes in enumerate(k.sizes.tolist()) if sizes[0] == 2 and k.passes[i] == WorkPass.FORWARD]
    assert [k.size_marks[i][0] for i in grouped] == [Mark.TENSOR]
    assert block.sums_forward.values.tolist() == [2.0 * TOKENS * WIDTH]
    marks = block.parameters.marks[block.parameters.values == HEADS * HEAD * 11]
    assert marks.tolist() == [Mark.TENSOR] * 2  # of the groups, and of the product after them


def test_adapters_of_groups_have_two_thin_matrices_each() -> None:
    work = model_work(SIZES, "m", 64, "bfloat16", Training(rank=2))
    block = work.layers[work.order[1]]
    counts = block.parameters.values.tolist()
    assert counts.count(2 * HEADS * HEAD) >= 1 and counts.count(2 * 2 * 11) >= 1


def test_a_window_that_is_none_is_refused() -> None:
    text = b'{"model_type": "deepseek_v4", "vocab_size": 9, "hidden_size": 64, "num_hidden_layers": 1, '
    text += b'"num_attention_heads": 8, "head_dim": 16, "layer_types": ["sliding_attention"], "sliding_window": 0}'
    with pytest.raises(BadInput, match="sliding_window"):
        decode_config(text, "m", where="config.json")
