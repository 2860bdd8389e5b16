"""plan.json, schema 1, kind "pipeline": written whole, read with every figure costed again (formats.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_atomically
from automap_models.formats.json_fields import read_json
from automap_models.formats.plan_fields import STALE, plan_in, problem_in, require_kind, require_same_cost
from automap_models.formats.plan_report import (
    KIND,
    PlanReport,
    plan_document,
    stage_documents,
)

__all__ = ["PlanReport", "dumps", "plan_document", "read_plan", "write_plan"]


def dumps(document: Mapping[str, Any]) -> str:
    """The document as JSON text.

    Raises:
        BadInput: a figure in it is not finite, which only a profile or cluster with absurd figures can bring about.
    """
    try:
        return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    except ValueError:
        raise BadInput(
            "a time of the plan is too large for a number",
            where="plan",
            do="check the units of the profile and the cluster",
        ) from None


def write_plan(path: str | os.PathLike[str], report: PlanReport) -> None:
    """Write plan.json.

    Raises:
        BadInput: the file cannot be written.
    """
    text = dumps(plan_document(report)) + "\n"

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8", errors="backslashreplace"))

    write_atomically(path, write)


def read_plan(
    path: str | os.PathLike[str], profile: Profile, cluster: Cluster | None = None
) -> tuple[StagedProblem, StagedPlan]:
    """The plan in a file with its problem, costed again.

    Args:
        path: a plan.json.
        profile: the profile it was made for; the fingerprint must match.
        cluster: the cluster it was made for; None takes the one in the file.

    Raises:
        BadInput: the file is no pipeline plan, belongs to another profile or cluster, or contradicts itself or the
            cost model by more than 1e-6.
        Infeasible: a stage does not fit the memory.
    """
    fields = read_json(path)
    require_kind(fields, KIND, profile)
    problem = problem_in(fields, profile, cluster)
    plan = plan_in(fields, problem)
    valid, why = plan.check_valid(problem)
    if not valid:
        raise BadInput(why, where=str(path), do=STALE)
    cost = plan_cost(problem, plan)
    require_same_cost(fields, problem.cluster, cost, stage_documents(problem, plan, cost))
    return problem, plan
