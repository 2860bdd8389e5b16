"""Quantities are read with the units that they may have, to the last bit, and written as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.units import (
    BYTES,
    BYTES_PER_S,
    FLOP_PER_S,
    SECONDS,
    SHARE,
    Unit,
    percent,
    rounded_up,
    seconds,
    shortened,
    size,
    token_count,
)


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        (BYTES, "32 GB", 32e9),
        (BYTES, "32GB", 32e9),
        (BYTES, " 1.5 kB ", 1500.0),
        (BYTES, "80 GiB", 85899345920.0),
        (BYTES, "1e3 MB", 1e9),
        (BYTES, "16e9", 16e9),
        (BYTES_PER_S, "130 GB/s", 130e9),
        (BYTES_PER_S, "25 Gbit/s", 3.125e9),
        (BYTES_PER_S, "25 Gb/s", 3.125e9),
        (BYTES_PER_S, "100Gbps", 12.5e9),
        (FLOP_PER_S, "312 TFLOP/s", 312e12),
        (FLOP_PER_S, "1.979 PFLOPS", 1.979e15),
        (SHARE, "0.5 %", 0.005),
        (SHARE, "5%", 0.05),
        (SHARE, "0.005", 0.005),
        (SECONDS, "0.9 us", 0.9e-6),
        (SECONDS, "5 µs", 5e-6),
        (SECONDS, "300 ms", 0.3),
        (SECONDS, "2 min", 120.0),
        (SECONDS, "inf", float("inf")),
    ],
)
def test_a_quantity_is_read_to_the_last_bit(unit: Unit, text: str, value: float) -> None:
    assert unit.parse(text) == value


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (BYTES, "32 gb"),
        (BYTES, "32 Gb"),
        (BYTES, "32 GB/s"),
        (BYTES, "GB"),
        (BYTES, ""),
        (BYTES, "0x1F"),
        (BYTES, "1 000 MB"),
        (BYTES, "1e9999 MB"),
        (BYTES, "9" * 100 + " GB"),
        (BYTES_PER_S, "130 GB"),
        (BYTES_PER_S, "25 Gibit/s"),
        (SECONDS, "5 m"),
        (SECONDS, "2 moons"),
    ],
)
def test_what_is_no_quantity_of_the_kind_is_refused_with_what_would_be(unit: Unit, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f" is no {unit.what} such as {unit.examples} ({unit.base})")):
        unit.parse(text)


@given(st.floats(allow_nan=False), st.sampled_from([BYTES, BYTES_PER_S, FLOP_PER_S, SECONDS]))
def test_a_plain_number_is_in_the_base_unit(value: float, unit: Unit) -> None:
    assert unit.parse(repr(value)) == value


@given(st.text(max_size=80))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    for unit in (BYTES, BYTES_PER_S, FLOP_PER_S, SECONDS):
        try:
            assert isinstance(unit.parse(text), float)
        except ValueError as error:
            assert "such as" in str(error)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 s"), (1.5e-5, "15.0 µs"), (0.01234, "12.3 ms"), (2.0, "2.00 s"), (4000.0, "4000 s")]
)
def test_times_have_three_digits_and_the_unit_that_suits_them(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0 B"), (999.0, "999 B"), (32e9, "32.0 GB"), (1.5e12, "1.50 TB")])
def test_sizes_are_decimal(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("value", "rounded"), [(0.0, 0.0), (1.2301, 1.24), (6e9, 6e9), (999.1, 1000.0), (4e-9, 4e-9)])
def test_a_need_is_rounded_up_to_three_digits(value: float, rounded: float) -> None:
    assert rounded_up(value) == pytest.approx(rounded, rel=1e-9)


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.0 %"), (0.1234, "12.3 %"), (0.00012, "0.012 %")])
def test_small_shares_keep_a_digit(value: float, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("name", "width", "text"),
    [
        ("model.layers.17.self_attn_block.mlp.down_proj", 30, "model.layers.17…mlp.down_proj"),
        ("model.layers.17.self_attn_block.mlp.down_proj", 20, "…layers.17…down_proj"),
        ("block_0/attention_layer_norm", 20, "block_0…layer_norm"),
        ("decoder/block_3/attention", 20, "…block_3/attention"),
        ("embedding_layer_norm", 16, "embed…layer_norm"),
        ("a\nb", 10, "a b"),
    ],
)
def test_a_long_name_is_shortened_in_the_middle_and_keeps_its_index(name: str, width: int, text: str) -> None:
    assert shortened(name, width) == text


@given(
    parts=st.lists(st.text("abc_", min_size=1, max_size=12), min_size=1, max_size=5),
    index=st.integers(0, 999),
    at=st.integers(0, 4),
    mark=st.sampled_from("/."),
    width=st.integers(8, 60),
)
def test_no_shortened_name_is_too_long_or_loses_its_index(
    parts: list[str], index: int, at: int, mark: str, width: int
) -> None:
    name = mark.join([*parts[:at], str(index), *parts[at:]])
    short = shortened(name, width)
    assert len(short) <= width
    assert str(index) in short
    assert short == name or "…" in short
    assert len(name) > width or short == name


def test_tokens_are_counted_as_people_say_them() -> None:
    assert [token_count(value) for value in (12.0, 2e9, 15.6e12)] == ["12", "2B", "15.6T"]
