"""Every command with a reader that went away, a full device, and names that no file can have.

`automap infer … | head` ended in a BrokenPipeError under a traceback, a full device in an OSError, and a name of 300
bytes in `OSError: File name too long` from wherever pathlib met it first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from fuzzing import samples

from automap_models.infer.app import SUMMARIES, main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROFILE = str(EXAMPLES / "vgg19_v100.npz")
CALLS = [
    ["infer", PROFILE, "--topo", "A", "--planner", "uniform"],
    ["infer", PROFILE, "--topo", "A", "--planner", "uniform", "--json"],
    ["infer", "--list-clusters"],
    ["profile", PROFILE, "--show"],
    ["place", "graph.json", "--planner", "ideals"],
    ["export", "plan.json", "--to", "torch-csv", "--out", "schedule.csv"],
    ["export", "plan.json", "--to", "torch-csv"],
    ["export", "--list"],
    ["search", "pp", "--help"],
    *[[name, "--help"] for name in SUMMARIES],
    ["--version"],
    ["--print-completion", "bash"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A placement graph and a plan."""
    folder = tmp_path_factory.mktemp("streams")
    (folder / "graph.json").write_bytes(samples.as_json(samples.PLACEMENT))
    plan = [
        "infer",
        PROFILE,
        "--topo",
        "A",
        "--planner",
        "uniform",
        "--stages",
        "2",
        "--out",
        str(folder / "plan.json"),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(plan) == 0
    return folder


@contextlib.contextmanager
def printing_to(descriptor: int) -> Iterator[io.StringIO]:
    """Standard output is that file; what comes out on standard error."""
    error = io.StringIO()
    stream = os.fdopen(descriptor, "w")
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(error):
            yield error
    finally:
        with contextlib.suppress(OSError):  # what could not be written is tried once more
            stream.close()


@pytest.mark.parametrize("arguments", CALLS, ids=lambda call: " ".join(Path(word).name for word in call))
def test_a_reader_that_went_away_is_exit_code_141(
    arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    read, write = os.pipe()
    os.close(read)
    with printing_to(write) as error:
        assert main(arguments) == 141
    assert error.getvalue() == ""


@pytest.mark.parametrize("arguments", CALLS, ids=lambda call: " ".join(Path(word).name for word in call))
def test_a_full_device_is_one_sentence(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with printing_to(os.open("/dev/full", os.O_WRONLY)) as error:
        assert main(arguments) == 2
    what = "error: standard output: cannot be written (No space left on device); make room or write somewhere else\n"
    assert error.getvalue().endswith(what) and error.getvalue().count("\n") == 1


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of all commands, those of `search` each."""
    for name in SUMMARIES:
        module = import_module(f"automap_models.infer.commands.{name}")
        for own, command in getattr(module, "COMMANDS", {"": getattr(module, "COMMAND", None)}).items():
            yield f"{name} {own}".strip(), command.parser(name)


ANY_TEXT = {
    *("planner", "dtype", "cut_at", "model", "filter"),  # names that are looked up in tables, or written into a profile
    *("pin", "keep_together", "trainable", "pins", "together", "freeze", "lora"),  # patterns of layers and parameters
    "ignore",  # settings of another program
}
"""Arguments that may be any text, because no file is opened by them."""


@pytest.mark.parametrize(("command", "parser"), parsers(), ids=lambda value: value if isinstance(value, str) else "")
def test_no_argument_for_a_file_takes_a_name_of_300_bytes(command: str, parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if action.nargs == 0 or action.choices or action.dest in ANY_TEXT:
            continue
        kind = action.type
        assert callable(kind), f"{command}: {action.dest} takes any text"
        for name in ("x" * 300, f"{'y' * 300}/x.npz", "x/" * 2100, "a\0b"):
            with pytest.raises((argparse.ArgumentTypeError, ValueError)):
                kind(name)
