"""docs/explanation/partitioned-stages.md as a reader uses it: every program prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", re.S)
PROGRAMS = PROGRAM.findall((ROOT / "docs" / "explanation" / "partitioned-stages.md").read_text(encoding="utf-8"))


def test_the_page_holds_a_program() -> None:
    assert PROGRAMS


@pytest.mark.slow
@pytest.mark.parametrize(("code", "printed"), PROGRAMS)
def test_a_program_prints_what_the_page_says(code: str, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flax")
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/explanation/partitioned-stages.md", "exec"), {})
    assert out.getvalue() == printed
