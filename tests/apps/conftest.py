"""What the tests of the commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., str]


@pytest.fixture
def refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Callable[..., int], str], Refused]:
    """Of a command's main and name: run it, require a code, one line on stderr, nothing on stdout and no new file.

    The line is returned; the files are those of the test's own folder.
    """

    def of(main: Callable[..., int], name: str) -> Refused:
        def run(*arguments: str, code: int = 2) -> str:
            before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
            assert main(arguments) == code
            out, err = capsys.readouterr()
            assert out == ""
            assert err.count("\n") == 1
            assert err.startswith(f"{name}: error: ")
            assert "Traceback" not in err
            assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
            return err

        return run

    return of
