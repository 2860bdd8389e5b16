"""The engine of a portfolio: problems that compete, the shortest plan of any of them, and a proof about all.

    problems (S, M, shardings) ──► baselines and the policy ──► exact search where these have no plan
                                                     │
        shortest plan, proof about all ◄── refine ◄── prove: one step bounds every search

What is compared is the step (cost.staged.StagedCost.step_s): simulated under the problems' schedule, or without one
the length L. All problems of a portfolio have the same schedule.

Each problem is a `Contender`. A contender whose relaxation cannot reach the best step is out, proven ("discarded");
the exact search closes the others ("proven"), the most promising first, as far as the time allows. A shorter plan that
it comes across is the new best. `prove` begins at the plans that the contenders have; `search_space` (space_search)
begins at nothing. All parts of the time are parts of one deadline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.result import Bound, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import AutomapError, Infeasible
from automap_models.planners import effort
from automap_models.planners.base import SILENT, Deadline, Planner, Progress, Watch, solve_all
from automap_models.planners.portfolio.contender import Contender, Rated, best_of
from automap_models.planners.portfolio.descent import (
    CLOSE,
    SPLITS,
    between_blocks,
    descend,
    has_many_stages,
    shortest_first,
)
from automap_models.planners.portfolio.gain import (
    fewest_stages,
    what_more_stages_gain,
    what_small_stages_gain,
    with_stages_merged,
)
from automap_models.planners.portfolio.notes import what_was_corrected, what_was_refined, who_stood_in
from automap_models.planners.portfolio.proofs import prove
from automap_models.planners.portfolio.regroup import merges, merges_and_splits, splits
from automap_models.planners.staged.baselines import DataParallelPlanner, UniformPlanner
from automap_models.planners.staged.costs import LENGTH_ROUNDING, StagedResult, is_plain
from automap_models.planners.staged.exact import ExactPlanner
from automap_models.planners.staged.frameworks import block_ends
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.refine import refine
from automap_models.planners.staged.relaxation import out_of_reach
from automap_models.planners.staged.search import anytime_search

StagedPlanner = Planner[StagedProblem, StagedPlan, Any]

SEARCH_S = 5.0
"""How long the exact search may take in all for problems without a plan of the policy, where there are several."""
NEAR = 0.05
"""How much longer than the best, relatively, a plan may be to be refined."""
OTHERS = 24
"""So many times the time of a proof is what looking at other numbers of micro-batches may take (portfolio.descent)."""
REGROUP = 16
"""So many times the time of a refinement is what merging and splitting stages of the best plans may take."""
ALONE, MOST_ALONE = 4, 3
"""So many times the time of a proof is what a number of stages that may win has alone, and so many of them have it: the
best plans on the grid, which a longer search finds, lead to shorter ones off it."""
BLOCKS = 4
"""So many times the time of a refinement is what finding a plan between blocks may take."""


@dataclass(frozen=True)
class Makers:
    """The planners whose plans compete."""

    policy: StagedPlanner
    uniform: StagedPlanner = field(default_factory=UniformPlanner)
    data_parallel: StagedPlanner = field(default_factory=DataParallelPlanner)
    exact: StagedPlanner = field(default_factory=ExactPlanner)

    @classmethod
    def with_policy(cls, config: PolicyConfig | None = None) -> Makers:
        """The usual ones; the policy's file is read once.

        Searches go on from its plans, so that it asks no network beside the tables.
        """
        return cls(PolicyPlanner(replace(config or PolicyConfig(), network=False)))


@dataclass(frozen=True)
class Budget:
    """What the parts of a portfolio may take for one problem, in counted seconds (planners.effort).

    Attributes:
        prove_s: to prove that no plan is shorter, or to correct that; with 0 there are only relaxations.
        refine_s: to move the cuts off the grid.
    """

    prove_s: float
    refine_s: float


def compete(
    problems: Sequence[StagedProblem],
    makers: Makers,
    budget: Budget,
    deadline: Deadline,
    watch: Watch = SILENT,
    min_gain: float = 0.0,
) -> StagedResult:
    """The best plan that fits the memory, for whichever of the problems it is, with what is proven about all.

    Its facts have the results of the planners that others are compared with under "baselines", and all plans that were
    refined, or could not be, under "plans": the problem, the plan and its cost of each, the shortest step first.

    Args:
        problems: at least one; the first of those whose plans tie wins.
        makers: where plans come from.
        budget: how long the parts may take.
        deadline: when to stop in any case.
        watch: is told how far it is.
        min_gain: the plan of the fewest stages wins whose step is, relatively, no more than this above the shortest.
    """
    watch(Progress(f"planning {len(problems)} combination(s) of stages and micro-batches", 0, len(problems)))
    baselines: list[StagedResult] = []
    contenders = [Contender(problem) for problem in problems]
    bound, refined = _planned(contenders, makers, baselines, budget, deadline, watch, min_gain)
    if not refined:
        return _nothing_fits(contenders, makers)
    if min_gain:
        refined += _alone(refined, contenders, makers, baselines, budget, deadline, min_gain)
        refined += with_stages_merged(refined, contenders, min_gain, budget.refine_s, deadline)
    winner, plan = fewest_stages(refined, min_gain)
    cost = winner.costs(plan)
    notes = (
        *what_more_stages_gain(winner, plan, refined),
        *what_small_stages_gain(
            winner.problem, plan, cost.step_s, [(step_s, other.stages) for step_s, _, other in refined]
        ),
        *who_stood_in(winner, contenders),
        *what_was_corrected(winner, plan),
        *what_was_refined(winner, plan),
        *_what_is_faster(winner.problem, cost.step_s, contenders, makers, baselines),
    )
    log = tuple(contender.log_entry(contender is winner) for contender in contenders)
    optimal = bound.proof == "exact" and cost.step_s <= bound.value * (1.0 + LENGTH_ROUNDING)
    return Result(
        winner.problem,
        plan,
        cost,
        "optimal" if optimal else "feasible",
        bound,
        notes,
        log,
        facts={
            "baselines": tuple(baselines),
            "plans": tuple(
                (contender.problem, plan, contender.costs(plan))
                for _, contender, plan in sorted(refined, key=itemgetter(0))
            ),
        },
    )


def _planned(
    contenders: Sequence[Contender],
    makers: Makers,
    baselines: list[StagedResult],
    budget: Budget,
    deadline: Deadline,
    watch: Watch = SILENT,
    min_gain: float = 0.0,
) -> tuple[Bound, list[Rated]]:
    """What is proven about all contenders, and all their plans; none where nothing fits the memory."""
    left = _begin(contenders, makers, baselines, budget, deadline, min_gain)
    if left:
        watch(Progress(f"searching {len(left)} combination(s) that the policy has no plan for", 0, len(left)))
        _search(left, contenders, makers.exact, deadline)
    if all(contender.plan is None for contender in contenders):
        return Bound(0.0, "relaxation"), []
    watch(Progress("proving the best plan, or correcting it"))
    bound = prove(contenders, budget.prove_s, deadline, min_gain)
    watch(Progress("refining the best plans"))
    return bound, _refined(contenders, budget.refine_s, deadline)


def _begin(
    contenders: Sequence[Contender],
    makers: Makers,
    baselines: list[StagedResult],
    budget: Budget,
    deadline: Deadline,
    min_gain: float,
) -> list[Contender]:
    """The best of uniform cuts, data parallelism and the policy's plan for every problem.

    Under a schedule only some of several problems are looked at (portfolio.descent).

    Returns:
        The problems that the policy has no plan for; of several under a schedule all, where none has a plan that fits,
        else those that nothing which fits leads to.
    """

    def uniform(several: Sequence[Contender]) -> None:
        for contender in several:
            result = next((known for known in baselines if known.problem is contender.problem), None)
            if result is None:
                result = makers.uniform.solve(contender.problem)
                baselines.append(result)
            if result.plan is None or result.plan.check_valid(contender.problem)[0]:
                contender.take(result)

    def ask(several: Sequence[Contender]) -> list[Contender]:
        uniform(several)
        return _ask_the_policy(several, makers.policy, deadline) if several else []

    several = [contender for contender in contenders if contender.problem.stages > 1]
    for contender in contenders:
        if contender.problem.stages == 1:
            result = makers.data_parallel.solve(contender.problem)
            baselines.append(result)
            contender.take(result)
            contender.close("proven" if contender.plan else "does not fit", contender.step_s)
    if not several or several[0].problem.schedule is None:
        return ask(several)
    stuck = descend(contenders, ask, budget.prove_s, OTHERS * budget.prove_s, deadline, min_gain)
    without_plan = all(contender.plan is None for contender in several)
    return several if without_plan else stuck


def _ask_the_policy(contenders: Sequence[Contender], policy: StagedPlanner, deadline: Deadline) -> list[Contender]:
    """Plans in one batch for the contenders that the policy is made for; the others, and those it finds nothing for."""
    outside = [policy.out_of_range(contender.problem) for contender in contenders]
    inside = [
        contender
        for contender, reason in zip(contenders, outside, strict=True)
        if reason is None and contender.of_policy is None
    ]
    results = solve_all(policy, [contender.problem for contender in inside], deadline)
    for contender, answer in zip(inside, results, strict=True):
        contender.of_policy = answer
    left = []
    for contender, outside_reason in zip(contenders, outside, strict=True):
        result = contender.of_policy
        if isinstance(result, AutomapError) and not isinstance(result, Infeasible):
            raise result
        if isinstance(result, Result) and result.plan is not None:
            contender.take(result)
            continue
        restrictions = contender.problem.constraints.in_words
        reason = f"does not know {restrictions}" if restrictions else "found no plan that fits the memory"
        reason = f"the policy {reason}" if outside_reason is None else outside_reason.rstrip(".")
        contender.notes.append(f"{reason}: the exact planner took its place")
        left.append(contender)
    return left


def _search(
    left: Sequence[Contender], contenders: Sequence[Contender], exact: StagedPlanner, deadline: Deadline
) -> None:
    """Let the exact planner plan where the policy did not: to its end for one problem, bounded by the best for several.

    Several problems share SEARCH_S; those it does not come to the end of keep their uniform cuts, if they fit.
    """
    if len(left) == 1:
        (contender,) = left
        scheduled = contender.problem.schedule is not None
        result = exact.solve(
            contender.problem, deadline=deadline.part(SEARCH_S, effort.counted_s) if scheduled else deadline
        )
        contender.take(result)
        if result.status == "infeasible":
            contender.close("does not fit", np.inf)
        elif result.bound is not None and result.bound.proof == "exact":
            contender.close("proven", result.bound.value)
        return
    together = deadline.part(SEARCH_S, effort.counted_s)
    for k, contender in enumerate(left):
        _search_below(contender, best_of(contenders).step_s, together.part(together.left_s / (len(left) - k)))


def _search_below(contender: Contender, best_s: float, deadline: Deadline) -> None:
    """Find a plan shorter than the best so far, or that there is none, or neither in time."""
    if out_of_reach(contender.problem, np.inf):
        contender.close("does not fit", np.inf)
    elif out_of_reach(contender.problem, best_s):
        contender.close("discarded", best_s)
    else:
        upper_s = best_s if np.isfinite(best_s) else None
        search = anytime_search(contender.problem, deadline, upper_s, costs=contender.costs)
        contender.take_search(search)
        if search.finished:
            contender.close("proven" if np.isfinite(search.bound_s) else "does not fit", search.bound_s)


def _refined(contenders: Sequence[Contender], refine_s: float, deadline: Deadline) -> list[Rated]:
    """All plans, the best ones once more with their cuts moved off the grid, and under a schedule between blocks."""
    rated = [(contender.step_s, contender, contender.plan) for contender in contenders if contender.plan is not None]
    best_s = min(step_s for step_s, _, _ in rated)
    ends = block_ends(contenders[0].problem.profile) if refine_s and contenders[0].problem.schedule is not None else ()
    for contender in sorted(contenders, key=lambda contender: contender.step_s) if refine_s else ():
        plans = [] if contender.plan is None else [contender.plan]
        far = contender.step_s > best_s * (1.0 + CLOSE) if plans else has_many_stages(contender.problem)
        if ends and not far and contender.outcome != "discarded":
            blocks = between_blocks(contender, ends, best_s, deadline.part(BLOCKS * refine_s, effort.counted_s))
            plans += [] if blocks is None else [blocks]
        for plan in plans:
            if plan.stages > 1 and contender.costs(plan).step_s <= best_s * (1.0 + NEAR):
                part, proven = deadline.part(refine_s, effort.counted_s), contender.outcome == "proven"
                moved = refine(contender.problem, plan, part, proven=proven, costs=contender.costs)
                rated += [
                    (contender.costs(shorter).step_s, contender, shorter)
                    for shorter in (plan, moved)
                    if shorter.check_valid(contender.problem)[0]
                ]
                best_s = min(best_s, rated[-1][0])
    if refine_s and contenders[0].problem.schedule is not None:
        rated += _with_other_stages(rated, contenders, refine_s, deadline.part(REGROUP * refine_s, effort.counted_s))
    return rated


def _with_other_stages(
    rated: Sequence[Rated], contenders: Sequence[Contender], refine_s: float, deadline: Deadline
) -> Iterator[Rated]:
    """Where merging two stages of a plan or splitting one, and refining, leads, while it gets shorter.

    Cuts off the grid may be good for numbers of stages whose own plans on the grid are not. The shortest plan comes
    first. Those that numbers of stages had of their own, before their neighbours' were split, come after it: they may
    be a little longer, and lead further.
    """
    of_stages = {(contender.problem.stages, contender.problem.micro_batches): contender for contender in contenders}
    best = min(rated, key=lambda entry: entry[0])
    own = [(c.costs(c.own).step_s, c, c.own) for c in contenders if c.own is not None and c.own is not c.plan]
    near = [entry for entry in sorted(own, key=lambda entry: entry[0]) if entry[0] <= best[0] * (1.0 + CLOSE)]
    for begin in (best, *near):
        step_s, origin, plan = begin
        shorter = True
        while shorter and not deadline.passed and not any(plan.shardings):
            shorter = False
            for start in _regrouped(of_stages, origin, plan):
                part = deadline.part(refine_s, effort.counted_s)
                moved = refine(start.contender.problem, start.plan, part, costs=start.contender.costs)
                moved_s = start.contender.costs(moved).step_s
                if moved_s < step_s * (1.0 - LENGTH_ROUNDING) and moved.check_valid(start.contender.problem)[0]:
                    step_s, origin, plan, shorter = moved_s, start.contender, moved, True
                    yield moved_s, start.contender, moved


class _Start(NamedTuple):
    """A plan to be refined."""

    step_s: float
    contender: Contender
    plan: StagedPlan


def _regrouped(of_stages: Mapping[tuple[int, int], Contender], origin: Contender, plan: StagedPlan) -> list[_Start]:
    """The shortest of the plans with two stages of a plan merged, with one split, and with both."""
    starts = list[_Start]()
    for stages, regroup in (
        (plan.stages - 1, merges),
        (plan.stages, merges_and_splits),
        (plan.stages + 1, partial(splits, uneven=True)),
    ):
        contender = of_stages.get((stages, plan.micro_batches))
        if contender is not None and stages > 1:
            plans = shortest_first(contender, regroup(contender.problem, origin.problem, plan), SPLITS)
            starts += [_Start(contender.costs(start).step_s, contender, start) for start in plans]
    return sorted(starts, key=lambda start: start.step_s)[:SPLITS]


def _alone(
    rated: Sequence[Rated],
    contenders: Sequence[Contender],
    makers: Makers,
    baselines: Sequence[StagedResult],
    budget: Budget,
    deadline: Deadline,
    min_gain: float,
) -> Iterator[Rated]:
    """What the numbers of stages that may win come to when each is planned alone, and longer than if asked for.

    Among others they begin at better plans, and may end at longer ones: moves lead elsewhere, and time ends sooner.
    Beside the one that would win these are the others whose steps are nearly as short and not proven.
    """
    winner, _ = fewest_stages(rated, min_gain)
    longer, limit_s = replace(budget, prove_s=ALONE * budget.prove_s), min(rated, key=itemgetter(0))[0] * (1.0 + NEAR)
    shortest = {contender: step_s for step_s, contender, _ in sorted(rated, key=itemgetter(0), reverse=True)}
    near = [c for c in shortest if c is not winner and c.outcome != "proven" and shortest[c] <= limit_s]
    for contender in [winner, *sorted(near, key=shortest.__getitem__)][:MOST_ALONE]:
        if contender.problem.stages > 1 and len(contenders) > 1 and not contender.problem.shardings:
            _, planned = _planned([contender.alone()], makers, list(baselines), longer, deadline)
            yield from ((step_s, contender, plan) for step_s, _, plan in planned)


def _what_is_faster(
    problem: StagedProblem,
    step_s: float,
    contenders: Sequence[Contender],
    makers: Makers,
    baselines: list[StagedResult],
) -> Iterator[str]:
    """That data parallelism is faster, where it was not asked."""
    if any(contender.problem.stages == 1 for contender in contenders):
        return
    result = makers.data_parallel.solve(replace(problem, stages=1))
    baselines.append(result)
    if result.plan is not None and result.cost.step_s < step_s:
        saved = 100 * (1 - result.cost.step_s / step_s)
        yield f"plain data parallelism would be {saved:.1f} % shorter"


def _nothing_fits(contenders: Sequence[Contender], makers: Makers) -> StagedResult:
    """Why there is no plan: of the problem with the most stages and the smallest micro-batches, and what would help."""
    last = contenders[-1]
    proven = all(contender.outcome == "does not fit" for contender in contenders)
    uniform = makers.uniform.solve(last.problem).reason
    nothing = last.nothing or uniform or Infeasible("no plan was found that fits the memory", where="planner auto")
    if len(contenders) > 2:
        what = f"no plan {'' if proven else 'that was found '}fits in any of {len(contenders)} combinations tried"
        least = f"with {last.problem.stages} stages and {last.problem.micro_batches} micro-batches {nothing.what}"
        nothing = Infeasible(f"{what}; {least}", where="planner auto", do=nothing.do)
    elif uniform is not None and is_plain(last.problem) and last.problem.stages > 1 and uniform.what != nothing.what:
        nothing = Infeasible(f"{nothing.what}; with uniform cuts {uniform.what}", where=nothing.where, do=nothing.do)
    known = {contender.problem.stages for contender in contenders}
    most = min(last.problem.cluster.devices, last.problem.grid.cut_points.size + 1)
    others = sorted(set(range(1, most + 1)) - known, key=lambda s: (abs(s - last.problem.stages), s))
    for stages in others:
        if makers.uniform.solve(replace(last.problem, stages=stages)).plan is not None:
            nothing = Infeasible(nothing.what, where=nothing.where, do=f"`stages={stages}` would fit")
            break
    return Result(last.problem, None, None, "infeasible" if proven else "stopped", reason=nothing)
