"""What the process that runs a plan on JAX is told, and what it answers: both survive as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from automap_models.core.passes import build_schedule
from automap_models.core.written_plan import WrittenPlan
from automap_models.errors import AutomapError, BadInput, RunFailed, UserCodeError
from automap_models.run.base import RunProblem
from automap_models.workloads.source import Source

_ERRORS: Mapping[str, type[AutomapError]] = {
    "BadInput": BadInput,
    "RunFailed": RunFailed,
    "UserCodeError": UserCodeError,
}


@dataclass(frozen=True)
class JaxRequest:
    """A problem as another process gets it; see RunProblem."""

    plan: WrittenPlan
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


def error_of(written: Mapping[str, Any]) -> AutomapError:
    """An error of that process as one of this."""
    kind = _ERRORS.get(written["kind"], AutomapError)
    details = {"details": written["details"]} if written["details"] else {}
    return kind(written["what"], where=written["where"], do=written["do"], **details)


def written_error(error: AutomapError) -> dict[str, Any]:
    """An error as JSON, for `error_of`; of a class that is not among them, the next one above."""
    kind = next((own.__name__ for own in type(error).__mro__ if own.__name__ in _ERRORS), "AutomapError")
    own = {"what": error.what, "where": error.where, "do": error.do, "details": getattr(error, "details", "")}
    return {"kind": kind, **own}
