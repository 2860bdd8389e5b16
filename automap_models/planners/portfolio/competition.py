"""The engine of a portfolio: problems that compete, the shortest plan of any of them, and a proof about all.

    problems (S, M, shardings) ──► baselines and the policy ──► exact search where these have no plan
                                                     │
        shortest plan, proof about all ◄── refine ◄── prove: one length bounds every search

Each problem is a `Contender`. A contender whose relaxation cannot reach the best length is out, proven ("discarded");
the exact search closes the others ("proven"), the most promising first, as far as the time allows. A shorter plan that
it comes across is the new best. `prove` begins at the plans that the contenders have; `search_space` (space_search)
begins at nothing. All parts of the time are parts of one deadline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from automap_models.core.microbatch import microbatch_size
from automap_models.core.result import Bound, Result
from automap_models.core.staged import Outcome, SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import StagedCost
from automap_models.errors import AutomapError, Infeasible
from automap_models.planners.base import SILENT, Deadline, Planner, Progress, Watch, solve_each
from automap_models.planners.staged.baselines import DataParallelPlanner, UniformPlanner
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs, StagedResult
from automap_models.planners.staged.exact import ExactPlanner, certify
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.refine import refine
from automap_models.planners.staged.relaxation import lower_bound_s, out_of_reach
from automap_models.planners.staged.search import anytime_search
from automap_models.simulate.step import timeline

StagedPlanner = Planner[StagedProblem, StagedPlan, Any]

SEARCH_S = 5.0
"""How long the exact search may take in all for problems without a plan of the policy, where there are several."""
NEAR, NEAR_AS_SIMULATED = 0.02, 0.10
"""How much longer than the best, relatively, a plan may be to be refined: by its length, by its simulated length."""


@dataclass(frozen=True)
class Makers:
    """The planners whose plans compete."""

    policy: StagedPlanner
    uniform: StagedPlanner = field(default_factory=UniformPlanner)
    data_parallel: StagedPlanner = field(default_factory=DataParallelPlanner)
    exact: StagedPlanner = field(default_factory=ExactPlanner)

    @classmethod
    def with_policy(cls, config: PolicyConfig | None = None) -> Makers:
        """The usual ones; the policy's file is read once."""
        return cls(PolicyPlanner(config))


@dataclass(frozen=True)
class Budget:
    """How long the parts of a portfolio may take; each is a part of the deadline, too.

    Attributes:
        prove_s: to prove that no plan is shorter, or to correct that; with 0 there are only relaxations.
        refine_s: to move the cuts off the grid.
        schedule: whose simulated length refinement makes shorter; None is the length L.
    """

    prove_s: float
    refine_s: float
    schedule: str | None = None


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

    def __post_init__(self) -> None:
        self.costs = Costs(self.problem)

    @property
    def closed(self) -> bool:
        """Whether it is proven that no plan of the problem on the grid is shorter than the best of all."""
        return self.outcome != "planned"

    @property
    def cost(self) -> StagedCost | None:
        """Of its plan."""
        return None if self.plan is None else self.costs(self.plan)

    def take(self, result: StagedResult) -> None:
        """Take a planner's plan if none so far is shorter, or remember why there is none."""
        if result.plan is None:
            self.nothing = result.reason
        else:
            self.offer(result.plan, result.cost)

    def offer(self, plan: StagedPlan, cost: StagedCost) -> None:
        """Take a plan if none so far is shorter."""
        self.costs.learn(plan, cost)
        if cost.length_s <= self.length_s:
            self.plan, self.length_s = plan, cost.length_s

    def close(self, outcome: Outcome, bound_s: float) -> None:
        """The proof is complete."""
        self.outcome, self.bound_s = outcome, bound_s

    def log_entry(self, chosen: bool) -> SearchLogEntry:
        """What became of it."""
        return SearchLogEntry(
            stages=self.problem.stages,
            micro_batches=self.problem.micro_batches,
            microbatch_size=microbatch_size(self.problem.profile),
            planner=self.plan.planner if self.plan else None,
            length_s=self.length_s if self.plan else None,
            bound_s=None if self.outcome == "does not fit" else self.bound_s,
            outcome=self.outcome,
            chosen=chosen,
        )


