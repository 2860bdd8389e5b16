"""What a portfolio compares: plans of every kind, each with its cost and what is proven about its kind.

And how simple a plan is to run, and which of nearly equal plans an engineer would take (cost-model.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.cluster import group_bytes, memory_verdict
from automap_models.core.mesh import PlanKind
from automap_models.core.result import Bound, Result, Status
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, stage_state_bytes
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import LENGTH_ROUNDING, StagedResult
from automap_models.simulate.breakdown import Breakdown, breakdown
from automap_models.simulate.plan_step import step_cost

KINDS: dict[PlanKind, str] = {
    "data": "data parallelism",
    "operator": "operator partitioning",
    "pipeline": "pipeline",
    "hybrid": "hybrid",
}
"""Kind of plan → what people call it, in the order in which plans that tie are ranked."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan in the running.

    Attributes:
        problem: that it solves: its stages, its micro-batches.
        plan: cuts, and how each stage shards its work.
        proven: about all plans of its sort, on the grid; None where nothing is.
    """

    problem: StagedProblem
    plan: StagedPlan
    cost: StagedCost
    proven: Bound | None = None

    @cached_property
    def parts(self) -> Breakdown:
        """What the cost consists of."""
        return breakdown(self.problem, self.plan, self.cost)

    @property
    def kind(self) -> PlanKind:
        """By what the plan does, whoever made it."""
        partitions = any(t > 1 for _, t in self.degrees)
        if self.plan.stages > 1:
            return "hybrid" if partitions else "pipeline"
        return "operator" if partitions else "data"

    @property
    def name(self) -> str:
        """Of its sort: `pipeline`, `tensor parallel 8`, …; one candidate has each."""
        return sort_name(self.kind, self.degrees[0][1])

    @property
    def degrees(self) -> tuple[tuple[int, int], ...]:
        """[S] replicas d and degree of operator partitioning t of each stage."""
        return self.plan.degrees(self.problem)

    @property
    def state_bytes(self) -> tuple[float, ...]:
        """[S] training state, and what is not trained, on each device of a stage."""
        return tuple(stage_state_bytes(self.problem, self.plan))

    @property
    def step_s(self) -> float:
        """What a global batch takes: simulated under the problem's schedule, or the length L."""
        return self.cost.step_s

    @property
    def memory_bytes(self) -> float:
        """Of the fullest device."""
        return float(self.cost.memory_bytes[self.cost.fullest])

    @property
    def limit_bytes(self) -> float:
        """What that device has."""
        return float(self.cost.limit_bytes[self.cost.fullest])

    @property
    def fits(self) -> bool:
        """Whether it fits every device."""
        return self.cost.feasible

    @property
    def groups_bytes(self) -> float:
        """What the fullest device holds beside the plan's bytes for the groups that it is in (`group_bytes`)."""
        return group_bytes(self.plan.stages, *self.degrees[self.cost.fullest])

    @property
    def at_risk(self) -> bool:
        """Whether a plan that fits leaves too little for its groups, and for what estimates fall short by."""
        return memory_verdict(self.memory_bytes, self.limit_bytes, self.groups_bytes) != "fits"

    def result(self, bound: Bound, notes: tuple[str, ...], **others: Any) -> StagedResult:
        """The plan as a planner's result: optimal where it is as short as what is proven exactly.

        Args:
            bound: about all plans that competed.
            others: fields of Result.
        """
        optimal = bound.proof == "exact" and self.step_s <= bound.value * (1.0 + LENGTH_ROUNDING)
        status: Status = "optimal" if optimal else "feasible"
        return Result(self.problem, self.plan, self.cost, status, bound, notes, **others)


class Missing(NamedTuple):
    """A sort of plan, by kind and name as a candidate has them, of which there is none to show, and why."""

    kind: PlanKind
    name: str
    reason: str


def sort_name(kind: PlanKind, degree: int = 1) -> str:
    """What a sort of plan is called; those that partition the operators of one stage differ by degree."""
    return f"tensor parallel {degree}" if kind == "operator" else KINDS[kind]


def rank(candidates: list[Candidate]) -> list[Candidate]:
    """The shortest plan first, those that do not fit last; a tie goes to the simpler kind and then to the name."""
    order = list(KINDS)
    return sorted(
        candidates,
        key=lambda candidate: (not candidate.fits, candidate.step_s, order.index(candidate.kind), candidate.name),
    )


