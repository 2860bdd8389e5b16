"""What reports say to type next can be copied: every line is a command that runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from drawn_plans import profile

from automap_models.formats.npz import write_npz
from automap_models.infer.app import main

LLAMA = "plan llama3.2-1b --gpus 8xh100 --sequence 2048 --global-batch 32 --budget 0.1"


def next_of(printed: str) -> list[list[str]]:
    """The words of each command, as a shell reads the lines below `next`."""
    below = re.search(r"^ *next  (.*(?:\n {11,}.*)*)", printed, re.MULTILINE)
    assert below, printed
    lines = re.sub(r" \\\n", " ", below[1]).splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


@pytest.mark.parametrize(
    ("columns", "typed", "files"),
    [
        ("60", LLAMA, []),
        ("120", f"{LLAMA} --for deepspeed", ["strategy.json"]),
        ("60", f"{LLAMA} --for deepspeed --out 'a plan.json'", ["a plan.json"]),
        ("60", "infer 'a profile.npz' --topo A --stages 2 --micro-batches 8 --equal-replicas", ["plan.json"]),
        ("60", "plan 'a profile.npz' --topo A --max-stages 2 --global-batch 64 --memory '30 GB'", ["plan.json"]),
        ("120", "plan 'a profile.npz' --topo A --max-stages 2 --global-batch 64 --out out.json", ["out.json"]),
    ],
    ids=["strategy", "for", "for-out", "infer", "plan", "plan-out"],
)
def test_what_is_to_be_typed_next_runs(
    columns: str,
    typed: str,
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`next --for torchtitan, deepspeed: …` was no command, and a plan in out.json was run as plan.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOMAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", columns)
    write_npz("a profile.npz", profile(4))
    assert main(shlex.split(typed)) == 0
    commands = next_of(capsys.readouterr().out)
    assert commands
    for program, *words in commands:
        assert program == "automap"
        if "MODEL" not in words:
            assert main([word for word in words if word != "--check"]) == 0, words
    assert sorted(path.name for path in tmp_path.glob("*.json")) == files
