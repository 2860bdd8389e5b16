"""What every command shares: one-line errors, exit codes and quiet endings (formats.md, "Commands")."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from automap_models.errors import AutomapError, BadInput, UserCodeError

INTERRUPTED = 130
BROKEN_PIPE = 141


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are BadInput, so that a wrong argument costs one line like any other mistake."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed below its usage text.

        Raises:
            BadInput: always.
        """
        raise BadInput(message, do=f"see {self.prog} --help")


def run_command(name: str, body: Callable[[], int]) -> int:
    """Run a command's body and turn the ways in which it can end into an exit code.

    Args:
        name: the command, as its one-line errors begin.
        body: does the work and returns an exit code; parsing the arguments belongs into it.

    Returns:
        The body's own code; an AutomapError's code after one line on stderr, below the traceback of the user's
        own code if that is where it comes from; 130 after Ctrl-C; 141 when the reader of stdout went away
        (`… | head`). A defect of ours keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a strange file name must not break its own report
    try:
        code = body()
        if sys.stdout is not None:
            sys.stdout.flush()
    except AutomapError as error:
        if isinstance(error, UserCodeError):
            print(error.details, file=sys.stderr)
        return _say(name, f"error: {error}", error.exit_code)
    except KeyboardInterrupt:
        return _say(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE
    except SystemExit as leaving:  # --help and --version
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return code


def print_json(document: Mapping[str, Any]) -> None:
    """Print a plan's document as JSON, in UTF-8 whatever the terminal's encoding is: JSON has only this one.

    Raises:
        BadInput: a figure in it is not finite.
    """
    from automap_models.formats.plan_json import dumps

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    print(dumps(document))


def _say(name: str, message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"{name}: {line}", file=sys.stderr)
    return code


def _forget_stdout() -> None:
    """Point stdout at nothing, or the interpreter complains about it once more while it shuts down."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