# ---- one stage


def one_stage_plans(space: PlanningSpace) -> list[Candidate]:
    """The best plan of each degree of operator partitioning, 1 among them; where none fits the one of least memory.

    All plans are looked at: with one stage there is nothing to cut, so that each best one is proven.
    """
    if 1 not in space.stage_numbers or not space.allows(1):
        return []
    best: dict[str, Candidate] = {}
    for problem, index in space.one_stage():
        planner = "explorer" if index else "data-parallel"
        plan = StagedPlan((), (), problem.micro_batches, planner, coarse_cuts=(), shardings=(index,))
        if not plan.check_valid(problem)[0]:
            continue
        candidate = Candidate(problem, plan, step_cost(problem, plan))
        if candidate.name not in best or _better(candidate, best[candidate.name]):
            best[candidate.name] = candidate
    return [
        replace(candidate, proven=Bound(candidate.step_s, "exact") if candidate.fits else None)
        for candidate in best.values()
    ]


def _better(one: Candidate, other: Candidate) -> bool:
    """Of plans that fit the shorter one, of those that do not the smaller one; one that is as good is not better.

    Micro-batches come in ascending number, so that of equal plans the one with the largest micro-batches is kept.
    """
    if one.fits != other.fits:
        return one.fits
    ours, theirs = (one.step_s, other.step_s) if one.fits else (one.memory_bytes, other.memory_bytes)
    return ours < theirs * (1.0 - LENGTH_ROUNDING)


# ---- simplicity


class Simplicity(IntEnum):
    """Kinds of plans, the simplest first. No framework has unequal stages."""

    DATA = 0
    BLOCKS = 1
    EQUAL = 2
    UNEQUAL = 3


REQUIREMENTS = {
    Simplicity.DATA: "any framework",
    Simplicity.BLOCKS: "any framework with pipelines",
    Simplicity.EQUAL: "cuts inside blocks: automap run, or torch's own pipelines",
    Simplicity.UNEQUAL: "stages on unequal numbers of devices: automap run",
}
"""What runs plans of a kind that simpler ones do without."""


def simplicity(plan: StagedPlan, devices: int, ends: Collection[int]) -> Simplicity:
    """The kind of a plan.

    Args:
        ends: the last instruction of each block.
    """
    if plan.stages == 1:
        return Simplicity.DATA
    if len(set(np.diff([0, *plan.device_cuts, devices]).tolist())) > 1:
        return Simplicity.UNEQUAL
    return Simplicity.BLOCKS if set(plan.cuts) <= set(ends) else Simplicity.EQUAL


RISK = 5.0
"""How many times as much shorter a plan has to be that is at risk, where another one is not."""


def simplest(candidates: Sequence[tuple[Simplicity, Candidate]], min_gain: float) -> Candidate:
    """The simplest of nearly equal plans, with room in the memory where that costs little.

    From the simplest kind to the hardest, in one kind from few stages to many, and of these from 1F1B, which holds the
    fewest micro-batches, to other schedules: a later plan is taken where its step is more than `min_gain` shorter than
    that of the one taken before, relatively. So no plan is shorter by more than that than the one taken in the end.
    Plans at risk are looked at last, and have to be RISK times as much shorter.

    Args:
        candidates: at least one that fits.
        min_gain: 0 takes the shortest of all, of those that tie the simplest.
    """
    fitting = [(kind, c) for kind, c in candidates if c.fits]
    ordered = sorted(fitting, key=lambda entry: (entry[1].at_risk, entry[0], *_order(entry[1])))
    _, chosen = ordered[0]
    for _, candidate in ordered[1:]:
        least_gain = min_gain * (RISK if candidate.at_risk and not chosen.at_risk else 1.0)
        if candidate.step_s < chosen.step_s * (1.0 - min(max(least_gain, 1e-9), 1.0)):
            chosen = candidate
    return chosen


def _order(candidate: Candidate) -> tuple[int, bool, float]:
    """Fewer stages, then 1F1B, then the shorter step."""
    return candidate.plan.stages, candidate.problem.schedule != DEFAULT_SCHEDULE, candidate.step_s
