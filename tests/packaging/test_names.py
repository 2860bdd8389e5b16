"""One name, one thing: names that were given up stay away, and identifiers are nouns of the field."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

GIVEN_UP = {
    "sharding": ("partitioning", "partitionings"),
    "portfolio": ("contest",),
    "beam search": ("thinned",),
    "label setting": ("Found",),
    "batch": ("many_problems", "many_plans"),
    "search log": ("tried", "Tried"),
    "replan": ("adjusting",),
    "migration": ("moving", "Moving"),
    "completions": ("known_rests", "rests"),
    "explain": ("why", "whys", "absent", "Absent", "needs"),
    "PlanKind, PassKind or KernelKind": ("Kind",),
    "a noun": ("each", "found", "told", "asked", "made", "said", "says"),
}
"""The name there is → those that it took the place of."""
INSTEAD = {former: name for name, formers in GIVEN_UP.items() for former in formers}
NOWHERE = ("known_rests", "many_problems", "many_plans", "adjusting")
"""Names that no text has either: they are words of no language."""
MODULES = (
    "contest",
    "thinned",
    "labels",
    "chains",
    "many_problems",
    "many_plans",
    "adjusting",
    "moving",
    "known_rests",
)
MODULES += ("cells", "why", "absent", "needs", "ways", "partitionings")
"""Modules that have other names by now."""


def tracked(root: Path, *patterns: str) -> list[Path]:
    """Files that git knows or would take; they are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [root / name for name in filter(None, listed.split("\0")) if (root / name).is_file()]


def named(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a source gives a name: functions, classes, arguments, variables, fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


@pytest.fixture(scope="module")
def sources(root: Path) -> list[Path]:
    return tracked(root, "*.py")


def test_nothing_is_named_as_it_once_was(root: Path, sources: list[Path]) -> None:
    wrong = [
        f"{path.relative_to(root)}:{line}: `{name}`; it is called {INSTEAD[name.strip('_')]}"
        for path in sources
        for line, name in named(path.read_text("utf-8"))
        if name.strip("_") in INSTEAD
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_is_named_as_it_once_was(sources: list[Path]) -> None:
    assert [path for path in sources if path.stem in MODULES] == []


def test_no_text_has_a_name_that_was_given_up(root: Path) -> None:
    pattern = re.compile(rf"\b({'|'.join(NOWHERE)})\b")
    texts = tracked(root, "*.py", "*.md", "*.yaml", "*.yml", "*.toml", "Makefile")
    wrong = [path for path in texts if path != Path(__file__) and pattern.search(path.read_text("utf-8"))]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "def found(): ...",
        "class Tried: ...",
        "def plan(why): ...",
        "tried = 1",
        "for each in range(3): ...",
        "[each for each in range(3)]",
        "self.absent = 1",
        "import numpy as moving",
    ],
)
def test_a_name_is_seen_wherever_it_is_given(source: str) -> None:
    assert any(name.strip("_") in INSTEAD for _, name in named(source))
