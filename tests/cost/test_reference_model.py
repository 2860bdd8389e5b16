"""The tests' own copy of the cost model against values computed by somebody else from the same description."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_it_says_what_the_reference_data_say(reference_model: ModuleType, shared_data: Path) -> None:
    vectors = json.loads((shared_data / "cost_vectors.json").read_text())
    for case in vectors["cost"]:
        result, expected = reference_model.evaluate(case), dict(case["expected"])
        del expected["optimum_over_all_plans_of_S_stages"]
        for name, value in expected.items():
            assert result[name] == pytest.approx(value, rel=1e-9, abs=0), name
    for case in vectors["coarsening"]:
        assert reference_model.coarsened(case["n"], case["granularity"]) == case["instruction_of_point"]


def test_its_cases_are_of_all_sorts(reference_model: ModuleType) -> None:
    cases = reference_model.reference_vectors()["cost"]
    assert {len(case["cuts"]) + 1 for case in cases} == {1, 2, 3, 4, 5}
    assert {case["expected"]["feasible"] for case in cases} == {True, False}
    assert {case["profile"]["C_fwd"] is None for case in cases} == {True, False}
    assert {case["profile"]["stash"] is None for case in cases} == {True, False}
    with_optimum = [i for i, case in enumerate(cases) if case["expected"]["optimum_over_all_plans_of_S_stages"]]
    assert tuple(with_optimum) == reference_model.WITH_OPTIMUM


def test_equal_stages_without_communication_take_the_textbook_length(reference_model: ModuleType) -> None:
    """S equal stages, M micro-batches: (M + S - 1) rounds of forward and backward, under every schedule."""
    stages, micro_batches = 4, 7
    case = {
        "cluster": {"nodes": 1, "devices_per_node": stages, "intra": 1.0, "inter": 1.0, "memory": 1.0},
        "profile": {"C": [3.0] * stages, "A": [0.0] * stages, "W": [0.0] * stages, "C_fwd": None, "stash": None},
        "micro_batches": micro_batches,
        "cuts": [0, 1, 2],
        "device_cuts": [1, 2, 3],
    }
    result = reference_model.evaluate(case)
    assert result["span_s"] == result["length_s"] == (micro_batches + stages - 1) * 3.0
    assert set(result["simulated_length_s"].values()) == {result["length_s"]}
