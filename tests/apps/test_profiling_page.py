"""docs/how-to/profile.md as a reader uses it: files written as told, every command run in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "profile.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"Put this into `(\w+\.py)`:\s*$")


@pytest.mark.slow
def test_the_page_s_commands_run_and_print_what_it_says(tmp_path: Path) -> None:
    for package in ("jax", "flax", "torch", "transformers", "matplotlib"):
        pytest.importorskip(package)
    text = PAGE.read_text(encoding="utf-8")
    printed = ""
    for block in BLOCK.finditer(text):
        language, code = block.groups()
        file = FILE.search(text[: block.start()].rstrip() + "\n")
        if language == "python" and file:
            (tmp_path / file[1]).write_text(code)
        elif language == "python":
            printed = _run([sys.executable, "-c", code], tmp_path)
        elif language == "bash":
            for line in code.splitlines():
                if line.startswith("automap-"):
                    module = {"automap-profile": "profile", "automap-infer": "infer"}[line.split()[0]]
                    program = f"import sys; from automap_models.infer.app import {module} as main; sys.exit(main())"
                    out = _run(["bash", "-c", f'"{sys.executable}" -c "{program}" {line.partition(" ")[2]}'], tmp_path)
                    printed = out if "--show" in line or not printed else printed
        elif code.startswith("{"):  # a dictionary printed by the Python before it
            assert printed.strip() == code.strip()
        else:
            assert [line.rstrip() for line in printed.splitlines()] == code.splitlines()
    assert {"t5_base.png", "my_jax.npz", "my_torch.npz", "plan.json", "step.npz"} <= {
        p.name for p in tmp_path.iterdir()
    }


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout
