"""docs/how-to/replan.md as a reader uses it: every command run in one folder, printing what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from automap_models.infer.app import infer as main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AMPLE = ("--certify-budget", "20000", "--refine-budget", "20000")
"""Time enough for the first plan to be what it is on an idle machine, however busy this one is."""
TIME = re.compile(r"planned in [\d.]+ m?s")


@pytest.mark.slow
def test_the_page_s_commands_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed, seen = "", 0
    for language, code in BLOCK.findall((ROOT / "docs" / "how-to" / "replan.md").read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(code, "replan.md", "exec"), {})
            shutil.copy("times.json", "later.json")
        elif language == "bash":
            arguments = shlex.split(code.replace("\\\n", " "))[1:]
            assert main([*arguments, *([] if "--plan" in arguments else AMPLE)]) == 0
            printed = capsys.readouterr().out
        elif code.startswith("bert48"):
            seen += 1
            lines = [TIME.sub("planned", line.rstrip()) for line in printed.splitlines()]
            assert lines == [TIME.sub("planned", line) for line in code.splitlines()]
    assert seen == 1
