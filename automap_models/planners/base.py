"""The one interface of everything that makes plans: `Planner.plan(problem) -> plan`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from automap_models.core.hybrid import HybridPlan, HybridProblem
from automap_models.core.placement import PlacementPlan, PlacementProblem
from automap_models.core.plan import PipelinePlan
from automap_models.core.priced_sharding import PricedShardingPlan, PricedShardingProblem
from automap_models.core.problem import PipelineProblem
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.cost.pipeline import pipeline_cost
from automap_models.errors import Infeasible
from automap_models.planners.rounds import Round

ProblemT = TypeVar("ProblemT")
PlanT = TypeVar("PlanT")


@dataclass(frozen=True)
class PlannerOptions:
    """Options that any planner may read.

    Attributes:
        beam: first decisions from which the policy goes on greedily; 1 is plain greedy.
        policy: policy file; None is the shipped one.
        certify_s: how long the default planner may take to prove its plan optimal, or to correct it.
        refine_s: how long it may take to move the cuts by single instructions; 0 leaves them on the grid.
        schedule: schedule whose simulated length that shall shorten; None is the length L.
        time_limit_s: after so long a solver stops with the best plan so far; None is the planner's own limit.
        seed: of every random draw.
        split: an expert's placement in a file (formats.split_json); None is one that needs no expert.
        agent: hyper-parameters of an agent that learns while it searches: a shipped config (conf/search) or a file.
        episodes: that a search plays, at most; None is as many as it takes.
        stop_at_optimum: whether a search ends with the first plan that is proven to be as good as any.
        watch: is told of every round of a search's episodes.
    """

    beam: int = 4
    policy: Path | None = None
    certify_s: float = 0.3
    refine_s: float = 0.1
    schedule: str | None = None
    time_limit_s: float | None = None
    seed: int = 0
    split: Path | None = None
    agent: str | Path = "paper"
    episodes: int | None = None
    stop_at_optimum: bool = False
    watch: Callable[[Round], None] | None = None


class Planner(ABC, Generic[ProblemT, PlanT]):
    """Makes a plan for a problem of one kind.

    `plan` returns a plan that is valid and fits the memory, or raises Infeasible.
    """

    name: ClassVar[str]

    def __init__(self, options: PlannerOptions | None = None) -> None:
        self.options = options or PlannerOptions()

    @abstractmethod
    def plan(self, problem: ProblemT) -> PlanT:
        """The planner's best plan.

        Raises:
            Infeasible: it found no plan that fits the memory.
            BadInput: it is not made for such a problem.
        """

    def out_of_range(self, problem: ProblemT) -> str | None:
        """Which value of the problem lies outside what this planner was made for, as a sentence; None if none does."""
        return None

    def plan_batch(self, problems: Sequence[ProblemT]) -> list[PlanT]:
        """Plans of many problems; planners that can do better than one by one override this."""
        return [self.plan(problem) for problem in problems]


PipelinePlanner = Planner[PipelineProblem, PipelinePlan]
PlacementPlanner = Planner[PlacementProblem, PlacementPlan]
ShardingPlanner = Planner[ShardingProblem, ShardingPlan]
PricedPlanner = Planner[PricedShardingProblem, PricedShardingPlan]
HybridPlanner = Planner[HybridProblem, HybridPlan]


def refuse_unless_feasible(problem: PipelineProblem, plan: PipelinePlan) -> PipelinePlan:
    """The plan itself when every stage fits the device memory.

    Raises:
        Infeasible: naming the fullest stage, what it needs and what would help.
    """
    cost = pipeline_cost(
        problem.profile, problem.cluster, plan.cuts, plan.device_cuts, plan.micro_batches, problem.state_factor
    )
    if cost.feasible:
        return plan
    stage = int(cost.memory_bytes.argmax())
    raise Infeasible(
        f"stage {stage} needs {cost.memory_bytes[stage] / 1e9:.1f} GB on each device, "
        f"cluster {problem.cluster.name} has {problem.cluster.memory / 1e9:.1f} GB",
        where=f"planner {plan.planner}",
        do="try more stages, smaller micro-batches, a smaller --state-factor or devices with more memory",
    )
