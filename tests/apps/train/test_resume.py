"""A run that was killed and gone on with ends where an unbroken one does, bit for bit."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from automap_models.errors import BadInput
from automap_models.train.build import build_module, load_weights
from automap_models.train.main import train
from automap_models.train.rainbow import RainbowModule

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

PROGRAM = Path(__file__).with_name("program.py")
MakeConfig = Callable[..., DictConfig]


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Paths at which two nested structures are not exactly equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [f"{where}: keys {set(one) ^ set(other)}"]
        return [difference for key in one for difference in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return [f"{where}: {len(one)} and {len(other)} items"]
        return [
            difference
            for i, pair in enumerate(zip(one, other, strict=True))
            for difference in differences(*pair, f"{where}/{i}")
        ]
    same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if same else [f"{where}: {one} and {other}"]


def last(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)
    return content


def test_a_killed_and_resumed_run_equals_an_unbroken_one(
    tiny: MakeConfig, tiny_arguments: list[str], tmp_path: Path
) -> None:
    steps_per_epoch = 4 * 2  # learner iterations
    in_the_third_epoch = 2 * steps_per_epoch + 3
    branches = ["agent.learner.branches=3", "episodes=768"]
    arguments = [str(in_the_third_epoch), str(tmp_path), *tiny_arguments, *branches, f"out={tmp_path / 'broken'}"]
    killed = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert last(tmp_path / "broken")["global_step"] == 2 * steps_per_epoch
    assert last(tmp_path / "broken")["rainbow"]["episodes"] == 2 * 4 * 16 * 3

    train(tiny("ckpt_path=last", *branches, out="broken"))
    train(tiny(*branches, out="unbroken"))
    assert last(tmp_path / "broken")["global_step"] == 4 * steps_per_epoch
    assert_ended_alike(tmp_path / "broken", tmp_path / "unbroken")


def assert_ended_alike(one: Path, other: Path) -> None:
    """Weights, target, optimiser, schedule, replay, priorities, random states and counters are the same bits."""
    first, second = last(one), last(other)
    for part in ("state_dict", "rainbow", "optimizer_states", "lr_schedulers", "epoch", "loops", "PipelineData"):
        assert differences(first[part], second[part], part) == []


@pytest.mark.parametrize(
    "agent",
    [
        ["agent=paper", "agent.size.hidden=16", "agent.learner.replay=100"],
        ["agent=default", "agent.learner.branches=3", "episodes=576"],
    ],
    ids=["paper", "default"],
)
def test_every_agent_goes_on_after_a_failure_as_if_there_had_been_none(
    agent: list[str], tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_epochs = "episodes=192"
    train(tiny(three_epochs, *agent, out="unbroken"))
    step = RainbowModule.training_step

    def fails(self: RainbowModule, batch: torch.Tensor, batch_idx: int) -> None:
        if self.global_step >= 17:
            raise RuntimeError("power cut")
        step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(RainbowModule, "training_step", fails)
        with pytest.raises(RuntimeError, match="power cut"):
            train(tiny(three_epochs, *agent, out="broken"))
    train(tiny(three_epochs, *agent, "ckpt_path=last", out="broken"))
    assert_ended_alike(tmp_path / "broken", tmp_path / "unbroken")


def test_every_epoch_leaves_a_newest_checkpoint_even_when_it_is_no_better(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, truly = [0], RainbowModule.gaps

    def worse_every_time(*arguments: Any) -> Any:
        calls[0] += 1
        return truly(*arguments) * calls[0]

    monkeypatch.setattr(RainbowModule, "gaps", worse_every_time)
    train(tiny("agent=paper", "agent.size.hidden=16", "episodes=192"))
    assert last(tmp_path / "run")["global_step"] == 3 * 8
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["global_step"] == 8


def test_a_resumed_run_keeps_the_old_curve_and_the_best_checkpoint(tiny: MakeConfig, tmp_path: Path) -> None:
    paper = ("agent=paper", "agent.size.hidden=16")
    train(tiny(*paper, "episodes=128"))
    out = tmp_path / "run"
    before = (out / "csv" / "version_0" / "metrics.csv").read_bytes()
    trainer = train(tiny(*paper, "episodes=256", "ckpt_path=last"))
    assert (out / "csv" / "version_0" / "metrics.csv").read_bytes() == before
    scores = [
        float(row["val/gap_mean"])
        for version in (0, 1)
        for row in csv.DictReader((out / "csv" / f"version_{version}" / "metrics.csv").open())
        if row["val/gap_mean"]
    ]
    assert len(scores) == 4
    assert float(trainer.checkpoint_callback.best_model_score) == pytest.approx(min(scores))  # type: ignore[union-attr]


def test_a_finished_run_resumed_in_another_folder_does_nothing_more(
    finished: Path, tiny: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a TypeError: Lightning forgets the score of the best checkpoint where the folder is another."""
    weights = torch.load(finished, weights_only=True)["state_dict"]
    trainer = train(tiny("episodes=64", "ckpt_path=last"))
    assert differences(dict(trainer.lightning_module.state_dict()), dict(weights)) == []
    assert f"best: {finished.with_name('best.ckpt')}" in capsys.readouterr().out


