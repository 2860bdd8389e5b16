"""An exploration as plain data and back: what the cache keeps. Plans are kept, figures are computed again."""

from __future__ import annotations

import json
from typing import Any

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan
from automap_models.errors import BadInput
from automap_models.planners.portfolio.candidate import KINDS, Absent, Candidate
from automap_models.planners.portfolio.explore import Exploration
from automap_models.planners.portfolio.space import Space


def exploration_to_json(exploration: Exploration) -> bytes:
    """The decisions and what is proven, without the model."""
    document = {
        "candidates": [_candidate_document(each) for each in exploration.candidates],
        "absent": [[each.kind, each.name, each.why] for each in exploration.absent],
        "proven": _proven_document(exploration.proven),
        "notes": list(exploration.notes),
        "exploring_s": exploration.exploring_s,
    }
    return json.dumps(document, allow_nan=False).encode()


def exploration_from_json(text: bytes, space: Space) -> Exploration:
    """The exploration of that space.

    Raises:
        BadInput: it is none, or of another space.
    """
    try:
        document = json.loads(text)
        exploration = Exploration(
            space=space,
            candidates=tuple(_candidate(each, space) for each in document["candidates"]),
            absent=tuple(Absent(_kind(kind), str(name), str(why)) for kind, name, why in document["absent"]),
            proven=_required(_proven(document["proven"])),
            notes=tuple(map(str, document["notes"])),
            exploring_s=float(document["exploring_s"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _foreign() from error
    if not exploration.candidates or not exploration.best.fits:
        raise _foreign()
    return exploration


def _candidate_document(candidate: Candidate) -> dict[str, Any]:
    plan = candidate.plan
    return {
        "cuts": [int(cut) for cut in plan.cuts],
        "device_cuts": [int(cut) for cut in plan.device_cuts],
        "micro_batches": int(plan.micro_batches),
        "planner": plan.planner,
        "ways": [candidate.problem.all_shardings[way].name for way in candidate.plan.shardings],
        "proven": _proven_document(candidate.proven),
    }


def _candidate(document: Any, space: Space) -> Candidate:
    problem = space.split(len(document["cuts"]) + 1, int(document["micro_batches"]))
    cuts = tuple(int(cut) for cut in document["cuts"])
    names = [each.name for each in problem.all_shardings]
    plan = StagedPlan(
        cuts,
        tuple(int(cut) for cut in document["device_cuts"]),
        problem.micro_batches,
        str(document["planner"]),
        coarse_cuts=problem.grid.to_points(cuts),
        shardings=tuple(names.index(name) for name in document["ways"]),
    )
    valid, _ = plan.check_valid(problem)
    if not valid:
        raise _foreign()
    return Candidate(problem, plan, _proven(document["proven"]))


def _proven_document(proven: Bound | None) -> list[Any] | None:
    return None if proven is None else [proven.value, proven.proof]


def _proven(document: Any) -> Bound | None:
    if document is None:
        return None
    bound_s, proof = document
    return Bound(float(bound_s), "exact" if proof == "exact" else "relaxation")


def _required(proven: Bound | None) -> Bound:
    if proven is None:
        raise _foreign()
    return proven


def _kind(text: Any) -> Any:
    if text not in KINDS:
        raise _foreign()
    return text


def _foreign() -> BadInput:
    return BadInput("is no exploration of this model, cluster and version", where="cache")
