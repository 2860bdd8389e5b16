"""The one interface of everything that makes plans: `Planner.solve(problem) -> Result`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.deadline import NEVER, Deadline
from automap_models.planners.watch import SILENT, Watch

ProblemT = TypeVar("ProblemT")
PlanT = TypeVar("PlanT")
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class NoConfig:
    """The configuration of a planner that has nothing to configure."""


class Planner(ABC, Generic[ProblemT, PlanT, ConfigT]):
    """Makes a plan for a problem of one kind.

    A planner is made once, with its configuration, and may solve many problems. All its random draws come from a seed
    in that configuration.

    Attributes:
        name: by which people ask for it.
        config_type: a frozen dataclass, all of whose fields have defaults.
    """

    name: ClassVar[str]
    config_type: ClassVar[type[Any]] = NoConfig

    def __init__(self, config: ConfigT | None = None) -> None:
        self.config: ConfigT = self.config_type() if config is None else config

    @abstractmethod
    def solve(self, problem: ProblemT, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> Result[ProblemT, PlanT]:
        """What the planner finds out about the problem. That no plan fits is a result, too, not an error.

        Args:
            problem: of the kind that the planner is made for.
            deadline: when to stop with the best plan so far. A planner looks at it often enough to end within twice
                the time given, or within a tenth of a second.
            watch: is told how far it is.

        Raises:
            BadInput: the planner is not made for such a problem.
        """

    def plan(self, problem: ProblemT) -> PlanT:
        """The planner's best plan: valid, and it fits the memory.

        Raises:
            Infeasible: it found none, and why.
            BadInput: it is not made for such a problem.
        """
        return self.solve(problem).required_plan()

    def out_of_range(self, problem: ProblemT) -> str | None:
        """Which value of the problem lies outside what this planner was made for, as a sentence; None if none does."""
        return None

    def solve_batch(
        self, problems: Sequence[ProblemT], *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> list[Result[ProblemT, PlanT]]:
        """Results for many problems, each as `solve` alone would give it; planners that are faster together override.

        Raises:
            BadInput: the planner is not made for one of them.
        """
        return [self.solve(problem, deadline=deadline, watch=watch) for problem in problems]


def config_of(config_type: type[ConfigT], where: str, **options: Any) -> ConfigT:
    """A planner's configuration from options by name.

    Raises:
        BadInput: the configuration has no such option; those that it has are listed.
    """
    known = [field.name for field in fields(config_type)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise BadInput(
                f"has no option {name!r}",
                where=where,
                do=f"it has {', '.join(known)}" if known else "it has none",
            )
    return config_type(**options)


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
    """

    beam: int = 4
    policy: Path | None = None
    certify_s: float = 0.3
    refine_s: float = 0.1
    schedule: str | None = None
    time_limit_s: float | None = None
    seed: int = 0


class OptionsPlanner(Planner[ProblemT, PlanT, Any]):
    """A planner that still reads PlannerOptions and returns bare plans; goes when the last one has its own config."""

    def __init__(self, options: PlannerOptions | None = None) -> None:
        super().__init__(None)
        self.options = options or PlannerOptions()

    def solve(self, problem: ProblemT, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> Result[ProblemT, PlanT]:
        """The plan without anything beside it."""
        return Result(problem, self.plan(problem), None, "feasible")

    @abstractmethod
    def plan(self, problem: ProblemT) -> PlanT:
        """The planner's best plan.

        Raises:
            Infeasible: it found no plan that fits the memory.
            BadInput: it is not made for such a problem.
        """

    def plan_batch(self, problems: Sequence[ProblemT]) -> list[PlanT]:
        """Plans of many problems; planners that can do better than one by one override this."""
        return [self.plan(problem) for problem in problems]


PipelinePlanner = OptionsPlanner[StagedProblem, StagedPlan]


def refuse_unless_feasible(problem: StagedProblem, plan: StagedPlan) -> StagedPlan:
    """The plan itself when every stage fits the device memory.

    Raises:
        Infeasible: naming the fullest stage, what it needs and what would help.
    """
    cost = plan_cost(problem, plan)
    if cost.feasible:
        return plan
    stage = int(cost.memory_bytes.argmax())
    raise Infeasible(
        f"stage {stage} needs {cost.memory_bytes[stage] / 1e9:.1f} GB on each device, "
        f"cluster {problem.cluster.name} has {problem.cluster.memory / 1e9:.1f} GB",
        where=f"planner {plan.planner}",
        do="try more stages, smaller micro-batches, a smaller --state-factor or devices with more memory",
    )
