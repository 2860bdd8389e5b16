"""docs/how-to/place.md as a reader uses it: the graph and the program as printed, the command and what it prints."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from automap_models.infer.app import place as main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "place.md").read_text(encoding="utf-8")
RAN = re.compile(r"```(?:bash|python)\n((?:(?!```).)*)```\n\nprints\n\n```\n(.*?)```", re.S)
GRAPH = re.compile(r"```json\n(.*?)```", re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the page's graph."""
    monkeypatch.chdir(tmp_path)
    (document,) = GRAPH.findall(PAGE)
    Path("two.json").write_text(document, encoding="utf-8")
    return tmp_path


def without_times_of_planning(text: str) -> list[str]:
    return [re.sub(r"planned in .*", "planned", line).rstrip() for line in text.splitlines()]


@pytest.mark.slow
def test_the_command_prints_what_the_page_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    command, printed = RAN.findall(PAGE)[0]
    assert main(shlex.split(command)[1:]) == 0
    assert without_times_of_planning(capsys.readouterr().out) == without_times_of_planning(printed)


def test_the_program_prints_what_the_page_says(folder: Path) -> None:
    code, printed = RAN.findall(PAGE)[1]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/how-to/place.md", "exec"), {})
    assert out.getvalue() == printed


def test_the_graph_is_placed_as_it_stands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["two.json"]) == 0
    assert "9.50 ms a sample" in capsys.readouterr().out
