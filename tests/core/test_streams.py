"""The Hydra programs end like the commands where nobody takes what they print."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from automap_models.core.streams import one_line_errors
with one_line_errors("datagen", "run it again"):
    with one_line_errors("datagen", "run it again"):
        print("x" * int(sys.argv[1]))
"""


@pytest.mark.parametrize("length", [1, 100_000])
@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
        (
            "> /dev/full",
            2,
            "datagen: error: standard output: cannot be written (No space left on device); make room or",
        ),
        ("> /dev/full 2>&-", 2, ""),
        ("> /dev/null", 0, ""),
    ],
)
def test_a_closed_pipe_is_141_and_a_full_device_one_sentence(
    length: int, redirection: str, code: int, message: str
) -> None:
    script = f'"$0" -c "$1" {length} {redirection}'
    done = subprocess.run(["bash", "-c", script, sys.executable, CODE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == bool(message)
