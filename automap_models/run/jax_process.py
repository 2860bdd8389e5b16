"""A process of ours that does one thing with JAX, and the command that starts it.

    command   ── request, as JSON, on stdin ──→   process
              ←── what it says, then the answer or an error, line by line on stdout ──

The number of devices that XLA makes of a host is fixed when JAX starts, and the user's own process may have started it:
so this is a process of its own. It ends when its stdin does, so that none is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

from automap_models.core.units import size
from automap_models.errors import AutomapError, BadInput, RunFailed, UserCodeError
from automap_models.run.base import Say

RequestT = TypeVar("RequestT")
_ERRORS: Mapping[str, type[AutomapError]] = {
    "BadInput": BadInput,
    "RunFailed": RunFailed,
    "UserCodeError": UserCodeError,
}


def environment(devices: int, device: str | None) -> dict[str, str]:
    """The environment of a process in which a host has so many devices."""
    env = dict(os.environ)
    env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if device is not None:
        env["JAX_PLATFORMS"] = device
    return env


def shortage(needed_bytes: float) -> str:
    """What a run on devices made of this host would take and what is free, in words, where it is too much; else ""."""
    free_bytes = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if needed_bytes <= 0.6 * free_bytes:  # so much of it a run may take
        return ""
    return f"running it on this host takes {size(needed_bytes)}, {size(free_bytes)} are free"


def answered(module: str, request: object, environ: Mapping[str, str], where: str, say: Say) -> Any:
    """What a process that runs a module of ours (`serve`) answers.

    Args:
        module: that is run.
        request: what it is to do, a record.
        environ: its environment.
        where: the user's file, for messages.
        say: is told what is being done.

    Raises:
        AutomapError: the process met one.
        RunFailed: it ended without an answer.
    """
    command = [sys.executable, "-m", module]
    with TemporaryFile("w+") as output, _process(command, environ, output) as process:
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        process.stdin.write(msgspec.json.encode(request, enc_hook=as_list).decode() + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "say" in answer:
                say(answer["say"])
            elif "error" in answer:
                error = answer["error"]
                raise _ERRORS.get(error.pop("kind"), AutomapError)(**error)
            else:
                return answer["answer"]
        code = process.wait()
        output.seek(0)
        details = "".join(output.readlines()[-20:])
        raise RunFailed(f"the process that ran it ended with exit code {code}", where=where, details=details)


@contextmanager
def _process(command: list[str], environ: Mapping[str, str], output: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=output, env=dict(environ), text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def as_list(array: object) -> object:
    """An array of a record as JSON has it, such as the passes of a schedule."""
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(f"{type(array).__name__} in a record of a run")
    return array.tolist()


def as_array(kind: Any, value: object) -> object:
    """The array that `as_list` wrote so; a value of any other kind as it is."""
    return np.array(value) if get_origin(kind) is np.ndarray else value


def serve(kind: type[RequestT], answer: Callable[[RequestT, Say], object]) -> int:
    """Answer the request on stdin, and end; the exit code.

    Args:
        kind: of the request, a record.
        answer: makes the answer, a record; it may say what it is doing.
    """
    request = msgspec.json.decode(sys.stdin.readline(), type=kind, dec_hook=as_array)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the user's code prints is none of the answer

    def write(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")

    try:
        write(answer=msgspec.to_builtins(answer(request, lambda what: write(say=what)), enc_hook=as_list))
    except AutomapError as error:
        # of a class that the other process does not make, the next one above
        name = next((ancestor.__name__ for ancestor in type(error).__mro__ if ancestor.__name__ in _ERRORS), "")
        write(error={"kind": name, **vars(error)})
        return error.exit_code
    return 0


def _end_with_stdin() -> None:
    """End this process when the one that started it does."""
    sys.stdin.read()
    os._exit(1)
