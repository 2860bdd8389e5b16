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
from automap_models.core.mesh import MeshAxis
from automap_models.core.result import Bound, Result
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, ShardingWork, Variable
from automap_models.cost.sharding import ShardingCount, ShardingPrice
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_json
from automap_models.formats.sharding_plan import (
    ShardingReport,
    read_sharding_plan,
    sharding_document,
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
CLUSTER = Cluster(2, 4, 130e9, 3e9, 16e9, "small")
MODEL = (MeshAxis("model", 2),)
BOTH = (MeshAxis("data", 2), MeshAxis("model", 2))
PROBLEM = ShardingProblem("dense", CLASSES, CLUSTER, MODEL, rules="paper")
PLAN = ShardingPlan(MODEL, VARIABLES, ((-1, 1, 0, 1),), "milp")
RESULT = Result(
    PROBLEM,
    PLAN,
    ShardingCount(2, 208.0),
    "optimal",
    Bound(2.0, "exact"),
    facts={"decided_by_propagation": (1,), "reward": (0.9,), "seed": 3},
    taken_s=0.01,
)
REPORT = ShardingReport(**{**vars(RESULT), "notes": ("note",)}, planning_s=0.5)

WORK = ShardingWork(2.0, 0.1, np.eye(4), 8e9, np.eye(4), np.eye(4), np.eye(4), np.ones(4))
TWO_AXES = ShardingProblem("dense", CLASSES, CLUSTER, BOTH, "time", WORK, "shardy", 1e-5)
PLAN_OF_TWO = ShardingPlan(BOTH, VARIABLES, ((0, -1, -1, -1), (-1, 1, 0, 1)), "milp")
PRICE = ShardingPrice(2.0, (0.25, 0.5), (10.0, 20.0), (30.0, 40.0), 5e9)
FACTS = {"decided_by_propagation": (1, 2), "reward": (0.4, 0.9)}
PRICED = ShardingReport(
    **vars(Result(TWO_AXES, PLAN_OF_TWO, PRICE, "feasible", Bound(2.5, "relaxation"), facts=FACTS, taken_s=0.01)),
    planning_s=0.5,
    replicated=ShardingPrice(4.0, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 9e9),
    data_parallel=ShardingPrice(3.0, (0.5,), (0.0,), (60.0,), 8e9),
)


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
    write_json(tmp_path / "plan.json", sharding_document(REPORT))
    assert read_sharding_plan(tmp_path / "plan.json", PROBLEM) == PLAN


def test_a_plan_of_the_first_version_which_could_not_be_interrupted_is_read(tmp_path: Path) -> None:
    document = sharding_document(REPORT)
    del document["interrupted"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert read_sharding_plan(tmp_path / "plan.json", PROBLEM) == PLAN


def test_without_its_problem_it_comes_back_with_what_it_decides_on_first(tmp_path: Path) -> None:
    write_json(tmp_path / "plan.json", sharding_document(REPORT))
    assert read_sharding_plan(tmp_path / "plan.json").by_variable() == PLAN.by_variable()


@pytest.mark.parametrize(
    ("bound", "optimality"),
    [(None, None), (Bound(4.0, "relaxation"), {"bound": 4.0, "proof": "relaxation", "gap": 0.5})],
)
def test_less_may_be_proven(bound: Bound | None, optimality: dict[str, Any] | None, tmp_path: Path) -> None:
    report = replace(REPORT, bound=bound)
    assert sharding_document(report)["optimality"] == optimality
    write_json(tmp_path / "plan.json", sharding_document(report))
    assert read_sharding_plan(tmp_path / "plan.json", PROBLEM) == PLAN


def test_a_plan_of_two_axes_has_a_document_for_each_and_its_price_beside_them(tmp_path: Path) -> None:
    document = json.loads(json.dumps(sharding_document(PRICED)))
    assert (document["kind"], document["objective"], document["devices"]) == ("hybrid", "time", 4)
    assert document["mesh"] == {"data": 2, "model": 2}
    assert {name: plan["kind"] for name, plan in document["plans"].items()} == {"data": "data", "model": "operator"}
    assert document["plans"]["data"]["variables"]["x"]["dim"] == 0
    assert document["plans"]["model"]["arguments"]["mu/kernel"]["dim"] == 1
    assert document["plans"]["model"]["decided_by_propagation"] == 2
    assert document["price"]["all_reduce_s"] == {"data": 0.25, "model": 0.5}
    assert document["price"]["time_s"] == 2.0 + 0.25 + 0.5
    assert document["baselines"]["data_parallel"]["gradient_bytes"] == {"data": 60.0}
    assert document["price_optimality"] == {"bound": 2.5, "proof": "relaxation", "gap": pytest.approx(0.1)}
    write_json(tmp_path / "plan.json", sharding_document(PRICED))
    assert read_sharding_plan(tmp_path / "plan.json", TWO_AXES) == PLAN_OF_TWO
    assert read_sharding_plan(tmp_path / "plan.json").mesh == BOTH


def test_a_plan_of_one_axis_by_price_is_that_axis_s_document(tmp_path: Path) -> None:
    problem = replace(PROBLEM, objective="memory", work=WORK)
    price = ShardingPrice(2.0, (0.5,), (20.0,), (40.0,), 5e9)
    result = replace(RESULT, problem=problem, cost=price, bound=Bound(5e9, "exact"))
    document = sharding_document(ShardingReport(**vars(result), planning_s=0.5))
    assert (document["kind"], document["objective"], document["mesh"]) == ("operator", "memory", {"model": 2})
    assert document["optimality"] is None
    assert document["price_optimality"] == {"bound": 5e9, "proof": "exact", "gap": 0.0}
    assert document["baselines"] == {"replicated": None, "data_parallel": None}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert read_sharding_plan(tmp_path / "plan.json", problem) == PLAN


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to

    return change


WRONG_ON_TWO_AXES: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "an axis without a plan": (("plans",), {}, "$.plans.data is missing"),
    "a plan of another kind": (("plans", "data", "kind"), "operator", "$.plans.data.kind is 'operator', not data"),
    "a dimension along both": (
        ("plans", "data", "arguments", "params/bias", "dim"),
        0,
        "$.plans both partition dimension 0 of params/bias",
    ),
    "other variables": (
        ("plans", "model", "arguments"),
        {},
        "$.plans are about different variables (x is in one alone)",
    ),
    "a plan for an unknown axis": (("plans", "rows"), {}, "$.plans"),
    "a price of another kind": (("price", "hours"), 1, "$.price has the unknown key 'hours'"),
    "an unknown axis": (("mesh",), {"rows": 2}, "a mesh of data and model"),
    "another mesh": (("mesh",), {"data": 2, "model": 4}, "is a plan for the mesh data=2, model=4, not data=2, model=2"),
}


@pytest.mark.parametrize("wrong", WRONG_ON_TWO_AXES)
def test_a_wrong_file_of_two_axes_is_refused_in_one_sentence(wrong: str, tmp_path: Path) -> None:
    place, value, sentence = WRONG_ON_TWO_AXES[wrong]
    document = sharding_document(PRICED)
    _set(*place, to=value)(document)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(BadInput) as caught:
        read_sharding_plan(tmp_path / "plan.json", TWO_AXES)
    assert sentence in str(caught.value)


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "schema": (_set("schema", to=2), "schema is 2"),
    "another kind": (_set("kind", to="pipeline"), "not data or hybrid or operator; automap infer, or automap plan"),
    "no variables": (_drop("variables"), "$.variables is missing"),
    "no list of shapes": (
        _set("variables", "params/bias", "shape", to=8),
        "$.variables.params/bias.shape is 8, not a list",
    ),
    "dim out of range": (
        _set("variables", "params/bias", "dim", to=1),
        "$.variables.params/bias.dim is 1, not -1 or one of the 1 dim",
    ),
    "dim below -1": (_set("variables", "params/bias", "dim", to=-2), "$.variables.params/bias.dim is -2"),
    "a dim that is true": (_set("variables", "params/bias", "dim", to=True), "$.variables.params/bias.dim is True"),
    "unknown kind of argument": (
        _set("arguments", "x", "kind", to="label"),
        "$.arguments.x.kind is 'label', not input or parameter or state",
    ),
    "count": (_set("partitioned", to=3), "partitioned is 3, not 2"),
    "conflicts": (_set("conflicts", to=1), "conflicts is 1, not 0"),
    "a conflict": (_set("variables", "params/kernel", "dim", to=0), "cannot both be partitioned"),
    "undecided": (_set("arguments", "mu/kernel", "dim", to=-1), "undecided"),
    "one device": (_set("devices", to=1), "devices is 1"),
    "another mesh": (_set("devices", to=4), "is a plan for the mesh model=4, not model=2"),
    "another cluster": (_set("cluster", "nodes", to=3), "$.cluster.nodes is 3, but cluster small has 2"),
    "another shape": (_set("variables", "params/kernel", "shape", to=[6, 9]), "the plan has no parameter params/k"),
    "one more": (_set("arguments", "y", to={"shape": [], "dtype": "f32", "bytes": 4, "dim": -1, "kind": "input"}), "y"),
    "one less": (_drop("arguments", "mu/kernel"), "the plan has no state mu/kernel"),
    "bound": (_set("optimality", "bound", to=1), "at least 2"),
    "gap": (_set("optimality", "gap", to=0.5), "gap is 0.5"),
    "proof": (_set("optimality", "proof", to="hope"), "proof is 'hope'"),
    "no reward": (_set("reward", to="much"), "reward is 'much'"),
    "episodes": (_set("episodes", to=-1), "episodes is -1"),
    "a size beyond every number": (
        _set("variables", "params/kernel", "shape", to=[6, 10**30]),
        f"$.variables.params/kernel.shape[1] is {10**30}, not a whole number",
    ),
    "an unknown key": (_set("search_time", to=1.0), "the document has the unknown key 'search_time'"),
    "an unknown key of a variable": (
        _set("arguments", "x", "sharding", to=None),
        "$.arguments.x has the unknown key 'sharding'",
    ),
    "a mesh of two axes": (_set("mesh", to={"data": 2, "model": 2}), "$.kind is 'operator', not hybrid"),
    "a mesh without sizes": (_set("mesh", to={"model": "four"}), "$.mesh.model is 'four', not a whole number"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_in_one_sentence(wrong: str, tmp_path: Path) -> None:
    change, sentence = WRONG[wrong]
    document = sharding_document(REPORT)
    change(document)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    with pytest.raises(BadInput) as caught:
        read_sharding_plan(file, PROBLEM)
    assert sentence in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_plan_of_the_other_kind_is_no_solution(tmp_path: Path) -> None:
    write_json(tmp_path / "plan.json", sharding_document(REPORT))
    with pytest.raises(BadInput, match="for the mesh model=2, not data=2"):
        read_sharding_plan(tmp_path / "plan.json", replace(PROBLEM, mesh=(MeshAxis("data", 2),)))