def compete(
    problems: Sequence[StagedProblem],
    makers: Makers,
    budget: Budget,
    deadline: Deadline,
    watch: Watch = SILENT,
) -> StagedResult:
    """The best plan that fits the memory, for whichever of the problems it is, with what is proven about all.

    Its facts have the results of the planners that others are compared with under "baselines".

    Args:
        problems: at least one; the first of those whose plans tie wins.
        makers: where plans come from.
        budget: its times are for all problems together.
        deadline: when to stop in any case.
        watch: is told how far it is.
    """
    watch(Progress(f"planning {len(problems)} combination(s) of stages and micro-batches", 0, len(problems)))
    baselines: list[StagedResult] = []
    contenders, left = _begin(problems, makers, baselines, deadline)
    if left:
        watch(Progress(f"searching {len(left)} combination(s) that the policy has no plan for", 0, len(left)))
        _search(left, contenders, makers.exact, deadline)
    if all(contender.plan is None for contender in contenders):
        return _nothing_fits(contenders, makers)
    watch(Progress("proving the best plan, or correcting it"))
    bound = _prove(contenders, budget.prove_s, deadline)
    watch(Progress("refining the best plans"))
    winner, plan = _refined(contenders, budget, deadline)
    cost = winner.costs(plan)
    notes = (
        *_who_stood_in(winner, contenders),
        *_what_was_corrected(winner, plan),
        *_what_was_refined(winner, plan, budget.schedule),
        *_what_is_faster(winner.problem, cost.length_s, contenders, makers, baselines),
    )
    log = tuple(contender.log_entry(contender is winner) for contender in contenders)
    optimal = bound.proof == "exact" and cost.length_s <= bound.value * (1.0 + LENGTH_ROUNDING)
    return Result(
        winner.problem,
        plan,
        cost,
        "optimal" if optimal else "feasible",
        bound,
        notes,
        log,
        facts={"baselines": tuple(baselines)},
    )


def _begin(
    problems: Sequence[StagedProblem], makers: Makers, baselines: list[StagedResult], deadline: Deadline
) -> tuple[list[Contender], list[Contender]]:
    """Every problem with the best of uniform cuts, data parallelism and the policy's plan.

    Returns:
        The contenders, and those of them that the policy has no plan for.
    """
    contenders = [Contender(problem) for problem in problems]
    several = [contender for contender in contenders if contender.problem.stages > 1]
    for contender in contenders:
        baseline = makers.uniform if contender.problem.stages > 1 else makers.data_parallel
        result = baseline.solve(contender.problem)
        baselines.append(result)
        contender.take(result)
        if contender.problem.stages == 1:
            contender.close("proven" if contender.plan else "does not fit", contender.length_s)
    return contenders, _ask_the_policy(several, makers.policy, deadline) if several else []


def _ask_the_policy(contenders: list[Contender], policy: StagedPlanner, deadline: Deadline) -> list[Contender]:
    """Plans in one batch for the contenders that the policy is made for; the others, and those it finds nothing for."""
    outside = [policy.out_of_range(contender.problem) for contender in contenders]
    inside = [contender for contender, why in zip(contenders, outside, strict=True) if why is None]
    results = dict(
        zip(map(id, inside), solve_each(policy, [contender.problem for contender in inside], deadline), strict=True)
    )
    left = []
    for contender, why in zip(contenders, outside, strict=True):
        result = results.get(id(contender))
        if isinstance(result, AutomapError) and not isinstance(result, Infeasible):
            raise result
        if isinstance(result, Result) and result.plan is not None:
            contender.take(result)
            continue
        reason = "the policy found no plan that fits the memory" if why is None else why
        contender.notes.append(f"{reason.rstrip('.')}: the exact planner took its place")
        left.append(contender)
    return left


def best_of(contenders: Sequence[Contender]) -> Contender:
    """The contender with the shortest plan, the first of those that tie."""
    least_s = min(contender.length_s for contender in contenders)
    return next(contender for contender in contenders if contender.length_s <= least_s * (1.0 + LENGTH_ROUNDING))


