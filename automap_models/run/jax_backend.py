"""Runs a plan on JAX: this process, or one of its own where it has too few devices, plays all stages.

The number of devices that XLA makes of a host is fixed when JAX starts, and the user's own process may have started it:
the run therefore has a process of its own. What it is to run goes in as JSON on stdin, what it says, and the record or
an error, comes out line by line on stdout. It ends when its stdin does, so that none is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any

import msgspec

from automap_models.core.run_record import RunRecord
from automap_models.errors import BadInput, RunFailed
from automap_models.run.base import RunOutcome, RunProblem, processes_of
from automap_models.run.jax_request import JaxRequest, error_of

_LAST_LINES = 20
"""Of what a process said before it ended."""


class JaxBackend:
    """Plans of any kind on JAX's devices."""

    def run(self, problem: RunProblem) -> RunRecord:
        """Run it; see run.base.Backend.

        Raises:
            BadInput, RunFailed, UserCodeError: see run.base.Backend.
        """
        if problem.executor is not None:
            what = f"the executor {problem.executor} is torch's"
            raise BadInput(what, where="`executor`", do="leave it out: on JAX XLA runs the passes")
        if problem.zero:
            what = f"ZeRO-{problem.zero} is what torch's replicas share"
            do = "leave it out, or give a sharding plan: on JAX the plan says how arrays are divided"
            raise BadInput(what, where="`zero`", do=do)
        if problem.source.model is not None:
            from automap_models.run.jax_run import run_plan

            return run_plan(problem).record("jax", problem)
        devices = 1 + max(device for stage in processes_of(problem.plan, problem.schedule) for device in stage)
        request = JaxRequest.of(problem)
        place = environment(devices, problem.device)
        answer = answered("automap_models.run.jax_run", request, place, problem.plan.where, problem.say)
        return msgspec.convert(answer, RunOutcome).record("jax", problem)


def environment(devices: int, device: str | None) -> dict[str, str]:
    """The environment of a process in which a host has so many devices."""
    own = dict(os.environ)
    own["XLA_FLAGS"] = f"{own.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    own["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if device is not None:
        own["JAX_PLATFORMS"] = device
    return own


def answered(module: str, request: object, environ: Mapping[str, str], where: str, say: Callable[[str], None]) -> Any:
    """What a process of a module of ours answers; see run.jax_process.

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
        process.stdin.write(msgspec.json.encode(request).decode() + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "say" in answer:
                say(answer["say"])
            elif "error" in answer:
                raise error_of(answer["error"])
            else:
                return answer["answer"]
        code = process.wait()
        output.seek(0)
        details = "".join(output.readlines()[-_LAST_LINES:])
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
