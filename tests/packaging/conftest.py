"""The checkout, as the packaging tests see it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def setuptools_config(root: Path) -> dict[str, Any]:
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    section: dict[str, Any] = config["tool"]["setuptools"]
    return section


@pytest.fixture(scope="session")
def trees(root: Path, setuptools_config: dict[str, Any]) -> dict[str, Path]:
    """Installed package name → its folder, for the top of every mapped tree: the library, the apps, the configs."""
    return {name: root / folder for name, folder in setuptools_config["package-dir"].items()}


@pytest.fixture(scope="session")
def module_files(trees: dict[str, Path]) -> dict[str, Path]:
    """Installed module name → its file, for every Python file that belongs into the wheel."""
    files: dict[str, Path] = {}
    for package, folder in trees.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            files[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return files
