"""docs/explanation/sharding-cost.md as a reader uses it: commands run, outputs compared, examples read."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from automap_models.infer.app import search as main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "sharding-cost.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIFFERENT = ("     time", " verified", "           allowed)")
"""How lines begin that are another machine's next time."""


@pytest.mark.slow
def test_the_commands_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("flax")
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    (factory,) = (code for language, code in blocks if language == "python" and "def small_t5" in code)
    (tmp_path / "my_models.py").write_text(factory, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    checked = 0
    for (language, code), (after, output) in pairwise(blocks):
        if (language, after) == ("bash", ""):
            assert main(code.split()[1:]) == 0
            printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
            assert {line for line in output.splitlines() if not line.startswith(DIFFERENT)} <= printed
            checked += 1
    assert checked == 3
