"""`python train/run.py` as people run it."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra_programs import refusal
from omegaconf import DictConfig

from automap_models.train.console import progress
from automap_models.train.main import main, train

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "train" / "run.py"


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(RUN), *arguments]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_one_command_trains_and_its_policy_plans_a_real_profile(tiny_arguments: list[str], tmp_path: Path) -> None:
    """The paper's network, because it is exported in seconds."""
    flat = ("agent=paper", "agent.size.hidden=16", "env.max_devices=24", "export=true", "out=run")
    done = run(*tiny_arguments, *flat, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    out = tmp_path / "run"
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    rows = list(csv.DictReader((out / "csv" / "version_0" / "metrics.csv").open()))
    for column in ("val/gap_mean", "train/episodes_per_s", "train/epsilon"):
        assert sum(bool(row[column]) for row in rows) == 4
    assert list((out / "tensorboard" / "version_0").glob("events.out.tfevents.*"))
    assert (out / "config.yaml").read_text().startswith("env:\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]

    lines = done.stdout.splitlines()
    best = min(float(row["val/gap_mean"]) for row in rows if row["val/gap_mean"])
    assert lines[-1].startswith(f"best val/gap_mean {best:.4f}")
    for message in ("188 problems to train on", "256 episodes in 4 epochs", "agrees with torch on "):
        assert sum(message in line for line in lines) == 1
    assert sum(line.startswith("before this training: gap to the optimum ") for line in lines) == 1
    assert sum(", gap to the optimum " in line and line.endswith(" to go") for line in lines) >= 1

    infer = [sys.executable, "-c", "import sys; from automap_models.infer.app import infer as main; sys.exit(main())"]
    profile = str(ROOT / "examples" / "bert48_v100.npz")
    options = ["--topo", "B", "--stages", "3", "--granularity", "16", "--planner", "policy", "--json"]
    planned = subprocess.run(
        [*infer, profile, *options, "--policy", str(out / "policy.onnx")], capture_output=True, text=True, timeout=60
    )
    assert (planned.returncode, planned.stderr) == (0, "")
    plan = json.loads(planned.stdout)
    assert (plan["planner"], len(plan["stages"]), plan["granularity"]) == ("policy", 3, 16)
    assert plan["stages"][0]["devices"][0] == 0
    assert plan["stages"][-1]["devices"][1] == 23
    assert plan["provenance"]["policy"].startswith("policy.onnx ")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_ctrl_c_ends_a_training_in_one_line_and_it_goes_on_later(
    number: signal.Signals, tiny_arguments: list[str], tmp_path: Path
) -> None:
    long = [*tiny_arguments, "episodes=1000000", "visits=10000", "out=run"]
    started = subprocess.Popen(
        command(*long), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(number)
    _, stderr = started.communicate(timeout=60)
    assert (started.returncode, stderr) == (130, "train: interrupted: go on with ckpt_path=last\n")
    assert torch.load(last, weights_only=True)["rainbow"]["episodes"] > 0
    assert sorted(path.name for path in last.parent.iterdir()) == ["best.ckpt", "last.ckpt"]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["ckpt_path=nope.ckpt"], "nope.ckpt: no such checkpoint; give an existing file as ckpt_path="),
        (["ckpt_path=last"], "run/checkpoints/last.ckpt: no such checkpoint"),
        (["ckpt_path=text.ckpt"], "text.ckpt: is no checkpoint or a truncated one"),
        (["init_from=text.ckpt"], "text.ckpt: is no checkpoint or a truncated one"),
        (["data.groups=10"], "10 groups, 12 of them for validation; generate more groups"),
        (["episodes=1000000"], "visit some more than 50 times"),
        (["data.path=nowhere"], "nowhere: there is no manifest.json"),
        (["agent=clever"], "Could not find 'agent/clever'"),
        (["speed=11"], "Could not override 'speed'"),
        (["episodes=many"], "episodes: is 'many'; give a whole number"),
        (["episodes=[1"], "no viable alternative"),
        (["experiment=finetune_cnn"], "runs/rainbow/checkpoints/best.ckpt: no such checkpoint"),
        (["out=text.ckpt/run"], "text.ckpt/run: cannot be made"),
        (["env.points=8"], "its problems have 16 points"),
        (["trainer.accelerator=abacus"], "trainer: "),
    ],
)
def test_a_mistake_costs_one_line_and_exit_code_2_and_writes_nothing(
    overrides: list[str],
    named: str,
    tiny_arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    error = refusal(main, ["out=run", *tiny_arguments, *overrides], tmp_path, monkeypatch, capsys)
    assert error.startswith("train: error: ")
    assert named in error


def test_a_damaged_data_set_costs_one_line(
    groups: Path,
    tiny_arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(groups, copy)
    (shard,) = copy.glob("shard-*.npz")
    shard.write_bytes(shard.read_bytes()[:-100])
    message = refusal(main, ["out=run", *tiny_arguments, f"data.path={copy}"], tmp_path, monkeypatch, capsys)
    assert message == f"train: error: {shard}: does not have the checksum of the manifest: it is damaged; {REMAKE}\n"


REMAKE = "make the data set again with datagen/run.py: it keeps the shards that are whole"


def test_a_terminal_shows_gap_epsilon_and_speed(
    tiny: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar's numbers, as its callback gets them; in a file there is no bar."""
    assert [type(callback).__name__ for callback in progress(64)] == ["_Lines"]
    monkeypatch.setattr("automap_models.train.console.sys.stdout.isatty", lambda: True, raising=False)
    (bar,) = progress(64)
    trainer = train(tiny("agent=paper", "agent.size.hidden=16", "episodes=64", "logger=csv"))
    shown = bar.get_metrics(trainer, trainer.lightning_module)  # type: ignore[attr-defined]
    assert shown.keys() == {"gap to the optimum", "random actions", "episodes/s"}
