"""Auto-MAP's workflow (Figure 5): every kind of plan on one model, priced by one model, the best one first.

1. One stage: data parallelism, and operator partitioning of every degree, over all micro-batch sizes: all plans.
2. Pipelines: the default planner's plan over all stages and micro-batches (portfolio, or by the length L length).
3. Hybrids: the same over stages that may partition operators.

The proofs share a budget of counted seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, get_args

from automap_models.core.constraints import Constraints, Technique
from automap_models.core.layers import block_ends
from automap_models.core.mesh import PlanKind
from automap_models.core.result import Bound, Result, Status
from automap_models.core.schedules import DEFAULT_MIN_GAIN, require_gain
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.candidate import (
    KINDS,
    Candidate,
    Missing,
    one_stage_plans,
    rank,
    simplest,
    simplicity,
)
from automap_models.planners.portfolio.explain import explain_loss, explain_missing, nothing_fits
from automap_models.planners.portfolio.length import LengthSearch
from automap_models.planners.portfolio.space import PlanningSpace, possible_stages, staged_problems
from automap_models.planners.staged.costs import StagedResult
from automap_models.planners.staged.stage_devices import require_few_devices

DEFAULT_BUDGET_S = 1.2
PART = 0.25
"""Of the budget, what the proof of one problem among pipelines, or among hybrids, may take."""


@dataclass(frozen=True)
class ExploreConfig:
    """How to explore.

    Attributes:
        budget_s: counted seconds (planners.effort) of all proofs together, at most: plans do not depend on the machine.
        thorough: whether these come to their ends instead.
        min_gain: how much shorter, relatively, the step of a harder kind of plan has to be, under a schedule.

    Raises:
        BadInput: the gain is below 0 or above 1.
    """

    budget_s: float = DEFAULT_BUDGET_S
    thorough: bool = False
    min_gain: float = DEFAULT_MIN_GAIN

    def __post_init__(self) -> None:
        require_gain(self.min_gain)


@dataclass(frozen=True, eq=False)
class Exploration:
    """What the explorer came to.

    Attributes:
        space: where it looked.
        candidates: the best plan of each sort, ranked; the first one fits.
        missing: sorts without a plan to show.
        proven: no plan in the space that cuts on the grid and satisfies the constraints is shorter.
        notes: sentences for people.
        exploring_s: how long it took.
        search_log: what became of each number of stages and micro-batches that the exact search looked at.
    """

    space: PlanningSpace
    candidates: tuple[Candidate, ...]
    missing: tuple[Missing, ...]
    proven: Bound
    notes: tuple[str, ...]
    exploring_s: float
    search_log: tuple[SearchLogEntry, ...] = field(default=())

    @property
    def best(self) -> Candidate:
        """The shortest plan that fits."""
        return self.candidates[0]

    def reason(self, candidate: Candidate) -> str:
        """Why a candidate is not the best; empty for the best."""
        return "" if candidate is self.best else explain_loss(candidate, self.best)

    @property
    def result(self) -> StagedResult:
        """The best plan as a planner's result; its facts have the exploration."""
        best = self.best
        # No plan on the grid is shorter than the best one if that is on the grid.
        value = self.proven.value if best.plan.coarse_cuts is None else min(self.proven.value, best.step_s)
        others: dict[str, Any] = {"search_log": self.search_log, "taken_s": self.exploring_s}
        return best.result(Bound(value, self.proven.proof), self.notes, facts={"exploration": self}, **others)


