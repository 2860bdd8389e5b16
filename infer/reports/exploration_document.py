"""What `automap-plan` writes: the best plan as plan.json, and all plans as one document of kind "explored"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automap_models.core.result import Bound
from automap_models.cost.breakdown import Breakdown
from automap_models.formats.hybrid_json import hybrid_document, write_hybrid_plan
from automap_models.formats.plan_json import plan_document, write_plan
from automap_models.formats.plan_report import SCHEMA, cluster_document
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.reports import best_report

from ..commands.exploring import Explored

KIND = "explored"


def explored_document(found: Explored) -> dict[str, Any]:
    """All plans, ranked: plain Python numbers, lists and dictionaries."""
    exploration = found.exploration
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "model": exploration.space.model.profile.model,
        "cluster": cluster_document(exploration.space.cluster),
        "global_batch": exploration.space.global_batch,
        "best": best_document(found),
        "candidates": [{**candidate_document(each), "why": exploration.why(each)} for each in exploration.candidates],
        "absent": [{"kind": each.kind, "name": each.name, "why": each.why} for each in exploration.absent],
        "optimality": _proven_document(exploration.proven, exploration.best.length_s),
        "batch_dims": _plain(exploration.space.model.batch_dims),
        "notes": list(exploration.notes),
        "exploring_s": exploration.exploring_s,
        "cached": found.cached,
    }


def best_document(found: Explored) -> dict[str, Any]:
    """plan.json of the best plan: kind "pipeline" where no operator is partitioned, else "hybrid-pipeline"."""
    report = best_report(found.exploration, found.options.seed)
    return hybrid_document(report) if any(report.plan.shardings) else plan_document(report)


def write_best(path: Path, found: Explored) -> None:
    """Write plan.json of the best plan.

    Raises:
        BadInput: the file cannot be written.
    """
    report = best_report(found.exploration, found.options.seed)
    write = write_hybrid_plan if any(report.plan.shardings) else write_plan
    write(path, report)


def candidate_document(each: Candidate) -> dict[str, Any]:
    """A plan with what it costs and what that consists of."""
    plan = each.plan
    return {
        "kind": each.kind,
        "name": each.name,
        "planner": plan.planner,
        "stages": plan.stages,
        "micro_batches": plan.micro_batches,
        "cuts": [int(cut) for cut in plan.cuts],
        "device_cuts": [int(cut) for cut in plan.device_cuts],
        "degrees": [{"data": d, "tensor": t} for d, t in each.degrees],
        "partitionings": [each.problem.all_shardings[way].name for way in each.plan.shardings],
        "length_s": float(each.length_s),
        "memory_bytes": each.memory_bytes,
        "fits": each.fits,
        "breakdown": breakdown_document(each.parts),
        "optimality": each.proven and _proven_document(each.proven, each.length_s),
    }


def breakdown_document(parts: Breakdown) -> dict[str, float]:
    """The parts of a step's length and of the fullest device's memory."""
    return {
        "compute_s": float(parts.compute_s),
        "activation_all_reduce_s": float(parts.activations_s),
        "transfers_s": float(parts.transfers_s),
        "bubble_s": float(parts.bubble_s),
        "gradient_all_reduce_s": float(parts.gradients_s),
        "state_bytes": float(parts.state_bytes),
        "activation_bytes": float(parts.stash_bytes),
    }


def _proven_document(proven: Bound, length_s: float) -> dict[str, Any]:
    bound_s = float(min(proven.value, length_s))  # a plan off the grid may be shorter than all on it
    return {"bound_s": bound_s, "proof": proven.proof, "gap": length_s / bound_s - 1.0}


def _plain(mapping: Mapping[str, int] | None) -> dict[str, int] | None:
    return None if mapping is None else dict(mapping)
