"""What takes seconds or starts processes in a command, replaced, so that thousands of its cases take minutes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


class ReachedError(BaseException):
    """A case has come as far as it is of interest: processes would start, or a training begin."""


def reached(*_: object, **__: object) -> Any:
    """Stand in for a function that a case shall not call."""
    raise ReachedError


@contextlib.contextmanager
def without_processes() -> Iterator[None]:
    """`automap run` up to its processes.

    On torch the plan was compared with the model by then, whose structure is found out once. On JAX the other process
    would read the request next: it is written and read here.
    """
    import msgspec

    from automap_models.run import jax_backend, jax_process, torch_backend

    def read_again(_module: str, request: object, *_: object) -> Any:
        line = msgspec.json.encode(request, enc_hook=jax_process.as_list)
        msgspec.json.decode(line, type=type(request), dec_hook=jax_process.as_array)
        raise ReachedError

    with (
        mock.patch.object(torch_backend, "Workers", reached),
        mock.patch.object(torch_backend, "analyse", _structure),
        mock.patch.object(jax_backend, "answered", read_again),
    ):
        yield


_STRUCTURES: dict[str, Any] = {}


def _structure(model: Any, args: tuple[Any, ...], kwargs: Any, *, name: str) -> Any:
    """The structure of a model, kept by its name and the shapes of its inputs."""
    from automap_models.torch_export.structure import analyse

    key = f"{name} {[getattr(value, 'shape', value) for value in args]}"
    if key not in _STRUCTURES:
        _STRUCTURES[key] = analyse(model, args, kwargs, name=name)
    return _STRUCTURES[key]
