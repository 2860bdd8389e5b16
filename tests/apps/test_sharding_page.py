"""docs/how-to/shard.md as a reader uses it: commands run, outputs compared, examples read."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from automap_models.infer.app import search as main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "shard.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the page."""
    pytest.importorskip("jax")
    pytest.importorskip("flax")
    return [(language, code) for language, code in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]


@pytest.mark.slow
def test_the_commands_print_what_the_page_says(
    blocks: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    checked = 0
    for (language, code), (after, output) in pairwise(blocks):
        if (language, after) == ("bash", ""):
            assert main(code.split()[1:]) == 0
            printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
            assert {line for line in output.splitlines() if not line.startswith("     time")} <= printed
            checked += 1
    assert checked == 3


def test_the_rules_on_the_page_are_rules(blocks: list[tuple[str, str]], tmp_path: Path) -> None:
    from automap_models.hlo.rule_sets import read_rule_set

    (text,) = (code for language, code in blocks if language == "yaml")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert len(read_rule_set(tmp_path / "mine.yaml").restrictions) == 2


@pytest.mark.slow
def test_the_page_s_python_prints_what_it_says(blocks: list[tuple[str, str]]) -> None:
    *_, (_, code), (_, output) = blocks
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == output, done.stderr
