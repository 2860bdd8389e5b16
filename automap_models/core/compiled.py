"""Loops that numba compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_listeners: list[tuple[Callable[[], None], float]] = []


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


def when_compiling(tell: Callable[[], None], patience_s: float = 0.5) -> None:
    """Have `tell` called once, as soon as compiling has taken so long: where numba keeps no machine code yet.

    What numba has kept from an earlier run is loaded, and nobody is told.
    """
    _listeners.append((tell, patience_s))


def _compiled(function: FunctionT, inline: str) -> FunctionT:
    from numba import njit

    _listen()
    options = {"error_model": "numpy", "nogil": True, "inline": inline, "no_cfunc_wrapper": True}
    compiled = njit(**options)(function)
    compiled._cache = _cache_type()(function)
    # what only compiled functions call needs no arguments taken apart from Python's objects: a quarter of compiling
    compiled.called = njit(no_cpython_wrapper=True, **options)(function)
    compiled.get_call_template = _for_any_number(compiled.called.get_call_template)
    compiled.get_overload = compiled.called.get_overload
    return cast(FunctionT, compiled)


@cache
def _cache_type() -> type:
    from numba.core.caching import FunctionCache
    from numba.core.runtime import rtsys

    class MachineCode(FunctionCache):  # type: ignore[misc]
        """numba's cache, but for what numba does first: to import all that it can compile takes 0.3 s."""

        def load_overload(self, sig: object, target_context: Any) -> Any:
            """What is kept for a signature, None where nothing is: then compiling begins with these imports."""
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                try:
                    return self._load_overload(sig, target_context)
                except Exception:  # another version kept it, and its index names classes that are gone
                    self.flush()
            return None

    return MachineCode


def _for_any_number(template: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiled function is called by from another one, whether that gives it a constant or not.

    numba would compile it again for each constant: `f(0)` and `f(i)` were two functions, and so were all that f calls.
    """
    from numba.core.types import unliteral

    def specialized(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        return template([unliteral(arg) for arg in args], {name: unliteral(arg) for name, arg in kws.items()})

    return specialized


@cache
def _listen() -> None:
    from numba.core import event

    class Compilations(event.Listener):  # type: ignore[misc]
        """Adds up the seconds of compilations, each of which may begin others."""

        depth, begun_s, spent_s = 0, 0.0, 0.0

        def on_start(self, _: event.Event) -> None:
            if not self.depth:
                self.begun_s = time.perf_counter()
            self.depth += 1
            self._call_listener()

        def on_end(self, _: event.Event) -> None:
            self.depth -= 1
            self._call_listener()
            if not self.depth:
                self.spent_s += time.perf_counter() - self.begun_s

        def _call_listener(self) -> None:
            if _listeners and self.spent_s + time.perf_counter() - self.begun_s >= _listeners[-1][1]:
                _listeners.pop()[0]()

    event.register("numba:compile", Compilations())
