"""The two ways in which a request can fail through no defect of ours, and what the Hydra programs print of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class AutomapError(Exception):
    """An error made for people: what is wrong, where, and what to do about it, in one sentence."""

    exit_code: int = 1

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None) -> None:
        self.what, self.where, self.do = what, where, do
        sentence = f"{where}: {what}" if where else what
        super().__init__(f"{sentence}; {do}" if do else sentence)


class BadInput(AutomapError):
    """A file or an argument cannot be used as it is (exit code 2)."""

    exit_code = 2


class UserCodeError(BadInput):
    """Code that the user named, such as a factory, raised: `details` holds its traceback."""

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None, details: str = "") -> None:
        super().__init__(what, where=where, do=do)
        self.details = details


class Infeasible(AutomapError):
    """The input is fine, but no plan fits the cluster (exit code 3)."""

    exit_code = 3


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
        SystemExit: with 2 or the AutomapError's own code, or 130 after Ctrl-C.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # a wrong override then comes here instead of ending in a traceback
    try:
        yield
    except AutomapError as error:
        _end(program, error, error.exit_code)
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
        print(f"{program}: interrupted: {after_interrupt}", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _end(program: str, error: object, code: int) -> NoReturn:
    print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(code)
