"""A plan of a model, run for some steps."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from automap_models.core.run_record import RunRecord
from automap_models.formats.plan import written_plan
from automap_models.formats.sharding_plan import SHARDING_DOCUMENTS
from automap_models.formats.staged_plan import StagedDocument
from automap_models.planners.base import Watch
from automap_models.requests import RunRequest
from automap_models.requests.profile import begin_of
from automap_models.run import make_backend
from automap_models.run.base import RunProblem, run_schedule
from automap_models.workloads.source import SourceKind, framework_of


def solve(request: RunRequest, watch: Watch) -> RunRecord | None:
    """Run it; None in a process that another one reports for."""
    plan = request.plan
    if isinstance(plan, Path):
        plan = written_plan(plan, StagedDocument, *SHARDING_DOCUMENTS)
    begin, backend = begin_of(watch), request.backend
    problem = {field.name: getattr(request, field.name) for field in fields(RunProblem)}
    problem |= {"plan": plan, "schedule": run_schedule(plan, request.schedule, request.virtual)}
    begin(f"building {request.source.what}")
    if backend is None:
        backend = framework_of(request.source.returned()) if request.source.kind is SourceKind.FACTORY else "jax"
    return make_backend(backend).run(RunProblem(**problem), begin)
