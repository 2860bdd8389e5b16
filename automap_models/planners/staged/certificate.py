"""What can be proven about a plan's length in a given time: the optimum by the exact search, or a lower bound of it.

The search is bounded by the plan's length, which is what makes it fast (staged.exact). Whether it comes to its end in
time depends on the machine; what it says when it does is the same everywhere. A shorter plan found by a search that was
stopped is as good as any other and is not thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.planners.deadline import Deadline
from automap_models.planners.staged.exact import anytime_search
from automap_models.planners.staged.relaxation import lower_bound_s

NEAR = 1.3
"""A plan at most this much above the relaxation's bound is one near which the optimum should be."""


@dataclass(frozen=True)
class Certificate:
    """What was proven.

    Attributes:
        optimality: about the best length of all plans on the grid, the given length being that of one which competes.
        plan: the shortest plan found, if it is shorter than the length given: the optimum of a search that came to
            its end.
    """

    optimality: Bound
    plan: StagedPlan | None = None


def certify(problem: StagedProblem, plan: StagedPlan, budget_s: float, length_s: float | None = None) -> Certificate:
    """Prove a plan on the grid optimal, or find a shorter one, or say at least how short plans can be.

    Args:
        problem: with S stages.
        plan: one that fits the memory.
        budget_s: how long that may take, roughly; with 0 there is only the relaxation's bound.
        length_s: length that a plan has to fall below to be of interest; None is that of the plan.
    """
    deadline = Deadline(budget_s)
    own_s = plan_cost(problem, plan).length_s
    length_s = own_s if length_s is None else min(own_s, length_s)
    if problem.stages == 1:
        return Certificate(Bound(length_s, "exact"))
    bound_s = min(lower_bound_s(problem, deadline if budget_s else None), length_s)
    if not budget_s:
        return Certificate(Bound(bound_s, "relaxation"))
    result = anytime_search(problem, deadline, length_s, plan, far=own_s > NEAR * bound_s)
    if result.finished:
        return Certificate(Bound(result.bound_s, "exact"), result.plan)
    return Certificate(Bound(max(bound_s, result.bound_s), "relaxation"), result.plan)
