"""Systems by name and year, and how they split layers that do not divide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.formats.measured_systems import TODAY, Remainder, split_layers, system_named, year_named


@pytest.mark.parametrize(
    ("name", "pattern", "year"),
    [
        ("Megatron-LM 2021", "megatron", 2021),
        ("Megatron-LM 2023 + zero bubble", "megatron", 2023),
        ("Megatron-LM CI (dev)", "megatron-lm ci", TODAY),
        ("Megatron-DeepSpeed 2022", "megatron-deepspeed", 2022),
        ("DeepSpeed ZeRO-3", "deepspeed", 2021),
        ("torchtitan 2024-12", "torchtitan", 2024),
        ("Megatron-Bridge 26.04.01", "megatron-bridge|nemo", TODAY),
        ("llm-foundry (PyTorch FSDP)", "fsdp", TODAY),
        ("something else", "", TODAY),
    ],
)
def test_a_system_is_known_by_its_name_and_year(name: str, pattern: str, year: int) -> None:
    assert (system_named(name).pattern, year_named(name)) == (pattern, year)


def test_layers_that_divide_are_left_to_the_strategy() -> None:
    assert split_layers(96, 12, "ends") is None


def test_a_layer_is_left_out_at_both_ends_where_that_makes_the_rest_equal() -> None:
    """30 layers and two ends are 32 on 8 stages of 4."""
    assert split_layers(30, 8, "last") == split_layers(30, 8, "ends") == (3, 4, 4, 4, 4, 4, 4, 3)


@given(layers=st.integers(1, 200), stages=st.integers(1, 64), remainder=st.sampled_from(["ends", "last"]))
def test_every_layer_is_on_a_stage_and_none_is_fuller_than_needed(
    layers: int, stages: int, remainder: Remainder
) -> None:
    split = split_layers(layers, stages, remainder)
    if split is None:
        assert layers % stages == 0
    else:
        assert len(split) == stages
        assert sum(split) == layers
        assert max(split) == -(-layers // stages)
        assert min(split) >= 0
