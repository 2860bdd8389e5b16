"""What a training step does, and that a training learns."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from automap_models.resources import conf_dir
from automap_models.rl.learner import Learner
from automap_models.train.build import build_module
from automap_models.train.main import train
from automap_models.train.rainbow import RainbowModule

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")

MakeConfig = Callable[..., DictConfig]
FLOAT32 = 1e-5
PAPER = ("agent=paper", "agent.size.hidden=16")
"""The agent that trains fastest."""
SIZES = ("agent.size.hidden=16", "data.min_stages=3")


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "agent").glob("*.yaml")))
def test_every_shipped_agent_trains_an_epoch(name: str, shipped_agent: MakeConfig, tmp_path: Path) -> None:
    """With its own number of branches and iterations."""
    config = shipped_agent(f"agent={name}", *SIZES, "episodes=1", "visits=1000", "data.steps_per_epoch=2")
    trainer = train(config)
    module = trainer.lightning_module
    assert isinstance(module, RainbowModule)
    torch.manual_seed(config.seed)
    assert module.global_step == 2 * config.agent.learner.iterations
    assert module.episodes == 2 * 16 * config.agent.learner.branches
    assert len(module.replay) > 0
    assert not module.replay.mass[len(module.replay) :].any()
    (row,) = [row for row in metrics(tmp_path / "run") if row["train/loss"]]
    assert 0 < float(row["train/loss"]) < math.inf
    assert float(row["train/episodes"]) == module.episodes
    assert float(row["train/episodes_per_s"]) > 0
    assert 0 < float(row["train/epsilon"]) <= config.agent.agent.epsilon_start
    (row,) = [row for row in metrics(tmp_path / "run") if row["val/gap_mean"]]
    optimum = 1 - FLOAT32
    assert optimum <= float(row["val/gap_mean"]) <= float(row["val/gap_p99"]) <= float(row["val/gap_max"])


def test_where_no_held_out_plan_fits_every_gap_is_infinite(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 99th percentile was no number then."""
    module = build_module(tiny())
    module._gaps = [np.array([np.inf, np.inf]), np.array([np.inf])]
    logged: dict[str, float] = {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: float(value)}))
    module.on_validation_epoch_end()
    assert logged == {
        "val/gap_mean": math.inf,
        "val/gap_p99": math.inf,
        "val/gap_max": math.inf,
        "val/out_of_memory": 1.0,
    }


def metrics(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "csv" / "version_0" / "metrics.csv").open()))


def test_the_target_network_is_copied_every_so_many_iterations(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    load = torch.nn.Module.load_state_dict

    def watched(self: torch.nn.Module, *arguments: object, **options: object) -> object:
        copies.append(trainer_step[0])
        return load(self, *arguments, **options)  # type: ignore[arg-type]

    trainer_step = [0]
    learn = Learner.learn

    def at(self: Learner) -> torch.Tensor:
        trainer_step[0] = self.iteration
        return learn(self)

    monkeypatch.setattr(Learner, "learn", at)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", watched)
    train(tiny("episodes=64", "agent.learner.target_every=3"))
    assert copies == [0, 3, 6]


def test_the_learning_rate_falls_along_a_cosine_over_the_whole_run(tiny: MakeConfig, tmp_path: Path) -> None:
    train(
        tiny(
            *PAPER,
            "trainer.log_every_n_steps=1",
            "agent.learner.learning_rate=0.01",
            "agent.learner.final_learning_rate=0.001",
        )
    )
    checkpoint = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["lr_schedulers"][0]["_last_lr"] == pytest.approx([0.001])
    rates = [float(row["lr-Adam"]) for row in metrics(tmp_path / "run") if row["lr-Adam"]]
    expected = [0.001 + 0.009 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
    assert rates == pytest.approx(expected)


def test_two_runs_of_a_seed_are_equal_and_of_two_seeds_are_not(tiny: MakeConfig) -> None:
    brief = ("data.steps_per_epoch=2", "episodes=32")
    runs = [train(tiny(*brief, f"seed={seed}", out=f"run{i}")) for i, seed in enumerate((1, 1, 2))]
    weights = [torch.cat([w.flatten() for w in run.lightning_module.parameters()]) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
