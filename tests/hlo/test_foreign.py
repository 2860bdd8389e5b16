"""The process that reads files from elsewhere: it is cheap, stays, and is replaced when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from automap_models.errors import BadInput
from automap_models.hlo import foreign
from automap_models.hlo.flat_module import from_bytecode
from automap_models.hlo.foreign import Importer

ADD = b"HloModule add\n\nENTRY e {\n  p.1 = f32[2] parameter(0)\n  ROOT a.1 = f32[2] add(p.1, p.1)\n}\n"


@pytest.fixture
def importer() -> Iterator[Importer]:
    importer = Importer()
    yield importer
    importer.close()


def pid(importer: Importer) -> int:
    assert importer._child is not None
    return importer._child.pid


def test_one_child_reads_many_files(importer: Importer) -> None:
    modules = {importer.flat_module(ADD, "hlo", "add")}
    first = pid(importer)
    modules.add(importer.flat_module(ADD, "hlo", "add"))
    assert len(modules) == 1 and pid(importer) == first
    assert "stablehlo.add" in str(from_bytecode(modules.pop()))


def test_an_error_leaves_the_child_alive_and_names_the_line(importer: Importer) -> None:
    with pytest.raises(BadInput, match=r"file: is no HLO text that XLA can read \(was parsing 4:16: error: .*paramter"):
        importer.flat_module(ADD.replace(b"parameter", b"paramter"), "hlo", "file")
    first = pid(importer)
    importer.flat_module(ADD, "hlo", "add")
    assert pid(importer) == first


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_ended_between_two_files_is_replaced(importer: Importer, ending: signal.Signals) -> None:
    importer.flat_module(ADD, "hlo", "add")
    os.kill(pid(importer), ending)
    assert importer._child is not None
    importer._child.wait()
    assert importer.flat_module(ADD, "hlo", "add")


def test_a_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Importer(longest_s=0.0)  # not even the time to start
    monkeypatch.setattr(foreign, "SECOND_BYTES", 1e9)
    start = time.perf_counter()
    with pytest.raises(BadInput, match="no end after 0 s"):
        importer.flat_module(ADD, "hlo", "add")
    assert time.perf_counter() - start < 10
    assert importer._child is None


def test_an_interrupt_ends_the_child_and_the_next_file_is_read(
    importer: Importer, monkeypatch: pytest.MonkeyPatch
) -> None:
    importer.flat_module(ADD, "hlo", "add")
    first = pid(importer)

    def interrupted(pipe: object) -> tuple[int, bytes]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(foreign, "_read_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            importer.flat_module(ADD, "hlo", "add")
    assert importer._child is None
    assert importer.flat_module(ADD, "hlo", "add") and pid(importer) != first


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
    importer = Importer(longest_s=2.0)
    with pytest.raises(BadInput, match="gives up"):
        importer.flat_module("\n\n".join(["HloModule bomb", *computations, entry]).encode(), "hlo", "bomb")
