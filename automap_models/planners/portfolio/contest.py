"""Problems that compete: the shortest plan of any of them, with a proof about all.

The policy plans all of them in one batch; uniform cuts and data parallelism compete. Then one length bounds every
search: a problem whose relaxation cannot reach the best length is out, proven; the exact search (staged.certificate)
closes the others, the most promising first, as far as the time allows. A shorter plan that it finds is the new best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from automap_models.core.result import Bound
from automap_models.core.staged import Outcome, StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import PipelinePlanner, PlannerOptions
from automap_models.planners.deadline import Deadline
from automap_models.planners.staged.batch import plan_each
from automap_models.planners.staged.certificate import certify
from automap_models.planners.staged.exact import anytime_search
from automap_models.planners.staged.refine import objective_s, refine
from automap_models.planners.staged.relaxation import lower_bound_s, out_of_reach

MakePlanner = Callable[[str, PlannerOptions | None], PipelinePlanner]

SEARCH_S = 5.0
"""How long the exact search may take in all for problems without a plan of the policy, where there are several."""
TIE = 1e-9
"""Lengths that differ relatively by no more are equal: the problem that comes first wins."""
NEAR, NEAR_AS_SIMULATED = 0.02, 0.10
"""How much longer than the best, relatively, a plan may be to be refined: by its length, by its simulated length."""


@dataclass(eq=False)
class Contender:
    """A problem and what is known about it so far.

    Attributes:
        problem: one of those that compete.
        first: the best plan before the exact search looked at it; None where none fits.
        plan: the best plan; None where none fits.
        length_s: its length L; inf without one.
        bound_s: no plan of the problem on the grid is shorter.
        outcome: see core.staged.SearchLogEntry.
        nothing: why nothing fits.
        notes: sentences about how the plan came to be.
    """

    problem: StagedProblem
    first: StagedPlan | None = None
    plan: StagedPlan | None = None
    length_s: float = np.inf
    bound_s: float = 0.0
    outcome: Outcome = "planned"
    nothing: Infeasible | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Whether it is proven that no plan of the problem on the grid is shorter than the best of all."""
        return self.outcome != "planned"

    def offer(self, plan: StagedPlan | Infeasible) -> None:
        """Take a plan if none so far is shorter, or remember why there is none."""
        if isinstance(plan, Infeasible):
            self.nothing = plan
            return
        length_s = plan_cost(self.problem, plan).length_s
        if length_s <= self.length_s:
            self.plan, self.length_s = plan, length_s

    def close(self, outcome: Outcome, bound_s: float) -> None:
        """The proof is complete."""
        self.outcome, self.bound_s = outcome, bound_s


def begin(
    problems: Sequence[StagedProblem], options: PlannerOptions, make: MakePlanner
) -> tuple[list[Contender], list[Contender]]:
    """Every problem with the best of uniform cuts, data parallelism and the policy's plan.

    Returns:
        The contenders, and those of them that the policy has no plan for.
    """
    contenders = [Contender(problem) for problem in problems]
    several = [each for each in contenders if each.problem.stages > 1]
    for each in contenders:
        each.offer(_attempt(make("uniform" if each.problem.stages > 1 else "data-parallel", None), each.problem))
        if each.problem.stages == 1:
            each.close("proven" if each.plan else "does not fit", each.length_s)
    return contenders, _ask_the_policy(several, make("policy", options)) if several else []


def _attempt(planner: PipelinePlanner, problem: StagedProblem) -> StagedPlan | Infeasible:
    try:
        return planner.plan(problem)
    except Infeasible as nothing:
        return nothing


def _ask_the_policy(contenders: list[Contender], policy: PipelinePlanner) -> list[Contender]:
    """Plans in one batch for the contenders that the policy is made for; the others, and those it finds nothing for."""
    outside = [policy.out_of_range(each.problem) for each in contenders]
    at_home = [each for each, why in zip(contenders, outside, strict=True) if why is None]
    plans = dict(zip(map(id, at_home), plan_each(policy, [each.problem for each in at_home]), strict=True))
    left = []
    for each, why in zip(contenders, outside, strict=True):
        plan = plans.get(id(each))
        if isinstance(plan, StagedPlan):
            each.offer(plan)
            continue
        if plan is not None and not isinstance(plan, Infeasible):
            raise plan
        reason = "the policy found no plan that fits the memory" if why is None else why
        each.notes.append(f"{reason.rstrip('.')}: the exact planner took its place")
        left.append(each)
    return left


