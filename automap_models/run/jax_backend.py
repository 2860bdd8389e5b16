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
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any

import msgspec

from automap_models.core.run_record import Comparison, RunPlan, RunRecord, StepRecord
from automap_models.core.schedules import build_schedule
from automap_models.errors import AutomapError, BadInput, RunFailed, UserCodeError
from automap_models.run.base import RunProblem, processes_of
from automap_models.workloads.source import Source

_LAST_LINES = 20
"""Of what a process said before it ended."""
_ERRORS: Mapping[str, type[AutomapError]] = {
    "BadInput": BadInput,
    "RunFailed": RunFailed,
    "UserCodeError": UserCodeError,
}


@dataclass(frozen=True)
class JaxRequest:
    """A problem as another process gets it; see RunProblem."""

    plan: RunPlan
    source: Source
    schedule: str
    virtual: int
    steps: int
    warmup: int
    device: str | None
    check: bool
    seed: int

    @classmethod
    def of(cls, problem: RunProblem) -> JaxRequest:
        """The request for a problem."""
        how = (problem.steps, problem.warmup, problem.device, problem.check, problem.seed)
        return cls(problem.plan, problem.source, problem.schedule.name, problem.schedule.virtual, *how)

    def problem(self, say: Callable[[str], None]) -> RunProblem:
        """The problem again."""
        ranks = len(self.plan.stages) // self.virtual
        schedule = build_schedule(self.schedule, ranks, self.plan.micro_batches, self.virtual)
        how = {"steps": self.steps, "warmup": self.warmup, "check": self.check, "seed": self.seed, "say": say}
        return RunProblem(self.plan, self.source, schedule, device=self.device, **how)  # type: ignore[arg-type]


@dataclass(frozen=True)
class JaxAnswer:
    """What a run came to, without what the request says; see RunRecord."""

    device: str
    clock: str
    steps: tuple[StepRecord, ...]
    comparison: Comparison | None
    notes: tuple[str, ...] = field(default=())

    def record(self, problem: RunProblem) -> RunRecord:
        """The record of the run."""
        return RunRecord(
            plan=problem.plan,
            schedule=problem.schedule,
            backend="jax",
            executor="XLA, one controller",
            device=self.device,
            clock=self.clock,
            processes=1,
            steps=self.steps,
            warmup=problem.warmup,
            comparison=self.comparison,
            notes=self.notes,
        )


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
        if problem.source.model is not None:
            from automap_models.run.jax_run import run_plan

            return run_plan(problem).record(problem)
        devices = 1 + max(device for stage in processes_of(problem.plan, problem.schedule) for device in stage)
        return _answered(JaxRequest.of(problem), devices, problem.say).record(problem)


def environment(devices: int, device: str | None) -> dict[str, str]:
    """The environment of a process in which a host has so many devices."""
    own = dict(os.environ)
    own["XLA_FLAGS"] = f"{own.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    own["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if device is not None:
        own["JAX_PLATFORMS"] = device
    return own


def _answered(request: JaxRequest, devices: int, say: Callable[[str], None]) -> JaxAnswer:
    """What the process that runs it answers."""
    command = [sys.executable, "-m", "automap_models.run.jax_run"]
    with TemporaryFile("w+") as said, _process(command, environment(devices, request.device), said) as process:
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        process.stdin.write(msgspec.json.encode(request).decode() + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "say" in answer:
                say(answer["say"])
            elif "error" in answer:
                raise _error(answer["error"])
            else:
                return msgspec.convert(answer["answer"], JaxAnswer)
        code = process.wait()
        said.seek(0)
        details = "".join(said.readlines()[-_LAST_LINES:])
        raise RunFailed(
            f"the process that ran it ended with exit code {code}", where=request.plan.where, details=details
        )


@contextmanager
def _process(command: list[str], environ: Mapping[str, str], said: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, env=dict(environ), text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _error(written: Mapping[str, Any]) -> AutomapError:
    """An error of that process as one of this."""
    kind = _ERRORS.get(written["kind"], AutomapError)
    details = {"details": written["details"]} if written["details"] else {}
    return kind(written["what"], where=written["where"], do=written["do"], **details)


def written_error(error: AutomapError) -> dict[str, Any]:
    """An error as JSON, for `_error`; of a class that is not among them, the next one above."""
    kind = next((own.__name__ for own in type(error).__mro__ if own.__name__ in _ERRORS), "AutomapError")
    own = {"what": error.what, "where": error.where, "do": error.do, "details": getattr(error, "details", "")}
    return {"kind": kind, **own}
