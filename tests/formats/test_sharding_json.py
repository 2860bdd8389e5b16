"""Sharding plans as files: what is written comes back, and what does not fit is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.sharding import ShardingOptimality, ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.errors import BadInput
from automap_models.formats.sharding_json import (
    ShardingReport,
    read_sharding_plan,
    sharding_document,
    write_sharding_plan,
)

VARIABLES = (
    Variable("x", (4, 6), "f32", 96.0, "input"),
    Variable("params/kernel", (6, 8), "f32", 192.0, "parameter"),
    Variable("params/bias", (8,), "bf16", 16.0, "parameter"),
    Variable("mu/kernel", (6, 8), "f32", 192.0, "state"),
)
CLASSES = ShardingClasses(
    VARIABLES, np.array([3, 0, 0, 1, 1, 0, 1]), np.array([6, 8, 1, 4]), np.array([[0, 1], [0, 3], [1, 3]])
)
PROBLEM = ShardingProblem("dense", "operator", CLASSES, Cluster(2, 4, 130e9, 3e9, 16e9, "small"), 2, "paper")
PLAN = ShardingPlan(
    "operator",
    2,
    VARIABLES,
    (-1, 1, 0, 1),
    "milp",
    decided_by_propagation=1,
    reward=0.9,
    search_s=0.01,
    optimality=ShardingOptimality(2.0, "exact"),
)
REPORT = ShardingReport(PROBLEM, PLAN, planning_s=0.5, seed=3, notes=("note",))


def test_the_document_has_every_key_of_formats_md() -> None:
    document = json.loads(json.dumps(sharding_document(REPORT)))
    assert document["kind"] == "operator"
    assert document["variables"] == {
        "params/kernel": {"shape": [6, 8], "dtype": "f32", "bytes": 192.0, "dim": 1},
        "params/bias": {"shape": [8], "dtype": "bf16", "bytes": 16.0, "dim": 0},
    }
    assert document["arguments"]["mu/kernel"]["dim"] == 1
    assert set(document) >= {"schema", "model", "cluster", "planner", "provenance"}
    numbers = {key: document[key] for key in ("devices", "partitioned", "decided_by_propagation", "conflicts")}
    assert numbers == {"devices": 2, "partitioned": 2, "decided_by_propagation": 1, "conflicts": 0}
    assert (document["reward"], document["search_s"], document["episodes"]) == (0.9, 0.01, 0)


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_sharding_plan(tmp_path / "plan.json", REPORT)
    assert read_sharding_plan(tmp_path / "plan.json", PROBLEM) == PLAN


def test_without_its_problem_it_comes_back_with_what_it_decides_on_first(tmp_path: Path) -> None:
    write_sharding_plan(tmp_path / "plan.json", REPORT)
    assert read_sharding_plan(tmp_path / "plan.json").by_variable == PLAN.by_variable


@pytest.mark.parametrize("bound", [None, ShardingOptimality(3.0, "relaxation")])
def test_less_may_be_proven(bound: ShardingOptimality | None, tmp_path: Path) -> None:
    plan = replace(PLAN, optimality=bound)
    write_sharding_plan(tmp_path / "plan.json", replace(REPORT, plan=plan))
    assert read_sharding_plan(tmp_path / "plan.json", PROBLEM) == plan


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "schema": (_set("schema", to=2), "schema is 2"),
    "another kind": (_set("kind", to="pipeline"), "operator or data"),
    "no variables": (_drop("variables"), "variables is missing"),
    "no list of shapes": (_set("variables", "params/bias", "shape", to=8), "shape is 8"),
    "dim out of range": (_set("variables", "params/bias", "dim", to=1), "dim is 1, not -1 or one of the 1 dim"),
    "dim below -1": (_set("variables", "params/bias", "dim", to=-2), "dim is -2"),
    "a dim that is true": (_set("variables", "params/bias", "dim", to=True), "dim is True"),
    "unknown kind of argument": (_set("arguments", "x", "kind", to="label"), "kind is 'label'"),
    "count": (_set("partitioned", to=3), "partitioned is 3, not 2"),
    "conflicts": (_set("conflicts", to=1), "conflicts is 1, not 0"),
    "a conflict": (_set("variables", "params/kernel", "dim", to=0), "cannot both be partitioned"),
    "undecided": (_set("arguments", "mu/kernel", "dim", to=-1), "undecided"),
    "one device": (_set("devices", to=1), "devices is 1"),
    "another mesh": (_set("devices", to=4), "an axis of 4, not 2"),
    "another cluster": (_set("cluster", "nodes", to=3), "nodes is 3, but cluster small has 2"),
    "another shape": (
        _set("variables", "params/kernel", "shape", to=[6, 10**30]),
        "the plan has no parameter params/k",
    ),
    "one more": (_set("arguments", "y", to={"shape": [], "dtype": "f32", "bytes": 4, "dim": -1, "kind": "input"}), "y"),
    "one less": (_drop("arguments", "mu/kernel"), "the plan has no state mu/kernel"),
    "bound": (_set("optimality", "bound", to=1), "at least 2"),
    "gap": (_set("optimality", "gap", to=0.5), "gap is 0.5"),
    "proof": (_set("optimality", "proof", to="hope"), "proof is 'hope'"),
    "no reward": (_set("reward", to="much"), "reward is 'much'"),
    "episodes": (_set("episodes", to=-1), "episodes is -1"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_in_one_sentence(wrong: str, tmp_path: Path) -> None:
    change, said = WRONG[wrong]
    document = sharding_document(REPORT)
    change(document)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with pytest.raises(BadInput) as caught:
        read_sharding_plan(file, PROBLEM)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_plan_of_the_other_kind_is_no_solution(tmp_path: Path) -> None:
    write_sharding_plan(tmp_path / "plan.json", REPORT)
    with pytest.raises(BadInput, match="operator plan"):
        read_sharding_plan(tmp_path / "plan.json", replace(PROBLEM, kind="data"))
