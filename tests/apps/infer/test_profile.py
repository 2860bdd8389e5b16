"""automap profile on other tools' profiles: converts, shows, and fails in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from automap_models import workloads
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import known_devices
from automap_models.formats.npz import read_npz
from automap_models.infer.app import infer as plan
from automap_models.infer.app import profile as main

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
        "net: 2 instructions, 0.5 s a micro-batch, 4 MB of parameters, smallest cut 5 MB after n2\n",
    )


def test_an_npz_is_converted_too_and_may_be_written_over_itself(graph: Path) -> None:
    out = graph.with_name("net.npz")
    assert main([str(graph), "-o", str(out)]) == 0
    before = read_npz(out)
    assert main([str(out), "-o", str(out), "--model", "mine"]) == 0
    assert read_npz(out).meta["model"] == "mine"
    assert read_npz(out).fingerprint == before.fingerprint
    assert _files(graph.parent) == ["net.npz", "net.txt"]


def test_every_instruction_is_printed_in_order(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(graph), "--instructions"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["forward", "s", "backward", "s", "cut", "bytes", "parameters", "saved", "name"]
    assert [line.split() for line in lines] == [
        ["0", "0.001", "0.002", "5000000", "4000000", "5000000", "n2", "Conv2d(3,", "4)"],
        ["1", "0.25", "0.247", "0", "0", "3", "n3", "ReLU"],
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
        ([], "no MODEL|FILE is given; see automap profile --help"),
        (["net.txt", "--list"], "--list: net.txt is given, too; leave one of them out"),
        (
            ["bert", "--show"],
            "bert: is neither a file nor a known model; did you mean bert48, ",
        ),
        (["nonsense", "--show"], "nonsense: is neither a file nor a known model; automap models lists all "),
        (["net.txt", "--json", "--show"], "--json: prints JSON and nothing else; leave --show and --instructions out"),
        (["net.txt", "--plot", "net.txt"], "net.txt for the plot: is an input, too; give another name"),
        (
            ["net.txt", "-o", "p.png", "--plot", "p.png"],
            "p.png for the plot: is where the profile goes, too; give another name",
        ),
        (["net.txt", "--plot", "p.gif"], "p.gif: no kind of picture ends in '.gif'; use .png, .svg, .pdf"),
        (["net.txt", "--show", "--batch", "3"], "--batch: does not apply: net.txt is a profile, with times and sizes"),
        (["net.txt", "--show", "--sequence", "3"], "--sequence: does not apply: net.txt is a profile"),
        (["net.txt", "--show", "--dtype", "float16"], "--dtype: does not apply: net.txt is a profile"),
        (["net.txt", "--show", "--device", "v100"], "--device: does not apply: net.txt is a profile"),
        (["net.txt", "--show", "--measure"], "--measure: does not apply: net.txt is a profile"),
        (["net.txt", "--show", "--trainable", "*"], "--trainable: does not apply: net.txt is a profile"),
        (["net.txt", "--show", "--repeats", "3"], "--repeats: does not apply: nothing is measured without --measure"),
        (["step.hlo", "--show", "--batch", "3"], "--batch: does not apply: step.hlo is an HLO file, with shapes of"),
        (["vgg19", "--show", "--trainable", "*"], "--trainable: does not apply: vgg19 is a built-in model"),
        (["vgg19", "--show", "--measure", "--device", "v100"], "--device: does not apply: --measure runs the model on"),
        (["vgg19", "--show", "--device", "abacus"], "device: 'abacus' is neither a known device nor a file"),
        (["vgg19", "--show", "--sequence", "3"], "sequence: vgg19 reads images; leave the sequence length out"),
        (["vgg19", "--show", "--dtype", "int3"], "dtype: unknown dtype 'int3'; choose from float32, bfloat16, float16"),
        (
            ["vgg19", "--show", "--batch", "0"],
            "argument --batch: '0' is no whole number ≥ 1; see automap profile --help",
        ),
        (
            ["vgg19", "--show", "--batch", "2147483648"],
            "argument --batch: '2147483648' is more than 2,147,483,647; see automap profile --help",
        ),
        (["vgg19", "--show", "--batch", "1.5"], "argument --batch: '1.5' is no whole number ≥ 1"),
        (["net.txt", "--measrue"], "unrecognized arguments: --measrue; did you mean --measure? or see automap profile"),
        (["net.txt", "--nonsense"], "unrecognized arguments: --nonsense; see automap profile --help"),
        (["net.txt", "-o"], "argument -o/--out: expected one argument; see automap profile --help"),
        (["net.txt"], "-o: nothing to do; give -o profile.npz to write it or --show to print it"),
        (["nowhere.txt", "--show"], "nowhere.txt: cannot be read (No such file or directory); check the path"),
        (["net.txt", "-o", "."], ".: is a folder; give the name of a file"),
        (["net.txt", "-o", "nowhere/p.npz"], "nowhere/p.npz: there is no folder"),
        (["bad.txt", "-o", "p.npz"], "bad.txt, line 4: is neither a node nor an edge"),
        (["./empty", "-o", "p.npz"], "./empty: is empty; a profile is an .npz file"),
        (["mine.py", "--show"], "mine.py: is Python source; name the factory in it, as in my_package.my_module:make_"),
        (["step.hlo.pb", "--show"], "step.hlo.pb: is a protocol buffer; give XLA's dump as text: XLA_FLAGS='--xla_"),
        (["./mine:make", "--show"], "./mine:make: is neither a file nor the name of a factory; write a factory as my_"),
        (["my-module:make", "--show"], "my-module:make: is neither a file nor the name of a factory; write"),
    ],
)
def test_a_mistake_is_one_line_and_code_2_and_writes_nothing(
    graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(graph.parent)
    Path("bad.txt").write_text(GRAPH.replace("\tn1 -- n2", "n1 to n2"))
    Path("empty").touch()
    Path("step.hlo").write_text("HloModule step\n")
    Path("mine.py").write_text("def make():\n    return None\n")
    Path("step.hlo.pb").write_bytes(b"\n\x04step")
    before = _files(graph.parent)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"automap profile: error: {message}")
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
    assert capsys.readouterr().err == "automap profile: interrupted\n"


def test_ctrl_c_from_outside_is_code_130_without_a_traceback(tmp_path: Path) -> None:
    """The command waits in its user's code, which reads a pipe; the other end opens when it has got that far."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "waits.py").write_text("def make():\n    return open('pipe').read()\n", encoding="utf-8")
    program = "import sys; from automap_models.infer.app import profile as main; sys.exit(main())"
    command = [sys.executable, "-c", program, "waits:make", "-o", str(tmp_path / "p.npz")]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as process,
        (tmp_path / "pipe").open("wb"),
    ):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err == "automap profile: interrupted\n"
    assert _files(tmp_path) == ["pipe", "waits.py"]


