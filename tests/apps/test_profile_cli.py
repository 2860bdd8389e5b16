"""automap-profile: converts, shows, and fails in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from automap_models.formats.files import read_profile
from automap_models.formats.npz import read_npz
from automap_models.infer.profile_cli import main

GRAPH = (
    "n1 -- Input -- forward_compute_time=0, backward_compute_time=0, activation_size=7, parameter_size=0\n"
    "n2 -- Conv2d(3, 4) -- forward_compute_time=1, backward_compute_time=2, activation_size=5e6, parameter_size=4e6\n"
    "n3 -- ReLU -- forward_compute_time=250, backward_compute_time=247, activation_size=3, parameter_size=0\n"
    "\tn1 -- n2\n"
    "\tn2 -- n3\n"
)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    (tmp_path / "net.txt").write_text(GRAPH)
    return tmp_path / "net.txt"


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_graph_becomes_an_npz_and_one_line_sums_it_up(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = graph.with_name("net.npz")
    assert main([str(graph), "-o", str(out)]) == 0
    assert read_npz(out).fingerprint == read_profile(graph).fingerprint
    assert read_npz(out).meta["model"] == "net"
    assert capsys.readouterr() == (
        "",
        "net: 3 instructions, 0.5 s a micro-batch, 4 MB of parameters, smallest cut 5 MB after n2\n",
    )


def test_an_npz_is_converted_too_and_may_be_written_over_itself(graph: Path) -> None:
    out = graph.with_name("net.npz")
    assert main([str(graph), "-o", str(out)]) == 0
    before = read_npz(out)
    assert main([str(out), "-o", str(out), "--model", "mine"]) == 0
    assert read_npz(out).meta["model"] == "mine"
    assert read_npz(out).fingerprint == before.fingerprint
    assert _files(graph.parent) == ["net.npz", "net.txt"]


def test_show_prints_every_instruction_in_order(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(graph), "--show"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["forward", "s", "backward", "s", "cut", "bytes", "parameters", "stash", "name"]
    assert [line.split() for line in lines] == [
        ["0", "0", "0", "7", "0", "7", "n1", "Input"],
        ["1", "0.001", "0.002", "5000000", "4000000", "5000000", "n2", "Conv2d(3,", "4)"],
        ["2", "0.25", "0.247", "0", "0", "3", "n3", "ReLU"],
    ]


def test_a_profile_with_one_working_instruction_has_no_cut_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez_compressed(tmp_path / "p.npz", C=np.array([0.0, 1.0]), A=np.zeros(2), W=np.zeros(2))
    assert main([str(tmp_path / "p.npz"), "--show"]) == 0
    assert "all work in one instruction" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["alexnet", "bert-24_b6", "bert-48_b2", "gnmt", "resnet50", "vgg16", "vgg16_dapple"])
def test_published_profiles_survive_the_conversion(name: str, shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "v100_profiles" / f"{name}.txt"
    assert main([str(path), "-o", str(tmp_path / "p.npz")]) == 0
    before, after = read_profile(path), read_profile(tmp_path / "p.npz")
    assert after.fingerprint == before.fingerprint
    assert (after.names, after.layers) == (before.names, before.layers)
    assert after.meta.items() >= before.meta.items()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: FILE; see automap-profile --help"),
        (["net.txt", "--nonsense"], "unrecognized arguments: --nonsense; see automap-profile --help"),
        (["net.txt", "-o"], "argument -o/--out: expected one argument; see automap-profile --help"),
        (["net.txt"], "-o: nothing to do; give -o profile.npz to write it or --show to print it"),
        (["nowhere.txt", "--show"], "nowhere.txt: cannot be read (No such file or directory); check the path"),
        (["net.txt", "-o", "."], ".: is a folder; give the name of a file"),
        (["net.txt", "-o", "nowhere/p.npz"], "nowhere/p.npz: there is no folder"),
        (["bad.txt", "-o", "p.npz"], "bad.txt, line 4: is neither a node nor an edge"),
        (["empty", "-o", "p.npz"], "empty: is empty; give an .npz file"),
    ],
)
def test_a_mistake_is_one_line_and_code_2_and_writes_nothing(
    graph: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(graph.parent)
    Path("bad.txt").write_text(GRAPH.replace("\tn1 -- n2", "n1 to n2"))
    Path("empty").touch()
    before = _files(graph.parent)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"automap-profile: error: {message}")
    assert err.count("\n") == 1
    assert _files(graph.parent) == before


def test_an_interrupt_while_writing_leaves_the_old_file(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = graph.with_name("net.npz")
    out.write_bytes(b"old")

    def interrupted(file: object, **arrays: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    assert main([str(graph), "-o", str(out)]) == 130
    assert out.read_bytes() == b"old"
    assert _files(graph.parent) == ["net.npz", "net.txt"]
    assert capsys.readouterr().err == "automap-profile: interrupted\n"


def test_ctrl_c_from_outside_is_code_130_without_a_traceback(tmp_path: Path) -> None:
    """The command waits for its input, a pipe; opening the other end tells that it has got that far."""
    os.mkfifo(tmp_path / "pipe")
    program = "import sys; from automap_models.infer.profile_cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, str(tmp_path / "pipe"), "-o", str(tmp_path / "p.npz")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, (tmp_path / "pipe").open("wb"):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err == "automap-profile: interrupted\n"
    assert _files(tmp_path) == ["pipe"]


def test_the_help_and_the_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "PipeDream" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("automap-profile ")
