"""onnxruntime 1.31 wrote a device identifier and a queue of telemetry into the home of whoever planned.

`automap infer PROFILE --topo C` left ~/.cache/Microsoft/DeveloperTools/.onnxruntime/{deviceid,onnxruntime.db}, with the
processor's name and the interpreter's path to be sent later. The variable ORT_DISABLE_TELEMETRY stops it, but only when
it is set before onnxruntime is imported; `onnxruntime.disable_telemetry_events()` is too late.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
SOURCES = ("automap_models", "datagen", "train", "infer", "benchmarks", "tests")


@pytest.mark.parametrize("xdg", [False, True])
def test_planning_with_the_policy_writes_nothing_into_an_empty_home(xdg: bool, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ORT_"))}
    folders = {name: str(home / name.lower()) for name in FOLDERS} if xdg else {}
    code = "import sys; from automap_models.infer.app import infer; infer(); sys.modules['onnxruntime']"
    profile = str(ROOT / "examples" / "vgg19_v100.npz")
    subprocess.run(
        [sys.executable, "-c", code, profile, "--topo", "C", "--planner", "policy", "--stages", "4", "--json"],
        env={**kept, **folders, "HOME": str(home)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    ours = home / "xdg_cache_home" / "automap" if xdg else home / ".cache" / "automap"
    assert [path for path in home.rglob("*") if path.is_file() and ours not in path.parents] == []


def imports_onnxruntime(source: str) -> bool:
    """Whether a module imports onnxruntime anywhere but for its types."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "onnxruntime" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "onnxruntime":
            return True
    return False


def test_one_module_alone_imports_onnxruntime() -> None:
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    texts = ((path, path.read_text("utf-8")) for path in files)
    importing = [
        str(path.relative_to(ROOT)) for path, text in texts if "onnxruntime" in text and imports_onnxruntime(text)
    ]
    assert importing == ["automap_models/onnx_runtime.py"]
