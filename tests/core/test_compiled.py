"""Compiling is announced where it takes long, and only where nothing was kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from automap_models.core import compiled

compiled.when_compiling(lambda: print("compiling"), {patience_s})


@compiled.jit
def doubled(number):
    return 2 * number


print(doubled(21), doubled(4))
"""


def run(file: Path, cache: Path) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.mark.parametrize(("patience_s", "first"), [(0.0, ["compiling", "42 8", ""]), (1e9, ["42 8", ""])])
def test_compiling_is_told_once_and_only_while_the_cache_is_cold(
    patience_s: float, first: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(patience_s=patience_s), encoding="utf-8")
    assert run(file, tmp_path / "cache") == first
    if not patience_s:
        assert run(file, tmp_path / "cache") == ["42 8", ""]


CONSTANTS = """
from automap_models.core.compiled import jit


@jit
def added(a, b):
    return a + b


@jit
def summed(n):
    total = added(added(0, 1), added(n, 2))
    for i in range(n):
        total = added(total, added(i, 3))
    return total


print(summed(3), len(added.called.signatures))
"""


def test_a_function_is_compiled_once_whatever_constants_it_is_called_with(tmp_path: Path) -> None:
    """numba makes one of each constant: `judged(search, 0, …)` and `judged(search, low, …)` cost ten seconds twice."""
    file = tmp_path / "program.py"
    file.write_text(CONSTANTS, encoding="utf-8")
    assert run(file, tmp_path / "cache") == ["18 1", ""]


RENAMED = """
from typing import NamedTuple

from automap_models.core.compiled import jit


class {name}(NamedTuple):
    number: int


@jit
def doubled(given):
    return 2 * given.number


print(doubled({name}(21)))
"""


def test_what_another_version_kept_is_compiled_again(tmp_path: Path) -> None:
    """After an upgrade in which a class had another name every command ended in numba's AttributeError."""
    file, cache = tmp_path / "program.py", tmp_path / "cache"
    for name in ("Layout", "ScheduleGraph", "ScheduleGraph"):
        module, program = tmp_path / "kernels.py", "import kernels\n"
        module.write_text(RENAMED.format(name=name), encoding="utf-8")
        file.write_text(program, encoding="utf-8")
        assert run(file, cache) == ["42", ""]
    assert any(cache.rglob("*.nbi"))
