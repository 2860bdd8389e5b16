"""Layers that are no attention: their arithmetic, what they keep and divide, and models with them as published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.model_work import LayerWork, Mark, ModelWork, WorkKind, WorkPass
from automap_models.core.strategy import Strategy
from automap_models.core.sublayer_sizes import GatedDelta, Mamba, Mixture, Recurrence, SelectiveScan, ShortConvolution
from automap_models.cost.layer_costs import LayerCosting
from automap_models.cost.runtime import Runtime
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.workloads.config_json import decode_config
from automap_models.workloads.sizes import DecoderConfig
from automap_models.workloads.training import jax_model
from automap_models.workloads.transformer import decoder_block, model_work

TOKENS, WIDTH = 32, 64
MAMBA = Mamba(heads=8, head_width=12, state=10, groups=2, chunk=8)
DELTA = GatedDelta(heads=4, key_heads=2, key_width=6, value_width=10, chunk=8)


def config(recurrence: Recurrence, **changes: Any) -> DecoderConfig:
    sizes: dict[str, Any] = {"width": WIDTH, "heads": 4, "layers": 1, "positions": None, "root_mean_square": True}
    return DecoderConfig(**{**sizes, "recurrence": recurrence, "blocks": ("M",), **changes})


def block(recurrence: Recurrence) -> LayerWork:
    return decoder_block(config(recurrence), "M", TOKENS, "bfloat16")


def flop(layer: LayerWork, *passes: int, dense: bool) -> float:
    """FLOP of products with parameters, or of those of activations alone."""
    kernels = layer.kernels
    chosen = (kernels.kinds == WorkKind.PRODUCT) & np.isin(kernels.passes, passes)
    return float(2 * kernels.sizes[chosen & (kernels.of_activations != dense)].prod(axis=1).sum())


def test_a_chunk_of_mamba_has_the_products_of_dao_and_gu() -> None:
    """arXiv 2405.21060, section 6.3: N·Q for scores of each group, and (Q·P + 2·N·P) of each head, a token."""
    q, p, n = MAMBA.chunk, MAMBA.head_width, MAMBA.state
    forward = flop(block(MAMBA), WorkPass.FORWARD, dense=False)
    assert forward == pytest.approx(2 * TOKENS * (MAMBA.groups * q * n + MAMBA.heads * (q * p + 2 * n * p)))


def _counted(function: Callable[[], Any]) -> float:
    counter = pytest.importorskip("torch.utils.flop_counter")
    with counter.FlopCounterMode(display=False) as counted:
        function()
    return float(counted.get_total_flops())


def test_the_products_of_mamba_are_those_that_torch_counts() -> None:
    """Of transformers' own scan, which makes B and C of all heads and passes states by a product of all chunks."""
    torch = pytest.importorskip("torch")
    scan = pytest.importorskip("transformers.models.nemotron_h.modeling_nemotron_h").mamba2_chunk_scan
    c = replace(MAMBA, groups=MAMBA.heads)
    x, shared = torch.ones(1, TOKENS, c.heads, c.head_width), torch.ones(1, TOKENS, c.heads, c.state)
    steps = torch.ones(1, TOKENS, c.heads)
    counted = _counted(lambda: scan(x, steps, -torch.ones(c.heads), shared, shared, c.chunk))
    passed_on = 2 * c.heads * c.head_width * c.state * (TOKENS // c.chunk + 1) ** 2
    assert flop(block(c), WorkPass.FORWARD, dense=False) == pytest.approx(counted - passed_on, rel=0.02)


def test_the_products_of_a_gated_delta_network_are_those_that_torch_counts() -> None:
    """Of transformers' own rule, whose two systems of equations torch does not count: C × C, K and V right sides."""
    torch = pytest.importorskip("torch")
    rule = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next").torch_chunk_gated_delta_rule
    c = DELTA
    q, v = torch.ones(1, TOKENS, c.key_heads, c.key_width), torch.ones(1, TOKENS, c.heads, c.value_width)
    decays = torch.ones(1, TOKENS, c.heads)
    counted = _counted(lambda: rule(q, q, v, -decays, decays, chunk_size=c.chunk))
    solved = 2 * TOKENS * c.heads * c.chunk * (c.key_width + c.value_width)
    assert flop(block(c), WorkPass.FORWARD, dense=False) == pytest.approx(counted + solved, rel=0.02)


SCAN = SelectiveScan(inner=128, state=10, rank=6, bias=True)
NARROW = 6 + 2 * 10


def _mixer(**changes: Any) -> Any:
    """Transformers' layer of the same sizes as SCAN."""
    hf = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDTH, "expand": 2, "state_size": 10, "time_step_rank": 6, "use_bias": True, **changes}
    return hf.models.mamba.modeling_mamba.MambaMixer(hf.MambaConfig(**sizes), layer_idx=0)


