"""docs/how-to/explore.md as a reader uses it: commands run, outputs compared; all but the large model."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from shlex import split

import pytest

from automap_models.infer.app import plan as main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the page."""
    return BLOCK.findall((ROOT / "docs" / "how-to" / "explore.md").read_text(encoding="utf-8"))


def test_the_commands_print_what_the_page_says(
    blocks: list[tuple[str, str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("AUTOMAP_CACHE", str(tmp_path))
    checked = 0
    for (language, code), (after, output) in pairwise(blocks):
        if (language, after) == ("bash", "") and "t5_11b " not in code:
            main(split(code)[1:])
            printed = capsys.readouterr()
            lines = {line.rstrip() for line in (printed.out + printed.err).splitlines()}
            assert {line for line in output.splitlines() if not line.startswith("      time")} <= lines
            checked += 1
    assert checked == 3


def test_the_page_s_python_prints_what_it_says(blocks: list[tuple[str, str]]) -> None:
    *_, (_, code), (_, output) = blocks
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == output, done.stderr


def test_every_option_of_the_page_exists(blocks: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    page = (ROOT / "docs" / "how-to" / "explore.md").read_text(encoding="utf-8")
    asked = set(re.findall(r"`(--[a-z][a-z-]*)", page)) - {"--stages", "--micro-batches", "--plan"}  # automap-infer's
    assert asked <= known
