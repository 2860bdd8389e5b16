"""Files from elsewhere are imported by a process of their own, because malformed HLO ends the process that reads it.

XLA's parser checks its input with assertions: an index out of range or a computation without a root is a segmentation
fault or an abort, which Python cannot catch. So a child reads the foreign bytes and hands back a flat module in MLIR
bytecode, which this process can load safely. If the child dies, takes too long or needs too much memory, the file gets
one sentence.

    this process                                   child: python -m automap_models.hlo.foreign
    ─────────────────────────────────              ─────────────────────────────────────────────
    form, length, the file's bytes   ── stdin ──→  parse, convert, inline
    load the bytecode                ←─ stdout ──  ok | error, length, bytecode | message

The child imports jaxlib alone and not JAX, and stays for the next file; one that died is replaced. So many files can
be checked for the price of those that are malformed.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from automap_models.errors import BadInput
from automap_models.formats.schema import read_bytes
from automap_models.hlo.hlo_text import Form, dynamic_shapes, recognise, without_marks

FORMS: dict[Form, str] = {"hlo": "HLO text", "stablehlo": "StableHLO text", "bytecode": "StableHLO bytecode"}
"""What people call a form."""

LONGEST_S = 60.0
"""Time that a child has for a file, and in addition a second for each SECOND_BYTES of it. BERT-48's step, 2.8 MB
of text, takes 5 s."""
SECOND_BYTES = 100_000
LARGEST_MODULE_BYTES = 1 << 28
"""Of a file."""
MEMORY_BYTES = 16 * 2**30
"""Address space of a child."""

_HEADER = struct.Struct(">BQ")
_FORM_NUMBERS: dict[Form, int] = {"hlo": 0, "stablehlo": 1, "bytecode": 2}
_OK, _ERROR = 0, 1
_DYNAMIC = re.compile(r"\bdynamic[ -](?:shape|dimension|size)", re.IGNORECASE)
_WHOLE = "check that the file is whole and not edited by hand"


def import_file(path: str | os.PathLike[str]) -> tuple[bytes, Form]:
    """The flat module in a file, as MLIR bytecode, and the file's form.

    Raises:
        BadInput: the file cannot be read, is no HLO from before optimisation, or nothing that XLA can read.
    """
    return import_content(read_bytes(path, LARGEST_MODULE_BYTES), str(path))


def import_content(content: bytes, source: str) -> tuple[bytes, Form]:
    """The same for a file's content; `source` is what messages call it.

    Raises:
        BadInput: as `import_file`.
    """
    form = recognise(content, source)
    return _importer().flat_module(content, form, source), form


class Importer:
    """A child process that imports files, started when needed and again after it died."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def flat_module(self, content: bytes, form: Form, source: str) -> bytes:
        """The flat module of a file's content, as MLIR bytecode.

        Raises:
            BadInput: XLA cannot read the content, crashes on it, or takes longer or more memory than it may.
        """
        with self._lock:
            status, answer = self._ask(content, form, source)
        if status == _OK:
            return answer
        raise _unreadable(answer.decode("utf-8", "replace"), form, source)

    def close(self) -> None:
        """End the child."""
        child, log, self._child, self._log = self._child, self._log, None, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with suppress(OSError):  # what was not sent any more cannot be flushed
                    pipe.close()  # type: ignore[union-attr]
        if log is not None:
            log.close()

    def _ask(self, content: bytes, form: Form, source: str) -> tuple[int, bytes]:
        """The child's status and answer."""
        child = self._started()
        limit_s = self._longest_s + len(content) / SECOND_BYTES
        late = threading.Event()

        def give_up() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            _write_frame(child.stdin, _FORM_NUMBERS[form], content)
            return _read_frame(child.stdout)
        except (EOFError, OSError):
            reason = f"no end after {limit_s:.0f} s" if late.is_set() else self._cause_of_death()
            self.close()
            raise BadInput(
                f"is no {FORMS[form]} that XLA can read: its parser gives up ({reason})", where=source, do=_WHOLE
            ) from None
        except BaseException:  # an interrupt in the middle of a frame: the next one would get this one's answer
            self.close()
            raise
        finally:
            timer.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # after a fork the child is the parent's
            self._child, self._log, self._owner = None, None, os.getpid()
        if self._child is None or self._child.poll() is not None:
            self.close()
            package = Path(__file__).resolve().parents[2]
            path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the child
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "automap_models.hlo.foreign"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": path},
            )
        return self._child

    def _cause_of_death(self) -> str:
        """`SIGSEGV`, or the assertion that failed, by what the child left."""
        assert self._child is not None and self._log is not None
        code = self._child.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        failed = next((line.partition("Check failed:")[2] for line in lines if "Check failed:" in line), "")
        ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"{ended}: {failed.strip()[:160]}" if failed else ended


@cache
def _importer() -> Importer:
    importer = Importer()
    atexit.register(importer.close)
    return importer


def _unreadable(message: str, form: Form, source: str) -> BadInput:
    """XLA's or MLIR's own words for what it did not understand: the first line with an error, else the first."""
    if _DYNAMIC.search(message):
        return dynamic_shapes(source)
    lines = [line.strip() for line in without_marks(message).splitlines() if line.strip()]
    reason = next((line for line in lines if "error:" in line), lines[0] if lines else "no reason given")
    return BadInput(f"is no {FORMS[form]} that XLA can read ({reason[:200]})", where=source, do=_WHOLE)


def _write_frame(pipe: IO[bytes] | None, number: int, payload: bytes) -> None:
    assert pipe is not None
    pipe.write(_HEADER.pack(number, len(payload)))
    pipe.write(payload)
    pipe.flush()


def _read_frame(pipe: IO[bytes] | None) -> tuple[int, bytes]:
    """A number and its payload.

    Raises:
        EOFError: the other side is gone.
    """
    assert pipe is not None
    header = pipe.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    number, size = _HEADER.unpack(header)
    payload = pipe.read(size)
    if len(payload) < size:
        raise EOFError
    return number, payload


def serve() -> None:
    """Answer frames until there are no more: the child's side."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever native code prints is no answer
    _limit_resources()
    from automap_models.hlo.flat_module import bytecode, flat_module_of_file

    forms = {number: form for form, number in _FORM_NUMBERS.items()}
    while True:
        try:
            number, content = _read_frame(requests)
        except EOFError:
            return
        try:
            answer: tuple[int, bytes] = _OK, bytecode(flat_module_of_file(content, forms[number]))
        except (Exception, RecursionError) as error:
            answer = _ERROR, (str(error) or type(error).__name__).encode("utf-8", "replace")
        _write_frame(answers, *answer)


def _limit_resources() -> None:
    """Less memory than the machine may have, and no core file."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits: tuple[tuple[Any, int], ...] = ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0))
    for limit, value in limits:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    serve()
