"""Loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, TypeVar, cast

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def jit(function: FunctionT) -> FunctionT:
    """The function, compiled when it is first called.

    Importing numba takes half a second: modules that use this are imported when they are first needed.
    """
    return _compiled(function, "never")


def inlined(function: FunctionT) -> FunctionT:
    """The same, but written into the compiled functions that call it.

    For the innermost steps of a loop that work on several arrays: a call passes half a dozen numbers for each of them,
    which takes longer than what a step computes.
    """
    return _compiled(function, "always")


def _compiled(function: FunctionT, inline: str) -> FunctionT:
    from numba import njit

    return cast(FunctionT, njit(cache=True, error_model="numpy", nogil=True, inline=inline, no_cfunc_wrapper=True)(function))


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a function that `jit` gave is compiled, and not as it was."""
    return not isinstance(function, FunctionType)


@cache
def compiles() -> bool:
    """Whether functions that `jit` gives are compiled here."""
    return is_compiled(jit(_nothing))


def _nothing() -> None:
    """What is never called."""
