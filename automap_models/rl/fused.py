"""Functions of many states, compiled into fused loops and called with chunks of one size.

What a network reads of a state is computed by a thousand small operators (envs.pipeline.one_step). One by one they
write and read every tensor in between; `torch.compile` makes a few loops of them, a fifth of the time. It compiles for
one shape, which takes a minute the first time on a machine, so that batches are cut into chunks and the last is then
filled up.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from automap_models.errors import BadInput

ROWS = {"cpu": 32}
"""States of a chunk: what is computed of them stays in a processor's cache."""
OTHER_ROWS = 4096
"""Elsewhere: as many as keep a GPU busy."""


class Fused:
    """A function of batches, [B, …] tensors or named tuples of such with `take`, in chunks.

    Args:
        function: of batches, and of tensors that all states share; pure. It returns a tuple of [B, …] tensors.
        compiled: else it is called as it is, in chunks all the same.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *, compiled: bool) -> None:
        self._function = torch.compile(function, dynamic=False, fullgraph=True) if compiled else function
        self._compiled = compiled

    @torch.no_grad()
    def __call__(self, index: Tensor, take: Callable[[Tensor], tuple[Any, ...]]) -> tuple[Tensor, ...]:
        """The function's tensors for some states.

        Args:
            index: int64 [B], 1 or more, which states; results are in its order.
            take: the function's arguments for some of these, int64 [n].
        """
        rows, parts = ROWS.get(index.device.type, OTHER_ROWS), []
        for some in torch.split(index, rows):
            filled = torch.cat([some, some[-1:].expand(rows - len(some))]) if self._compiled else some
            parts.append([tensor[: len(some)] for tensor in self._function(*take(filled))])
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


def require_compiler(where: str) -> None:
    """There is a C++ compiler, without which nothing can be compiled.

    Args:
        where: the setting that asks for it, for messages.

    Raises:
        BadInput: there is none.
    """
    if not any(map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))):
        raise BadInput("needs a C++ compiler", where=where, do="install g++, or set it to false")
