"""A user's factory is called by name; what goes wrong in it is told as its author would see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from automap_models.errors import BadInput, UserCodeError
from automap_models.infer.runner import run_command
from automap_models.user_code import call_factory, user_code

MODULE = """
from their_package import helper

def make(batch=3, dtype="float32"):
    return batch, dtype

def anything(**options):
    return options

def needs_more(width, batch=1):
    return width

def divide():
    return helper.divide(1, 0)

def leave():
    raise SystemExit(0)

number = 7
"""
HELPER = """
def divide(a, b):
    return a / b
"""


@pytest.fixture
def their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in the current directory, which is not on the import path."""
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text(HELPER)
    (package / "models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "their_package"]:
        del sys.modules[name]


def test_a_factory_in_the_current_directory_gets_the_options_that_were_given(their_package: Path) -> None:
    assert call_factory("their_package.models:make", batch=8, dtype=None) == (8, "float32")
    assert call_factory("their_package.models:make") == (3, "float32")


def test_a_factory_that_takes_anything_gets_everything(their_package: Path) -> None:
    assert call_factory("their_package.models:anything", batch=8, sequence=None) == {"batch": 8}


def test_an_option_that_was_not_given_need_not_be_taken(their_package: Path) -> None:
    assert call_factory("their_package.models:make", sequence=None) == (3, "float32")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("their_package.models", "does not name a factory; write it like my_package.my_module:make_step"),
        ("models.py:make:x", "does not name a factory"),
        ("./models.py:make", "does not name a factory"),
        (":make", "does not name a factory"),
        ("their_package.models:", "does not name a factory"),
        ("no_such_package:make", "no module no_such_package in "),
        ("their_package.no_such:make", "no module their_package.no_such in "),
        ("their_package.models.deeper:make", "no module their_package.models.deeper in "),
        ("their_package.models:mkae", "has no mkae"),
        ("their_package.models:number", "is of type int, not a function"),
        ("their_package.models:needs_more", "cannot be called: missing a required argument: 'width'"),
    ],
)
def test_a_spec_that_cannot_be_used_says_why(their_package: Path, spec: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        call_factory(spec)
    assert str(caught.value).startswith(f"{spec}: ")
    assert message in str(caught.value)
    assert not isinstance(caught.value, UserCodeError)


def test_an_option_that_the_factory_does_not_take_is_not_dropped_silently(their_package: Path) -> None:
    with pytest.raises(BadInput, match=r"takes no argument 'sequence'; .* leave sequence out$"):
        call_factory("their_package.models:make", sequence=128)


def test_an_exception_in_a_factory_comes_with_their_traceback_and_no_frame_of_ours(their_package: Path) -> None:
    with pytest.raises(UserCodeError, match=r"^their_package.models:divide: ZeroDivisionError ") as caught:
        call_factory("their_package.models:divide")
    lines = caught.value.details.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split('"')[1] for line in lines if line.startswith("  File ")] == [
        str(their_package / "models.py"),
        str(their_package / "helper.py"),
    ]
    assert "    return a / b" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("source", "last_line"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("from their_package import no_such", "ImportError: cannot import name 'no_such' from 'their_package'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
    ],
)
def test_an_exception_while_the_module_is_imported_does_so_too(
    their_package: Path, source: str, last_line: str
) -> None:
    (their_package / "broken.py").write_text(source)
    with pytest.raises(UserCodeError) as caught:
        call_factory("their_package.broken:make")
    assert caught.value.details.splitlines()[-1].startswith(last_line)
    assert str(their_package / "broken.py") in caught.value.details
    assert "importlib" not in caught.value.details
    assert "automap_models" not in caught.value.details


def test_a_factory_cannot_end_the_command_with_its_own_exit_code(their_package: Path) -> None:
    with pytest.raises(UserCodeError, match="SystemExit"):
        call_factory("their_package.models:leave")


def test_an_error_made_for_people_and_an_interrupt_pass_through_the_user_s_code() -> None:
    with pytest.raises(BadInput, match=r"^too small$"), user_code("a:b"):
        raise BadInput("too small")
    with pytest.raises(KeyboardInterrupt), user_code("a:b"):
        raise KeyboardInterrupt


def test_a_command_prints_their_traceback_then_one_line_and_ends_with_2(
    their_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> int:
        call_factory("their_package.models:divide")
        return 0

    assert run_command("automap-x", body) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ZeroDivisionError: division by zero"
    assert lines[-1] == "automap-x: error: their_package.models:divide: ZeroDivisionError in the code that it names"
