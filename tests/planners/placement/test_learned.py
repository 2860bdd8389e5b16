"""The learned placer: no worse than its baselines, and files that it refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.core.result import Result
from automap_models.core.step_devices import StepDevices
from automap_models.envs.placement.generator import random_problem
from automap_models.errors import BadInput
from automap_models.planners.placement.learned import LearnedConfig, LearnedPlanner, read_placer
from automap_models.planners.registry import make_planner
from automap_models.resources import zoo_dir

SHIPPED = zoo_dir() / "placer.onnx"


@pytest.mark.parametrize("file", sorted(zoo_dir().glob("*.onnx")), ids=lambda file: file.stem)
def test_a_shipped_policy_says_nothing_of_the_machine_that_made_it(file: Path) -> None:
    """The placer's nodes named the files of the code that they were traced from, a quarter of its bytes."""
    assert b".py" not in file.read_bytes()


SEEDS = range(10_000, 10_003)
"""Of random graphs that no training drew."""


@cache
def solved(seed: int) -> Result[PlacementProblem, PlacementPlan]:
    return LearnedPlanner().solve(random_problem(np.random.default_rng(seed)))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_no_worse_than_any_baseline_and_says_who_made_the_plan(seed: int) -> None:
    result = solved(seed)
    problem = result.problem
    for name in ("expert", "m-etf", "metis"):
        assert result.cost.value_s <= make_planner(name, kind="placement").solve(problem).cost.value_s * (1 + 1e-9)
    assert result.notes[0].startswith("the best baseline, ")
    assert result.bound is not None and result.bound.value <= result.cost.value_s


def test_the_same_seed_makes_the_same_plan() -> None:
    first = solved(SEEDS[0])
    again = make_planner("learned", kind="placement").plan(first.problem)
    assert (again.assignment == first.required_plan().assignment).all()


def test_the_policy_makes_the_best_baseline_shorter() -> None:
    """METIS and the expert leave something to gain on most graphs."""
    assert sum("shorter" in solved(seed).notes[0].split("; the policy")[-1] for seed in SEEDS) >= 2


def test_operations_of_unknown_types_are_counted_and_named() -> None:
    problem = random_problem(np.random.default_rng(2))
    codes = ("warp_drive",) * 3 + ("add",) * (len(problem.graph) - 3)
    result = LearnedPlanner().solve(replace(problem, graph=replace(problem.graph, opcodes=codes)))
    assert "3 operations of types unknown to the policy, embedded as unknown: warp_drive" in result.notes


def test_fine_tuning_makes_it_no_longer() -> None:
    plain = solved(SEEDS[0])
    tuned = LearnedPlanner(LearnedConfig(finetune_s=0.2)).solve(plain.problem)
    assert tuned.cost.value_s <= plain.cost.value_s


def test_more_devices_than_it_knows_are_refused() -> None:
    problem = random_problem(np.random.default_rng(1))
    many = replace(problem, network=StepDevices.equal(17, 0, 1e15, 1e9), accelerators=17, cpus=0)
    with pytest.raises(BadInput, match="17 devices; the policy places on at most 16"):
        LearnedPlanner().solve(many)


def test_a_policy_of_pipelines_or_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no policy that places"):
        read_placer(zoo_dir() / "pipeline.onnx")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(SHIPPED))
    onnx.helper.set_model_props(model, {"kind": "placer", "version": "99"})
    onnx.save(model, str(tmp_path / "new.onnx"))
    with pytest.raises(BadInput, match="is a policy of version 99"):
        read_placer(tmp_path / "new.onnx")
