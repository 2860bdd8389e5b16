"""The process that reads files from elsewhere: it is cheap, and ends with its file."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from automap_models.errors import BadInput
from automap_models.hlo.flat_module import from_bytecode
from automap_models.hlo.foreign import import_content

ADD = b"HloModule add\n\nENTRY e {\n  p.1 = f32[2] parameter(0)\n  ROOT a.1 = f32[2] add(p.1, p.1)\n}\n"


def test_a_child_reads_a_file() -> None:
    assert "stablehlo.add" in str(from_bytecode(import_content(ADD, "hlo", "add")))


def test_an_error_names_the_line() -> None:
    with pytest.raises(BadInput, match=r"file: is no HLO text that XLA can read \(was parsing 4:16: error: .*paramter"):
        import_content(ADD.replace(b"parameter", b"paramter"), "hlo", "file")


def test_a_child_that_takes_too_long_is_ended() -> None:
    start = time.perf_counter()
    with pytest.raises(BadInput, match="no end after 0 s"):
        import_content(ADD, "hlo", "add", longest_s=0.0)  # not even the time to start
    assert time.perf_counter() - start < 10


def test_the_child_needs_jaxlib_alone() -> None:
    """A process that imports jax takes about a second longer to start."""
    code = "import sys; import automap_models.hlo.flat_module; print('jax' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


def test_calls_that_multiply_without_end_run_into_the_limit() -> None:
    """Thirty computations that call the one before twice: a billion instructions from a file of three kilobytes."""
    computations = ["c0 {\n  p.0 = f32[2] parameter(0)\n  ROOT a.0 = f32[2] add(p.0, p.0)\n}"]
    for i in range(1, 31):
        computations.append(
            f"c{i} {{\n  p.{i} = f32[2] parameter(0)\n  x.{i} = f32[2] call(p.{i}), to_apply=c{i - 1}\n"
            f"  ROOT y.{i} = f32[2] call(x.{i}), to_apply=c{i - 1}\n}}"
        )
    entry = "ENTRY e {\n  p.99 = f32[2] parameter(0)\n  ROOT r.99 = f32[2] call(p.99), to_apply=c30\n}"
    with pytest.raises(BadInput, match="gives up"):
        import_content("\n\n".join(["HloModule bomb", *computations, entry]).encode(), "hlo", "bomb", longest_s=2.0)
