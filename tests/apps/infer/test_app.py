"""`automap`, the one program: its commands under both of their names, its help, how fast it starts."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from automap_models.core.mesh import AXES
from automap_models.formats.hardware_yaml import known_clusters
from automap_models.infer import app
from automap_models.infer.commands.parsing import MESH_AXES, mesh_argument
from automap_models.infer.runner import Command
from automap_models.version import __version__

ROOT = Path(__file__).resolve().parents[3]
PROFILE = "small.npz"
COMMANDS = tuple(app.SUMMARIES)
CALLS = {
    "infer": [PROFILE, "--topo", "A", "--planner", "uniform", "--json"],
    "profile": [PROFILE, "--json"],
    "place": ["line.json", "--planner", "ideals", "--json"],
    "export": ["strategy.json", "--to", "megatron", "--json"],
}
"""Command → arguments of a quick run; `plan`, `search` and `calibrate` take seconds and go through the same code."""
STRATEGY = {
    "schema": 1,
    "kind": "strategy",
    "model": "small",
    "strategy": {"micro_batch": 1, "global_batch": 8, "pp": 2, "micro_batches": 8},
    "stage_layers": [2, 2],
}
GRAPH = {
    "maxSizePerFPGA": 6e9,
    "maxFPGAs": 2,
    "maxCPUs": 0,
    "nodes": [
        {
            "id": i,
            "supportedOnFpga": 1,
            "cpuLatency": 9,
            "fpgaLatency": 1,
            "isBackwardNode": 0,
            "colorClass": i,
            "size": 1,
        }
        for i in (1, 2)
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 1}],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez_compressed(PROFILE, C=np.full(12, 1e-2), A=np.full(12, 1e6), W=np.full(12, 1e7))
    Path("line.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    Path("strategy.json").write_text(json.dumps(STRATEGY), encoding="utf-8")


def _alias(command: str) -> Callable[[list[str]], int]:
    script: Callable[[list[str]], int] = getattr(app, command)
    return script


def _untimed(document: object) -> object:
    """Without what another run cannot repeat: how long something took."""
    if isinstance(document, dict):
        timed = ("planning_s", "seconds")
        return {name: _untimed(value) for name, value in document.items() if name not in timed}
    return [_untimed(value) for value in document] if isinstance(document, list) else document


@pytest.mark.parametrize("command", CALLS)
def test_the_json_under_both_names_is_equal(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([command, *CALLS[command]]) == 0
    one = json.loads(capsys.readouterr().out)
    assert _alias(command)(CALLS[command]) == 0
    assert _untimed(json.loads(capsys.readouterr().out)) == _untimed(one)


@pytest.mark.parametrize(
    "arguments", [[command] for command in COMMANDS] + [["search", s] for s in ("opp", "adp", "pp")]
)
def test_the_help_under_both_names_is_equal_but_for_the_name(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    assert app.main([*arguments, "--help"]) == 0
    one = capsys.readouterr().out
    assert one.startswith(f"usage: automap {' '.join(arguments)} ")
    assert _alias(command)([*rest, "--help"]) == 0
    other = capsys.readouterr().out
    assert one == other


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_told_under_the_name_on_the_front_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for main in (partial(app.main, [command, "--nonsense"]), partial(_alias(command), ["--nonsense"])):
        assert main() == 2
        assert capsys.readouterr().err.startswith(f"automap {command}: error: ")


def test_help_begins_with_what_has_to_be_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty lines of options stood there, and what few people plan with before degrees and frameworks."""
    monkeypatch.setenv("COLUMNS", "110")
    assert app.main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "usage: automap plan (--gpus N×KIND | --topo NAME|FILE) MODEL|FILE [option …]"
    places = [out.index(f"\n  {option} ") for option in ("--gpus", "--for", "--tp", "--lora", "--tokens", "--pin")]
    assert places == sorted(places)


def test_help_lists_every_command_in_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--help"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert all(f"{command} {summary}" in lines for command, summary in app.SUMMARIES.items())


