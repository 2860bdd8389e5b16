"""How tokens go to experts: what frameworks are told of it, and which way a plan takes where nobody says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from drawn_plans import strategy_source
from export_readers import megatron_arguments

import automap_models as am
from automap_models.core.estimate import Estimate
from automap_models.core.framework import ModelFacts
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput
from automap_models.export.targets import strategy_limits, target_by_name
from automap_models.formats.hardware_yaml import read_device
from automap_models.planners.strategies.problem import usual_dispatcher

PLAIN = Strategy(micro_batch=1, global_batch=16, dp=4, ep=4, zero=1, layers=(4,))
FLEX = ["--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--moe-router-dtype"]
MIXTURE = TransformerShape(
    name="small", layers=4, hidden=64, heads=8, kv_heads=8, ffn=256, sequence=32, vocabulary=100, experts=8
)


def megatron(strategy: Strategy) -> list[str | None]:
    """What Megatron is told of its dispatcher."""
    written = target_by_name("megatron").write(strategy_source(strategy), Path("out"))
    read = megatron_arguments(written.text)
    return [read[name][0] if name in read else None for name in FLEX]


def test_megatron_is_told_which_dispatcher_the_plan_is_priced_with() -> None:
    """Megatron-Core 0.16 takes --moe-token-dispatcher-type allgather unless it is told otherwise, and DeepEP takes
    probabilities in fp32 alone (core/transformer/moe/token_dispatcher.py)."""
    assert megatron(replace(PLAIN, dispatcher="deepep")) == ["flex", "deepep", "fp32"]
    assert megatron(replace(PLAIN, dispatcher="hybridep")) == ["flex", "hybridep", "fp32"]
    assert megatron(replace(PLAIN, dispatcher="alltoall")) == ["alltoall", None, None]


def test_megatron_computes_experts_together_as_they_are_priced() -> None:
    """It computes one after the other without --moe-grouped-gemm; --ffn-hidden-size is of layers without experts."""
    written = target_by_name("megatron").write(strategy_source(PLAIN, ModelFacts(MIXTURE)), Path("out"))
    read = megatron_arguments(written.text)
    assert read["--num-experts"] == ["8"]
    assert read["--moe-ffn-hidden-size"] == ["256"]
    assert read["--moe-grouped-gemm"] == []
    assert any("--moe-router-topk" in note for note in written.notes)


def test_its_flexible_dispatcher_is_not_asked_for_where_a_device_has_all_experts() -> None:
    """It asserts that tp · ep is more than 1 (core/transformer/moe/token_dispatcher.py)."""
    assert megatron(replace(PLAIN, ep=1, dispatcher="deepep")) == [None, None, None]


def test_torchtitan_takes_it_where_the_model_is_built() -> None:
    """torchtitan 0.3, models/common/config_utils.py: standard, deepep, hybridep."""
    for name, backend in (("deepep", "deepep"), ("alltoall", "standard")):
        strategy = replace(PLAIN, zero=2, dispatcher=name)  # type: ignore[arg-type]
        written = target_by_name("torchtitan").write(strategy_source(strategy), Path("out"))
        assert written.notes == (f"build the model with moe_comm_backend={backend!r}",)


@pytest.mark.parametrize(
    ("devices", "target", "dispatcher"),
    [
        (["h100"], None, "deepep"),
        (["h100"], "megatron", "deepep"),
        (["h100"], "deepspeed", "alltoall"),
        (["gb200"], "megatron", "hybridep"),  # DeepEP is for nodes of eight
        (["h100", "v100"], None, "alltoall"),
        (["mi300x"], None, "alltoall"),
    ],
)
def test_tokens_go_once_a_node_where_devices_and_framework_have_that(
    devices: list[str], target: str | None, dispatcher: str
) -> None:
    kinds, within = [read_device(name) for name in devices], None if target is None else strategy_limits(target)
    assert usual_dispatcher(MIXTURE, kinds, within) == dispatcher
    assert usual_dispatcher(replace(MIXTURE, experts=None), kinds, within) is None


def priced(**options: object) -> Estimate:
    """A mixture of experts over two nodes."""
    return am.price("mixtral-8x7b", **{"tp": 1, "ep": 8, "zero": 1, "gpus": "16xh100", **options})  # type: ignore[arg-type]


def test_a_price_has_the_dispatcher_that_a_plan_would_have_unless_a_runtime_says() -> None:
    """`--for megatron` plans with DeepEP; a runtime file of one's own was measured with what it says."""
    assert priced(for_="megatron").strategy.dispatcher == "deepep"
    assert priced(runtime="megatron").strategy.dispatcher == "alltoall"
    assert priced(runtime="megatron-bridge-26.06").strategy.dispatcher == "hybridep"
    once, to_all = priced(for_="megatron"), priced(for_="megatron", dispatcher="alltoall")
    assert once.parts.expert_parallel < to_all.parts.expert_parallel


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": "16xv100", "dispatcher": "deepep"}, "deepep does not run on v100; take alltoall, or one of a100"),
        ({"for_": "torchtitan", "zero": 2, "dispatcher": "allgather"}, "torchtitan has no allgather for the tokens"),
    ],
)
def test_what_a_device_or_a_framework_does_not_have_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        priced(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"runtime": "megatron", "zero": 3}, "`zero`: megatron has no ZeRO-3; take zero 0 or 1, or another `runtime`"),
        (
            {"runtime": "torchtitan", "zero": 2, "precision": "fp16"},
            "torchtitan has no precision fp16; take fp32 or bf16",
        ),
        ({"runtime": "torchtitan", "zero": 2, "dispatcher": "allgather"}, "torchtitan has no allgather for the tokens"),
        ({"runtime": "deepspeed", "cp": 2}, "`cp`: deepspeed has no context parallelism; take cp 1"),
        ({"runtime": "torchtitan", "tp": 16, "ep": 1}, "`tp`: torchtitan divides heads of keys and values by tp, and"),
        ({"runtime": "deepspeed", "pp": 2, "zero": 3, "ep": 1}, "`runtime`: deepspeed has no ZeRO-3 beside a pipeline"),
    ],
)
def test_what_a_runtime_s_framework_does_not_have_is_not_priced_by_its_numbers(
    options: dict[str, object], sentence: str
) -> None:
    """Nor is what its degrees cannot be, of a field alone in the words in which a search refuses it."""
    with pytest.raises(BadInput, match=sentence):
        priced(**options)
    if "`runtime`: " not in sentence:
        with pytest.raises(BadInput, match=sentence):
            am.plan("mixtral-8x7b", "dgx-h100-4", **options)  # type: ignore[arg-type]
