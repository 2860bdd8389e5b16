"""Auto-MAP's workflow (Figure 5): every kind of plan on one model, priced by one model, the best one first.

1. One stage: data parallelism, and operator partitioning of every degree, over all micro-batch sizes: all plans.
2. Pipelines: the default planner's plan over all stages and micro-batches (portfolio, or by the length L the policy's
   and an exact search).
3. Hybrids: the exact search over stages that partition operators, for plans shorter than the best so far.

The searches share a budget of counted seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, get_args

from automap_models.core.constraints import Constraints, Technique
from automap_models.core.mesh import PlanKind
from automap_models.core.result import Bound, Result
from automap_models.core.schedules import DEFAULT_MIN_GAIN, require_gain
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.portfolio.auto import AutoConfig, AutoPlanner
from automap_models.planners.portfolio.candidate import KINDS, Candidate, Missing, rank
from automap_models.planners.portfolio.explain import explain_loss, explain_missing, nothing_fits
from automap_models.planners.portfolio.length import LengthSearch
from automap_models.planners.portfolio.simplicity import simplest, simplicity
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.portfolio.space_search import SpaceSearch, one_stage_plans, search_space
from automap_models.planners.staged.costs import LENGTH_ROUNDING, StagedResult
from automap_models.planners.staged.device_tables import require_few_devices
from automap_models.planners.staged.frameworks import block_ends
from automap_models.planners.staged.policy import PolicyConfig

DEFAULT_BUDGET_S = 10.0
PIPELINE_SHARE = 0.3
"""Of what the policy leaves of the budget, for the exact search of pipelines without partitioned operators; hybrids get
what that leaves."""

LENGTH_SHARE = 0.25
"""Of the time that the default planner takes for its proofs, where the length L counts: the exact search of pipelines
is about to prove its plan there, or to find a shorter one. What moves cuts off the grid gets all of its time."""


@dataclass(frozen=True)
class ExploreConfig:
    """How to explore.

    Attributes:
        budget_s: counted seconds (planners.effort) of all searches together: plans do not depend on the machine.
            The policy's search is shorter with a smaller budget; what it leaves is for the exact searches.
        thorough: whether these come to their ends instead.
        seed: of every random draw.
        min_gain: how much shorter, relatively, the step of a harder kind of plan has to be, under a schedule.

    Raises:
        BadInput: the gain is below 0 or above 1.
    """

    budget_s: float = DEFAULT_BUDGET_S
    thorough: bool = False
    seed: int = 0
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
        bound = Bound(value, self.proven.proof)
        optimal = bound.proof == "exact" and best.step_s <= value * (1.0 + LENGTH_ROUNDING)
        return Result(
            best.problem,
            best.plan,
            best.cost,
            "optimal" if optimal else "feasible",
            bound,
            self.notes,
            self.search_log,
            facts={"exploration": self},
            taken_s=self.exploring_s,
        )


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
        space = PlanningSpace.of(problem) if isinstance(problem, StagedProblem) else problem
        require_few_devices(space.cluster)
        space.constraints.check(space.model.profile)
        _require_a_technique(space)
        begun_s = time.perf_counter()
        portfolio = _Portfolio(space, self.config, deadline, watch)
        budget = Deadline(math.inf if self.config.thorough else self.config.budget_s, effort.counted_s)
        portfolio.add_plans_of_one_stage()
        portfolio.add_pipelines((PIPELINE_SHARE if portfolio.has_hybrids else 1.0) * budget.left_s)
        proven = portfolio.add_hybrids(budget.left_s)
        if not math.isfinite(portfolio.best_s()):
            watch(Progress("nothing fits: looking for what would"))
            reason, out = nothing_fits(space, deadline), "infeasible" if proven.proof == "exact" else "stopped"
            taken_s = time.perf_counter() - begun_s
            return Result(space.whole, None, None, out, search_log=portfolio.log, taken_s=taken_s, reason=reason)  # type: ignore[arg-type]
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
        self._searched: dict[PlanKind, SpaceSearch] = {}

    @property
    def constraints(self) -> Constraints:
        """Of the space."""
        return self.space.constraints

    def best_s(self, *kinds: PlanKind) -> float:
        """Length of the shortest plan that fits, of these kinds or of all; inf without one."""
        fitting = [plan for plan in self.best.values() if plan.fits and (not kinds or plan.kind in kinds)]
        return min((plan.step_s for plan in fitting), default=math.inf)

    def _offer(self, plan: Candidate | None) -> None:
        held = None if plan is None else self.best.get(plan.name)
        if plan is not None and (held is None or rank([held, plan])[0] is plan):
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

    def add_pipelines(self, search_s: float) -> None:
        """Pipelines without partitioned operators: the default planner's; where it is thorough, an agent's as well.

        By the length L, or where it is thorough, an exact search of so many seconds follows.
        """
        space = self.space
        if not space.several or "pipeline" in self.constraints.forbidden:
            return
        self.watch(Progress("planning pipelines"))
        plain = replace(space, model=replace(space.model, shardings=()), stages=space.several)
        if space.schedule is not None:
            self._by_step("pipeline", plain)
        elif not (self.constraints.restrict_cuts or self.constraints.forbidden or self.constraints.equal_replicas):
            self._by_length(plain)  # the policy knows no constraints
        if space.schedule is None or self.config.thorough:
            forbidden: frozenset[Technique] = self.constraints.forbidden | {"operator"}
            exact = replace(space, constraints=replace(self.constraints, forbidden=forbidden))
            self._search("pipeline", exact, self.best_s("pipeline"), search_s)

    def _by_step(self, kind: PlanKind, space: PlanningSpace) -> Bound:
        """The default planner's plan of a kind, and what it proves about all of that kind."""
        planner = AutoPlanner(AutoConfig(min_gain=self.min_gain))
        result = planner.solve(space, deadline=self.deadline, watch=self.watch)
        log = result.search_log
        unfinished = sum(entry.outcome == "planned" for entry in log)
        best, bound = None, result.bound or Bound(math.inf, "relaxation" if unfinished else "exact")
        if result.plan is not None:
            best = Candidate(result.problem, result.plan, result.cost, bound)
        self._searched[kind] = SpaceSearch(best, bound, len(log), unfinished, log)
        self.log += log
        self._offer(best)
        return bound

    def _by_length(self, plain: PlanningSpace) -> None:
        """The policy's plan whose replicas all have samples, refined."""
        defaults = AutoConfig()
        search = LengthSearch.of(PolicyConfig(), LENGTH_SHARE * defaults.certify_s, defaults.refine_s, self.deadline)
        try:
            competition = plain.pipelines(search.policy.out_of_range, plain.several)
            result = search.solve(competition.problems)
        except BadInput:  # too few samples for any number of stages, or beyond the policy
            return
        plan = result.plan
        if plan is not None:
            problem = self.space.split(plan.stages, plan.micro_batches)
            if plan.check_valid(problem)[0]:
                self._offer(Candidate(problem, plan, result.cost, result.bound))

    @property
    def has_hybrids(self) -> bool:
        """Whether stages may partition operators."""
        return bool(self.space.inside_nodes.shardings) and "operator" not in self.constraints.forbidden

    def add_hybrids(self, search_s: float) -> Bound:
        """Plans whose stages partition operators, searched for so many seconds; what is proven about all plans."""
        if not self.space.several or "pipeline" in self.constraints.forbidden:
            return Bound(self.best_s(), "exact")
        if not self.has_hybrids:
            proven = self._searched["pipeline"].proven
        elif self.space.schedule is not None:
            proven = self._by_step("hybrid", replace(self.space, stages=self.space.several, divided=True))
        else:
            proven = self._search("hybrid", self.space, self.best_s(), search_s)
        return Bound(min(proven.value, self.best_s()), proven.proof)

    def _search(self, kind: PlanKind, space: PlanningSpace, below_s: float, search_s: float) -> Bound:
        """The exact search over all stages and micro-batches; its plan has its own proof."""

        def watch(news: Progress) -> None:
            self.watch(replace(news, what=f"{KINDS[kind]}: {news.what}"))

        searched = search_space(space, below_s, self.deadline.part(search_s, effort.counted_s), watch)
        self._searched[kind] = searched
        self.log += searched.log
        if searched.best is not None:
            self._offer(searched.best)
        held = self.best.get(KINDS[kind])
        if held is not None:
            self.best[held.name] = replace(held, proven=searched.proven)
        return searched.proven

    def missing(self) -> Iterator[Missing]:
        """The kinds without a plan, each with the reason."""
        for kind, name in KINDS.items():
            if not any(plan.kind == kind for plan in self.best.values()):
                yield Missing(kind, name, explain_missing(kind, self.space, self._searched.get(kind)))


def simplest_first(ranked: Sequence[Candidate], min_gain: float, ends: Collection[int]) -> list[Candidate]:
    """Plans, ranked, with the simplest one first of those nearly as short as the shortest (portfolio.simplicity).

    Args:
        ranked: see `rank`.
        min_gain: how much shorter a harder plan has to be, relatively.
        ends: the last instruction of each block.
    """
    kinds = [(simplicity(c.plan, c.problem.cluster.devices, ends), c) for c in ranked if c.fits]
    if not kinds:
        return list(ranked)
    best = simplest(kinds, min_gain)
    return [best, *(plan for plan in ranked if plan is not best)]