def test_the_products_of_the_first_mamba_are_those_that_torch_counts() -> None:
    """Transformers reads states by a product, 2·N for each column, which the scan's kernel does without one."""
    torch = pytest.importorskip("torch")
    mixer = _mixer()
    counted = _counted(lambda: mixer(torch.ones(1, TOKENS, WIDTH)))
    read, convolved = 2 * TOKENS * SCAN.inner * SCAN.state, 2 * (TOKENS + SCAN.kernel - 1) * SCAN.inner * SCAN.kernel
    products = flop(block(SCAN), WorkPass.FORWARD, dense=True)
    assert products == pytest.approx(counted - read - convolved, rel=0.02)


def test_the_first_mamba_keeps_what_its_kernel_saves() -> None:
    """mamba_inner_fn in 2 bytes: the norm's input and result, the first product's, what makes steps, B and C, these
    two again, outputs, and a state in float32 with what it is multiplied by.
    """
    saved = block(SCAN).saved
    of_tensor = (saved.marks & Mark.TENSOR) > 0
    assert saved.values[~of_tensor].sum() == 2 * TOKENS * (2 * WIDTH + NARROW + 2 * SCAN.state)
    assert saved.values[of_tensor].sum() == 2 * TOKENS * 3 * SCAN.inner + 4 * SCAN.inner * 2 * SCAN.state


def test_the_first_mamba_sums_what_makes_steps_between_devices() -> None:
    """Waleffe et al. (arXiv 2406.07887, section 3.3): two all-reduces a layer and pass where Mamba-2 has one."""
    layer = block(SCAN)
    assert layer.sums_forward.values.tolist() == [2 * TOKENS * NARROW, 2 * TOKENS * WIDTH]
    assert layer.sums_backward.values.sum() == 2 * TOKENS * (NARROW + WIDTH)


def test_a_short_convolution_has_the_products_that_torch_counts_and_keeps_what_they_read() -> None:
    """LFM2's: three times the width in front of the gates, the width behind them."""
    torch, hf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = hf.Lfm2Config(hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=4, conv_L_cache=3)
    mixer = hf.models.lfm2.modeling_lfm2.Lfm2ShortConv(sizes, 0)
    layer = block(ShortConvolution(kernel=3))
    counted = _counted(lambda: mixer(torch.ones(1, TOKENS, WIDTH)))
    convolved = 2 * (TOKENS + 2) * WIDTH * 3
    assert flop(layer, WorkPass.FORWARD, dense=True) == pytest.approx(counted - convolved, rel=0.02)
    assert layer.saved.values.sum() == 2 * TOKENS * WIDTH * (2 + 3 + 1 + 1 + 1)


@pytest.mark.parametrize("recurrence", [MAMBA, DELTA])
def test_gradients_take_twice_the_arithmetic_of_the_forward_pass(recurrence: Recurrence) -> None:
    """A product of two values has a gradient of each, as large; those of parameters are in a pass of their own."""
    layer = block(recurrence)
    forward = [flop(layer, WorkPass.FORWARD, dense=dense) for dense in (False, True)]
    assert flop(layer, WorkPass.INPUT, dense=False) == pytest.approx(2 * forward[0])
    assert flop(layer, WorkPass.INPUT, dense=True) == flop(layer, WorkPass.WEIGHT, dense=True) == forward[1]


def test_mamba_keeps_what_its_kernels_save() -> None:
    """In 2 bytes: the norm's input and result, the first product's, outputs before and after the gate, and normed."""
    inner, shared = MAMBA.heads * MAMBA.head_width, MAMBA.groups * MAMBA.state
    saved = block(MAMBA).saved
    of_tensor = (saved.marks & Mark.TENSOR) > 0
    assert saved.values[~of_tensor].sum() == 2 * TOKENS * 2 * WIDTH
    expected = (2 * inner + 2 * shared + MAMBA.heads) + 3 * inner
    assert saved.values[of_tensor].sum() == 2 * TOKENS * expected


