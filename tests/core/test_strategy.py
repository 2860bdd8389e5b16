"""What a strategy is, and which ones are refused for which model and cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.passes import build_schedule
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput

GPT3 = TransformerShape(
    name="gpt3-175B", layers=96, hidden=12288, heads=96, kv_heads=96, ffn=49152, sequence=2048, vocabulary=51200
)
MEGATRON = Strategy(micro_batch=1, global_batch=1536, tp=8, pp=16, dp=12, vp=6, schedule="interleaved")
"""Of GPT-3 on 1,536 devices: 128 micro-batches, 96 virtual stages of one layer."""


def test_a_strategy_counts_its_devices_stages_and_micro_batches() -> None:
    assert (MEGATRON.devices, MEGATRON.stages, MEGATRON.micro_batches) == (1536, 96, 128)
    assert MEGATRON.build_schedule() == build_schedule("interleaved", 16, 128, 6)
    assert replace(MEGATRON, cp=2).devices == 3072


def test_stages_have_equally_many_layers_or_those_that_are_given() -> None:
    assert MEGATRON.stage_layers(GPT3) == (1,) * 96
    uneven = Strategy(micro_batch=1, global_batch=8, pp=4, layers=(23, 25, 25, 23))
    assert uneven.stage_layers(GPT3) == (23, 25, 25, 23)


def test_a_strategy_that_fits_its_model_and_cluster_is_taken() -> None:
    MEGATRON.require_model(GPT3)
    MEGATRON.require_cluster(Cluster(192, 8, intra=300e9, inter=200e9, memory=80e9))


@pytest.mark.parametrize("key", ["micro_batch", "global_batch", "tp", "pp", "dp", "vp", "cp", "ep"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None])
def test_sizes_that_are_no_positive_whole_numbers_are_refused(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"`{key}`: .* is no number of them; give a whole number from 1 on"):
        Strategy(**{"micro_batch": 1, "global_batch": 8, key: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("degrees", "tensor", "data"),
    [
        ({"tp": 4, "dp": 2, "ep": 8}, 1, 1),
        ({"tp": 4, "dp": 4, "ep": 8}, 1, 2),
        ({"tp": 2, "cp": 2, "dp": 2, "ep": 4}, 1, 2),
        ({"tp": 4, "dp": 8, "ep": 8}, 4, 1),
        ({"tp": 4, "cp": 2, "dp": 8, "ep": 4}, 4, 4),
        ({"tp": 4, "cp": 2, "dp": 8, "ep": 4, "etp": 1}, 1, 16),
        ({"tp": 4, "cp": 2, "dp": 8, "ep": 16, "etp": 4}, 4, 1),
    ],
)
def test_experts_that_do_not_divide_data_parallelism_are_whole_on_devices_of_all_three(
    degrees: dict[str, int], tensor: int, data: int
) -> None:
    """Megatron's parallel folding (2504.14960): tp · cp · dp = expert tensor · expert · expert data parallelism.

    Published recipes such as Qwen3-235B's tp 4, pp 4, ep 8 on 32 devices were refused as if they were wrong.
    """
    strategy = Strategy(micro_batch=1, global_batch=8, **degrees)  # type: ignore[arg-type]
    assert (strategy.expert_tensor, strategy.expert_data) == (tensor, data)
    shared = strategy.tp * strategy.cp * strategy.dp
    assert strategy.expert_tensor * strategy.ep * strategy.expert_data == shared


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"recompute": "some"}, "`recompute`: 'some' is none of them; choose from none, selective, offload, full"),
        ({"zero": 4}, "`zero`: 4 is none of them; choose from 0, 1, 2, 3"),
        ({"precision": "int4"}, "`precision`: 'int4' is none of them; choose from fp32, fp16, bf16, fp8"),
        ({"dispatcher": "pigeons"}, "`dispatcher`: 'pigeons' is none of them; choose from None, alltoall"),
        ({"dp": 3}, "`global_batch`: 3 × 1 samples (dp × micro-batch) do not divide 8; give a multiple of 3"),
        ({"dp": 4, "ep": 3}, "`ep`: 3 ranks do not divide the 4 devices of tp · cp · dp; give a divisor"),
        ({"dp": 4, "tp": 4, "etp": 2}, "`etp`: 2 devices share no expert where tp is 4; give 1, or 4"),
        (
            {"dp": 2, "tp": 4, "ep": 8, "etp": 4},
            "`etp`: 4 × 8 (etp × ep) do not divide the 8 of tp · cp · dp; give 1, or an ep that divides dp · cp",
        ),
        (
            {"dp": 4, "dp_replicate": 2},
            "`dp_replicate`: 2 groups divide nothing without ZeRO; give `zero`, or leave it out",
        ),
        (
            {"dp": 4, "cp": 3, "zero": 1, "dp_replicate": 3},
            "`dp_replicate`: 3 does not divide the 4 dp; give a divisor",
        ),
        (
            {"dp": 4, "ep": 4, "zero": 1, "dp_replicate": 2},
            "`dp_replicate`: 2 does not divide the 1 ranks that hold the same experts; give a divisor",
        ),
        ({"dp": 4, "zero": 1, "dp_replicate": 4}, "`dp_replicate`: 4 groups of one rank divide nothing; give fewer"),
        ({"schedule": "1f2b"}, "`schedule`: unknown schedule '1f2b'"),
        ({"pp": 2, "vp": 2}, "`virtual`: schedule 1f1b with 2 virtual stage(s) a rank; give 1"),
        (
            {"pp": 5, "vp": 2, "schedule": "dualpipev"},
            "`micro_batches`: schedule dualpipev with 8 micro-batches on 5 ranks",
        ),
        (
            {"pp": 3, "vp": 2, "schedule": "interleaved", "global_batch": 7},
            "`micro_batches`: 7 micro-batches do not make 2",
        ),
        ({"pp": 2, "layers": (1, 2, 3)}, "`layers`: 3 numbers of layers for 2 × 1 stages (pp × vp)"),
        ({"pp": 2, "layers": (1, -1)}, "`layers`: 2 numbers of layers for 2 × 1 stages (pp × vp)"),
    ],
)
def test_what_no_strategy_is_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Strategy(**{"micro_batch": 1, "global_batch": 8, **changed})
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("strategy", "model", "sentence"),
    [
        ({"tp": 5}, {}, "`tp`: 5 does not divide the 96 heads of gpt3-175B; give a divisor"),
        ({"tp": 3}, {"ffn": 49153}, "`tp`: 3 does not divide the 49153 columns of the perceptron"),
        (
            {"tp": 8},
            {"kv_heads": 12},
            "`tp`: 8 and the 12 heads of keys and values of gpt3-175B do not divide each other",
        ),
        ({"cp": 3}, {}, "`cp`: 3 does not divide the 2048 tokens of a sample"),
        ({"dispatcher": "deepep"}, {}, "`dispatcher`: gpt3-175B has no experts; leave it out"),
        ({"tp": 2, "etp": 1}, {}, "`etp`: gpt3-175B has no experts; leave it out"),
        (
            {"tp": 3, "sequence_parallel": True},
            {},
            "`sequence_parallel`: 3 does not divide the 2048 tokens of a sample",
        ),
        ({"dp": 2, "ep": 2}, {}, "`ep`: 2 does not divide the 1 expert(s) of a layer"),
        ({"pp": 5}, {}, "`pp`: 96 layers of gpt3-175B do not make 5 × 1 equal stages (pp × vp)"),
        ({"pp": 2, "layers": (48, 47)}, {}, "`layers`: they hold 95 layers, gpt3-175B has 96"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(
    strategy: dict[str, Any], model: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        Strategy(**{"micro_batch": 1, "global_batch": 8, **strategy}).require_model(replace(GPT3, **model))
    assert str(refusal.value).startswith(sentence)


def test_few_heads_of_keys_and_values_may_be_copied() -> None:
    Strategy(micro_batch=1, global_batch=8, tp=16).require_model(replace(GPT3, kv_heads=8))


def test_a_cluster_of_another_size_is_refused() -> None:
    with pytest.raises(BadInput, match="`dp`: tp 8 × cp 1 × dp 12 × pp 16 are 1536 devices, cluster small has 16"):
        MEGATRON.require_cluster(Cluster(2, 8, intra=300e9, inter=200e9, memory=80e9, name="small"))


@pytest.mark.parametrize(("key", "value"), [("layers", 0), ("heads", 1.5), ("experts", 0), ("kv_heads", 36)])
def test_a_model_without_sizes_is_refused(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"`{key}`"):
        replace(GPT3, **{key: value})


def test_stages_may_recompute_some_of_their_blocks() -> None:
    uneven = Strategy(micro_batch=1, global_batch=8, pp=2, layers=(40, 56), recompute=("full", "none"))
    assert uneven.stage_recompute(GPT3) == (("full", 40), ("none", 56))
    assert replace(uneven, recompute="selective").stage_recompute(GPT3) == (("selective", 40), ("selective", 56))
    some = replace(uneven, recompute_blocks=(3, 0))
    assert some.stage_recompute(GPT3) == (("full", 3), ("none", 0))
    with pytest.raises(BadInput, match="`recompute_blocks`: 41 of the 40 layers of virtual stage 0; give at most 40"):
        replace(uneven, recompute_blocks=(41, 0)).require_model(GPT3)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"recompute": ("full",)}, "`recompute`: 1 kinds for 2 × 1 stages (pp × vp); give one for all"),
        ({"recompute": ("full", "all")}, "`recompute`: 'all' is none of them"),
        ({"recompute_blocks": (1,)}, "`recompute_blocks`: 1 numbers of blocks for 2 × 1 stages (pp × vp)"),
        ({"recompute_blocks": (1, -1)}, "`recompute_blocks`: 2 numbers of blocks for 2 × 1 stages (pp × vp)"),
    ],
)
def test_recomputation_of_other_stages_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Strategy(**{"micro_batch": 1, "global_batch": 8, "pp": 2, **changed})
    assert str(refusal.value).startswith(sentence)
