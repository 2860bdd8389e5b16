"""One line and an exit code for a user's mistake: what the Hydra programs share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from automap_models.core.streams import BROKEN_PIPE, flush_stdout, give_up_streams, printing, say
from automap_models.errors import AutomapError, BadInput

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
    except OSError as error:
        if error.filename is None:
            raise
        wrong = BadInput(f"cannot be used ({error.strerror})", where=str(error.filename), do="give another path")
        _end(program, wrong, wrong.exit_code)
    except KeyboardInterrupt:
        say(f"{program}: interrupted: {after_interrupt}")
        sys.exit(INTERRUPTED)


def _end(program: str, error: object, code: int) -> NoReturn:
    say(f"{program}: error: {' '.join(str(error).split())}")
    give_up_streams()
    sys.exit(code)