class ExplorePlanner(Planner[StagedProblem | PlanningSpace, StagedPlan, ExploreConfig]):
    """The best plan of every kind: the portfolio with shardings. Its facts have the `Exploration`."""

    name: ClassVar[str] = "explore"
    config_type: ClassVar[type[ExploreConfig]] = ExploreConfig

    def solve(
        self, problem: StagedProblem | PlanningSpace, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> StagedResult:
        """The best plan of every sort; arguments as those of AutoPlanner.solve.

        Raises:
            BadInput: constraints contradict one another, or match nothing, or there are more devices than the exact
                search has tables for.
        """
        space = PlanningSpace.from_problem(problem) if isinstance(problem, StagedProblem) else problem
        require_few_devices(space.cluster)
        space.constraints.check(space.model.profile)
        _require_a_technique(space)
        begun_s = time.perf_counter()
        portfolio = _Portfolio(space, self.config, deadline, watch)
        portfolio.add_plans_of_one_stage()
        portfolio.add_pipelines()
        proven = portfolio.add_hybrids()
        if not math.isfinite(portfolio.best_s()):
            watch(Progress("nothing fits: looking for what would"))
            (reason, bound), taken_s = nothing_fits(space), time.perf_counter() - begun_s
            status: Status = "infeasible" if bound else "stopped"
            return Result(space.base, None, None, status, search_log=portfolio.log, taken_s=taken_s, reason=reason)
        candidates = tuple(simplest_first(rank(list(portfolio.best.values())), portfolio.min_gain, portfolio.ends))
        notes = tuple(portfolio.notes)
        missing = tuple(portfolio.missing())
        taken_s = time.perf_counter() - begun_s
        return Exploration(space, candidates, missing, proven, notes, taken_s, portfolio.log).result


def _require_a_technique(space: PlanningSpace) -> None:
    """Refuse that several devices shall share the work in no way.

    Raises:
        BadInput: every technique is forbidden.
    """
    techniques = get_args(Technique)
    if space.cluster.devices > 1 and space.constraints.forbidden.issuperset(techniques):
        raise BadInput(
            f"nothing is left by which the {space.cluster.devices} devices of cluster {space.cluster.name} could share "
            "the work",
            where=" and ".join(f"`forbidden='{technique}'`" for technique in techniques),
            do="drop one of them",
        )


class _Portfolio:
    """The best plan of each sort so far.

    Attributes:
        best: name → candidate.
        notes: sentences for people.
        log: what became of each problem that was searched.
    """

    def __init__(self, space: PlanningSpace, config: ExploreConfig, deadline: Deadline, watch: Watch) -> None:
        self.space, self.config, self.deadline, self.watch = space, config, deadline, watch
        self.min_gain = config.min_gain if space.schedule is not None else 0.0
        self.best: dict[str, Candidate] = {}
        self.notes: list[str] = list(space.model.notes)
        self.log: tuple[SearchLogEntry, ...] = ()
        self._searched: dict[PlanKind, StagedResult] = {}

    @property
    def constraints(self) -> Constraints:
        """Of the space."""
        return self.space.constraints

    def best_s(self, *kinds: PlanKind) -> float:
        """Length of the shortest plan that fits, of these kinds or of all; inf without one."""
        fitting = [plan for plan in self.best.values() if plan.fits and (not kinds or plan.kind in kinds)]
        return min((plan.step_s for plan in fitting), default=math.inf)

    def _offer(self, plan: Candidate | None) -> None:
        incumbent = None if plan is None else self.best.get(plan.name)
        if plan is not None and (incumbent is None or rank([incumbent, plan])[0] is plan):
            self.best[plan.name] = plan

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The last instruction of each block of the model."""
        return block_ends(self.space.model.profile)

    def add_plans_of_one_stage(self) -> None:
        """Data parallelism and operator partitioning."""
        self.watch(Progress("pricing plans of one stage"))
        for plan in one_stage_plans(self.space):
            self._offer(plan)

    def add_pipelines(self) -> None:
        """Pipelines without partitioned operators."""
        space = self.space
        if not space.several or "pipeline" in self.constraints.forbidden:
            return
        self.watch(Progress("planning pipelines"))
        self._add("pipeline", replace(space, model=replace(space.model, shardings=()), stages=space.several))

    def _add(self, kind: PlanKind, space: PlanningSpace) -> Bound:
        """The default planner's plan of a kind, and what it proves about all of that kind."""
        certify_s = math.inf if self.config.thorough else PART * self.config.budget_s
        if space.schedule is not None:
            planner = AutoPlanner(AutoConfig(min_gain=self.min_gain, certify_s=certify_s))
            result = planner.search(space, self.deadline, self.watch)
        else:
            search = LengthSearch(None, certify_s, AutoConfig().refine_s, self.deadline)
            problems = [problem for problem in staged_problems(space) if possible_stages(problem) is not None]
            result = search.solve(problems) if problems else Result(space.base, None, None, "infeasible")
        self._searched[kind] = result
        self.log += result.search_log
        if result.plan is not None:
            self._offer(Candidate(result.problem, result.plan, result.cost, result.bound))
        return _proven(result)

    @property
    def has_hybrids(self) -> bool:
        """Whether stages may partition operators."""
        return (
            any(self.space.cluster.devices_per_node % p.degree == 0 for p in self.space.base.shardings)
            and "operator" not in self.constraints.forbidden
        )

    def add_hybrids(self) -> Bound:
        """Plans whose stages partition operators; what is proven about all plans."""
        if not self.space.several or "pipeline" in self.constraints.forbidden:
            return Bound(self.best_s(), "exact")
        if self.has_hybrids:
            proven = self._add("hybrid", replace(self.space, stages=self.space.several, divided=True))
        else:
            proven = _proven(self._searched["pipeline"])
        return Bound(min(proven.value, self.best_s()), proven.proof)

    def missing(self) -> Iterator[Missing]:
        """The kinds without a plan, each with the reason."""
        for kind, name in KINDS.items():
            if not any(plan.kind == kind for plan in self.best.values()):
                yield Missing(kind, name, explain_missing(kind, self.space, self._searched.get(kind)))


def _proven(result: StagedResult) -> Bound:
    """About all plans that were searched; nothing where none was found and it is not known that there is none."""
    none = result.status == "infeasible"
    return result.bound or Bound(math.inf if none else 0.0, "exact" if none else "relaxation")


def simplest_first(ranked: Sequence[Candidate], min_gain: float, ends: Collection[int]) -> list[Candidate]:
    """Plans, ranked, with the simplest one first of those nearly as short as the shortest (portfolio.candidate).

    Args:
        min_gain: how much shorter a harder plan has to be, relatively.
        ends: the last instruction of each block.
    """
    kinds = [(simplicity(c.plan, c.problem.cluster.devices, ends), c) for c in ranked if c.fits]
    if not kinds:
        return list(ranked)
    best = simplest(kinds, min_gain)
    return [best, *(plan for plan in ranked if plan is not best)]
