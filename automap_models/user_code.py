"""The user's own code: called by name, and its errors shown as its author would see them."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from automap_models.errors import AutomapError, BadInput, UserCodeError, is_of_type

EXTRAS = {"torch": "torch", "jax": "jax", "flax": "jax", "optax": "jax"}
"""Package of a framework → the extra that installs it."""
SPEC = "my_package.my_module:make_step"


def call_factory(spec: str, **options: object) -> Any:
    """Import what `spec` names and call it.

    The current directory is put on the import path and stays there, as with `python -m`: a console script does not
    have it, and the user's functions may import more when they are traced.

    Args:
        spec: `my_package.my_module:make_step`.
        options: keyword arguments; None means that the user left the option out, and the factory's own default holds.

    Returns:
        What the factory returns, unchecked.

    Raises:
        BadInput: not of that form, no such module or attribute, an attribute that cannot be called, an option given
            that the factory does not take, or one that it needs and that was not given.
        UserCodeError: the module or the factory raised; it carries their traceback.
    """
    factory = _named(spec)
    arguments = {name: value for name, value in options.items() if value is not None}
    _require_accepted(spec, factory, arguments)
    with user_code(spec):
        return factory(**arguments)


@contextmanager
def user_code(spec: str) -> Iterator[None]:
    """Whatever the user's code raises inside becomes one UserCodeError; our own errors and Ctrl-C pass.

    Args:
        spec: what is running, as the user named it.

    Raises:
        BadInput: it imports a framework that is not installed.
        UserCodeError: any other exception; also SystemExit, which would end a command with the user's exit code.
    """
    try:
        yield
    except AutomapError:
        raise
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            do = f"pip install 'automap-models[{EXTRAS[error.name]}]'"
            raise BadInput(f"imports {error.name}, which is not installed", where=spec, do=do) from error
        raise _raised(spec, error) from error
    except (Exception, SystemExit) as error:
        raise _raised(spec, error) from error


def _raised(spec: str, error: BaseException) -> UserCodeError:
    what = f"{type(error).__name__} in the code that it names"
    return UserCodeError(what, where=spec, details=_their_traceback(error))


def _named(spec: str) -> Callable[..., Any]:
    name, colon, attribute = spec.partition(":")
    if not (colon and attribute.isidentifier() and all(part.isidentifier() for part in name.split("."))):
        raise BadInput("does not name a factory", where=spec, do=f"write it like {SPEC}")
    module = _imported(spec, name)
    if not hasattr(module, attribute):
        raise BadInput(f"{name} ({module.__file__}) has no {attribute}", where=spec)
    factory = getattr(module, attribute)
    if not callable(factory):
        raise BadInput(f"{is_of_type(factory)}, not a function", where=spec, do="name a function")
    return factory  # type: ignore[no-any-return]  # callable() says no more than that


def _imported(spec: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with user_code(spec):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there and imports one that is not
            raise BadInput(
                f"no module {error.name} in {here} or among the installed packages", where=spec, do=f"see {SPEC}"
            ) from None


def _require_accepted(spec: str, factory: Callable[..., Any], arguments: Mapping[str, object]) -> None:
    """Compare the arguments with the signature, so that no TypeError has to be taken for the user's own."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some built-in functions have none
        return
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for name in arguments:
            if name not in signature.parameters:
                raise BadInput(f"takes no argument {name!r}", where=spec, do=f"add it, or leave {name} out")
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise BadInput(f"cannot be called: {error}", where=spec, do="give its other arguments defaults") from None


def _their_traceback(error: BaseException) -> str:
    """The traceback without the frames that led to the user's code: this module's and the import system's."""
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if not _is_ours(frame.filename)]
    report.stack = traceback.StackSummary.from_list(frames)
    return "".join(report.format() if frames else report.format_exception_only()).rstrip()


def _is_ours(filename: str) -> bool:
    return filename in {__file__, import_module.__code__.co_filename} or filename.startswith("<frozen importlib")
