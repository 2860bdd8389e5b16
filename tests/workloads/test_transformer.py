"""A model's work by layers has the sizes that the literature states, and its marks say what strategies divide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from automap_models.core.instruction_graph import Phase
from automap_models.core.model_work import Amounts, LayerWork, Mark, ModelWork, WorkKind, WorkPass
from automap_models.core.sublayer_sizes import GatedDelta, Indexer, Latent, Mamba, Mixture, Rotary, Window
from automap_models.workloads.sizes import BertConfig, DecoderConfig, T5Config
from automap_models.workloads.sublayers import keys_read
from automap_models.workloads.transformer import model_work

SEQUENCE = 24
GPT = DecoderConfig(width=64, heads=4, head_width=16, feed_forward=256, layers=6, vocabulary=160, positions=48)
LLAMA = DecoderConfig(
    width=64,
    heads=8,
    head_width=8,
    kv_heads=4,
    feed_forward=176,
    layers=6,
    vocabulary=160,
    positions=None,
    attention_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    activation="silu",
    gated=True,
    root_mean_square=True,
    rotary=Rotary(8),
    tied=False,
)
MIXTRAL = replace(LLAMA, mixture=Mixture(8, 2, 112))
LATENT = Latent(query_rank=24, rank=20, plain_width=12, rotary=Rotary(8), value_width=10)
DEEPSEEK = replace(LLAMA, kv_heads=None, latent=LATENT, dense_layers=1, mixture=Mixture(8, 2, 112, 80))
BERT = BertConfig(width=64, heads=4, layers=6, vocabulary=160, positions=48)
T5 = T5Config(width=64, heads=4, head_width=16, feed_forward=176, layers=6, vocabulary=160)
FAMILIES: dict[str, Any] = {
    "gpt": GPT,
    "neox": replace(GPT, positions=None, rotary=Rotary(8), parallel=True, tied=False),
    "llama": LLAMA,
    "qwen3": replace(LLAMA, query_norm="head"),
    "mixtral": MIXTRAL,
    "deepseek": DEEPSEEK,
    "bert": BERT,
    "t5": T5,
    "switch": replace(T5, layers=12, experts=8),
}
EXPERTS = Mixture(8, 2, 112, 80)
HYBRIDS: dict[str, Any] = {
    "nemotron_h": replace(
        LLAMA,
        **{"blocks": ("M", "E", "M", "*", "-", "E"), "gated": False, "activation": "relu2", "rotary": None},
        mixture=replace(EXPERTS, latent=32),
        recurrence=Mamba(heads=8, head_width=12, state=10, groups=4, chunk=8),
    ),
    "qwen3_next": replace(
        LLAMA,
        **{"blocks": ("ME", "ME", "*E") * 2, "query_norm": "head", "gated_attention": True},
        mixture=replace(EXPERTS, shared_gate=True),
        recurrence=GatedDelta(heads=8, key_heads=4, key_width=6, value_width=10, chunk=8),
    ),
}
"""Models that are not traced."""
CLOSED = FAMILIES | HYBRIDS
LINEAR = [name for name in CLOSED if name not in ("t5", "switch")]
"""Whose work is linear in the tokens but for scores."""
WITH_HEAD_WIDTH = [name for name in CLOSED if name != "bert"]  # a BERT's heads are its width


@cache
def _work(architecture: Any, sequence: int = SEQUENCE) -> ModelWork:
    return model_work(architecture, "m", sequence, "bfloat16")


def _layers(work: ModelWork) -> Iterator[LayerWork]:
    return (work.layers[k] for k in work.order)


def _blocks(work: ModelWork) -> list[LayerWork]:
    return [layer for layer in _layers(work) if "block" in layer.name]


def _flop(layer: LayerWork, *passes: int) -> float:
    kernels = layer.kernels
    chosen = (kernels.kinds == WorkKind.PRODUCT) & np.isin(kernels.passes, passes or range(3))
    return float(2 * kernels.sizes[chosen].prod(axis=1).sum())


def _divided(values: Any, marks: Any, mark: int, by: float) -> Any:
    return np.where(marks & mark, values / by, values)


def test_the_products_of_a_gpt_are_those_of_narayanan_et_al() -> None:
    """arXiv 2104.04473, section 5.1: 4·s·l·h²·(6 + s/h) + 2·s·h·V forward, in 3 passes without recomputation.

    Equation 3, 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)), is that of four passes through the blocks and three through the
    head.
    """
    s, layers, h, v = SEQUENCE, GPT.layers, GPT.width, GPT.vocabulary
    forward = sum(_flop(layer, WorkPass.FORWARD) for layer in _layers(_work(GPT)))
    assert forward == pytest.approx(24 * s * layers * h**2 + 4 * s**2 * layers * h + 2 * s * h * v)
    total = sum(_flop(layer) for layer in _layers(_work(GPT)))
    recomputed = sum(_flop(layer, WorkPass.FORWARD) for layer in list(_layers(_work(GPT)))[1:-1])
    assert total + recomputed == pytest.approx(96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)))


def test_gradients_of_activations_and_of_parameters_take_as_much_as_the_forward_pass_but_for_attention_cores() -> None:
    block = _work(GPT).layers[1]
    core = block.kernels.core & (block.kernels.kinds == WorkKind.PRODUCT)
    of_core = {p: 2 * block.kernels.sizes[core & (block.kernels.passes == p)].prod(axis=1).sum() for p in range(3)}
    assert of_core[WorkPass.INPUT] == 2 * of_core[WorkPass.FORWARD] and of_core[WorkPass.WEIGHT] == 0
    dense = _flop(block, WorkPass.FORWARD) - of_core[WorkPass.FORWARD]
    assert _flop(block, WorkPass.WEIGHT) == dense == _flop(block, WorkPass.INPUT) - of_core[WorkPass.INPUT]


def test_the_products_of_a_llama_block_count_shared_heads_and_three_matrices() -> None:
    s, h, f, shared = SEQUENCE, 64, 176, 32
    block = _work(LLAMA).layers[1]
    matrices = 2 * h * h + 2 * h * shared + 3 * h * f
    assert _flop(block, WorkPass.FORWARD) == pytest.approx(2 * s * matrices + 4 * s**2 * h)
    assert block.parameters.values.sum() == matrices + 2 * h
    assert block.context.values.sum() == 2 * s * shared * 2  # keys and values, two bytes each


def test_the_products_of_a_mixture_count_the_experts_of_each_token_and_the_router() -> None:
    """Mixtral (arXiv 2401.04088, section 2): each of the 2 experts that take a token has three matrices."""
    s, h, f, shared, experts, per_token = SEQUENCE, 64, 112, 32, 8, 2
    block = _work(MIXTRAL).layers[1]
    matrices = 2 * h * h + 2 * h * shared + h * experts + per_token * 3 * h * f
    assert _flop(block, WorkPass.FORWARD) == pytest.approx(2 * s * matrices + 4 * s**2 * h)
    of_experts = (block.parameters.marks & Mark.EXPERTS) > 0
    assert block.parameters.values[of_experts].sum() == experts * 3 * h * f  # every device has the whole router
    assert block.exchanged.values.tolist() == [2 * per_token * s * h]
    both = Mark.EXPERTS | Mark.SAMPLES
    for marks in (block.kernels.size_marks, block.kernels.moved_marks, block.saved.marks, block.exchanged.marks):
        assert not (marks & both == both).any()


def test_the_products_of_latent_attention_go_down_and_up_again() -> None:
    """DeepSeek-V2 (arXiv 2405.04434, equations 37 to 47), the first block dense, the others with a shared expert."""
    s, h, heads, down_q, down = SEQUENCE, 64, 8, 24, 20
    plain, turned, value = 12, 8, 10
    attention = h * down_q + down_q * heads * (plain + turned) + h * (down + turned)
    attention += down * heads * (plain + value) + heads * value * h
    core = 2 * s**2 * heads * (plain + turned + value)
    dense, sparse = 3 * h * 176, h * 8 + 2 * 3 * h * 112 + 3 * h * 80
    work = _work(DEEPSEEK)
    assert work.order == (0, 1, 2, 2, 2, 2, 2, 3)
    assert _flop(work.layers[1], WorkPass.FORWARD) == pytest.approx(2 * s * (attention + dense) + core)
    assert _flop(work.layers[2], WorkPass.FORWARD) == pytest.approx(2 * s * (attention + sparse) + core)
    latents = (h * down_q + h * (down + turned)) + down_q + down + 2 * h + h * 8
    shared = (work.layers[2].parameters.marks & Mark.TENSOR) > 0
    assert work.layers[2].parameters.values[~shared].sum() == latents


def test_the_products_of_latent_attention_are_in_the_turn_of_programs() -> None:
    """wq_a, wq_b, wkv_a, wkv_b, wo (torchtitan's deepseek_v3): selective recomputation keeps the narrow ones by turns.

    With both latents made before either was widened, the wide queries were kept.
    """
    kernels = _work(DEEPSEEK).layers[1].kernels
    products = (kernels.kinds == WorkKind.PRODUCT) & (kernels.passes == WorkPass.FORWARD) & ~kernels.core
    widths = kernels.sizes[products][:5, 2].tolist()
    assert widths == [24, 8 * (12 + 8), 20 + 8, 8 * (12 + 10), 64]


def test_the_decoder_of_a_t5_attends_twice_and_hands_on_the_encoders_output() -> None:
    s, h, f = SEQUENCE, 64, 176
    layers = list(_layers(_work(T5)))
    attention = 2 * s * 4 * h * h + 4 * s**2 * h
    for block in layers[1:7]:
        assert _flop(block, WorkPass.FORWARD) == pytest.approx(attention + 2 * s * 2 * h * f)
        assert block.boundary.values.tolist() == [2 * s * h]
        assert len(block.sums_forward.values) == len(block.sums_backward.values) == 2
    for block in layers[7:13]:
        assert _flop(block, WorkPass.FORWARD) == pytest.approx(2 * attention + 2 * s * 2 * h * f)
    for block in layers[7:12]:
        assert block.boundary.values.tolist() == [2 * s * h] * 2
    for block in layers[8:13]:
        assert len(block.sums_forward.values) == len(block.sums_backward.values) == 3


@pytest.mark.parametrize("name", WITH_HEAD_WIDTH)
def test_tensor_parallelism_makes_a_model_with_a_share_of_heads_columns_and_vocabulary(name: str) -> None:
    """What one of two devices computes is the model that has half of these (arXiv 1909.08053, section 3)."""
    whole: Any = CLOSED[name]
    half = replace(whole, **{key: getattr(whole, key) // 2 for key in ("heads", "feed_forward", "vocabulary")})
    if isinstance(half, DecoderConfig):
        half = replace(half, kv_heads=half.kv_heads and half.kv_heads // 2)
        if isinstance(half.recurrence, Mamba):
            halves = replace(half.recurrence, heads=half.recurrence.heads // 2, groups=half.recurrence.groups // 2)
            half = replace(half, recurrence=halves)
        elif half.recurrence is not None:
            heads, key_heads = half.recurrence.heads // 2, half.recurrence.key_heads // 2
            half = replace(half, recurrence=replace(half.recurrence, heads=heads, key_heads=key_heads))
        if half.mixture is not None:
            width, shared_width = half.mixture.width // 2, half.mixture.shared_width // 2
            half = replace(half, mixture=replace(half.mixture, width=width, shared_width=shared_width))
    _assert_shares(_work(whole), _work(half), Mark.TENSOR, 2)


def _assert_shares(work: ModelWork, share: ModelWork, mark: int, by: float) -> None:
    """The quantities of one model with the mark divided are those of another."""
    for one, other in zip(_layers(work), _layers(share), strict=True):
        a, b = one.kernels, other.kernels
        np.testing.assert_array_equal(a.passes, b.passes)
        np.testing.assert_allclose(_divided(a.sizes, a.size_marks, mark, by), b.sizes)
        np.testing.assert_array_equal(a.moved_kernels, b.moved_kernels)
        np.testing.assert_allclose(_divided(a.moved_bytes, a.moved_marks, mark, by), b.moved_bytes)
        for field in fields(LayerWork):
            amounts, shares = getattr(one, field.name), getattr(other, field.name)
            if isinstance(amounts, Amounts):
                np.testing.assert_allclose(
                    _divided(amounts.values, amounts.marks, mark, by), shares.values, err_msg=field.name
                )


@pytest.mark.parametrize("name", LINEAR)
def test_twice_the_tokens_double_what_is_marked_so_and_quadruple_scores(name: str) -> None:
    """T5's bias, and the Switch Transformer's dispatch, are quadratic in the tokens as well."""
    short, long = _work(CLOSED[name]), _work(CLOSED[name], 2 * SEQUENCE)
    for one, other in zip(_blocks(short), _blocks(long), strict=True):
        a, b = one.kernels, other.kernels
        core_product = a.core & (a.kinds == WorkKind.PRODUCT)
        flop = _divided(a.sizes, a.size_marks, Mark.TOKENS, 0.5).prod(axis=1) * np.where(core_product, 2, 1)
        np.testing.assert_allclose(flop, b.sizes.prod(axis=1))
        moved = _divided(a.moved_bytes, a.moved_marks, Mark.TOKENS, 0.5) * np.where(a.moved_scores, 2, 1)
        np.testing.assert_allclose(moved, b.moved_bytes, rtol=0.01)  # a scatter reads a number for all tokens
        for key in ("parameters", "saved", "boundary", "sums_forward", "sums_backward", "context", "exchanged"):
            amounts = getattr(one, key)
            np.testing.assert_allclose(
                _divided(amounts.values, amounts.marks, Mark.TOKENS, 0.5), getattr(other, key).values
            )


@pytest.mark.parametrize("name", ["gpt", "llama", "qwen3", "bert"])
def test_each_pass_of_a_block_sums_its_hidden_states_twice(name: str) -> None:
    """Megatron-LM (arXiv 1909.08053, section 3): two all-reduces in the forward pass and two in the backward pass.

    The embedding's rows are summed as well, and of the head, whose vocabulary is partitioned, the highest logit, the
    label's and the sum of exponentials of each token; in its backward pass the hidden states.
    """
    embedding, block, head = _work(FAMILIES[name]).layers
    hidden = 2 * SEQUENCE * 64
    of_tokens = Mark.SAMPLES | Mark.TOKENS
    for amounts, expected in (
        (embedding.sums_forward, [hidden]),
        (embedding.sums_backward, []),
        (block.sums_forward, [hidden] * 2),
        (block.sums_backward, [hidden] * 2),
        (head.sums_forward, [4 * SEQUENCE] * 3),
        (head.sums_backward, [hidden]),
    ):
        assert amounts.values.tolist() == expected
        assert amounts.marks.tolist() == [of_tokens] * len(expected)


def test_a_block_with_dropout_keeps_what_korthikanti_et_al_count() -> None:
    """arXiv 2205.05198, equations 1 and 2: s·b·h·(10 + 24/t + 5·a·s/(h·t)) bytes, the last term in attention cores."""
    dropping = replace(GPT, attention_dropout=0.1, residual_dropout=0.1, embedding_dropout=0.1)
    block = _work(dropping).layers[1]
    s, h, heads = SEQUENCE, GPT.width, GPT.heads
    shared = (block.saved.marks & Mark.TENSOR) > 0
    assert block.saved.values[~shared].sum() == pytest.approx(10 * s * h, rel=0.02)
    assert block.saved.values[shared].sum() == pytest.approx(24 * s * h, rel=0.02)
    assert block.saved_core.values.sum() == pytest.approx(5 * heads * s * s, rel=0.02)
    assert ((block.saved_core.marks & Mark.TENSOR) > 0).all()


def test_norms_and_activations_of_a_forward_pass_read_and_write_once() -> None:
    """Bytes over 2·s·h of each kernel that is no product and of no attention core, as Megatron-LM moves them.

    Norms 2, the scaling of queries 2, residual sums 3, the activation 4 + 4; products add their biases.
    """
    kernels = _work(GPT).layers[1].kernels
    moved = np.bincount(kernels.moved_kernels, kernels.moved_bytes, minlength=len(kernels))
    chosen = (kernels.kinds == WorkKind.MEMORY) & (kernels.passes == WorkPass.FORWARD) & ~kernels.core
    vectors = 0.1  # biases and scales, next to the 24 tokens here
    np.testing.assert_allclose(moved[chosen] / (2 * SEQUENCE * 64), [2, 2, 3, 2, 8, 3], rtol=vectors)


def test_norms_of_a_backward_pass_read_their_input_and_two_gradients_and_write_one() -> None:
    """In 2·s·h bytes: the input, the gradient of the result and that of the residual sum, their sum; for scales, two.

    Each of the two norms of a Llama block has one kernel of each pass, as those of Apex have.
    """
    kernels = _work(LLAMA).layers[1].kernels
    moved = np.bincount(kernels.moved_kernels, kernels.moved_bytes, minlength=len(kernels)) / (2 * SEQUENCE * 64)
    memory = kernels.kinds == WorkKind.MEMORY
    of_weights = moved[memory & (kernels.passes == WorkPass.WEIGHT)]
    of_norms = moved[memory & (kernels.passes == WorkPass.INPUT) & ~kernels.core]
    assert (np.abs(of_norms - 4) < 0.1).sum() == 3  # the third adds up the gradients of queries, keys and values
    assert (np.abs(of_weights - 2) < 0.1).sum() >= 2


def test_a_block_hands_on_its_hidden_states_and_keys_and_values_pass_around() -> None:
    block = _work(GPT).layers[1]
    assert block.boundary.values.tolist() == [2 * SEQUENCE * 64]
    assert block.context.values.tolist() == [2 * SEQUENCE * 64] * 2


def test_the_parameters_of_all_layers_are_the_models_and_the_tied_ones_count_once() -> None:
    work = _work(GPT)
    s, h, v = GPT.positions, GPT.width, GPT.vocabulary
    assert s is not None
    assert work.tied == v * h
    assert sum(layer.parameters.values.sum() for layer in _layers(work)) == (v + s + 2) * h + 6 * (12 * h + 13) * h


@pytest.mark.parametrize("family", ["gpt", "bert", "t5"])
def test_blocks_that_attend_to_all_tokens_are_not_causal(family: str) -> None:
    """A flash kernel skips half of the scores of a causal block only."""
    causal = {layer.name: layer.causal for layer in _layers(_work(FAMILIES[family])) if "block" in layer.name}
    expected = {"gpt": {"block": True}, "bert": {"block": False}}
    assert causal == expected.get(family, {"encoder/block": False, "decoder/block": True})


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.thorough)])
def test_a_models_trace_has_the_same_parameters_products_and_kept_values(name: str, dtype: str) -> None:
    """The models of decoder.py, bert.py and t5.py, traced by JAX: parameters and products exactly, bytes to 2 %."""
    pytest.importorskip("flax")
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.saved_values import saved_values
    from automap_models.workloads.training import training_step

    tokens, samples = 256, 2
    work = model_work(FAMILIES[name], "m", tokens, dtype)
    graph = instruction_graph(trace(training_step("m", FAMILIES[name], (samples, tokens), dtype)))
    parameters = (np.prod(graph.shapes[v]) for v, a in enumerate(graph.arguments) if a.kind == "parameter")
    assert sum(layer.parameters.values.sum() for layer in _layers(work)) == sum(parameters)
    products = np.array([opcode == "dot_general" for opcode in graph.opcodes])
    for of_phase, passes in ((Phase.FORWARD, [WorkPass.FORWARD]), (Phase.BACKWARD, [WorkPass.INPUT, WorkPass.WEIGHT])):
        traced = graph.flop[products & (graph.phases == of_phase)].sum() / samples
        assert sum(_flop(layer, *passes) for layer in _layers(work)) == pytest.approx(traced, rel=1e-9)
    kept = sum(layer.saved.values.sum() + layer.saved_core.values.sum() for layer in _layers(work))
    assert kept == pytest.approx(graph.value_bytes[saved_values(graph)].sum() / samples, rel=0.02)


@pytest.mark.parametrize(
    "part", [Window(tokens=5), Window(tokens=6, chunked=True), Window(tokens=99), Indexer(heads=1, width=4, tokens=7)]
)
def test_keys_that_a_query_reads_are_counted_one_by_one(part: Window | Indexer) -> None:
    """A query reads itself and those before it, at most so many, or those of its chunk; half of one is the mask's."""
    chunk = part.tokens if isinstance(part, Window) and part.chunked else SEQUENCE
    read = sum(min(i % chunk + 1, part.tokens) - 0.5 for i in range(SEQUENCE))
    full = sum(i >= part.tokens for i in range(SEQUENCE)) if chunk == SEQUENCE else 0
    assert SEQUENCE * keys_read(SEQUENCE, part) / 2 == pytest.approx(read + full / 2)
