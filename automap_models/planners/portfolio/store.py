"""An exploration as plain data and back: what the cache keeps. Plans are kept, figures are computed again."""

from __future__ import annotations

from typing import Literal

import msgspec

from automap_models.core.mesh import PlanKind
from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan
from automap_models.errors import BadInput
from automap_models.formats.schema import Count, Document, Index, Positive, decode_json
from automap_models.planners.portfolio.candidate import Candidate, Missing
from automap_models.planners.portfolio.explore import Exploration
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.simulate.step import step_cost


class _Proof(Document):
    """What is proven: seconds, and how."""

    bound_s: Positive
    proof: Literal["exact", "relaxation"]


class _Candidate(Document):
    """A plan; shardings by name."""

    cuts: list[Index]
    device_cuts: list[Index]
    micro_batches: Count
    planner: str
    shardings: list[str]
    proven: _Proof | None


class _Missing(Document):
    """A sort of plan of which there is none."""

    kind: PlanKind
    name: str
    reason: str


class _Exploration(Document):
    """The decisions and what is proven, without the model."""

    candidates: list[_Candidate]
    missing: list[_Missing]
    proven: _Proof
    notes: list[str]
    exploring_s: float


def exploration_to_json(exploration: Exploration) -> bytes:
    """The decisions and what is proven, without the model."""
    document = _Exploration(
        candidates=[_document(candidate) for candidate in exploration.candidates],
        missing=[_Missing(missing.kind, missing.name, missing.reason) for missing in exploration.missing],
        proven=_Proof(float(exploration.proven.value), exploration.proven.proof),
        notes=list(exploration.notes),
        exploring_s=float(exploration.exploring_s),
    )
    return msgspec.json.encode(document)


def exploration_from_json(text: bytes, space: PlanningSpace) -> Exploration:
    """The exploration of that space.

    Raises:
        BadInput: it is none, or of another space.
    """
    try:
        document = decode_json(text, _Exploration, where="cache")
        exploration = Exploration(
            space=space,
            candidates=tuple(_candidate(candidate, space) for candidate in document.candidates),
            missing=tuple(Missing(missing.kind, missing.name, missing.reason) for missing in document.missing),
            proven=Bound(document.proven.bound_s, document.proven.proof),
            notes=tuple(document.notes),
            exploring_s=document.exploring_s,
        )
    except (BadInput, ValueError) as error:
        raise _foreign() from error
    if not exploration.candidates or not exploration.best.fits:
        raise _foreign()
    return exploration


def _document(candidate: Candidate) -> _Candidate:
    plan, proven = candidate.plan, candidate.proven
    return _Candidate(
        cuts=[int(cut) for cut in plan.cuts],
        device_cuts=[int(cut) for cut in plan.device_cuts],
        micro_batches=int(plan.micro_batches),
        planner=plan.planner,
        shardings=[candidate.problem.all_shardings[index].name for index in plan.shardings],
        proven=None if proven is None else _Proof(float(proven.value), proven.proof),
    )


def _candidate(document: _Candidate, space: PlanningSpace) -> Candidate:
    problem = space.split(len(document.cuts) + 1, document.micro_batches)
    cuts = tuple(document.cuts)
    names = [sharding.name for sharding in problem.all_shardings]
    plan = StagedPlan(
        cuts,
        tuple(document.device_cuts),
        problem.micro_batches,
        document.planner,
        coarse_cuts=problem.grid.to_points(cuts),
        shardings=tuple(names.index(name) for name in document.shardings),
    )
    valid, _ = plan.check_valid(problem)
    if not valid:
        raise _foreign()
    proven = None if document.proven is None else Bound(document.proven.bound_s, document.proven.proof)
    return Candidate(problem, plan, step_cost(problem, plan), proven)


def _foreign() -> BadInput:
    return BadInput("is no exploration of this model, cluster and version", where="cache")
