"""docs/explanation/sharding-agent.md as a reader uses it: the command run, the example run, every option known."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from automap_models.infer.app import search as main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "sharding-agent.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_command_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    command, output, *_ = BLOCKS
    assert main(command.split()[1:]) == 0
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    assert set(output.splitlines()) <= printed


@pytest.mark.slow
def test_the_python_prints_what_the_page_says() -> None:
    *_, code, output = BLOCKS
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == output, done.stderr


def test_the_options_on_the_page_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opp", "--help"]) == 0
    helped = capsys.readouterr().out
    assert all(option in helped for option in re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))