def test_fine_tuning_takes_the_weights_and_nothing_else(
    finished: Path, tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def look(self: RainbowModule) -> None:
        seen.update(weights={k: v.clone() for k, v in self.state_dict().items()}, replay=len(self.replay))
        seen.update(episodes=self.episodes, step=self.global_step)
        raise RuntimeError("seen enough")

    monkeypatch.setattr(RainbowModule, "on_train_epoch_start", look)
    with pytest.raises(RuntimeError, match="seen enough"):
        train(tiny(f"init_from={finished}", "episodes=64", "agent.learner.replay=300", out="fine_tuned"))
    assert differences(seen["weights"], dict(torch.load(finished, weights_only=True)["state_dict"])) == []
    assert (seen["replay"], seen["episodes"], seen["step"]) == (0, 0, 0)


def test_weights_serve_other_numbers_of_stages_and_devices_where_choices_share_them(
    tiny: MakeConfig, finished: Path
) -> None:
    """The paper's network has inputs and outputs for each of them, so its weights do not."""
    larger = ("env.max_stages=6", "env.max_devices=40")
    module = build_module(tiny(*larger))
    load_weights(module, finished)
    assert differences(dict(module.state_dict()), dict(torch.load(finished, weights_only=True)["state_dict"])) == []
    paper = ("agent=paper", "agent.size.hidden=16", "agent.learner.replay=500")
    train(tiny(*paper, "episodes=64", out="paper"))
    with pytest.raises(BadInput, match="max_stages 4, not 6; max_devices 12, not 40"):
        load_weights(build_module(tiny(*paper, *larger)), finished.parents[2] / "paper" / "checkpoints" / "last.ckpt")


def test_a_checkpoint_is_a_module_without_any_trainer(finished: Path) -> None:
    module = RainbowModule.load_from_checkpoint(finished, weights_only=True)
    assert differences(dict(module.state_dict()), dict(torch.load(finished, weights_only=True)["state_dict"])) == []


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["agent.size.hidden=8"], "hidden 16, not 8"),
        (["agent=paper", "agent.learner.replay=500", "agent.size.hidden=16"], "network choices, not flat"),
        (["env.max_stages=5"], "max_stages 4, not 5"),
        (["env.max_devices=40"], "max_devices 12, not 40"),
        (["agent.learner.replay=400"], "written with replay 500, not 400"),
        (["agent.learner.branches=2"], "written with branches 1, not 2"),
        (["data.validation_groups=11"], "other groups"),
        (["trainer=ddp", "trainer.threads=1"], r"written by 1 process\(es\), this run has 2"),
    ],
)
def test_another_run_s_checkpoint_is_refused(
    finished: Path, tiny: MakeConfig, overrides: list[str], named: str
) -> None:
    with pytest.raises(BadInput, match=named) as refused:
        train(tiny(f"ckpt_path={finished}", *overrides, out="other"))
    assert str(finished) in str(refused.value)
    assert not (finished.parents[2] / "other").exists()


@pytest.fixture(scope="module")
def run_of_one_epoch(compose_tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the shortest run leaves."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(compose_tiny("episodes=64", f"out={out}"))
    return out


@pytest.fixture
def finished(run_of_one_epoch: Path, tmp_path: Path) -> Path:
    """The newest checkpoint in a copy of that run."""
    shutil.copytree(run_of_one_epoch, tmp_path / "run")
    return tmp_path / "run" / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("key", ["ckpt_path", "init_from"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "another", "folder"])
def test_what_is_no_checkpoint_is_refused_by_name(
    key: str, damage: str, tiny: MakeConfig, tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / "some.ckpt"
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "text":
        path.write_text("weights")
    elif damage == "another":
        torch.save({"state_dict": {}}, path)
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(BadInput, match="checkpoint") as refused:
        train(tiny(f"{key}={path}"))
    assert str(path) in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a file that torch.save wrote."""
    path = tmp_path_factory.mktemp("whole") / "whole.ckpt"
    torch.save({"state_dict": {"weight": torch.zeros(1000)}, "hyper_parameters": {}, "rainbow": {}}, path)
    return path.read_bytes()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    finished: Path, tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished.read_bytes()

    def fails(content: object, file: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("automap_models.train.build.torch.save", fails)
    with pytest.raises(BadInput, match="No space left"):
        train(tiny("ckpt_path=last", "episodes=128"))
    assert finished.read_bytes() == before
    assert sorted(path.name for path in finished.parent.iterdir()) == ["best.ckpt", "last.ckpt"]
