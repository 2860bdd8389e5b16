"""`automap run`: what it refuses before a process is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import automap_models as am
from automap_models.formats.atomic import write_json
from automap_models.formats.strategy_plan import estimate_document
from automap_models.infer.app import main

MODEL = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, width), nn.Linear(width, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu()).mean()

class Branching(Small):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else self.last(x).mean()

def make_model():
    return Small(), torch.ones(4, 4)

def make_wider():
    return Small(8), torch.ones(4, 4)

def make_branching():
    return Branching(), torch.ones(4, 4)
"""
CLUSTER = {"name": "box", "nodes": 1, "devices_per_node": 6, "intra": 1e9, "inter": 1e9, "memory": 1e9}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a plan of three stages on six devices: one replica, four and one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("run_models.py").write_text(MODEL)
    Path("box.yaml").write_text(json.dumps(CLUSTER))
    assert main(["profile", "run_models:make_model", "-o", "small.npz"]) == 0
    assert (
        main(
            ["infer", "small.npz", "--topo", "box.yaml", "--stages", "3", "--micro-batches", "2", "--out", "plan.json"]
        )
        == 0
    )
    return tmp_path


def change(**changes: Any) -> None:
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps({**plan, **changes}))


def test_a_run_refuses_what_it_cannot_do_in_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One fixture for all: profiling imports torch and plans, which is most of the time."""

    def refused(*arguments: str) -> str:
        assert main(["run", "plan.json", *arguments]) == 2
        sentence = capsys.readouterr().err
        assert len(sentence.splitlines()) == 1, sentence
        return sentence

    capsys.readouterr()
    assert "was made for another model than run_models:make_wider" in refused("run_models:make_wider")
    assert "torch.export refuses its forward pass in run_models.py:" in refused("run_models:make_branching")
    assert "3 stages do not make ranks of 2 virtual stages" in refused("run_models:make_model", "--vp", "2")
    assert "is a profile" in refused("small.npz")
    document = json.loads(Path("plan.json").read_text())
    document["stages"][1]["devices"] = [5, 2]
    change(stages=document["stages"])
    assert "$.stages[1].devices" in refused("run_models:make_model")


@pytest.mark.slow
def test_a_run_prints_its_times_as_json_and_python_s_function_runs_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], printed: list[str]
) -> None:
    """Two stages on two processes; a result runs as its file does, with the same weights and data."""
    Path("pair.yaml").write_text(json.dumps({**CLUSTER, "devices_per_node": 2}))
    result = am.infer("small.npz", "pair.yaml", stages=2, micro_batches=2, min_stage=0.0, certify_budget=0.0)
    result.save("pair.json")
    capsys.readouterr()
    arguments = ["run", "pair.json", "run_models:make_model", "--steps", "2", "--seed", "3", "--check", "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    record = am.run(result, "run_models:make_model", steps=2, seed=3, check=True)
    assert printed == ["run"]
    assert record is not None and record.comparison is not None
    assert document["run"]["check"]["agrees"] and record.comparison.agrees
    assert [step.loss for step in record.steps] == pytest.approx(document["run"]["losses"], rel=1e-6)


def test_what_plan_writes_of_a_module_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was refused as "made for another model": `plan` traces operations, of which `run` saw the modules' calls."""
    Path("pair.yaml").write_text(json.dumps({**CLUSTER, "devices_per_node": 2}))
    forbidden = ["--forbid", "data", "--forbid", "operator", "--global-batch", "8", "--no-cache"]
    planned = ["plan", "run_models:make_model", "--topo", "pair.yaml", *forbidden, "--min-stage", "0"]
    assert main([*planned, "--cut-at", "first", "--out", "modules.json"]) == 0
    assert len(json.loads(Path("modules.json").read_text())["stages"]) == 2
    capsys.readouterr()
    assert main(["run", "modules.json", "run_models:make_model", "--check", "--steps", "1"]) == 0
    assert "as on one process" in capsys.readouterr().out


def test_under_torchrun_the_command_is_one_of_the_processes(folder: Path) -> None:
    """Two equal stages; the first process reports, and what it trained is what one process trains."""
    planned = ["--stages", "2", "--micro-batches", "2", "--out", "two.json"]
    Path("two.yaml").write_text(json.dumps({**CLUSTER, "devices_per_node": 2}))
    assert main(["infer", "small.npz", "--topo", "two.yaml", *planned]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command = [sys.executable, "-c", "import sys; from automap_models.infer.app import main; sys.exit(main())"]
    command += ["run", "two.json", "run_models:make_model", "--check"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(folder)}
    done = subprocess.run([*torchrun, *command], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("as on one process") == 1
    assert "2 processes" in done.stdout


def test_more_replicas_than_samples_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(microbatch_size=1)
    stages = json.loads(Path("plan.json").read_text())["stages"]
    if max(stage["replicas"] for stage in stages) == 1:
        pytest.skip("the planner leaves no stage two devices")
    assert main(["run", "plan.json", "run_models:make_model"]) == 2
    assert "do not give each of" in capsys.readouterr().err


def test_a_strategy_says_which_framework_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said "$.kind is 'strategy', not pipeline", and named no command that goes on from there."""
    path = tmp_path / "strategy.json"
    write_json(path, estimate_document(am.price("gpt2", "8xa100", dp=8, zero=2)))
    assert main(["run", str(path), "run_models:make_model"]) == 2
    sentence = capsys.readouterr().err
    assert f"{path}: is a strategy" in sentence
    assert "automap export writes it for torchtitan or deepspeed or accelerate or galvatron; or plan stages" in sentence
    assert "automap plan with --for torch-split-spec" in sentence
