"""A training says how far it is: before it starts, while it prepares, and while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import RichProgressBar

from automap_models.train import console
from automap_models.train.build import build_data, build_module
from automap_models.train.console import narrated, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says, in a list's only entry."""
    now = [0.0]
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_long_work_is_counted_in_lines(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for item in narrated(range(50), "exact optima"):
        clock[0] = item * 0.3  # 14.7 s in all: one line, at the first item after 10 s
    assert capsys.readouterr().out == "exact optima: 35 of 50\n"


def test_a_run_tells_its_gap_at_once_and_then_every_ten_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    (lines,) = progress(1000)
    module: Any = SimpleNamespace(episodes=0)
    trainer: Any = SimpleNamespace(callback_metrics={"val/gap_mean": torch.tensor(1.25)})
    lines.on_train_start(trainer, module)
    for seconds, episodes in ((4, 100), (8, 200), (12, 300)):
        clock[0], module.episodes = seconds, episodes
        lines.on_train_batch_end(trainer, module, None, None, 0)
    assert capsys.readouterr().out == "300 of 1,000 episodes (30.0 %), 25 episodes/s, 0:00:28 to go\n"
    clock[0], module.episodes = 13, 325
    lines.on_validation_end(trainer, module)
    line = "325 of 1,000 episodes (32.5 %), gap to the optimum 25.0 %, 25 episodes/s, 0:00:27 to go\n"
    assert capsys.readouterr().out == line
    clock[0] = 14
    lines.on_validation_end(trainer, module)
    assert capsys.readouterr().out == ""


def test_the_gap_before_the_training_stands_until_there_is_another(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (lines,) = progress(1000, 0.5)
    module: Any = SimpleNamespace(episodes=0)
    trainer: Any = SimpleNamespace(callback_metrics={"val/gap_mean": torch.tensor(1.25)})
    lines.on_train_start(trainer, module)
    clock[0], module.episodes = 12, 300
    lines.on_train_batch_end(trainer, module, None, None, 0)
    clock[0] = 13
    lines.on_validation_end(trainer, module)
    output = capsys.readouterr().out.splitlines()
    assert ["50.0 %" in output[0], "25.0 %" in output[1]] == [True, True]

    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    logged: dict[str, float | str] = {"v_num": 0, "train/episodes_per_s": 4.0}
    monkeypatch.setattr(RichProgressBar, "get_metrics", lambda *_: logged)
    (bar,) = progress(1000, 0.5)
    assert isinstance(bar, RichProgressBar)
    assert bar.get_metrics(trainer, module) == {"gap to the optimum": "50.0 %", "episodes/s": 4.0}
    logged["val/gap_mean"] = 1.25
    assert bar.get_metrics(trainer, module)["gap to the optimum"] == "25.0 %"


def test_the_gap_at_the_start_is_that_of_greedy_plans_over_their_optima(tiny: Any) -> None:
    """No plan is shorter than the exact planner's."""
    config = tiny()
    data, module = build_data(config), build_module(config)
    problems, optima = data.preview(5)
    assert 0 < len(optima) <= 5
    gaps = module.gaps(problems, optima)
    assert gaps.shape == optima.shape
    assert (gaps >= 1.0 - 1e-5).all()
    data.setup()
    assert set(optima.tolist()) <= set(data.optima.tolist())
