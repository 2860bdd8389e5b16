"""Plans of one stage: data parallelism, operator partitioning, and both, over every micro-batch size there is."""

from __future__ import annotations

from collections.abc import Callable

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.contest import TIE
from automap_models.planners.portfolio.space import Space

PLANNER = "explorer"
DATA_PARALLEL = "data-parallel"


def one_stage_plans(space: Space, allowed: Callable[[Candidate], bool]) -> list[Candidate]:
    """The best plan of each degree of operator partitioning, 1 among them; where none fits the one of least memory.

    All plans are looked at: with one stage there is nothing to cut, so that each best one is proven.
    """
    best: dict[str, Candidate] = {}
    for problem, way in space.one_stage():
        planner = PLANNER if way else DATA_PARALLEL
        made = StagedPlan((), (), problem.micro_batches, planner, coarse_cuts=(), shardings=(way,))
        plan = Candidate(problem, made)
        if allowed(plan) and (plan.name not in best or _better(plan, best[plan.name])):
            best[plan.name] = plan
    return [
        Candidate(each.problem, each.plan, Bound(each.length_s, "exact") if each.fits else None)
        for each in best.values()
    ]


def _better(one: Candidate, other: Candidate) -> bool:
    """Of plans that fit the shorter one, of those that do not the smaller one; one that is as good is not better.

    Micro-batches come in ascending number, so that of equal plans the one with the largest micro-batches is kept.
    """
    if one.fits != other.fits:
        return one.fits
    ours, theirs = (one.length_s, other.length_s) if one.fits else (one.memory_bytes, other.memory_bytes)
    return ours < theirs * (1.0 - TIE)
