"""Which versions of others the tests were run with; `python tests/versions.py` writes docs/reference/versions.md.

Ranges are those of pyproject.toml and versions those of constraints.txt, which `make test` installs; what a target was
checked against its module says, and what doctor reads stands in tests/importing/public.yaml.
"""

from __future__ import annotations

import ast
import platform
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from automap_models.export.targets import TARGETS, target_by_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
REQUIREMENT = re.compile(r"([\w-]+)([<>=].*)")
CHECKED = re.compile(r"Checked against (?:the configuration files of )?([\w-]+ [\d.]+\d)")


def table(heads: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def pinned() -> dict[str, str]:
    """Package → the version that the tests install."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.lower(): version for name, version in pairs}


def packages(project: dict[str, Any]) -> Iterator[Sequence[object]]:
    """What each installation needs, its range and the version that is tested."""
    for extra, needed in {"base": project["dependencies"], **project["optional-dependencies"]}.items():
        if extra in ("all", "docs", "dev"):
            continue
        for name, allowed in (match.groups() for text in needed if (match := REQUIREMENT.fullmatch(text))):
            yield extra, name, f"`{allowed}`", pinned()[name]


def targets() -> Iterator[Sequence[object]]:
    """What plans are written for, the version that the writing was checked against, and who reads it in the tests."""
    for name in TARGETS:
        text = (ROOT / "automap_models" / "export" / f"{name.replace('-', '_')}.py").read_text("utf-8")
        checked, distribution = (
            CHECKED.search(ast.get_docstring(ast.parse(text)) or ""),
            target_by_name(name).distribution,
        )
        version = pinned().get(distribution)
        reader = f"{distribution} {version}" if version else f"{distribution}, where it is installed"
        yield f"`{name}`", checked[1] if checked else f"{distribution} {version}", reader


def configurations() -> Iterator[Sequence[object]]:
    """Where public configurations are from that doctor reads in the tests, and how many of them."""
    cases = yaml.safe_load((ROOT / "tests" / "importing" / "public.yaml").read_text("utf-8"))
    kinds = ["refused" if "wrong" in case else "asked" if "asked" in case else "read" for case in cases]
    counts = Counter(zip((case["source"].split()[0] for case in cases), kinds, strict=True))
    for source in sorted({source for source, _ in counts}, key=str.lower):
        yield source, *(counts[source, kind] for kind in ("read", "asked", "refused"))


def text_of(python: str) -> str:
    """The page, as an interpreter of that version writes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    image = re.search(r"FROM python:([\d.]+)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert image is not None
    return f"""# Versions

`python tests/versions.py` writes this page, and a test fails where it is no longer so.

Python: `{project["requires-python"]}`. The tests were run with {python}, and the Docker image has {image[1]}.

## Packages

Any version of the range is meant to work; the tests install one of each (`constraints.txt`).

{table(("for", "package", "range", "tested"), packages(project))}
## What plans are written for

Keys and limits of a target were checked against a version of its program. What is read back in the tests is read by the
program's own code; programs that are no package of the tests are left out where they are not installed
(`tests/export/test_real_parsers.py`), and `benchmarks/results/export_round_trips.md` has the last run with all of them.

{table(("target", "checked against", "read back by"), targets())}
## What doctor reads

Public configurations whose reading was checked by hand (`tests/importing/public.yaml`), by where they are from: read in
full, read but for settings that are asked for by name, and refused in one sentence.

{table(("from", "read", "asked for", "refused"), configurations())}"""


if __name__ == "__main__":
    PAGE.write_text(text_of(platform.python_version()), encoding="utf-8")
