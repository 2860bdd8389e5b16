"""One name, one thing: names that were given up stay away, and identifiers are nouns of the field."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
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
MODULES += ("cells", "why", "absent", "needs", "ways", "partitionings", "paces", "divisions", "guesses", "kept")
"""Modules that have other names by now."""

NO_NOUNS = frozenset(
    [
        # Function words, and what was done to something.
        *("own", "whole", "kept", "held", "known", "left", "shown", "seen", "at", "of", "each", "found", "told"),
        # Second words for directions, degrees, subspaces, speeds, saved bytes and searches.
        *("way", "ways", "division", "divisions", "family", "families", "pace", "paces", "stash", "look", "looks"),
        *("outlook", "rough", "far", "contender", "contenders", "descent", "climb"),
    ]
)
"""No identifier of the library and its programs is one of these; `kept_bytes` and `bytes_of` have a noun."""
OF_FILES = {
    "stash": ("core/profile", "core/profiled_model", "core/coarsen"),  # the array of profiles, named as in their files
    "divisions": ("planners/strategies/search",),  # keys of --json: what a search counted
    "families": ("planners/strategies/search", "workloads/config_families"),
    "whole": ("planners/strategies/search",),
    "far": ("planners/strategies/problem",),  # an option
    "family": (
        *("cost/measured_step", "formats/measured_rows", "formats/measured_documents", "workloads/config_families"),
        *(
            "workloads/config_json",
            "workloads/config_notes",
            "workloads/config_sizes",
            "workloads/measured",
            "datagen/distributions",
        ),  # of models, or of layers: files have that key
    ),
}
OF_FILES["families"] += OF_FILES["family"]
"""Name → modules where it is the word of a file or an option."""
ALIKE = {
    "does the same for another kind of plan": (
        *("agent", "base", "env", "features", "milp", "pipeline", "placement", "placer", "plan", "planner", "search"),
        *("sharding", "staged", "strategies", "strategy"),
    ),
    "does the same for another front end": ("measure", "profile", "step"),
    "is the library's, the picture's, the report's or the command's side of one command": (
        *("calibration", "doctor", "exploration", "export", "fit", "models", "replan", "run", "serve", "sweep"),
    ),
    "lists planners, or models": ("registry",),
    "reads what the other writes": ("deepspeed", "galvatron", "megatron", "torchtitan"),
}
"""Why several modules may have a name, and such names."""


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


@pytest.fixture(scope="module")
def programs(root: Path, sources: list[Path]) -> list[Path]:
    """All sources but tests and examples."""
    return [path for path in sources if path.relative_to(root).parts[0] not in ("tests", "examples", "docs")]


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


def test_a_command_is_two_words_wherever_it_is_told_of(root: Path) -> None:
    """`automap plan`, as on the front page; three places say that scripts such as `automap-infer` are there, too."""
    from automap_models.infer.app import SUMMARIES

    script = re.compile(rf"\bautomap-({'|'.join(SUMMARIES.keys() - {'models'})})\b|automap-models -")
    expected = {"infer/app.py": 2, "docs/reference/commands.md": 1, "CHANGELOG.md": 1}
    texts = tracked(root, "*.py", "*.md", "*.yaml", "*.txt", "*.html", "*.js", "*.ipynb", "Makefile")
    counts = {str(path.relative_to(root)): len(script.findall(path.read_text("utf-8"))) for path in texts}
    assert {path: count for path, count in counts.items() if count and not path.startswith("tests/")} == expected


def not_nouns(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and name of what a module gives a name that is no noun; a left side has a right one."""
    names = list(named(source))
    sides = {"left"} if "right" in {name for _, name in names} else set[str]()
    for line, name in names:
        word = name.strip("_").lower()
        files = (f"{module}.py" for module in OF_FILES.get(word, ()))
        if word in NO_NOUNS - sides and not path.endswith(tuple(files)):
            yield line, name


def test_identifiers_are_nouns_of_the_field(root: Path, programs: list[Path]) -> None:
    wrong = [
        f"{path.relative_to(root)}:{line}: `{name}`"
        for path in programs
        for line, name in not_nouns(path.as_posix(), path.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("held = 1", ["held"]),
        ("class Held: ...", ["Held"]),
        ("def plan(*, whole): ...", ["whole"]),
        ("self._known = 1", ["_known"]),
        ("[of for of in rows]", ["of"]),
        ("left, right = ends", []),
        ("left = ends[0]", ["left"]),
        ("kept_bytes = bytes_of(held_out_examples)", []),
    ],
)
def test_a_name_without_a_noun_is_met(source: str, names: list[str]) -> None:
    assert [name for _, name in not_nouns("core/plan.py", source)] == names


def test_a_word_of_a_file_is_allowed_where_the_file_is_read_and_nowhere_else() -> None:
    assert not list(not_nouns("automap_models/core/profile.py", "stash = 1"))
    assert list(not_nouns("automap_models/core/plan.py", "stash = 1"))


def test_modules_of_one_name_do_the_same_for_another_kind(programs: list[Path]) -> None:
    stems = Counter(path.stem for path in programs if path.stem != "__init__")
    assert {stem for stem, count in stems.items() if count > 1} == {stem for stems in ALIKE.values() for stem in stems}


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
