"""The line budget: what the library, the apps and the benchmarks may hold, and no package more than today.

A number that is exceeded fails, and so does one that is no longer used up by 3 %, so that the table falls with each
step. Raising a number means lowering another.

    lines       newlines of a package's Python files, comments and blank lines among them
    files       its Python files
    compiled    functions decorated with `jit` or `inlined` (core.compiled)
    numbers     upper-case names that a module assigns a number, or a sequence or a table of nothing but numbers

The totals are of the library and its apps, without tests and benchmarks. Counted so, the state of 26 November 2026
(commit 63083d50) has 85,508 lines in 461 files, 171 compiled functions and 608 numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

BUDGET = {
    "automap_models": (983, 8),
    "core": (8_337, 37),
    "cost": (4_308, 20),
    "envs": (1_509, 12),
    "export": (2_529, 17),
    "formats": (5_393, 21),
    "importing": (2_305, 16),
    "hlo": (6_921, 36),
    "planners": (846, 6),
    "planners/online": (309, 3),
    "planners/placement": (3_270, 17),
    "planners/portfolio": (2_873, 13),
    "planners/replan": (683, 4),
    "planners/sharding": (823, 5),
    "planners/staged": (3_387, 19),
    "planners/strategies": (4_116, 16),
    "plots": (1_236, 9),
    "requests": (2_977, 15),
    "rl": (960, 9),
    "serve": (1_149, 7),
    "run": (4_713, 24),
    "simulate": (1_821, 10),
    "torch_export": (2_845, 13),
    "workloads": (6_169, 35),
    "zoo": (1, 1),
    "infer": (6_164, 37),
    "train": (1_772, 11),
    "datagen": (1_410, 10),
    "benchmarks": (6_367, 35),
}
"""Package → lines, files."""
TOTALS = {"lines": 79_809, "files": 431, "compiled": 76, "numbers": 277}
USED_UP = 0.97
"""Share of a number that is to be there at least."""

LIBRARY, APPS = "automap_models", ("infer", "train", "datagen")
COUNTED = re.compile(r"^[A-Z_].*=|@jit|@inlined", re.MULTILINE)
"""What a module has that has a number or a compiled function; parsing all modules takes seconds."""


def files_of(root: Path, package: str) -> list[Path]:
    """The Python files of a package: those of the library's packages that have packages of their own without these."""
    if package == LIBRARY:
        return sorted((root / LIBRARY).glob("*.py"))
    if package == "planners":
        return sorted((root / LIBRARY / package).glob("*.py"))
    return sorted((root / package if (root / package).is_dir() else root / LIBRARY / package).rglob("*.py"))


def lines_of(file: Path) -> int:
    return file.read_text(encoding="utf-8").count("\n")


def is_number(value: ast.expr) -> bool:
    """Whether an expression is a number, or holds numbers, without any name in it; True and False are none."""
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.Tuple | ast.List | ast.Set | ast.Dict):
        held = value.values if isinstance(value, ast.Dict) else value.elts
        return bool(held) and all(map(is_number, held))
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what, one by one where several are."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call) and ast.unparse(value.func) == "range":
        yield from ((name, ast.Constant(number)) for number, name in enumerate(target.elts))
    else:
        yield target, value


def numbers_of(module: ast.Module) -> int:
    pairs = [
        pair
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for pair in assigned(target, node.value)
    ]
    return sum(isinstance(name, ast.Name) and name.id.isupper() and is_number(value) for name, value in pairs)


def compiled_of(module: ast.Module) -> int:
    return sum(
        isinstance(mark, ast.Name) and mark.id in ("jit", "inlined")
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
        for mark in node.decorator_list
    )


@pytest.fixture(scope="module")
def counted(root: Path) -> dict[str, tuple[int, ...]]:
    """The budget's numbers as they are."""
    return {name: (sum(map(lines_of, files)), len(files)) for name in BUDGET if (files := files_of(root, name))}


@pytest.fixture(scope="module")
def totals(root: Path) -> dict[str, int]:
    files = [file for folder in (LIBRARY, *APPS) for file in (root / folder).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    modules = [ast.parse(text) for text in texts if COUNTED.search(text)]
    return {
        "lines": sum(map(lines_of, files)),
        "files": len(files),
        "compiled": sum(map(compiled_of, modules)),
        "numbers": sum(map(numbers_of, modules)),
    }


def test_every_package_has_a_budget(root: Path) -> None:
    packages = {path.parent.name for path in (root / LIBRARY).glob("*/__init__.py")}
    packages |= {f"planners/{path.parent.name}" for path in (root / LIBRARY / "planners").glob("*/__init__.py")}
    assert set(BUDGET) == packages | {LIBRARY, *APPS, "benchmarks"}


def test_no_package_is_larger_than_its_budget_or_has_one_that_it_does_not_use_up(
    counted: dict[str, tuple[int, ...]],
) -> None:
    off = {
        package: f"is {have}, its budget {BUDGET[package]}"
        for package, have in counted.items()
        if any(not USED_UP * most <= now <= most for now, most in zip(have, BUDGET[package], strict=True))
    }
    assert not off


@pytest.mark.parametrize("what", TOTALS)
def test_no_total_exceeds_its_budget_or_falls_far_below(what: str, totals: dict[str, int]) -> None:
    assert USED_UP * TOTALS[what] <= totals[what] <= TOTALS[what]


def test_numbers_and_compiled_functions_are_counted_as_the_budget_says() -> None:
    module = ast.parse(
        "A = 1\nB, C = -2.0, (3 + 4) * 5\nD: float = 1e9\nE = F = 7\nG, H = range(2)\nI = {'a': (1, 2)}\n"
    )
    assert numbers_of(module) == 9
    assert numbers_of(ast.parse("a = 1\nB = A + 1\nC = True\nD = ('a', 1)\nE = ()\n")) == 0
    module = ast.parse("@jit\ndef a(): ...\n@inlined\ndef b(): ...\n@cache\ndef c(): ...\ndef d(): ...\n")
    assert compiled_of(module) == 2
