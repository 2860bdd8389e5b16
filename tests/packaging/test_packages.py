"""The wheel gets every package and every data file: a forgotten one is missing without a word."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import automap_models
from automap_models.version import __version__


def test_the_package_list_names_every_folder_that_holds_modules(
    setuptools_config: dict[str, Any], module_files: dict[str, Path], trees: dict[str, Path]
) -> None:
    holding = {
        module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in module_files.items()
    }
    data_only = {name for name, folder in trees.items() if not list(folder.rglob("*.py"))}
    assert sorted(setuptools_config["packages"]) == sorted(holding | data_only)


def test_every_package_of_modules_has_an_init(module_files: dict[str, Path]) -> None:
    folders = {path.parent for path in module_files.values()}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_data_file_is_matched_by_a_pattern(setuptools_config: dict[str, Any], trees: dict[str, Path]) -> None:
    left_out = []
    for name, folder in trees.items():
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__":
                inside = (name, *path.relative_to(folder).parts)
                if not any(
                    _matched(setuptools_config["package-data"], inside, depth) for depth in range(1, len(inside))
                ):
                    left_out.append(str(path))
    assert left_out == []


def _matched(patterns: dict[str, list[str]], inside: tuple[str, ...], depth: int) -> bool:
    package, rest = ".".join(inside[:depth]), inside[depth:]
    return any(
        pattern.count("/") == len(rest) - 1 and fnmatch("/".join(rest), pattern)
        for pattern in patterns.get(package, [])
    )


def test_the_version_comes_from_one_place(setuptools_config: dict[str, Any]) -> None:
    assert setuptools_config["dynamic"]["version"] == {"attr": "automap_models.version.__version__"}
    assert version("automap-models") == __version__ == automap_models.__version__


def test_pipx_runs_the_command_and_not_the_script_that_has_the_package_s_name(root: Path) -> None:
    """`pipx run automap-models plan …` would start `automap-models`, which lists models."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pipx.run"] == {project["name"]: project["scripts"]["automap"]}