def test_a_gated_delta_network_keeps_what_its_kernels_save() -> None:
    """The first product's result, q, k and v after the convolution, the inverse, outputs, and these normed, gated."""
    keys, values = DELTA.key_heads * DELTA.key_width, DELTA.heads * DELTA.value_width
    saved = block(DELTA).saved
    of_tensor = (saved.marks & Mark.TENSOR) > 0
    assert saved.values[~of_tensor].sum() == 2 * TOKENS * 2 * WIDTH
    projected, inverse = 2 * keys + 2 * values + 2 * DELTA.heads, DELTA.heads * DELTA.chunk
    assert saved.values[of_tensor].sum() == 2 * TOKENS * (projected + 2 * keys + values + inverse + 2 * values)


@pytest.mark.parametrize("recurrence", [MAMBA, DELTA])
def test_all_parameters_but_norms_of_rows_are_divided(recurrence: Recurrence) -> None:
    """Heads are divided, and with them each column of the first product, of the convolution and of Mamba's norm."""
    parameters = block(recurrence).parameters
    shared = parameters.values[(parameters.marks & Mark.TENSOR) == 0]
    of_head = [DELTA.value_width] if recurrence is DELTA else []
    assert sorted(shared) == sorted([WIDTH, *of_head])


@pytest.mark.parametrize("recurrence", [MAMBA, DELTA])
def test_a_state_is_as_large_for_any_number_of_tokens(recurrence: Recurrence) -> None:
    """What devices that share a sample's tokens pass on: 12 × 10 numbers of 8 heads in float32, or 6 × 10 of 4."""
    layers = [decoder_block(config(recurrence), "M", tokens, "bfloat16") for tokens in (TOKENS, 8 * TOKENS)]
    for layer in layers:
        assert layer.context.values.tolist() == [4 * (8 * 12 * 10 if recurrence is MAMBA else 4 * 6 * 10)]
        assert not (layer.context.marks & Mark.TOKENS).any()


def test_experts_in_a_latent_get_narrower_tokens() -> None:
    """Nemotron 3 (arXiv 2512.20856): 3 experts of two matrices take a token of 16 numbers in place of 64."""
    mixture = Mixture(8, 3, 24, shared_width=40, latent=16)
    layer = decoder_block(config(MAMBA, mixture=mixture, activation="relu2"), "E", TOKENS, "bfloat16")
    assert layer.exchanged.values.tolist() == [2 * TOKENS * 3 * 16]
    assert layer.copies == 3
    experts = (layer.parameters.marks & Mark.EXPERTS) > 0
    assert layer.parameters.values[experts].sum() == 8 * 2 * 16 * 24
    assert layer.parameters.values[~experts].sum() == 64 + 64 * 8 + 2 * 64 * 16 + 2 * 64 * 40


def test_only_products_with_parameters_run_in_8_bits() -> None:
    """What transformer_engine casts are its linear layers: here the two of a Mamba-2 layer, in three passes each."""
    kernels = block(MAMBA).kernels
    assert ((kernels.kinds == WorkKind.PRODUCT) & ~kernels.of_activations).sum() == 2 * 3


