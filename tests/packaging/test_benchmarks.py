"""Every benchmark has its result and its line in the index, and starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


def test_every_benchmark_has_a_result_and_every_result_its_benchmark() -> None:
    assert sorted(path.stem for path in (BENCHMARKS / "results").glob("*.md")) == SCRIPTS


def test_the_index_names_every_benchmark_once() -> None:
    index = (BENCHMARKS / "README.md").read_text("utf-8")
    assert sorted(re.findall(r"\[(\w+)\.py\]\(\1\.py\) · \[result\]\(results/\1\.md\)", index)) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_result_says_which_command_printed_it(script: str) -> None:
    assert f"python benchmarks/{script}.py" in (BENCHMARKS / "results" / f"{script}.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_starts_and_explains_itself(script: str) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
