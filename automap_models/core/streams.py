"""Standard output and error of a whole program: what is wrong with them, and how to end without them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from automap_models.errors import BadInput

BROKEN_PIPE = 141
"""Exit code where the reader of standard output went away (`… | head`), as a shell gives it for SIGPIPE."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: a device that takes no more is the user's affair, and no defect.

    Raises:
        BadInput: standard output takes no more.
        BrokenPipeError: its reader went away.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        what = f"cannot be written ({error.strerror})"
        raise BadInput(what, where="standard output", do="make room or write somewhere else") from None


def flush_stdout() -> None:
    """Everything printed has left this process.

    Raises:
        BadInput, BrokenPipeError: as in `printing`.
    """
    with printing():
        if sys.stdout is not None:
            sys.stdout.flush()


def say(text: str) -> None:
    """Print on standard error, if anybody is there."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def give_up_streams() -> None:
    """Let a process end in peace: what could not be printed is not tried once more while Python shuts down."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, stream.fileno())
                os.close(nothing)
