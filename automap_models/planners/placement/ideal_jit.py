"""Compilation of the planners' inner loops by numba, kept on disk from the first use on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from automap_models.errors import BadInput

try:
    from numba import njit
except ImportError as error:
    raise BadInput(f"the planner needs numba ({error})", do="pip install 'automap-models[place]'") from error

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def jit(function: FunctionT) -> FunctionT:
    """The function compiled when it is first called; it may only hold arrays and numbers."""
    return cast(FunctionT, njit(cache=True, error_model="numpy")(function))
