"""Standard output and error of a whole program: how it ends without them, and in one line for a mistake of a user."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from automap_models.errors import AutomapError, BadInput

BROKEN_PIPE = 141
"""Exit code where the reader of standard output went away (`… | head`), as a shell gives it for SIGPIPE."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints: a device that takes no more is the user's affair, and no defect.

    Raises:
        BadInput: standard output takes no more.
        BrokenPipeError: its reader went away.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        what = f"cannot be written ({error.strerror})"
        raise BadInput(what, where="standard output", do="make room or write somewhere else") from None


def flush_stdout() -> None:
    """Everything printed has left this process.

    Raises:
        BadInput, BrokenPipeError: as in `printing`.
    """
    with printing():
        if sys.stdout is not None:
            sys.stdout.flush()


def say(text: str) -> None:
    """Print on standard error, if anybody is there."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def give_up_streams() -> None:
    """Let a process end in peace: what could not be printed is not tried once more while Python shuts down."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, stream.fileno())
                os.close(nothing)


INTERRUPTED = 130


@contextmanager
def one_line_errors(program: str, after_interrupt: str) -> Iterator[None]:
    """Turn what a user can cause into one line on stderr and an exit code; a defect of ours keeps its traceback.

    It belongs around the task itself, since Hydra comments on whatever leaves one, and around the whole program, for
    what happens before: an unknown override, a folder that cannot be made.

    Args:
        program: how the line begins.
        after_interrupt: what to do after Ctrl-C.

    Raises:
        SystemExit: with 2 or the AutomapError's own code, 130 after Ctrl-C, or 141 when the reader of standard output
            went away.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # a wrong override then comes here instead of ending in a traceback
    try:
        with printing():
            yield
            flush_stdout()
    except AutomapError as error:
        _end(program, error, error.exit_code)
    except BrokenPipeError:
        give_up_streams()
        sys.exit(BROKEN_PIPE)
    except (HydraException, OmegaConfBaseException) as error:
        missing = "hydra/launcher" in str(error)
        help_ = "; pip install automap-models[datagen] brings the launchers" if missing else ""
        _end(program, f"{error}{help_}", BadInput.exit_code)
    except (ValueError, TypeError, AssertionError, RecursionError) as error:
        if not _while_composing(error):
            raise
        _end(program, f"the overrides cannot be used ({error}); --cfg job shows all settings", BadInput.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        wrong = BadInput(f"cannot be used ({error.strerror})", where=str(error.filename), do="give another path")
        _end(program, wrong, wrong.exit_code)
    except KeyboardInterrupt:
        say(f"{program}: interrupted: {after_interrupt}")
        sys.exit(INTERRUPTED)


def _while_composing(error: BaseException) -> bool:
    """Whether Hydra raised it over the overrides, for some of which it has no exception of its own."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == "hydra._internal.config_loader_impl" for frame, _ in frames)


def _end(program: str, error: object, code: int) -> NoReturn:
    say(f"{program}: error: {' '.join(str(error).split())}")
    give_up_streams()
    sys.exit(code)