def test_each_name_in_the_list_is_a_command_or_several_with_a_list_of_their_own() -> None:
    for name in app.SUMMARIES:
        module = import_module(f"automap_models.infer.commands.{name}")
        commands = {name: module.COMMAND} if hasattr(module, "COMMAND") else module.COMMANDS
        assert all(isinstance(command, Command) for command in commands.values())
        assert len(commands) == 1 or set(commands) == set(module.SUMMARIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND; see automap --help"),
        (["fly"], "argument COMMAND: invalid choice: 'fly'"),
        (["search"], "the following arguments are required: COMMAND; see automap search --help"),
        (["search", "x"], "argument COMMAND: invalid choice: 'x' (choose from "),
    ],
)
def test_no_command_or_an_unknown_one_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_every_name_tells_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--version"]) == 0
    assert all(_alias(command)(["--version"]) == 0 for command in COMMANDS)
    expected = [f"automap {__version__}", *(f"automap {command} {__version__}" for command in COMMANDS)]
    assert capsys.readouterr().out.splitlines() == expected


def test_every_command_is_installed_under_both_names() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {
        "automap": "automap_models.infer.app:automap",
        **{f"automap-{command}": f"automap_models.infer.app:{command}" for command in COMMANDS},
    }


def test_help_imports_neither_numpy_nor_anything_heavier() -> None:
    """That is why it comes at once: numpy alone takes as long as all the rest."""
    code = (
        "import sys; from automap_models.infer import app\n"
        "codes = [app.main(['--help']), app.main(['--version'])]\n"
        "codes += [app.main([command, '--help']) for command in app.SUMMARIES]\n"
        "codes += [app.main(['search', kind, '--help']) for kind in ('opp', 'adp', 'pp')]\n"
        "print(codes, *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    codes, _, modules = done.stdout.splitlines()[-1].rpartition("]")
    assert set(codes.strip("[").split(", ")) == {"0"}
    heavy = {"numpy", "scipy", "rich", "yaml", "msgspec", "onnxruntime", "matplotlib", "jax", "torch", "hydra"}
    assert not heavy & set(modules.split())


@pytest.mark.parametrize(
    ("text", "mesh"), [("4", 4), ("data=2", (("data", 2),)), ("model=4,data=2", (("model", 4), ("data", 2)))]
)
def test_a_mesh_is_a_number_or_named_axes(text: str, mesh: object) -> None:
    assert mesh_argument(text) == mesh
    assert set(MESH_AXES) == set(AXES)


@pytest.mark.parametrize("command", ["infer", "profile", "plan", "place"])
def test_a_file_without_an_end_is_refused_from_its_beginning(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`automap plan /dev/zero` read for ever: it took the whole file's digest before it looked at what it is."""
    more = {"infer": ["--topo", "A"], "profile": ["--show"], "plan": ["--topo", "A", "--no-cache"], "place": []}
    assert app.main([command, "/dev/zero", *more[command]]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", [["infer"], ["plan"], ["search", "opp"], ["search", "pp"]])
def test_the_shipped_clusters_are_listed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without any other argument; Table 2 of Auto-MAP has A, B and C."""
    assert app.main([*command, "--list-clusters"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:] if not line.startswith(" ")}
    assert rows["C"] == ["4", "×", "8", "130", "GB/s", "3.12", "GB/s", "32.0", "GB", "v100"]
    assert rows["dgx-1"] == ["1", "×", "8", "150", "GB/s", "32.0", "GB", "v100"]  # no link between nodes
    at = next(i for i, line in enumerate(lines) if line.startswith("p4d-p3dn"))  # a line for each kind of node
    assert [line.split()[-2:] for line in lines[at : at + 2]] == [["GB", "a100-40"], ["GB", "v100"]]
    assert set(rows) == set(known_clusters())
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "8xh100", "--topo", "A"], "--topo: not allowed with argument --gpus"),
        ([], "one of the arguments --gpus --topo is required"),
        (["--gpus", "12xh100"], "cluster 12xh100: nodes of h100 have up to 8 devices"),
    ],
)
def test_a_cluster_is_given_once(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["plan", "gpt2", "--no-cache", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_list_of_clusters_takes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["plan", "--list-clusters=A"]) == 2
    assert "--list-clusters: ignored explicit argument 'A'" in capsys.readouterr().err
