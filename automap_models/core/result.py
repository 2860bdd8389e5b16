"""What every planner returns: a plan, its cost, what is proven about it, and how it came to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from automap_models.errors import Infeasible

ProblemT_co = TypeVar("ProblemT_co", covariant=True)
PlanT_co = TypeVar("PlanT_co", covariant=True)

Proof = Literal["exact", "relaxation"]
Status = Literal["optimal", "feasible", "infeasible", "stopped"]
"""`optimal`: the plan is proven the best; `feasible`: it fits, more is not proven; `infeasible`: it is proven that
no plan fits; `stopped`: there is no plan, and none is ruled out (out of time, or the planner is a heuristic)."""

TIE = 1e-9
"""Values of an objective that differ relatively by no more are equal."""


@dataclass(frozen=True)
class Bound:
    """A proven limit of the objective: no plan of the problem is better than `value`.

    Attributes:
        value: in the objective's unit, seconds for a length; a lower bound where less is better, else an upper one.
        proof: "exact" where `value` is the optimum itself, "relaxation" where it only bounds it.
    """

    value: float
    proof: Proof


@dataclass(frozen=True, eq=False)
class Result(Generic[ProblemT_co, PlanT_co]):
    """What a planner found out about a problem.

    Attributes:
        problem: as solved. A planner that may choose, such as the number of stages, returns the problem chosen.
        plan: the best plan that fits; None where there is none (`status` says which of the two reasons).
        cost: of the plan, by the cost model of its kind, evaluated once and carried; None without a plan.
        status: see `Status`.
        bound: what is proven about all plans of the problem, None where nothing is.
        notes: sentences about how the plan came to be that a person should read.
        search_log: what was tried, one record a step, in the planner's own type.
        facts: what the planner measured on its way, such as episodes played, by name.
        taken_s: wall-clock time of the search, seconds.
        reason: why there is no plan, ready to be raised; None where there is one.
    """

    problem: ProblemT_co
    plan: PlanT_co | None
    cost: Any
    status: Status
    bound: Bound | None = None
    notes: tuple[str, ...] = ()
    search_log: tuple[Any, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    taken_s: float = 0.0
    reason: Infeasible | None = None

    def required_plan(self) -> PlanT_co:
        """The plan.

        Raises:
            Infeasible: there is none; says why.
        """
        if self.plan is None:
            raise self.reason or Infeasible("no plan was found that fits the memory", where="planner")
        return self.plan
