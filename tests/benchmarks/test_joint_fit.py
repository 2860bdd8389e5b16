"""Kinds of devices that are fitted together: what they share, and what one without steps has."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest
from observations import observation

from automap_models.core.device import USUAL
from automap_models.formats.hardware_yaml import read_device
from automap_models.simulate.observations import MeasuredKind

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "joint_fit.py"
DEVICE = (read_device("a100"),)
TRUE = read_device("a100").constants


def test_kinds_share_the_geometric_mean_of_their_constants_and_half_a_weight_of_the_usual_ones(
    benchmark: ModuleType,
) -> None:
    """Two kinds at 4 and 9 half sizes of 1, usual 60: (4 · 9 · 60^½)^(1 / 2.5)."""
    kinds = [replace(TRUE, half_size=4.0), replace(TRUE, half_size=9.0)]
    shared = benchmark.shared_constants(kinds)
    assert shared.half_size == pytest.approx((4.0 * 9.0 * USUAL.half_size**0.5) ** (1 / 2.5))
    assert asdict(benchmark.shared_constants([])) == pytest.approx(asdict(USUAL))


def test_a_kind_without_steps_has_what_the_others_share(benchmark: ModuleType) -> None:
    """Of two kinds, one with steps of three sources; fitted are only those without steps."""
    some = [observation(f"row {k}", ("one", "two", "three")[k], 4, 1024, micro_batch=1 << k) for k in range(3)]
    kinds = {"known": MeasuredKind(some, DEVICE), "new": MeasuredKind([], DEVICE)}
    constants = benchmark.fit_kinds(kinds, {"known": TRUE, "new": USUAL}, ["new"])
    assert constants["known"] == TRUE
    assert asdict(constants["new"]) == pytest.approx(asdict(benchmark.shared_constants([TRUE])))
