"""The Dockerfile names what there is; the hosted workflow builds it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

PYTHON = re.compile(r"^FROM python:(\d+\.\d+)-slim$", re.MULTILINE)


def test_the_image_installs_extras_and_starts_a_command_that_there_are(root: Path) -> None:
    text = (root / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"EXTRAS=(\w+)", text)) == {"plot", "all"} <= set(project["optional-dependencies"])
    assert re.findall(r'ENTRYPOINT \["(\w+)"\]', text) == ["automap"] and "automap" in project["scripts"]
    version = PYTHON.findall(text)
    assert [f"Programming Language :: Python :: {entry}" in project["classifiers"] for entry in version] == [True]


def test_what_the_image_leaves_out_is_not_part_of_the_package(root: Path) -> None:
    left = (root / ".dockerignore").read_text(encoding="utf-8").split()
    used = re.findall(r"/source/(\S+)", (root / "Dockerfile").read_text(encoding="utf-8"))
    assert used and all((root / path).is_file() for path in used)
    needed = {"automap_models", "infer", "train", "datagen", "conf", "pyproject.toml", "README.md"}
    assert not (needed | {path.partition("/")[0] for path in used}) & set(left)


def test_every_change_is_tested_and_builds_both_images(root: Path) -> None:
    """Where it is hosted, a machine with a daemon builds them, and plans inside."""
    jobs = yaml.safe_load((root / ".github/workflows/tests.yml").read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    supported = [entry.rpartition(" ")[2] for entry in project["classifiers"] if "Python :: 3." in entry]
    assert [versions[0], versions[-1]] == [supported[0], supported[-1]]
    assert [step["run"] for step in jobs["test"]["steps"] if "run" in step] == ["make test"]
    built = jobs["image"]["strategy"]["matrix"]["extras"]
    assert set(re.findall(r"EXTRAS=(\w+)", (root / "Dockerfile").read_text(encoding="utf-8"))) == set(built)
