"""Imports point downwards only, wherever they stand: in functions, under TYPE_CHECKING, in a registry's text.

errors → core → cost → {simulate, formats} → hlo → workloads; {envs, rl} stand on cost, simulate and hlo; planners on
all of them; run and export on plans; apps on the library, never on each other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

RANK = {
    "errors": 0,
    "version": 0,
    "collection": 0,
    "resources": 0,
    "onnx_runtime": 0,
    "user_code": 0,
    "core": 1,
    "cost": 2,
    "formats": 3,
    "simulate": 3,
    "hlo": 4,
    "torch_export": 4,
    "workloads": 5,
    "envs": 6,
    "rl": 6,
    "planners": 7,
    "plots": 8,
    "run": 8,
    "export": 8,
    "importing": 8,
    "requests": 9,
    "api": 10,
    "serve": 10,
    "zoo": 7,
}
# Below envs and rl in rank, yet none of their business.
BESIDE_ENVS_AND_RL = {"formats", "torch_export", "workloads"}
APPS = {"datagen", "infer", "train"}
PUBLIC_FACE = ""
"""The package's own __init__ names what users import, as text; nothing of ours imports it."""


def layer(module: str) -> str:
    """`automap_models.core.staged` → `core`; the package's own __init__ → ``."""
    return module.split(".")[1] if "." in module else ""


def imported(module: str, source: str, known: set[str], *, is_package: bool) -> Iterator[str]:
    """Modules in `known` that the source names in an import, or as `module:attribute` to be imported late."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield from [name for name in (f"{base}.{alias.name}", base) if name in known][:1]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            yield from {node.value.partition(":")[0]} & known


@pytest.fixture(scope="module")
def graph(module_files: dict[str, Path]) -> dict[str, set[str]]:
    """Module → the modules of ours that it imports."""
    known = set(module_files)
    return {
        module: set(imported(module, path.read_text("utf-8"), known, is_package=path.name == "__init__.py")) - {module}
        for module, path in module_files.items()
    }


def upward(module: str, target: str) -> bool:
    """Whether an import breaks the order of the layers."""
    own, other = layer(module), layer(target)
    if PUBLIC_FACE in {own, other}:
        return own != PUBLIC_FACE
    if own == other:
        return False
    if own in APPS:
        return other in APPS
    if own in {"envs", "rl"} and other in BESIDE_ENVS_AND_RL:
        return True
    return other in APPS or RANK[other] > RANK[own]


def test_every_module_lives_in_a_known_layer(module_files: dict[str, Path]) -> None:
    assert {layer(module) for module in module_files} <= {"", *RANK, *APPS}


def test_imports_point_downwards_only(graph: dict[str, set[str]]) -> None:
    wrong = [f"{module} imports {target}" for module in graph for target in graph[module] if upward(module, target)]
    assert wrong == []


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_round_a_corner(graph: dict[str, set[str]]) -> None:
    """Names of modules in a text count, too: those of planners in the registry and those that the public face has."""
    assert _cycle(graph) == []


def test_no_two_layers_import_each_other(graph: dict[str, set[str]]) -> None:
    layers: dict[str, set[str]] = {}
    for module, targets in graph.items():
        layers.setdefault(layer(module), set()).update({layer(t) for t in targets} - {layer(module), ""})
    assert _cycle(layers) == []


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("import automap_models.core.staged", "automap_models.core.staged"),
        ("def f():\n    from automap_models.core import staged", "automap_models.core.staged"),
        ("from automap_models.core.staged import StagedPlan", "automap_models.core.staged"),
        ("from ..core import staged", "automap_models.core.staged"),
        ("from . import staged", "automap_models.cost.staged"),
        ("NAMES = {'x': 'automap_models.core.staged:StagedPlan'}", "automap_models.core.staged"),
    ],
)
def test_an_import_is_found_in_every_form(line: str, target: str) -> None:
    known = {"automap_models.core.staged", "automap_models.cost.staged"}
    assert set(imported("automap_models.cost.staged", line, known, is_package=False)) == {target}
