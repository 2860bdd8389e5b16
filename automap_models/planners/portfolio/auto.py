"""The default planner: the simplest of the shortest plans, by the step; or the policy's by Auto-MAP's length L."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from automap_models.core.cluster import RESERVE, group_bytes
from automap_models.core.result import Alternative, Bound, Result
from automap_models.core.schedules import DEFAULT_MIN_GAIN, DEFAULT_MIN_STAGE, require_gain
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.units import counted, rounds, size
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.portfolio.candidate import REQUIREMENTS, Candidate, Simplicity, simplest, simplicity
from automap_models.planners.portfolio.explain import nothing_fits
from automap_models.planners.portfolio.portfolio import Portfolio
from automap_models.planners.portfolio.proofs import Attempt, prove
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import LENGTH_ROUNDING, StagedResult

DEEP = "1f1b-deep"
"""The schedule with more micro-batches in flight, of which a report says what it would gain."""


@dataclass(frozen=True)
class AutoConfig:
    """How the default planner chooses, and how much it computes.

    Attributes:
        policy: policy file that plans for the length L first; with None the shipped one does where nothing is proven.
        beam: first cuts of the policy from which it goes on greedily.
        certify_s: counted seconds (planners.effort) to prove a plan of one problem optimal, or to correct it.
        refine_s: counted seconds to move the cuts of one plan by single instructions; 0 leaves them on the grid.
        min_gain: how much shorter, relatively, the step of a harder kind of plan has to be.

    Raises:
        BadInput: the gain is below 0 or above 1.
    """

    policy: Path | None = None
    beam: int = 4
    certify_s: float = 0.3
    refine_s: float = 0.1
    min_gain: float = DEFAULT_MIN_GAIN

    def __post_init__(self) -> None:
        require_gain(self.min_gain)


class AutoPlanner(Planner[StagedProblem | PlanningSpace, StagedPlan, AutoConfig]):
    """The best plan of one problem, or of all pipelines and plain data parallelism in a planning space.

    Its search log says what became of every number of stages and micro-batches (SearchLogEntry), its bound is about
    the plans of all of them, and its plan is named after the planner that made it.
    """

    name: ClassVar[str] = "auto"
    config_type: ClassVar[type[AutoConfig]] = AutoConfig

    def solve(
        self, problem: StagedProblem | PlanningSpace, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> StagedResult:
        """The simplest of the shortest plans.

        Args:
            problem: one problem, or a space: then the problem of the result is the one chosen.

        Raises:
            BadInput: the space's batch is too small for its cluster, or its constraints contradict one another.
        """
        begun_s = time.perf_counter()
        space = PlanningSpace.from_problem(problem) if isinstance(problem, StagedProblem) else problem
        if space.schedule is None:
            result = self._by_length(space, problem, deadline, watch)
        else:
            result = self.search(space, deadline, watch)
        if result.plan is None:
            watch(Progress("nothing fits: looking for what would"))
            reason, proven = nothing_fits(space)
            result = replace(result, status="infeasible" if proven else "stopped", reason=reason)
        return replace(result, taken_s=time.perf_counter() - begun_s)

    def _by_length(
        self, space: PlanningSpace, problem: StagedProblem | PlanningSpace, deadline: Deadline, watch: Watch
    ) -> StagedResult:
        from automap_models.planners.portfolio.length import LengthSearch
        from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner

        config = self.config
        policy = None if config.policy is None else PolicyPlanner(PolicyConfig(config.policy, config.beam))
        search = LengthSearch(policy, config.certify_s, config.refine_s, deadline)
        problems = (problem,) if isinstance(problem, StagedProblem) else space.pipelines()
        watch(Progress(f"planning {counted(len(problems), 'combination')} by the length L"))
        return search.solve(problems)

    def search(self, space: PlanningSpace, deadline: Deadline, watch: Watch) -> StagedResult:
        """By the simulated step (portfolio.Portfolio); where no plan fits, the result does not say why."""
        portfolio = Portfolio(space, deadline, watch, refine=self.config.refine_s > 0.0)
        candidates, attempts, bound = self._best_plans(portfolio, self.config.certify_s)
        notes: tuple[str, ...] = ()
        if not candidates and not space.idle_replicas and space.constraints.min_stage:
            portfolio = Portfolio(replace(space, idle_replicas=True), deadline, watch, refine=portfolio.refine)
            candidates, attempts, bound = self._best_plans(portfolio, self.config.certify_s)
            notes = ("replicas without a sample stand idle: no plan that fits gives each one",)
        if not candidates:
            return Result(space.base, None, None, "stopped")
        best = simplest(candidates, self.config.min_gain)
        if best.at_risk and self.config.min_gain:
            candidates += self._with_room(portfolio)
            best = simplest(candidates, self.config.min_gain)
        while others := [other for other in portfolio.others(best) if not _is_candidate(other, candidates)]:
            candidates += [(_kind(portfolio, other), other) for other in others]
            best = simplest(candidates, self.config.min_gain)
        # What is held against it may be at risk where it is longer, but no plan that gives way to the best one is.
        tuned = tuple(one for one in portfolio.data_parallel if not (one.at_risk and one.step_s < best.step_s))
        log = tuple(attempt.log_entry(attempt.problem is best.problem, best.step_s) for attempt in attempts)
        shorter = tuple(_shorter(portfolio, candidates, best))
        facts = {"data_parallel": tuned or tuple(portfolio.data_parallel), "shorter": shorter}
        return best.result(bound, notes, search_log=log, facts=facts)

    def _with_room(self, portfolio: Portfolio) -> list[tuple[Simplicity, Candidate]]:
        """The best plans of those that are not at risk, whatever groups their devices are in; nothing is proven."""
        space, cluster = portfolio.space, portfolio.space.cluster
        room_bytes = (1.0 - RESERVE) * cluster.memory - group_bytes(2, 2)
        if room_bytes <= 0.0:
            return []
        narrower = replace(space, cluster=cluster.with_memory(room_bytes))
        candidates, _, _ = self._best_plans(Portfolio(narrower, portfolio.deadline, refine=portfolio.refine), 0.0)
        return [(kind, portfolio.same_plan(one)) for kind, one in candidates]

    def _best_plans(
        self, portfolio: Portfolio, certify_s: float
    ) -> tuple[list[tuple[Simplicity, Candidate]], list[Attempt], Bound]:
        """The best plans of a portfolio, those of narrower spaces among them; and what is proven."""
        portfolio.begin()
        candidates: list[tuple[Simplicity, Candidate]] = []
        for space in _narrower(portfolio.space):
            narrower = portfolio.narrowed(space)
            candidates += portfolio.take(narrower, self._best_plans(narrower, min(certify_s, AutoConfig.certify_s))[0])
        candidates += portfolio.search()
        if not candidates:
            return [], [], Bound(0.0, "relaxation")
        attempts = _attempts(portfolio, candidates)
        portfolio.watch(Progress("proving how near the best the plan is"))
        bound = prove(attempts, certify_s, portfolio.deadline)
        return [*candidates, *_corrections(portfolio, attempts)], attempts, bound


def _narrower(space: PlanningSpace) -> Iterator[PlanningSpace]:
    """Spaces that are searched first: of stages that hold work, where they need not, and of equal stages."""
    constraints, devices = space.constraints, space.cluster.devices
    if constraints.min_stage < DEFAULT_MIN_STAGE:
        yield replace(space, stages=space.several, constraints=replace(constraints, min_stage=DEFAULT_MIN_STAGE))
    equal = tuple(stages for stages in space.several if devices % stages == 0)
    if equal and not constraints.equal_replicas and not space.divided:
        yield replace(space, stages=equal, constraints=replace(constraints, equal_replicas=True))


def _kind(portfolio: Portfolio, candidate: Candidate) -> Simplicity:
    return simplicity(candidate.plan, portfolio.space.cluster.devices, portfolio.ends)


def _is_candidate(other: Candidate, candidates: Sequence[tuple[Simplicity, Candidate]]) -> bool:
    """Whether a plan is among the candidates for the same problem."""
    return any(one.problem is other.problem and one.plan == other.plan for _, one in candidates)


def _attempts(portfolio: Portfolio, candidates: Sequence[tuple[Simplicity, Candidate]]) -> list[Attempt]:
    """What is known about every problem that was looked at: its best plan, and of one stage that there is no other."""
    attempts = {problem: Attempt(problem) for problem in portfolio.steps}
    for problem, attempt in attempts.items():
        if problem.stages == 1:
            step_s = portfolio.steps[problem]
            attempt.close("proven" if np.isfinite(step_s) else "does not fit", step_s)
    for _, candidate in candidates:
        attempts[candidate.problem].offer(candidate.plan, candidate.cost)
    return list(attempts.values())


def _corrections(portfolio: Portfolio, attempts: Sequence[Attempt]) -> list[tuple[Simplicity, Candidate]]:
    """Plans that the proof came across: each attempt's, where it is not the one that it began with."""
    corrected = [
        Candidate(attempt.problem, attempt.plan, attempt.cost)
        for attempt in attempts
        if attempt.plan is not None and attempt.plan is not attempt.first and attempt.cost is not None
    ]
    return [(_kind(portfolio, candidate), candidate) for candidate in corrected]