def best_of(contenders: Sequence[Contender]) -> Contender:
    """The contender with the shortest plan, the first of those that tie."""
    least_s = min(each.length_s for each in contenders)
    return next(each for each in contenders if each.length_s <= least_s * (1.0 + TIE))


def search(left: Sequence[Contender], contenders: Sequence[Contender], exact: PipelinePlanner) -> None:
    """Let the exact planner plan where the policy did not: to its end for one problem, bounded by the best for several.

    Several problems share SEARCH_S; those it does not come to the end of keep their uniform cuts, if they fit.
    """
    if len(left) == 1:
        (each,) = left
        plan = _attempt(exact, each.problem)
        each.offer(plan)
        if isinstance(plan, Infeasible):
            each.close("does not fit", np.inf)
        elif plan.optimality is not None:
            each.close("proven", plan.optimality.value)
        return
    deadline = Deadline(SEARCH_S)
    for each in left:
        _search_below(each, best_of(contenders).length_s, deadline)


def _search_below(each: Contender, best_s: float, deadline: Deadline) -> None:
    """Find a plan shorter than the best so far, or that there is none, or neither in time."""
    if out_of_reach(each.problem, np.inf):
        each.close("does not fit", np.inf)
    elif out_of_reach(each.problem, best_s):
        each.close("discarded", best_s)
    else:
        result = anytime_search(each.problem, deadline, best_s if np.isfinite(best_s) else None)
        if result.plan is not None:
            each.offer(result.plan)
        if result.finished:
            each.close("proven" if np.isfinite(result.bound_s) else "does not fit", result.bound_s)
        else:
            each.bound_s = result.bound_s


def prove(contenders: Sequence[Contender], budget_s: float) -> Bound:
    """Prove that no plan is shorter than the best, or correct that, or bound the length of all.

    Args:
        contenders: at least one of which has a plan.
        budget_s: time for all of them; with 0 there is only the relaxation's bound for each.
    """
    deadline = Deadline(budget_s)
    for each in contenders:
        each.first = each.plan
    for each in sorted(contenders, key=lambda each: each.length_s):
        if not each.closed:
            _prove_one(each, best_of(contenders).length_s, budget_s and deadline.left_s)
    best_s = min(each.length_s for each in contenders)
    if all(each.closed for each in contenders):
        return Bound(best_s, "exact")
    return Bound(min(best_s, *(each.bound_s for each in contenders)), "relaxation")


def _prove_one(each: Contender, best_s: float, budget_s: float) -> None:
    if each.length_s > best_s and out_of_reach(each.problem, best_s):
        each.close("discarded", best_s)
    elif each.plan is None:
        each.bound_s = max(each.bound_s, lower_bound_s(each.problem))
    else:
        certificate = certify(each.problem, each.plan, budget_s, best_s)
        each.bound_s = certificate.optimality.value
        if certificate.plan is not None:
            each.offer(certificate.plan)
        if certificate.optimality.proof == "exact":
            each.outcome = "proven"


def refined(contenders: Sequence[Contender], options: PlannerOptions) -> tuple[Contender, StagedPlan]:
    """The best contender with its plan moved off the grid; those nearly as good are refined, too, and may win.

    What counts is the length, or the simulated length under the options' schedule, for data parallelism as well.
    """
    schedule = options.schedule if options.refine_s else None
    rated = [
        (objective_s(each.problem, each.plan, schedule), each, each.plan)
        for each in contenders
        if each.plan is not None
    ]
    if options.refine_s:
        limit_s = min(own_s for own_s, _, _ in rated) * (1.0 + (NEAR if schedule is None else NEAR_AS_SIMULATED))
        near = [(each, plan) for own_s, each, plan in rated if each.problem.stages > 1 and own_s <= limit_s]
        for each, plan in near:
            share_s, proven = options.refine_s / len(near), each.outcome == "proven"
            moved = refine(each.problem, plan, share_s, schedule, before_proof=each.first, proven=proven)
            rated.append((objective_s(each.problem, moved, schedule), each, moved))
    least_s = min(own_s for own_s, _, _ in rated)
    return next((each, plan) for own_s, each, plan in rated if own_s <= least_s * (1.0 + TIE))
