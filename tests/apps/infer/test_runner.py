"""How every command checks its outputs, and how it ends."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from automap_models.errors import AutomapError, BadInput, Infeasible
from automap_models.formats.atomic import write_json
from automap_models.infer import app
from automap_models.infer.runner import Command, CommandParser, Output, Report, run_command

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _raising(error: BaseException) -> int:
    raise error


def test_the_body_s_own_code_is_returned() -> None:
    assert run_command("automap-x", lambda: 7) == 7


@pytest.mark.parametrize(("error", "code"), [(BadInput, 2), (Infeasible, 3), (AutomapError, 1)])
def test_an_expected_error_is_one_line_on_stderr_and_its_own_code(
    error: type[AutomapError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    raised = error("is\nbroken", where="the file", do="mend it")
    assert run_command("automap-x", lambda: _raising(raised)) == code
    assert capsys.readouterr() == ("", "automap-x: error: the file: is broken; mend it\n")


def test_an_interrupt_is_code_130_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("automap-x", lambda: _raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "automap-x: interrupted\n")


def test_a_defect_is_code_1_below_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("automap-x", lambda: 1 // 0) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback")
    assert "ZeroDivisionError" in err


def test_a_wrong_argument_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        CommandParser(prog="automap-x").parse_args(["--nonsense"])
        return 0

    assert run_command("automap-x", body) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "automap-x: error: unrecognized arguments: --nonsense; see automap-x --help\n"


def test_help_is_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        parser: argparse.ArgumentParser = CommandParser(prog="automap-x")
        parser.parse_args(["--help"])
        return 1

    assert run_command("automap-x", body) == 0
    assert capsys.readouterr().out.startswith("usage: automap-x")


def test_streams_and_signals_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls a command in its own process goes on with its own settings."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict")
    monkeypatch.setattr(sys, "stdout", stdout)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    assert app.main(["infer", str(EXAMPLES / "vgg19_v100.npz"), "--topo", "A", "--planner", "uniform", "--json"]) == 0
    assert app.main(["infer", "--help"]) == 0
    assert app.main(["fly"]) == 2
    assert (stdout.encoding, stdout.errors) == ("latin-1", "strict")
    assert {number: signal.getsignal(number) for number in before} == before
    assert sys.stdout is stdout


class Requested:
    """A command with two outputs that records what it was asked for."""

    def __init__(self) -> None:
        self.ran = 0
        self.command: Command[argparse.Namespace] = Command(
            description="",
            epilog="",
            add_arguments=lambda parser: parser.add_argument("what") and None,
            outputs=(Output("plan", ("--out",), "as JSON"), Output("log", ("-l", "--log"), "as text", over_input=True)),
            json="as JSON",
            inputs=("what",),
            request=lambda namespace: namespace,
            report=self._report,
        )

    def _report(self, request: argparse.Namespace) -> Report:
        self.ran += 1
        return Report(
            lambda: print("for people"),
            lambda: {"what": request.what},
            {"log": lambda path: write_json(path, {"log": 1})},
            warnings=("beware",),
            remarks=("done",),
        )

    def __call__(self, *arguments: str) -> int:
        return run_command("automap-x", lambda: self.command.execute("automap-x", arguments))


@pytest.fixture
def requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Requested:
    monkeypatch.chdir(tmp_path)
    Path("model").touch()
    return Requested()


def test_files_are_written_and_named_below_the_report(requested: Requested, capsys: pytest.CaptureFixture[str]) -> None:
    assert requested("model", "--out", "plan.json", "--log", "model") == 0
    out, err = capsys.readouterr()
    assert out == "for people\n    wrote  plan: plan.json\n    wrote  log: model\n"
    assert err == "automap-x: warning: beware\ndone\n"
    assert Path("plan.json").read_text(encoding="utf-8") == '{\n  "what": "model"\n}\n'
    assert Path("model").read_text(encoding="utf-8") == '{\n  "log": 1\n}\n'


def test_json_is_the_document_and_nothing_else(requested: Requested, capsys: pytest.CaptureFixture[str]) -> None:
    assert requested("model", "--json", "--out", "plan.json") == 0
    assert capsys.readouterr().out == Path("plan.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "model"], "model for the plan: is an input, too; give another name"),
        (["--out", "./x", "-l", "x"], "x for the log: is where the plan goes, too; give another name"),
        (["--out", "nowhere/x"], "nowhere/x: there is no folder"),
        (["--out", "."], ".: is a folder; give the name of a file"),
        (["--out", "n" * 256], "argument --out: a name of 256 bytes (nnnn"),
        (["--out", "n/" * 2100], "argument --out: a path of 4200 bytes (n/n/"),
        (["--out", "a\0b"], "argument --out: 'a\\x00b' holds a NUL character"),
        (["--out", "a\ud800b"], "argument --out: 'a\\ud800b' cannot be the name of a file"),
    ],
)
def test_an_output_that_cannot_be_is_found_before_anything_runs(
    arguments: list[str], message: str, requested: Requested, capsys: pytest.CaptureFixture[str]
) -> None:
    assert requested("model", *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, requested.ran) == ("", 0)
    assert err.startswith(f"automap-x: error: {message}")
    assert err.count("\n") == 1


def test_a_file_on_a_full_device_is_one_sentence_and_nothing_is_left(
    requested: Requested, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert requested("model", "--out", "plan.json") == 2
    assert capsys.readouterr() == (
        "",
        "automap-x: error: plan.json: cannot be written (No space left on device); write somewhere else\n",
    )
    assert [path.name for path in Path().iterdir()] == ["model"]


COMMANDS = [
    ["profile", str(EXAMPLES / "vgg19_v100.npz"), "--instructions"],
    ["plan", "--help"],
]
"""As processes of their own; tests/regressions/test_streams_and_names.py has more commands in its own process."""


def _shell(redirection: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own, its streams redirected by bash."""
    code = "import sys; from automap_models.infer.app import automap; sys.exit(automap())"
    script = f'"$0" -c "{code}" "$@" {redirection}'
    return subprocess.run(["bash", "-c", script, sys.executable, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_went_away_before_the_first_byte_is_no_complaint(arguments: list[str]) -> None:
    done = _shell("| true; exit ${PIPESTATUS[0]}", arguments)
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


def test_a_reader_that_goes_away_is_no_complaint() -> None:
    done = _shell("| head -1; exit ${PIPESTATUS[0]}", COMMANDS[0])
    assert (done.returncode, done.stdout.count("\n"), done.stderr) in {(141, 1, ""), (0, 1, done.stderr)}


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_device_is_one_sentence(arguments: list[str]) -> None:
    done = _shell("> /dev/full", arguments)
    assert (done.returncode, done.stdout) == (2, "")
    what = "error: standard output: cannot be written (No space left on device); make room or write somewhere else\n"
    assert done.stderr.endswith(what)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "2> >(true)"])
def test_nobody_hearing_the_error_changes_nothing_but_that(redirection: str) -> None:
    done = _shell(redirection, ["profile", "nowhere.npz"])
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
