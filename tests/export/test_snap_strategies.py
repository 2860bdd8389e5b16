"""A strategy moves to what a framework can run by as little as possible; what is read of it: test_round_trips.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_models.core.framework import ModelFacts
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput
from automap_models.export.snap import snapped_strategy
from automap_models.export.targets import strategy_limits

PLAIN = Strategy(micro_batch=1, global_batch=16, tp=2, pp=2, dp=2, layers=(3, 3))


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("deepspeed", {"zero": 3}, {"zero": 1}),
        ("torchtitan", {"zero": 1}, {"zero": 2}),
        ("deepspeed", {"recompute": "selective"}, {"recompute": "full"}),
        ("megatron", {"schedule": "zb-h1"}, {"schedule": "1f1b"}),
        ("megatron", {"schedule": "zb-v", "vp": 2, "layers": (1, 2, 2, 1)}, {"schedule": "interleaved"}),
        ("galvatron", {"layers": (0, 6)}, {"layers": (1, 5)}),
        ("galvatron", {"cp": 2}, {"cp": 1, "dp": 4}),
        ("torchtitan", {"precision": "fp8"}, {"precision": "bf16"}),
        ("torchtitan", {"zero": 2, "ep": 2, "dispatcher": "allgather"}, {"dispatcher": "deepep"}),
        ("megatron", {"recompute": ("none", "full")}, {"recompute": "full"}),
    ],
)
def test_only_what_the_framework_objects_to_changes(
    name: str, changed: dict[str, object], expected: dict[str, object]
) -> None:
    before = replace(PLAIN, **changed)  # type: ignore[arg-type]
    moved, changes = snapped_strategy(before, strategy_limits(name))
    assert moved == replace(before, **expected)  # type: ignore[arg-type]
    assert len(changes) == len(expected)


SIZES = TransformerShape(
    name="small", layers=6, hidden=64, heads=8, kv_heads=2, ffn=256, sequence=36, vocabulary=100, experts=4
)


@pytest.mark.parametrize(
    ("name", "changed", "tied", "expected"),
    [
        ("torchtitan", {}, True, {"pp": 1, "dp": 4, "layers": (6,)}),
        ("torchtitan", {"tp": 4}, False, {"tp": 2, "dp": 4}),
        ("torchtitan", {"tp": 1, "ep": 2}, False, {"zero": 2}),
        ("megatron", {}, False, {"sequence_parallel": True}),
        ("megatron", {"tp": 1, "cp": 4}, False, {"cp": 2, "dp": 4}),
    ],
)
def test_what_it_refuses_of_a_model_becomes_what_it_trains(
    name: str, changed: dict[str, object], tied: bool, expected: dict[str, object]
) -> None:
    before = replace(PLAIN, **changed)  # type: ignore[arg-type]
    moved, changes = snapped_strategy(before, strategy_limits(name), ModelFacts(SIZES, tied))
    assert moved == replace(before, **expected)  # type: ignore[arg-type]
    assert len(changes) == len(expected)


def test_stages_of_three_ranks_become_two_where_their_number_has_to_be_a_power_of_two() -> None:
    before = replace(PLAIN, pp=3, dp=2, global_batch=12, layers=(2, 2, 2))
    moved, changes = snapped_strategy(before, strategy_limits("galvatron"))
    assert moved == replace(before, pp=2, dp=3, layers=(3, 3))
    assert changes == ("pp 2 instead of 3", "dp 3 instead of 2", "layers 3, 3 instead of 2, 2, 2")


def test_a_batch_that_the_new_ranks_do_not_divide_is_refused() -> None:
    before = replace(PLAIN, pp=3, dp=2, global_batch=16, layers=(2, 2, 2))
    with pytest.raises(BadInput, match="16 samples do not divide among 3 ranks"):
        snapped_strategy(before, strategy_limits("galvatron"))
