"""Published rows of mixtures of experts and of hybrids, whose layers are not all alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from published_rows import LLAMA_8B, measured, reason, torchtitan

from automap_models.core.sublayer_sizes import GatedDelta, Mamba, Mixture
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.observations import measured_estimate
from automap_models.workloads.measured import step_work

NANO: dict[str, Any] = {
    **{"name": "Nemotron-3-Nano", "arch": "moe", "layers": 5, "hidden": 2688, "ffn": 1856, "heads": 32, "kv_heads": 2},
    **{"head_dim": 128, "seq": 8192, "vocab": 131072, "experts": 128, "topk": 6},
    "moe": {"expert_ffn": 1856, "shared_ffn": 3712, "gated": False, "latent": 1024},
    "hybrid": {"pattern": "MEM*E", "mamba": {"heads": 64, "head_dim": 64, "groups": 8, "state": 128}},
}


def test_a_hybrid_has_the_blocks_of_its_pattern_and_experts_of_two_matrices_in_a_latent(tmp_path: Path) -> None:
    model = measured(tmp_path, **torchtitan(model=NANO)).model
    assert model.blocks == ("M", "E", "M", "*", "E")
    assert model.recurrence == Mamba(heads=64, head_width=64, groups=8, state=128)
    assert (model.gated, model.mixture) == (False, Mixture(128, 6, 1856, 3712, latent=1024))


def test_three_of_four_blocks_of_qwen3_next_are_gated_delta_networks(tmp_path: Path) -> None:
    note = "three of four layers are gated delta networks"
    row = {**LLAMA_8B, "arch": "moe", "family": "qwen3-next", "attention_note": note, "experts": 512, "topk": 10}
    model = measured(tmp_path, **torchtitan(model=row)).model
    assert isinstance(model.recurrence, GatedDelta)
    assert model.blocks == ("ME", "ME", "ME", "*E") * 8


def test_a_mixture_of_experts_needs_their_number_and_how_many_take_a_token(tmp_path: Path) -> None:
    step = measured(tmp_path, **torchtitan(model={**LLAMA_8B, "arch": "mixtral", "experts": 8, "topk": 2}))
    assert (step.model.family, step.model.shape.experts) == ("llama", 8)
    assert step.model.mixture is not None and step.model.mixture.per_token == 2


MAMBA = {"heads": 64, "head_dim": 64, "groups": 8, "state": 128}
QWEN_30B: dict[str, Any] = {
    **{"name": "Qwen3-30B-A3B", "arch": "moe", "layers": 48, "hidden": 2048, "ffn": 768, "heads": 32, "kv_heads": 4},
    **{"seq": 4096, "vocab": 151_936, "head_dim": 128, "experts": 128, "topk": 8},
    "moe": {"experts": 128, "top_k": 8, "expert_ffn": 768, "gated": True, "dense_layers": 0, "every": 1},
}
EXPERTS_ON_TWO_NODES: dict[str, Any] = {
    **{
        "system": "Megatron-Bridge 2026",
        "model": QWEN_30B,
        "gpus": 16,
        "gpu_type": "H100-80GB SXM",
        "gpus_per_node": 8,
    },
    **{"tp": 1, "pp": 1, "dp": 16, "vp": 1, "ep": 16, "micro_batch": 1, "global_batch": 1024, "recompute": "none"},
    **{"precision": "bf16", "zero": 1, "schedule": None, "ladder": "qwen30", "measured": {"iteration_s": 20.1}},
}
GRAPHS = "transformer_engine:moe_router,moe_preprocess"


@pytest.mark.parametrize(
    ("values", "measured_s"),
    [
        ({"moe_dispatcher": "hybridep", "cuda_graph": GRAPHS, "ep_overlap": False}, 24.7),
        ({"moe_dispatcher": "alltoall", "ep_overlap": False}, 41.3),
        ({"moe_dispatcher": "hybridep", "cuda_graph": GRAPHS, "ep_overlap": True}, 20.1),
    ],
)
def test_experts_on_two_nodes_take_what_nvidia_measured(
    tmp_path: Path, values: dict[str, Any], measured_s: float
) -> None:
    """Qwen3-30B-A3B on 16 H100 with EP 16, in Megatron-Bridge: priced at 63.7 s by any dispatcher before.

    Its tokens go once to each node, or once to every expert; the constants of the former are fitted to these rows, too.
    """
    step = measured(tmp_path, **EXPERTS_ON_TWO_NODES, **values)
    estimate = measured_estimate(step, step_work(step), read_device(step.device))
    assert estimate.step_s == pytest.approx(measured_s, rel=0.12)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({"hybrid": {"pattern": "M*E-"}}, "model.hybrid.mamba"),
        ({"hybrid": {"pattern": "M*E-", "mamba": MAMBA}}, "model.hybrid.pattern"),
        ({"attention_note": "sparse"}, "model.attention_note"),
        ({"moe": {**QWEN_30B["moe"], "every": 2}}, "model.moe.every"),
        ({"mla": {"q_lora_rank": 1536}}, "model.mla.kv_lora_rank"),
    ],
)
def test_a_model_with_what_cannot_be_priced_is_refused_by_the_field(
    tmp_path: Path, model: dict[str, Any], field: str
) -> None:
    assert f"`{field}`" in reason(tmp_path, **{**EXPERTS_ON_TWO_NODES, "model": {**QWEN_30B, **model}})
