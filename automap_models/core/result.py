"""What every planner returns: a plan, its cost, what is proven about it, and how it came to be.

A report of a staged plan adds what else is said about it: simulated lengths, baselines, which policy made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
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


@dataclass(frozen=True)
class Alternative:
    """A plan other than the recommended one, and what it would take to run it.

    Attributes:
        what: it is.
        step_s: its step, by the same clock and link rule.
        requires: what runs it; empty where any framework does.
    """

    what: str
    step_s: float
    requires: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanReport(Result[StagedProblem, StagedPlan]):
    """A planner's plan, held against what one gets without planning; seconds.

    Baselines run by the same clock as the plan: the step under the problem's schedule, or without one the length L.

    Attributes:
        simulated_length_s: simulated length by schedule name.
        single_device_s: one global batch on one device.
        data_parallel_s: step of plain data parallelism; None where it does not fit the memory.
        uniform_s: step of uniform cuts; None where they do not fit.
        data_parallel_micro_batches: of that step: the number with which data parallelism is shortest.
        shorter: plans that are shorter than this one and harder to run, the shortest of each kind.
        policy: the policy that made the plan, if one did.
        seed: the seed of a planner that draws.
    """

    plan: StagedPlan
    single_device_s: float
    simulated_length_s: Mapping[str, float] = field(default_factory=dict)
    data_parallel_s: float | None = None
    uniform_s: float | None = None
    policy: str | None = None
    seed: int | None = None
    data_parallel_micro_batches: int | None = None
    shorter: tuple[Alternative, ...] = ()

    @property
    def stages_log(self) -> tuple[SearchLogEntry, ...]:
        """The numbers of stages and micro-batches among which the planner chose, if it did."""
        entries = tuple(entry for entry in self.search_log if isinstance(entry, SearchLogEntry))
        return entries if len(entries) > 1 else ()