NEMOTRON_H_8B: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attention_head_dim": 128,
    "intermediate_size": 21504,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "mlp_hidden_act": "relu2",
}
WIDE = {
    **{"hidden_size": 8192, "num_attention_heads": 64, "mamba_num_heads": 256, "ssm_state_size": 256},
    **{"num_hidden_layers": None},
}
NEMOTRON_3_NANO = {
    **{**NEMOTRON_H_8B, "hidden_size": 2688, "num_key_value_heads": 2, "mamba_num_heads": 64},
    **{"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "n_routed_experts": 128},
    **{"num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712},
}
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
PUBLISHED: dict[str, tuple[dict[str, Any], float, float]] = {
    "Nemotron-H-8B": (NEMOTRON_H_8B, 8.1, 0.05),
    "Nemotron-H-47B": (
        {
            **{**NEMOTRON_H_8B, **WIDE, "intermediate_size": 30720},
            "hybrid_override_pattern": "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*"
            "-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-",
        },
        47.0,
        0.5,
    ),
    "Nemotron-H-56B": (
        {
            **{**NEMOTRON_H_8B, **WIDE, "intermediate_size": 32768},
            "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-",
        },
        56.0,
        0.5,
    ),
    "Nemotron-3-Nano": (NEMOTRON_3_NANO, 31.6, 0.05),
    "Qwen3-Next": (QWEN3_NEXT, 80.0, 0.5),
}
"""Model → its config.json, billions of parameters as its report rounds them (arXiv 2504.03624, 2512.20848, and Qwen's
model card), and half a unit of their last digit."""


def work_of(document: dict[str, Any]) -> ModelWork:
    read = decode_config(msgspec.json.encode(document), "m", where="config.json")
    return model_work(read.architecture, "m", 128, "bfloat16")


def parameters(work: ModelWork, per_expert: float = 1.0) -> float:
    """All of them, or a share of the experts'."""
    amounts = [work.layers[k].parameters for k in work.order]
    return float(sum((a.values * np.where(a.marks & Mark.EXPERTS, per_expert, 1.0)).sum() for a in amounts))


@pytest.mark.parametrize("name", PUBLISHED)
def test_hybrids_have_the_published_parameters(name: str) -> None:
    document, billions, rounding = PUBLISHED[name]
    assert parameters(work_of(document)) / 1e9 == pytest.approx(billions, abs=rounding)


def test_a_token_of_nemotron_3_nano_meets_3_6_billion_of_them_with_its_embedding_and_3_2_without() -> None:
    """arXiv 2512.20848, table 1."""
    work = work_of(NEMOTRON_3_NANO)
    active = parameters(work, 6 / 128)
    assert active / 1e9 == pytest.approx(3.6, abs=0.05)
    assert (active - 131072 * 2688) / 1e9 == pytest.approx(3.2, abs=0.05)


def test_blocks_follow_their_pattern() -> None:
    """Of Nemotron-H one object for each letter, of Qwen3-Next every fourth block with attention."""
    order = work_of(NEMOTRON_3_NANO).order[1:-1]
    pattern = NEMOTRON_3_NANO["hybrid_override_pattern"]
    assert [order[pattern.index(letter)] for letter in pattern] == list(order)
    assert len(set(order)) == 3
    assert work_of(QWEN3_NEXT).order[1:-1] == (1, 1, 1, 2) * 12


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**NEMOTRON_H_8B, "hybrid_override_pattern": "M-X"}, "$.hybrid_override_pattern is 'X', not one of attention"),
        ({**NEMOTRON_H_8B, "n_groups": 3}, "$.n_groups is 3, which does not divide $.mamba_num_heads, 128"),
        ({**QWEN3_NEXT, "layer_types": ["sliding_attention"] * 48}, "$.layer_types is 'sliding_attention', not one of"),
        ({**QWEN3_NEXT, "layer_types": ["full_attention"]}, "$.layer_types has 1 layers, $.num_hidden_layers says 48"),
    ],
)
def test_patterns_that_are_none_are_refused_by_their_key(document: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        work_of(document)
    assert message in str(caught.value)


def test_models_with_recurrences_are_not_traced() -> None:
    with pytest.raises(BadInput, match="priced by strategies, and not traced; plan strategies"):
        jax_model(config(MAMBA), "float32")


def test_recomputing_experts_runs_their_blocks_again_and_no_others() -> None:
    """Megatron's recompute_modules `moe` of Nemotron 3, whose mixtures are blocks of their own."""
    mixture = Mixture(8, 3, 24)
    sizes = config(MAMBA, layers=3, mixture=mixture, activation="relu2", blocks=("M", "E", "*"))
    work = model_work(sizes, "small", TOKENS, "bfloat16")
    strategy = Strategy(micro_batch=1, global_batch=8)
    cluster, device = Cluster(1, 1, 1e11, 1e11, 8e10), read_device("h100")
    costing = LayerCosting(work, cluster, device, Runtime(selects="attention"))
    costs = costing.costs(strategy, costing.groups(strategy))
    none, moe, full = map(work.kind, ("none", "moe", "full"))
    again, saved = costs.times[:, :, 3], costs.memory[:, :, 0]
    (mamba, experts, attention) = work.order[1:-1]
    for layer in (mamba, attention):
        assert again[layer, moe] == 0.0 and saved[layer, moe] == saved[layer, none]
    norm_s = again[experts, full] - again[experts, moe]  # and the residual sum
    assert 0.0 < norm_s < 0.2 * again[experts, full]
    assert saved[experts, full] < saved[experts, moe] < 0.3 * saved[experts, none]
