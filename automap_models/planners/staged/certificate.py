"""What can be proven about a plan's length in a given time: the optimum by the exact search, or a lower bound of it.

The search is bounded by the plan's length, which is what makes it fast (staged.exact). Whether it comes to its end in
time depends on the machine; what it says when it does is the same everywhere. A shorter plan found by a search that was
stopped is as good as any other and is not thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.planners.deadline import Deadline
from automap_models.planners.staged.costs import Costs
from automap_models.planners.staged.relaxation import lower_bound_s
from automap_models.planners.staged.search import anytime_search

NEAR = 1.3
"""A plan at most this much above the relaxation's bound is one near which the optimum should be."""


@dataclass(frozen=True)
class Certificate:
    """What was proven.

    Attributes:
        bound: about the best length of all plans on the grid, the given length being that of one which competes.
        plan: the shortest plan found, if it is shorter than the length given: the optimum of a search that came to
            its end.
        cost: of that plan.
    """

    bound: Bound
    plan: StagedPlan | None = None
    cost: StagedCost | None = None


def certify(
    problem: StagedProblem,
    plan: StagedPlan,
    deadline: Deadline | None,
    length_s: float | None = None,
    costs: Costs | None = None,
) -> Certificate:
    """Prove a plan on the grid optimal, or find a shorter one, or say at least how short plans can be.

    Args:
        problem: with S stages.
        plan: one that fits the memory.
        deadline: when to stop; with None there is only the relaxation's bound.
        length_s: length that a plan has to fall below to be of interest; None is that of the plan.
        costs: of this problem's plans, as far as they are known.
    """
    costs = Costs(problem) if costs is None else costs
    own_s = costs(plan).length_s
    length_s = own_s if length_s is None else min(own_s, length_s)
    if problem.stages == 1 and not problem.shardings:
        return Certificate(Bound(length_s, "exact"))
    bound_s = min(lower_bound_s(problem, deadline), length_s)
    if deadline is None:
        return Certificate(Bound(bound_s, "relaxation"))
    search = anytime_search(problem, deadline, length_s, plan, far=own_s > NEAR * bound_s, costs=costs)
    if search.finished:
        return Certificate(Bound(search.bound_s, "exact"), search.plan, search.cost)
    return Certificate(Bound(max(bound_s, search.bound_s), "relaxation"), search.plan, search.cost)
