"""Two processes that train together (gloo), and go on together."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).with_name("program.py")


def train_in_two_processes(folder: Path, arguments: list[str]) -> list[dict[str, Any]]:
    """What each process leaves: its weights and the problems it visited."""
    command = [sys.executable, str(PROGRAM), "0", str(folder), *arguments, "trainer=ddp", "trainer.threads=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("problems to train on") == 1  # one process speaks
    return [torch.load(folder / f"process-{rank}.pt", weights_only=True) for rank in (0, 1)]


def assert_equal_weights(left: list[dict[str, Any]]) -> None:
    for name, weight in left[0]["weights"].items():
        assert torch.equal(weight, left[1]["weights"][name]), name


def test_two_processes_share_weights_split_the_problems_and_go_on_together(
    tiny_arguments: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = [*tiny_arguments, f"out={out}", "data.steps_per_epoch=2"]
    left = train_in_two_processes(tmp_path, [*arguments, "episodes=128"])
    assert_equal_weights(left)
    first, second = (set(process["visited"].tolist()) for process in left)
    assert (len(first), len(second), first & second) == (64, 64, set())

    checkpoint = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)["rainbow"]
    assert checkpoint["episodes"] == 128
    held = [replayed(process) for process in checkpoint["processes"]]
    assert held[0] and held[1] and held[0] <= first and held[1] <= second

    left = train_in_two_processes(tmp_path, [*arguments, "episodes=192", "ckpt_path=last"])
    assert_equal_weights(left)
    checkpoint = torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)
    assert (checkpoint["epoch"], checkpoint["rainbow"]["episodes"]) == (2, 192)
    for process, before, after in zip(checkpoint["rainbow"]["processes"], held, left, strict=True):
        assert before < replayed(process) <= before | set(after["visited"].tolist())


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM])
def test_a_signal_to_the_first_process_ends_both_after_a_batch(
    number: signal.Signals, tiny_arguments: list[str], tmp_path: Path
) -> None:
    """Both have standard error: it is read to its end only when both are gone."""
    run = Path(__file__).resolve().parents[3] / "train" / "run.py"
    out = tmp_path / "run"
    long = [*tiny_arguments, "episodes=1000000", "visits=10000", f"out={out}", "trainer=ddp", "trainer.threads=1"]
    started = subprocess.Popen(
        [sys.executable, str(run), *long], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    last = out / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 400
    while not last.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(number)
    _, stderr = started.communicate(timeout=200)
    assert (started.returncode, stderr) == (130, "train: interrupted: go on with ckpt_path=last\n")
    assert torch.load(last, weights_only=True)["rainbow"]["episodes"] > 0


def replayed(process: dict[str, Any]) -> set[int]:
    """The problems in the replay of a process."""
    return set(process["replay"]["items"]["problem"].tolist())