def test_show_names_what_weighs_most(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(graph), "--show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("net: 2 instructions, from graph.txt\n")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "time 500 ms a micro-batch: 251 ms forward, 249 ms backward" in lines
    assert "n3 ReLU 250 ms 247 ms 99.4 % 0 B" in lines
    assert "ReLU 1 497 ms 99.4 % 0 B 3.00 B" in lines


def test_json_is_the_only_thing_on_stdout(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(graph), "--json", "--model", "mine"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["instructions"], document["parameter_bytes"]) == ("mine", 2, 4e6)
    assert document["time_s"] == pytest.approx(0.5)
    assert document["heaviest_instructions"][0]["name"] == "n3"
    assert document["fingerprint"] == read_profile(graph).fingerprint


def test_the_json_of_a_placement_graph_tells_what_was_reported(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = shared_data / "placement_graphs" / "throughput-inputs_OperatorGraphs_bert_l-3_training.json"
    assert main([str(graph), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert len(notes) == 2
    assert notes[0].startswith("24 backward ")
    assert notes[1].startswith("bert.embeddings.word_embeddings.weight (")
    assert ") is shared by " in notes[1]


def test_a_profile_is_drawn(graph: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.png", "b.png"):
        assert main([str(graph), "--plot", str(graph.with_name(name))]) == 0
    assert graph.with_name("a.png").read_bytes().startswith(b"\x89PNG")
    assert graph.with_name("a.png").read_bytes() == graph.with_name("b.png").read_bytes()


def test_the_list_names_every_model_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    first_words = {line.split(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert {*workloads.names(), *known_devices()} <= first_words


def test_a_file_that_is_called_like_a_model_is_read_when_written_as_a_path(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(graph.parent)
    graph.rename("vgg19")
    assert main(["./vgg19", "-o", "p.npz"]) == 0
    assert len(read_npz("p.npz")) == 2


def test_planning_wants_a_profile_and_says_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step.hlo").write_text("HloModule step\n")
    expected = {
        "bert48": "bert48: is a model, not a profile; run automap profile bert48 -o profile.npz first",
        "my.models:make": "my.models:make: is a model, not a profile; run automap profile my.models:make -o",
        str(tmp_path / "step.hlo"): "is an HLO or StableHLO module, which has no times yet; make a profile of it",
    }
    for what, message in expected.items():
        assert plan([what, "--topo", "C"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["LayerGraphs_resnet50", "OperatorGraphs_bert_l-3"])
def test_a_placement_graph_is_planned_as_it_is(
    kind: str, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = shared_data / "placement_graphs" / f"throughput-inputs_{kind}_training.json"
    assert plan([str(graph), "--topo", "A", "--stages", "2", "--planner", "exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == graph.stem


def test_the_help_names_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "PipeDream" in capsys.readouterr().out
