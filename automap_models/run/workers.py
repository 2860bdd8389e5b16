"""Processes of this machine that work on one job: all end when one does, and none outlives the command.

They are forked from a server that has imported what they need once, which is what makes starting many fast. A worker
that raises sends its error; one that dies without a word is reported by its exit code. Ctrl-C is the command's alone.
Each worker watches a pipe that nobody writes to: when the command is gone, even killed, it reads the end and leaves.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from automap_models.errors import AutomapError, RunFailed

LEAVING_S = 5.0
"""What workers have to leave after they are asked to, before they are killed."""


@dataclass(frozen=True)
class _Failure:
    """Why a worker stopped: an error of its own, or only its exit code."""

    rank: int
    details: str
    error: AutomapError | None = None
    exit_code: int | None = None


class Workers:
    """So many processes, each of which runs one function after the other.

    Args:
        count: how many.
        preload: modules that the server imports before it forks them.
        environment: of the workers, beside the command's own.

    Raises:
        RunFailed: the server that starts them has ended.
    """

    def __init__(self, count: int, preload: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*preload])
        self._alive_end, self._watched_end = context.Pipe(duplex=False)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            arguments = (rank, theirs, self._alive_end, environment or {})
            process = context.Process(target=_work, args=arguments, name=f"worker {rank}", daemon=True)
            try:
                process.start()
            except (EOFError, OSError) as error:
                self.stop()
                do = "Linux may have ended it for lack of memory; what it said stands above"
                raise RunFailed("the server that starts it has ended", where=f"process {rank}", do=do) from error
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self._alive_end.close()

    def run(self, function: Callable[..., Any], *arguments: Any, ranks: int | None = None) -> list[Any]:
        """What `function(rank, *arguments)` returns in the first `ranks` workers, all of them by default.

        Raises:
            RunFailed: one of them raised or died; all are stopped.
            AutomapError: of the first one that raised it.
        """
        waiting = dict(enumerate(self.pipes[:ranks]))
        for pipe in waiting.values():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # seen below, with its exit code
                pipe.send((function, arguments))
        results: dict[int, Any] = {}
        failures: list[_Failure] = []
        deadline: float | None = None
        while waiting:
            timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(list(waiting.values()), timeout_s)
            if not ready:
                break
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                del waiting[rank]
                self._hear(rank, results, failures)
            if failures and deadline is None:  # the first to be heard is not always the culprit
                deadline = time.monotonic() + 1.0
        if failures:
            self.stop()
            raise _reason(failures)
        return [results[rank] for rank in sorted(results)]

    def _hear(self, rank: int, results: dict[int, Any], failures: list[_Failure]) -> None:
        try:
            done, value = self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join(LEAVING_S)
            failures.append(_Failure(rank, "", exit_code=self.processes[rank].exitcode))
            return
        if done:
            results[rank] = value
        else:
            failures.append(value)

    def stop(self) -> None:
        """End all of them; returns when they have."""
        for pipe in self.pipes:
            pipe.close()
        self._watched_end.close()
        for process in self.processes:
            process.terminate()
        end = time.monotonic() + LEAVING_S
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _reason(failures: Sequence[_Failure]) -> AutomapError:
    """The failure that explains the others: a silent death, then an error of ours, then the first that was not heard
    from a neighbour that lost its connection."""
    silent = [failure for failure in failures if failure.exit_code is not None]
    if silent:
        code = silent[0].exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        do = "SIGKILL is what Linux sends for lack of memory" if code == -signal.SIGKILL else None
        return RunFailed(how, where=f"process {silent[0].rank}", do=do)
    for failure in failures:
        if failure.error is not None:
            return failure.error
    causes = [failure for failure in failures if "closed by peer" not in failure.details] or list(failures)
    return RunFailed("raised the error above", where=f"process {causes[0].rank}", details=causes[0].details)


def _work(rank: int, pipe: Connection, alive: Connection, environment: dict[str, str]) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command stops us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    threading.Thread(target=_leave_with, args=(alive,), daemon=True).start()
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            outcome = True, function(rank, *arguments)
        except AutomapError as error:
            outcome = False, _Failure(rank, "", error=error)
        except BaseException:
            outcome = False, _Failure(rank, traceback.format_exc().rstrip())
        pipe.send(outcome)


def _leave_with(alive: Connection) -> None:
    """End this process when the command has ended."""
    with contextlib.suppress(OSError, EOFError):
        alive.recv()
    os._exit(1)
