"""Plans by Auto-MAP's length L: the policy's, uniform cuts and data parallelism, corrected and proven by exact search.

    problems (S, M) ──▶ baselines, tables and moves ──▶ exact search where these have no plan ──▶ prove ──▶ refine
                                                                        not proven: the network ──┴──▶ prove

This is the paper's own objective (cost-model.md, "Pipeline length"): it knows no schedule, and stages of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from automap_models.core.result import Result, Status
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.base import Deadline, Planner, maker_in_words
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.portfolio import IN_REACH
from automap_models.planners.portfolio.proofs import Attempt, best_of, prove
from automap_models.planners.staged.baselines import DataParallelPlanner, UniformPlanner
from automap_models.planners.staged.costs import LENGTH_ROUNDING, StagedResult
from automap_models.planners.staged.improve import Moves, cut_places
from automap_models.planners.staged.policy import PolicyPlanner
from automap_models.planners.staged.search import STARTS, TablesPlanner, anytime_search, first_plans, refine

TABLES = TablesPlanner.name
SEARCH_S = 5.0
"""Counted seconds that the exact search may take in all for problems of which no plan was found."""
NETWORK_S = 1.0
"""Counted seconds beside and between plans of the network, of all problems."""


@dataclass(frozen=True)
class LengthSearch:
    """The best plan by the length L.

    Attributes:
        policy: that is asked for plans first, of the problems that it was trained for; None is the shipped one, which
            is asked where nothing is proven of the plans of tables.
        prove_s, refine_s: counted seconds for the proof of one problem and for moving the cuts of one plan.
        deadline: when to stop in any case.
        baselines: results that others are compared with, as they were planned.
    """

    policy: Planner[StagedProblem, StagedPlan, Any] | None
    prove_s: float
    refine_s: float
    deadline: Deadline
    baselines: list[StagedResult] = field(default_factory=list)

    def solve(self, problems: Sequence[StagedProblem]) -> StagedResult:
        """The best plan that fits the memory, for whichever of the problems it is, and what is proven about all.

        Args:
            problems: one or more without a schedule; the first of those whose plans tie wins.
        """
        attempts = [Attempt(problem) for problem in problems]
        for attempt in attempts:
            self._begin(attempt)
        pending = [attempt for attempt in attempts if attempt.plan is None and not attempt.closed]
        together = self.deadline.part(SEARCH_S, effort.counted_s)
        for k, attempt in enumerate(pending):
            _search_below(attempt, best_of(attempts).step_s, together.part(together.remaining_s / (len(pending) - k)))
        if all(attempt.plan is None for attempt in attempts):
            none: Status = "infeasible" if all(attempt.closed for attempt in attempts) else "stopped"
            return Result(
                problems[-1], None, None, none, search_log=tuple(attempt.log_entry(False) for attempt in attempts)
            )
        bound = prove(attempts, self.prove_s, self.deadline)
        if self.policy is None and self._ask_network(attempts):
            bound = prove(attempts, self.prove_s, self.deadline)
        winner, plan = self._refined(attempts)
        cost = winner.costs(plan)
        notes = (*_who_stood_in(winner, attempts), *_what_was_corrected(winner, plan), *_what_was_refined(winner, plan))
        notes = (*notes, *self._what_is_faster(winner.problem, cost.step_s, attempts))
        log = tuple(attempt.log_entry(attempt is winner) for attempt in attempts)
        facts = {"baselines": tuple(self.baselines)}
        return Candidate(winner.problem, plan, cost).result(bound, notes, search_log=log, facts=facts)

    def _begin(self, attempt: Attempt) -> None:
        """Data parallelism of one stage; of several uniform cuts, a plan of the policy, or else of tables and moves."""
        if attempt.problem.stages == 1:
            self._baseline(attempt, DataParallelPlanner())
            if not attempt.problem.shardings:
                attempt.close("proven" if attempt.plan else "does not fit", attempt.step_s)
            return
        self._baseline(attempt, UniformPlanner())
        if self.policy is not None:
            outside = self.policy.out_of_range(attempt.problem)
            result = None if outside else self.policy.solve(attempt.problem, deadline=self.deadline)
            if result is not None and result.plan is not None:
                attempt.take(result)
                return
            attempt.notes.append(f"{(outside or 'the policy found no plan').rstrip('.')}: tables took its place")
        moves = Moves(attempt.problem, cut_places(attempt.problem), TABLES)
        _, plan = moves.improved(first_plans(moves), equal=False, count=STARTS) if moves.can_cut else (None, None)
        if plan is not None:
            attempt.offer(plan, attempt.costs(plan))

    def _ask_network(self, attempts: Sequence[Attempt]) -> bool:
        """Ask the shipped network about the problems of which nothing is proven; whether it has the shortest plan."""
        network, best_s = PolicyPlanner(), best_of(attempts).step_s
        several = [attempt for attempt in attempts if attempt.problem.stages > 1 and not attempt.closed]
        like_trained = [attempt for attempt in several if network.out_of_range(attempt.problem) is None]
        if not like_trained:
            return False
        deadline = self.deadline.part(NETWORK_S, effort.counted_s)
        results = network.solve_batch([attempt.problem for attempt in like_trained], deadline=deadline)
        for attempt, result in zip(like_trained, results, strict=True):
            before_s = attempt.step_s
            attempt.take(result)
            if attempt.step_s < before_s < np.inf:
                shorter = 100 * (1 - attempt.step_s / before_s)
                attempt.notes.append(f"the trained network made the plan shorter, by {shorter:.2g} %")
        return best_of(attempts).step_s < best_s * (1.0 - LENGTH_ROUNDING)

    def _baseline(self, attempt: Attempt, planner: UniformPlanner | DataParallelPlanner) -> None:
        result = planner.solve(attempt.problem)
        self.baselines.append(result)
        if result.plan is None or result.plan.check_valid(attempt.problem)[0]:
            attempt.take(result)

    def _refined(self, attempts: Sequence[Attempt]) -> tuple[Attempt, StagedPlan]:
        """The shortest plan, with the cuts of those near it moved off the grid."""
        rated = [(attempt.step_s, attempt, attempt.plan) for attempt in attempts if attempt.plan is not None]
        best_s = min(step_s for step_s, _, _ in rated)
        for attempt in sorted(attempts, key=lambda attempt: attempt.step_s) if self.refine_s else ():
            plan, near = attempt.plan, attempt.step_s <= best_s * (1.0 + IN_REACH)
            if plan is not None and plan.stages > 1 and near:
                moved = refine(attempt.problem, plan, attempt.costs, around_s=self.refine_s)
                if moved.check_valid(attempt.problem)[0]:
                    rated.append((attempt.costs(moved).step_s, attempt, moved))
                    best_s = min(best_s, rated[-1][0])
        limit_s = best_s * (1.0 + LENGTH_ROUNDING)
        return next((attempt, plan) for step_s, attempt, plan in rated if step_s <= limit_s)

    def _what_is_faster(self, problem: StagedProblem, step_s: float, attempts: Sequence[Attempt]) -> Iterator[str]:
        """That data parallelism is faster, where it was not asked."""
        if any(attempt.problem.stages == 1 for attempt in attempts):
            return
        result = DataParallelPlanner().solve(replace(problem, stages=1))
        self.baselines.append(result)
        if result.plan is not None and result.cost.step_s < step_s:
            yield f"plain data parallelism would be {100 * (1 - result.cost.step_s / step_s):.1f} % shorter"


def _search_below(attempt: Attempt, best_s: float, deadline: Deadline) -> None:
    """Find a plan shorter than the best so far, or that there is none, or neither in time."""
    search = anytime_search(attempt.problem, deadline, best_s, costs=attempt.costs)
    if attempt.take_search(search):
        attempt.close("proven" if np.isfinite(search.bound_s) else "does not fit", search.bound_s)


def _who_stood_in(winner: Attempt, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Why the policy's place was taken: for the winner, or for the only problem with stages where it has none."""
    several = [attempt for attempt in attempts if attempt.problem.stages > 1]
    yield from (several[0] if len(several) == 1 else winner).notes


def _what_was_corrected(winner: Attempt, plan: StagedPlan) -> Iterator[str]:
    """That the exact search found a shorter plan than the one that it began with."""
    first = winner.first
    if first is not None and plan.planner == "exact" != first.planner:
        shorter = 100 * (1 - winner.step_s / winner.costs(first).step_s)
        yield f"the exact search corrected the plan of {maker_in_words(first.planner)}: {shorter:.2g} % shorter"


def _what_was_refined(winner: Attempt, after: StagedPlan) -> Iterator[str]:
    """What moving the cuts off the grid brought."""
    before = winner.plan
    if before is None or (before.cuts, before.device_cuts) == (after.cuts, after.device_cuts):
        return
    before_s, after_s = (winner.costs(plan).step_s for plan in (before, after))
    yield f"refined by single instructions: the length is {100 * (1 - after_s / before_s):.2g} % shorter"
