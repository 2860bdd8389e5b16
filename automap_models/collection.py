"""Python's collector of cycles, held back while many records are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles; also a decorator.

    It walks through all records again and again while a large graph is built, and finds nothing: that is a third of the
    time of a step with 60,000 instructions.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
