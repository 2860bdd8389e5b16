"""A message of the library names Python arguments; a command writes them as its own options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import automap_models
from automap_models.infer.commands import (
    calibrate,
    doctor,
    export,
    fit,
    infer,
    mcp,
    models,
    place,
    plan,
    profile,
    run,
    search,
    serve,
)
from automap_models.infer.commands.parsing import ARGUMENTS, in_options

LIBRARY = Path(automap_models.__file__).parent
PYTHON_ONLY = ("api.py", "cost/strategy.py")
"""Modules that no command calls."""
OPTIONS_OF_OTHERS = (
    *("export/megatron.py", "export/galvatron.py", "export/torch_split_spec.py", "export/launch.py"),
    *("importing/megatron.py", "importing/megatron_arguments.py", "importing/megatron_model.py"),
    *("importing/megatron_rewrite.py", "importing/config_arguments.py", "importing/overrides.py", "serve/answers.py"),
)
"""Modules whose texts are options of the frameworks that plans are exported to, or that files are read of, and commands
to be copied."""
NO_OPTION = {
    *("cut_at", "slowdown", "speed", "forward_s", "weight_s"),
    *("measured", "gpus", "gpu_type", "heads", "kv_heads", "links", "gap", "recompute_blocks", "gradient_bytes"),
    *("host_memory", "cluster", "inputs", "profile", "zone", "zone_links"),
}
"""Arguments for which the commands have no option: of restrictions, of observed devices, of a cluster's file, of
schedules without plans, of measured steps, of unequal devices, of the search for a strategy and its results, of
runtimes, of devices' files, of the page and of models that are given in Python."""
ONE_WORD = (calibrate, doctor, export, fit, infer, mcp, models, place, plan, profile, run, serve)
COMMANDS = (*(module.COMMAND for module in ONE_WORD), *search.COMMANDS.values())


def texts(source: str) -> Iterator[str]:
    """The texts of a module that are no docstrings; what an f-string fills in becomes {}."""
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            silent.update(map(id, node.values))
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


@pytest.fixture(scope="module")
def library_texts() -> list[str]:
    """Of all modules that commands call."""
    excluded = (*PYTHON_ONLY, *OPTIONS_OF_OTHERS)
    modules = [path for path in LIBRARY.rglob("*.py") if path.relative_to(LIBRARY).as_posix() not in excluded]
    return [text for path in modules for text in texts(path.read_text(encoding="utf-8"))]


def test_the_library_speaks_of_arguments_and_not_of_options(library_texts: list[str]) -> None:
    """But for whole commands, as `automap profile --list`, and options of XLA, Hydra, torchrun and export targets."""
    flags = re.compile(r"(?<![\w-])(?<!automap profile )--(?!xla_|cfg |nnodes |nproc-per-node )[a-z]")
    assert [text for text in library_texts if flags.search(text)] == []


def test_every_argument_that_the_library_mentions_has_an_option(library_texts: list[str]) -> None:
    mentioned = {name for text in library_texts for name in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", text)}
    assert len(mentioned) > 20
    assert mentioned - set(ARGUMENTS) <= NO_OPTION


def test_every_option_of_an_argument_exists() -> None:
    options: set[str] = set()
    for command in COMMANDS:
        options.update(command.parser("x")._option_string_actions)
    assert set(ARGUMENTS.values()) - options == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("`stages`: 0 stages; give at least 1", "--stages: 0 stages; give at least 1"),
        ("use `planner='exact'`", "use --planner exact"),
        ("`pins='block_0/*=2'` and `stages=3`", "--pin block_0/*=2 and --stages 3"),
        ("`accelerators`: -1 devices", "--devices: -1 devices"),
        ("torch says `forward` is missing", "torch says `forward` is missing"),
    ],
)
def test_arguments_become_options(text: str, shown: str) -> None:
    assert in_options(text) == shown
