"""Files from elsewhere are imported by a process of their own, because malformed HLO ends the process that reads it.

XLA's parser checks its input with assertions: an index out of range or a computation without a root is a segmentation
fault or an abort, which Python cannot catch. So a child reads the foreign bytes and hands back a flat module in MLIR
bytecode, which this process can load safely. If the child dies, takes too long or needs too much memory, the file gets
one sentence.

    this process                          child: python -m automap_models.hlo.foreign FORM
    ────────────────────────              ────────────────────────────────────────────────
    the file's bytes         ── stdin ──→  parse, convert, inline
    load the bytecode        ←─ stdout ──  bytecode (status 0) or a message (status REFUSED)

The child imports jaxlib alone and not JAX.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from automap_models.errors import BadInput
from automap_models.formats.schema import read_bytes
from automap_models.hlo.hlo_text import Form, dynamic_shapes, recognise, without_marks

FORMS: dict[Form, str] = {"hlo": "HLO text", "stablehlo": "StableHLO text", "bytecode": "StableHLO bytecode"}
"""What people call a form."""

LARGEST_MODULE_BYTES = 1 << 28
"""Of a file."""
REFUSED = 3
"""Exit status of a child that has a message."""

_DYNAMIC = re.compile(r"\bdynamic[ -](?:shape|dimension|size)", re.IGNORECASE)


def import_file(path: str | os.PathLike[str]) -> tuple[bytes, Form]:
    """The flat module in a file, as MLIR bytecode, and the file's form.

    Raises:
        BadInput: the file cannot be read, is no HLO from before optimisation, or nothing that XLA can read: it refuses
            the content, crashes on it, or takes longer or more memory than it may.
    """
    content, source = read_bytes(path, LARGEST_MODULE_BYTES), str(path)
    form = recognise(content, source)
    return import_content(content, form, source), form


def import_content(content: bytes, form: Form, source: str, longest_s: float = 60.0) -> bytes:
    """The flat module of a file's content, as MLIR bytecode.

    Args:
        source: what messages call it.
        longest_s: time that the child has, and a second more for each 100 kB. BERT-48's step, 2.8 MB of text, takes 5.

    Raises:
        BadInput: as `import_file`.
    """
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    limit_s = longest_s + len(content) / 100_000
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "automap_models.hlo.foreign", form],
            input=content,
            check=False,
            capture_output=True,
            timeout=limit_s,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise _unreadable(f": its parser gives up (no end after {limit_s:.0f} s)", form, source) from None
    if child.returncode == 0:
        return child.stdout
    if child.returncode != REFUSED:
        raise _unreadable(f": its parser gives up ({_cause_of_death(child)})", form, source)
    message = child.stdout.decode("utf-8", "replace")
    if _DYNAMIC.search(message):
        raise dynamic_shapes(source)
    raise _unreadable(_reason(message), form, source)


def _unreadable(reason: str, form: Form, source: str) -> BadInput:
    return BadInput(
        f"is no {FORMS[form]} that XLA can read{reason}",
        where=source,
        do="check that the file is whole and not edited by hand",
    )


def _reason(message: str) -> str:
    """XLA's or MLIR's own words for what it did not understand: the first line with an error, else the first."""
    lines = [line.strip() for line in without_marks(message).splitlines() if line.strip()]
    reason = next((line for line in lines if "error:" in line), lines[0] if lines else "no reason given")
    return f" ({reason[:200]})"


def _cause_of_death(child: subprocess.CompletedProcess[bytes]) -> str:
    """`SIGSEGV`, or the assertion that failed, by what the child left."""
    code = child.returncode
    _, _, failed = child.stderr.decode("utf-8", "replace").partition("Check failed:")
    ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"{ended}: {failed.splitlines()[0].strip()[:160]}" if failed.strip() else ended


def serve(form: Form) -> int:
    """The child's side: standard input → the answer on standard output; the exit status."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever native code prints is no answer
    _limit_resources()
    from automap_models.hlo.flat_module import bytecode, flat_module_of_file

    with answers:
        try:
            answers.write(bytecode(flat_module_of_file(sys.stdin.buffer.read(), form)))
        except Exception as error:
            answers.write((str(error) or type(error).__name__).encode("utf-8", "replace"))
            return REFUSED
    return 0


def _limit_resources() -> None:
    """At most 16 GiB of memory, and no core file."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits: tuple[tuple[Any, int], ...] = ((resource.RLIMIT_AS, 16 * 2**30), (resource.RLIMIT_CORE, 0))
    for limit, value in limits:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1]))  # type: ignore[arg-type]
