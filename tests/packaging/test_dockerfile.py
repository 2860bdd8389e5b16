"""The Dockerfile names what there is; no daemon builds it here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
    assert not {"automap_models", "infer", "train", "datagen", "conf", "pyproject.toml", "README.md"} & set(left)
