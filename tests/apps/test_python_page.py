"""docs/how-to/python.md as a reader uses it: every program prints what the page says, numbers apart."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", re.S)
PROGRAMS = PROGRAM.findall((ROOT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8"))


def without_numbers(text: str) -> str:
    """Another policy makes other plans; what kind of thing is printed stays."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


def test_the_page_holds_programs() -> None:
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize(("code", "printed"), PROGRAMS)
def test_a_program_prints_what_the_page_says(code: str, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/how-to/python.md", "exec"), {})
    assert without_numbers(out.getvalue()) == without_numbers(printed)