def _search(
    left: Sequence[Contender], contenders: Sequence[Contender], exact: StagedPlanner, deadline: Deadline
) -> None:
    """Let the exact planner plan where the policy did not: to its end for one problem, bounded by the best for several.

    Several problems share SEARCH_S; those it does not come to the end of keep their uniform cuts, if they fit.
    """
    if len(left) == 1:
        (contender,) = left
        result = exact.solve(contender.problem, deadline=deadline)
        contender.take(result)
        if result.status == "infeasible":
            contender.close("does not fit", np.inf)
        elif result.bound is not None and result.bound.proof == "exact":
            contender.close("proven", result.bound.value)
        return
    together = deadline.part(SEARCH_S)
    for contender in left:
        _search_below(contender, best_of(contenders).length_s, together)


def _search_below(contender: Contender, best_s: float, deadline: Deadline) -> None:
    """Find a plan shorter than the best so far, or that there is none, or neither in time."""
    if out_of_reach(contender.problem, np.inf):
        contender.close("does not fit", np.inf)
    elif out_of_reach(contender.problem, best_s):
        contender.close("discarded", best_s)
    else:
        upper_s = best_s if np.isfinite(best_s) else None
        search = anytime_search(contender.problem, deadline, upper_s, costs=contender.costs)
        if search.plan is not None and search.cost is not None:
            contender.offer(search.plan, search.cost)
        if search.finished:
            contender.close("proven" if np.isfinite(search.bound_s) else "does not fit", search.bound_s)
        else:
            contender.bound_s = search.bound_s


def _prove(contenders: Sequence[Contender], budget_s: float, deadline: Deadline) -> Bound:
    """Prove that no plan is shorter than the best, or correct that, or bound the length of all.

    Args:
        contenders: at least one of which has a plan.
        budget_s: time for all of them; with 0 there is only the relaxation's bound for each.
        deadline: when to stop in any case.
    """
    together = deadline.part(budget_s)
    for contender in contenders:
        contender.first = contender.plan
    for contender in sorted(contenders, key=lambda contender: contender.length_s):
        if not contender.closed:
            _prove_one(contender, best_of(contenders).length_s, together if budget_s else None)
    return bound_of(contenders)


def bound_of(contenders: Sequence[Contender]) -> Bound:
    """What is proven about the plans of all contenders together."""
    best_s = min(contender.length_s for contender in contenders)
    if all(contender.closed for contender in contenders):
        return Bound(best_s, "exact")
    return Bound(min(best_s, *(contender.bound_s for contender in contenders)), "relaxation")


def _prove_one(contender: Contender, best_s: float, deadline: Deadline | None) -> None:
    """Close one contender, or raise its bound; None is no time at all."""
    if contender.length_s > best_s and out_of_reach(contender.problem, best_s):
        contender.close("discarded", best_s)
    elif contender.plan is None:
        contender.bound_s = max(contender.bound_s, lower_bound_s(contender.problem))
    else:
        certificate = certify(contender.problem, contender.plan, deadline, best_s, contender.costs)
        contender.bound_s = certificate.bound.value
        if certificate.plan is not None and certificate.cost is not None:
            contender.offer(certificate.plan, certificate.cost)
        if certificate.bound.proof == "exact":
            contender.outcome = "proven"


def _refined(contenders: Sequence[Contender], budget: Budget, deadline: Deadline) -> tuple[Contender, StagedPlan]:
    """The best contender with its plan moved off the grid; those nearly as good are refined, too, and may win.

    What counts is the length, or the simulated length under the schedule, for data parallelism as well.
    """
    schedule = budget.schedule if budget.refine_s else None

    def rate(contender: Contender, plan: StagedPlan) -> float:
        return _step_s(contender.costs(plan), plan.micro_batches, schedule)

    rated = [
        (rate(contender, contender.plan), contender, contender.plan)
        for contender in contenders
        if contender.plan is not None
    ]
    if budget.refine_s:
        limit_s = min(own_s for own_s, _, _ in rated) * (1.0 + (NEAR if schedule is None else NEAR_AS_SIMULATED))
        near = [
            (contender, plan) for own_s, contender, plan in rated if contender.problem.stages > 1 and own_s <= limit_s
        ]
        for contender, plan in near:
            moved = refine(
                contender.problem if schedule is None else replace(contender.problem, schedule=schedule),
                plan,
                deadline.part(budget.refine_s / len(near)),
                before_proof=contender.first,
                proven=contender.outcome == "proven",
                costs=contender.costs if schedule is None else None,
            )
            rated.append((rate(contender, moved), contender, moved))
    least_s = min(own_s for own_s, _, _ in rated)
    return next((contender, plan) for own_s, contender, plan in rated if own_s <= least_s * (1.0 + LENGTH_ROUNDING))


