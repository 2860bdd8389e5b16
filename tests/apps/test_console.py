"""How every command ends."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from automap_models.errors import AutomapError, BadInput, Infeasible
from automap_models.infer.runner import CommandParser, run_command


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


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command("automap-x", lambda: _raising(ZeroDivisionError()))


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


def test_a_reader_that_goes_away_is_no_complaint() -> None:
    program = (
        "import sys; from automap_models.infer.runner import run_command\n"
        "def body():\n"
        "    for i in range(10**6): print(i)\n"
        "    return 0\n"
        "sys.exit(run_command('automap-x', body))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
