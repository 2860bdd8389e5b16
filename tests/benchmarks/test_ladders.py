"""Pairs of measured steps that differ in one term, against hand-made cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from observations import measured_step

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ladders.py"


def price(
    benchmark: ModuleType, name: str, measured_s: float, predicted_s: float, day: str = "", **changes: Any
) -> Any:
    """A step of 4 samples on 4 devices whose strategy has these changes."""
    step = measured_step(name, "us", 4, 1024, micro_batch=1)[0]
    step = replace(step, name=name, step_s=measured_s, day=day, strategy=replace(step.strategy, **changes))
    return benchmark.Price(step, SimpleNamespace(step_s=predicted_s), None)


def test_a_pair_differs_in_one_term_and_in_what_follows_from_it(benchmark: ModuleType) -> None:
    """Tensor parallelism takes ranks of data parallelism, and may divide the sequence; a second term makes no pair."""
    plain = price(benchmark, "plain", 1.0, 1.0, dp=4)
    tensor = price(benchmark, "tensor", 2.0, 1.5, tp=2, dp=2, sequence_parallel=True)
    other = price(benchmark, "other", 3.0, 3.0, tp=4, dp=1, zero=1)
    (pair,) = benchmark.pairs_of_terms([plain, tensor, other])
    assert (pair.term, pair.first.step.name, pair.second.step.name) == ("tp", "plain", "tensor")
    (errors,) = benchmark.errors_of_terms([pair])
    assert errors[:4] == ("tp", "", 1, 1)
    assert errors.sign == 1.0
    assert errors.size == pytest.approx(1 - 0.584963, abs=1e-6)  # log2 of 1.5
    assert errors.row == ("tp", "1", "1", "100 %", "42 %", "0.58", "missed")


def test_of_a_plan_measured_twice_the_nearest_row_counts(benchmark: ModuleType) -> None:
    """A ladder: what rows do not say became faster between the first and the second step without ZeRO."""
    rows = [(4.0, 0), (2.0, 0), (1.5, 1)]
    prices = [price(benchmark, str(i), s, 1.0, zero=zero) for i, (s, zero) in enumerate(rows)]
    (pair,) = benchmark.pairs_of_terms(prices)
    assert (pair.first.step.name, pair.second.step.name) == ("1", "2")
    assert benchmark.errors_of_terms([pair])[0].sign == 0.0  # of equal prices


def test_steps_of_different_days_and_of_equal_times_are_no_pairs(benchmark: ModuleType) -> None:
    first = price(benchmark, "first", 1.0, 1.0, day="02-24")
    for day, measured_s in (("02-25", 2.0), ("02-24", 1.02)):
        second = price(benchmark, "second", measured_s, 1.0, day=day, zero=1)
        assert list(benchmark.pairs_of_terms([first, second])) == []
    (pair,) = benchmark.pairs_of_terms([first, price(benchmark, "undated", 2.0, 1.0, zero=1)])
    assert list(benchmark.pair_rows([pair], "zero")) == [
        ("first", "undated", "0", "1", "1", "1", "2", "1", "2.000", "1.000")
    ]