def _step_s(cost: StagedCost, micro_batches: int, schedule: str | None) -> float:
    return cost.step_s if schedule is None else timeline(cost, micro_batches, schedule).length_s


def _who_stood_in(winner: Contender, contenders: Sequence[Contender]) -> Iterator[str]:
    """Why the policy's place was taken: for the winner, or for the only problem with stages where it has none."""
    several = [contender for contender in contenders if contender.problem.stages > 1]
    yield from (several[0] if len(several) == 1 else winner).notes


def _what_was_corrected(winner: Contender, plan: StagedPlan) -> Iterator[str]:
    first = winner.first
    if first is not None and plan.planner == "exact" != first.planner:
        shorter = 100 * (1 - winner.length_s / winner.costs(first).length_s)
        yield f"the exact search corrected the plan of planner {first.planner}: {shorter:.2g} % shorter"


def _what_was_refined(winner: Contender, after: StagedPlan, schedule: str | None) -> Iterator[str]:
    before = winner.plan
    if before is None or (before.cuts, before.device_cuts) == (after.cuts, after.device_cuts):
        return
    before_s, after_s = (_step_s(winner.costs(plan), plan.micro_batches, schedule) for plan in (before, after))
    what = "the length" if schedule is None else f"the simulated length under {schedule}"
    yield f"refined by single instructions: {what} is {100 * (1 - after_s / before_s):.2g} % shorter"


def _what_is_faster(
    problem: StagedProblem,
    length_s: float,
    contenders: Sequence[Contender],
    makers: Makers,
    baselines: list[StagedResult],
) -> Iterator[str]:
    """That data parallelism is faster, where it was not asked."""
    if any(contender.problem.stages == 1 for contender in contenders):
        return
    result = makers.data_parallel.solve(replace(problem, stages=1))
    baselines.append(result)
    if result.plan is not None and result.cost.length_s < length_s:
        saved = 100 * (1 - result.cost.length_s / length_s)
        yield f"plain data parallelism would be {saved:.1f} % shorter"


def _nothing_fits(contenders: Sequence[Contender], makers: Makers) -> StagedResult:
    """Why there is no plan: of the problem with the most stages and the smallest micro-batches, and what would help."""
    last = contenders[-1]
    proven = all(contender.outcome == "does not fit" for contender in contenders)
    nothing = last.nothing or Infeasible("no plan was found that fits the memory", where="planner auto")
    uniform = makers.uniform.solve(last.problem).reason
    if len(contenders) > 2:
        what = f"no plan {'' if proven else 'that was found '}fits in any of {len(contenders)} combinations tried"
        least = f"with {last.problem.stages} stages and {last.problem.micro_batches} micro-batches {nothing.what}"
        nothing = Infeasible(f"{what}; {least}", where="planner auto", do=nothing.do)
    elif uniform is not None and last.problem.stages > 1 and uniform.what != nothing.what:
        nothing = Infeasible(f"{nothing.what}; with uniform cuts {uniform.what}", where=nothing.where, do=nothing.do)
    known = {contender.problem.stages for contender in contenders}
    most = min(last.problem.cluster.devices, last.problem.grid.cut_points.size + 1)
    others = sorted(set(range(1, most + 1)) - known, key=lambda s: (abs(s - last.problem.stages), s))
    for stages in others:
        if makers.uniform.solve(replace(last.problem, stages=stages)).plan is not None:
            nothing = Infeasible(nothing.what, where=nothing.where, do=f"`stages={stages}` would fit")
            break
    return Result(last.problem, None, None, "infeasible" if proven else "stopped", reason=nothing)
