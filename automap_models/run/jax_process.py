"""A process of ours that does one thing with JAX: a request on stdin; what is being done, and the answer, on stdout.

The number of devices that XLA makes of a host is fixed when JAX starts, which is why it is a process of its own. It
ends when its stdin does, so that none is left behind.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from automap_models.errors import AutomapError
from automap_models.run.jax_request import written_error

RequestT = TypeVar("RequestT")
Say = Callable[[str], None]


def serve(kind: type[RequestT], answered: Callable[[RequestT, Say], object]) -> int:
    """Answer the request on stdin, and end; the exit code.

    Args:
        kind: of the request, a record.
        answered: makes the answer, a record; it may say what it is doing.
    """
    request = msgspec.json.decode(sys.stdin.readline(), type=kind)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the user's code prints is none of the answer

    def write(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")

    try:
        answer = answered(request, lambda what: write(say=what))
    except AutomapError as error:
        write(error=written_error(error))
        return error.exit_code
    write(answer=msgspec.to_builtins(answer))
    return 0


def _end_with_stdin() -> None:
    """End this process when the one that started it does."""
    sys.stdin.read()
    os._exit(1)