def _shorter(
    portfolio: Portfolio, candidates: Sequence[tuple[Simplicity, Candidate]], best: Candidate
) -> list[Alternative]:
    """What is shorter and harder to run: the shortest plan of each kind, and one with deeper warm-up."""
    shorter, rank = [], _kind(portfolio, best)
    for kind in Simplicity:
        of_kind = [candidate for candidate_kind, candidate in candidates if candidate_kind is kind]
        shortest = min(of_kind, key=lambda candidate: candidate.step_s, default=None)
        if shortest is not None and shortest.step_s < best.step_s * (1.0 - LENGTH_ROUNDING):
            alike = "no more than this plan, but more stages or less free memory"
            requirement = REQUIREMENTS[kind] if kind is not rank else alike
            risk = f", at risk ({size(shortest.memory_bytes)} of {size(shortest.limit_bytes)})"
            what = _in_words(shortest) + (risk if shortest.at_risk and not best.at_risk else "")
            shorter.append(Alternative(what, shortest.step_s, requirement))
    deep = None if best.problem.schedule == DEEP else portfolio.under(DEEP, best)
    if deep is not None and deep.step_s < best.step_s * (1.0 - LENGTH_ROUNDING):
        what = f"{_in_words(deep)}, {size(deep.memory_bytes)} on the fullest device"
        shorter.append(Alternative(what, deep.step_s, "deeper warm-up: automap run, or torch's schedules from CSV"))
    return shorter


def _in_words(candidate: Candidate) -> str:
    plan = candidate.plan
    return f"{counted(plan.stages, 'stage')}, {rounds(plan.micro_batches)}, {candidate.problem.schedule}"
