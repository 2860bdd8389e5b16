"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, in the whole process, as long as the context lasts.

    The small networks of a search are quicker with one: threads wait for each other, and where other programs keep the
    cores busy they wait for long (measured: a search of 1.5 s took 79 s with two threads on two busy cores).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
