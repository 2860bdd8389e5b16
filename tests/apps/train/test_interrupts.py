"""Ctrl-C ends a training between two batches, and at once when pressed again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from automap_models.train.interrupts import fit

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")


class Numbers(L.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(range(4))  # type: ignore[arg-type]


class Pressing(L.LightningModule):
    """Presses Ctrl-C `times` in the middle of its second batch, and keeps what it did."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.times = times
        self.done: list[str] = []

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        self.done.append(f"begun {index}")
        if index == 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        self.done.append(f"ended {index}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return L.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=folder, enable_model_summary=False, **quiet)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "done"),
    [
        (0, [f"{word} {index}" for index in range(4) for word in ("begun", "ended")]),
        (1, ["begun 0", "ended 0", "begun 1", "ended 1"]),
        (2, ["begun 0", "ended 0", "begun 1"]),
    ],
)
def test_a_batch_is_ended_unless_it_is_pressed_again(times: int, done: list[str], tmp_path: Path) -> None:
    module, before = Pressing(times), signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    if times:
        with pytest.raises(KeyboardInterrupt):
            fit(trainer(tmp_path), module, Numbers(), None)
    else:
        fit(trainer(tmp_path), module, Numbers(), None)
    assert module.done == done
    assert signal.getsignal(signal.SIGINT) is before


def test_a_background_that_ignores_it_goes_on_ignoring_it(tmp_path: Path) -> None:
    module, before = Pressing(1), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        fit(trainer(tmp_path), module, Numbers(), None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert module.done[-1] == "ended 3"
