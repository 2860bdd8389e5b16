"""automap export: what it prints and writes, and mistakes in one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_plans import block_end, costed, cut_plan, profile

from automap_models.core.cluster import Cluster
from automap_models.core.result import PlanReport
from automap_models.formats.atomic import write_json
from automap_models.formats.npz import write_npz
from automap_models.formats.staged_plan import plan_document
from automap_models.infer.app import export as main
from automap_models.infer.app import infer

CLUSTER = Cluster(2, 4, 1e11, 1e10, 1e12, "pair")
STRATEGY = {
    "schema": 1,
    "kind": "strategy",
    "model": "small",
    "strategy": {"micro_batch": 1, "global_batch": 8, "pp": 2, "dp": 1, "micro_batches": 8, "recompute": "full"},
    "stage_layers": [2, 3],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of six blocks, a plan between them, one inside one, and a strategy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOMAP_CACHE", str(tmp_path / "cache"))
    whole = profile(6)
    write_npz("profile.npz", whole)
    write_npz("mine.npz", replace(whole, meta={**whole.meta, "model": "my_module:make_model"}))
    for name, cut, first in (("plan", block_end(2), 4), ("inside", block_end(2) + 1, 4), ("unequal", block_end(2), 3)):
        problem, plan = cut_plan(whole, CLUSTER, (cut,), (first,))
        write_json(f"{name}.json", plan_document(PlanReport(**vars(costed(problem, plan)), single_device_s=1.0)))
    Path("strategy.json").write_text(json.dumps(STRATEGY), encoding="utf-8")
    shared = {**STRATEGY, "strategy": {**STRATEGY["strategy"], "zero": 3}}  # type: ignore[dict-item]
    Path("zero.json").write_text(json.dumps(shared), encoding="utf-8")


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[[str, int], str]:
    """Runs a command that fails with that code, and returns its one line on standard error."""

    def run(command: str, code: int = 2) -> str:
        assert main(command.split()) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"automap export: error: [^\n]+\n", err)
        return err

    return run


def test_a_schedule_is_printed_without_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """1F1B of two stages and eight micro-batches, as the docstring of core.schedules draws it."""
    assert main(["plan.json", "--to", "torch-csv"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0F4,0B3,0F5,0B4,0F6,0B5,0F7,0B6,0B7"
    assert second == ",".join(f"1{kind}{m}" for m in range(8) for kind in "FB")


def test_a_file_is_written_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan.json", "profile.npz", "--to", "megatron", "--out", "plan.args"]) == 0
    assert "2 stages, 8 micro-batches, 1f1b" in capsys.readouterr().out
    assert "--pipeline-model-parallel-layout 'Et*3|t*3L'" in Path("plan.args").read_text("utf-8").splitlines()


def test_a_snapped_plan_says_what_changed_and_what_it_loses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inside.json", "profile.npz", "--to", "megatron", "--snap", "--out", "plan.args"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "stage 0 ends after layers.2 (instruction 13 instead of 14)" in printed
    assert re.search(r"loses a step of \S+ m?s instead of \S+ m?s, \S+ % (longer|shorter)", printed)


def test_a_snapped_strategy_says_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zero.json", "--to", "deepspeed", "--snap", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changes"] == ["zero 1 instead of 3"]
    assert document["step_s"] == {"before": None, "after": None}
    assert "'stage': 1" in document["files"][""]


def test_a_snapped_strategy_of_a_known_model_says_what_it_loses(capsys: pytest.CaptureFixture[str]) -> None:
    strategy = {**STRATEGY["strategy"], "tp": 4, "dp": 4, "zero": 3, "micro_batches": 2}  # type: ignore[dict-item]
    known = {**STRATEGY, "model": "llama3-8b", "strategy": strategy, "stage_layers": [16, 16]}
    Path("known.json").write_text(json.dumps(known), encoding="utf-8")
    model = ["llama3-8b", "--sequence", "512", "--topo", "dgx-h100-4"]
    assert main(["known.json", *model, "--to", "deepspeed", "--snap", "--out", "known.py"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "changed zero 1 instead of 3" in printed
    assert re.search(r"loses a step of \S+ m?s instead of \S+ m?s, \S+ % (longer|shorter)", printed)


def test_the_document_holds_the_files_and_the_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inside.json", "profile.npz", "--to", "galvatron", "--snap", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads(document["files"][""])["pp_division"] == "3,3"
    assert len(document["changes"]) == 1
    assert document["step_s"]["after"] > 0


def test_a_schedule_without_a_class_is_written_beside_torchtitans_config() -> None:
    strategy = {**STRATEGY, "strategy": {**STRATEGY["strategy"], "schedule": "zb-h1"}}  # type: ignore[dict-item]
    Path("zb.json").write_text(json.dumps(strategy), encoding="utf-8")
    assert main(["zb.json", "--to", "torchtitan", "--out", "titan.py"]) == 0
    assert "pipeline_parallel_schedule_csv='titan.csv'" in Path("titan.py").read_text("utf-8")
    assert len(Path("titan.csv").read_text("utf-8").splitlines()) == 2


def test_a_target_of_two_files_asks_for_a_name(fails: Callable[[str], str]) -> None:
    strategy = {**STRATEGY, "strategy": {**STRATEGY["strategy"], "schedule": "zb-h1"}}  # type: ignore[dict-item]
    Path("zb.json").write_text(json.dumps(strategy), encoding="utf-8")
    assert "--out: torchtitan takes 2 files" in fails("zb.json --to torchtitan")


def test_the_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    stages = ["torch-csv", "torch-split-spec", "torchtitan", "megatron", "megatron-bridge", "deepspeed"]
    assert names == [*stages, "accelerate", "galvatron", "jax", "hf"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("plan.json --to megatron", "plan.json: only the model tells where the plan cuts it"),
        ("plan.json mine.npz --to megatron", "mine.npz: megatron trains models that it has the code of, and this is a"),
        ("inside.json profile.npz --to megatron", "inside.json: stage 0 ends inside layers.3 (instruction 14)"),
        ("inside.json profile.npz --to megatron", "--snap writes the nearest plan: stage 0 ends after layers.2"),
        ("unequal.json profile.npz --to torchtitan", "unequal.json: torchtitan gives every stage equally many devices"),
        ("plan.json profile.npz --to torch-split-spec", "its instructions are no modules of torch"),
        ("strategy.json --to jax", "strategy.json: a strategy has no words in jax"),
        ("strategy.json --to megatron --snap --topo A", "--topo: is for the price of a model, and none is given"),
        ("plan.json profile.npz --to megatron --topo A", "--topo: is for strategies, and the plan has its own"),
        ("zero.json --to deepspeed", "take zero 0 or 1, or --snap writes the nearest plan: zero 1 instead of 3"),
        ("missing.json --to megatron", "missing.json: cannot be read"),
        ("profile.npz --to megatron", "profile.npz"),
        ("plan.json --to tensorflow", "invalid choice: 'tensorflow'"),
        ("plan.json", "the following arguments are required: --to"),
        ("plan.json --to torch-csv --device a100", "--device: is for a model, and none is given"),
        ("plan.json --to torch-csv --out plan.json", "is an input, too"),
    ],
)
def test_a_mistake_costs_one_sentence(command: str, sentence: str, fails: Callable[[str], str]) -> None:
    assert sentence in fails(command)


def test_nothing_is_written_where_a_plan_is_refused(fails: Callable[[str], str]) -> None:
    fails("inside.json profile.npz --to megatron --out plan.args")
    assert not Path("plan.args").exists()


def test_a_plan_of_another_model_is_refused(fails: Callable[[str], str]) -> None:
    write_npz("other.npz", profile(6, seed=1))
    assert "belongs to another profile" in fails("plan.json other.npz --to megatron")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stage_layers": [2, 2, 1]}, "3 numbers of layers for 2 × 1 stages"),
        ({"stage_layers": ["two", 3]}, "$.stage_layers[0]"),
        ({"strategy": {"micro_batch": 1, "global_batch": 8, "dp": 3}}, "do not divide 8"),
        ({"strategy": {"micro_batch": 1, "global_batch": 8, "pp": 2, "micro_batches": 4}}, "micro_batches is 4, not 8"),
        ({"strategy": {"micro_batch": 1, "global_batch": 8, "speed": 2}}, "unknown key 'speed'"),
        ({"strategy": {"micro_batch": 1}}, "global_batch"),
        ({"strategy": {"micro_batch": 1, "global_batch": 8, "tp": "two"}}, "tp"),
        ({"kind": "tactic"}, "$.kind is 'tactic'"),
        ({"schema": 2}, "$.schema"),
    ],
)
def test_a_strategys_file_that_contradicts_itself_is_refused(
    change: dict[str, object], sentence: str, fails: Callable[[str], str]
) -> None:
    Path("bad.json").write_text(json.dumps({**STRATEGY, **change}), encoding="utf-8")
    assert sentence in fails("bad.json --to megatron")


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed", "galvatron"])
@pytest.mark.parametrize("stages", ["4", "auto"])
def test_a_plan_made_for_a_target_is_written_without_snapping(
    stages: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With four stages planning ended: merging two of them left three, which cannot have equally many devices."""
    planned = ["profile.npz", "--topo", "A", "--stages", stages, "--micro-batches", "8", "--for", target]
    assert infer([*planned, "--out", "made.json", "--certify-budget", "100", "--refine-budget", "100"]) == 0
    assert main(["made.json", "profile.npz", "--to", target]) == 0
    assert capsys.readouterr().err in (
        "",
        "note: run Galvatron with --mixed_precision bf16, which its file does not hold\n",
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--for", "megatron", "--schedule", "gpipe"], "--schedule: megatron does not run schedule gpipe"),
        (["--for", "accelerate", "--stages", "4"], "--stages: accelerate has no pipelines; leave it out"),
        (["--for", "megatron", "--cut-at", "layers.0"], "--cut-at: megatron cuts where blocks end; leave it out"),
        (["--for", "jax"], "invalid choice: 'jax'"),
        (["--for", "megatron", "--plan", "plan.json"], "--for: the plan read has its own; leave it out"),
    ],
)
def test_options_beside_a_target_that_contradict_it_are_refused(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(["profile.npz", "--topo", "A", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_kind_that_is_no_text_is_refused(fails: Callable[[str], str]) -> None:
    """A byte that is no UTF-8 in the kind ended the command; the fuzzer found it."""
    Path("bad.json").write_bytes(json.dumps(STRATEGY).encode().replace(b'"strategy"', b'"\xf4"', 1))
    assert "bad.json" in fails("bad.json --to megatron")


def test_a_target_that_is_not_installed_cannot_check(
    fails: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "megatron", None)
    sentence = fails("strategy.json --to megatron --check")
    assert "--check: megatron.core" in sentence
    assert "pip install megatron-core, or leave it out" in sentence
