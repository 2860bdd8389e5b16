"""What a portfolio compares: plans of every kind, each with its cost and what is proven about its kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from automap_models.core.mesh import PlanKind
from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost, stage_state_bytes
from automap_models.simulate.breakdown import Breakdown, breakdown

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
        cost: of the plan.
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


@dataclass(frozen=True)
class Missing:
    """A sort of plan of which there is none to show.

    Attributes:
        kind, name: as a candidate has them.
        reason: a sentence.
    """

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
