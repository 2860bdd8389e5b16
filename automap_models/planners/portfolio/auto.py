"""The default: the policy's plans, held against uniform cuts and data parallelism; the best that fits is returned.

One problem competes with itself in another number of stages or micro-batches as problems in a contest do
(portfolio.contest): the policy plans them together, the exact search proves the best plan or corrects it as far as the
time allows, and its cuts move off the grid (staged.refine). Where the policy is not at home the exact planner takes
its place (formats.md, "Commands").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import DEFAULT_GRANULARITY, Grid
from automap_models.core.microbatch import microbatch_size
from automap_models.core.profile import Profile
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import PipelinePlanner, PlannerOptions
from automap_models.planners.portfolio.contest import Contender, MakePlanner, begin, prove, refined, search
from automap_models.planners.registry import make_planner
from automap_models.planners.staged.refine import objective_s


@dataclass(frozen=True, eq=False)
class Choice:
    """What `choose` decided.

    Attributes:
        problem: the one of the problems asked that the plan solves.
        plan: the best plan that fits, under the name of the planner that made it, with what is proven about the plans
            of all problems asked.
        notes: sentences about how the plan came to be that a person should read.
        tried: every problem asked, in the same order.
    """

    problem: StagedProblem
    plan: StagedPlan
    notes: tuple[str, ...] = ()
    tried: tuple[SearchLogEntry, ...] = ()

    @property
    def length_s(self) -> float:
        """The plan's length L."""
        return plan_cost(self.problem, self.plan).length_s


def remembering() -> MakePlanner:
    """A `make_planner` that makes each planner once, so that the policy's file is read once."""
    made: dict[tuple[str, PlannerOptions | None], PipelinePlanner] = {}

    def make(name: str, options: PlannerOptions | None) -> PipelinePlanner:
        if (name, options) not in made:
            made[name, options] = make_planner(name, options)
        return made[name, options]

    return make


def default_stages(profile: Profile, cluster: Cluster, granularity: int = DEFAULT_GRANULARITY) -> int:
    """One stage a node, as in the paper, or as many as the profile can be cut into where those are fewer."""
    return min(cluster.nodes, Grid(len(profile), granularity).cut_points.size + 1)


def choose(
    problems: Sequence[StagedProblem],
    options: PlannerOptions | None = None,
    *,
    make: MakePlanner = make_planner,
) -> Choice:
    """The best plan that fits the memory, for whichever of the problems it is.

    Args:
        problems: at least one; the first of those whose plans tie wins (see planners.portfolio.candidates).
        options: for the policy, the proof and the refinement; their budgets are for all problems together.
        make: where planners come from.

    Raises:
        Infeasible: nothing fits; says which stage needs how much and how many stages would help.
    """
    options = options or PlannerOptions()
    contenders, left = begin(problems, options, make)
    if left:
        search(left, contenders, make("exact", options))
    if all(each.plan is None for each in contenders):
        raise _nothing_fits(contenders, make)
    optimality = prove(contenders, options.certify_s)
    winner, plan = refined(contenders, options)
    problem, length_s = winner.problem, plan_cost(winner.problem, plan).length_s
    notes = (
        *_who_stood_in(winner, contenders),
        *_what_was_corrected(winner, plan),
        *_what_was_refined(winner, plan, options.schedule),
        *_what_is_faster(problem, length_s, contenders, make),
    )
    tried = tuple(_tried(each, each is winner) for each in contenders)
    return Choice(problem, replace(plan, optimality=optimality), notes, tried)


def _tried(each: Contender, chosen: bool) -> SearchLogEntry:
    problem, fits = each.problem, each.plan is not None
    return SearchLogEntry(
        stages=problem.stages,
        micro_batches=problem.micro_batches,
        microbatch_size=microbatch_size(problem.profile),
        planner=each.plan.planner if each.plan else None,
        length_s=each.length_s if fits else None,
        bound_s=None if each.outcome == "does not fit" else each.bound_s,
        outcome=each.outcome,
        chosen=chosen,
    )


def _who_stood_in(winner: Contender, contenders: Sequence[Contender]) -> Iterator[str]:
    """Why the policy's place was taken: for the winner, or for the only problem with stages where it has none."""
    several = [each for each in contenders if each.problem.stages > 1]
    yield from (several[0] if len(several) == 1 else winner).notes


def _what_was_corrected(winner: Contender, plan: StagedPlan) -> Iterator[str]:
    first = winner.first
    if first is not None and plan.planner == "exact" != first.planner:
        shorter = 100 * (1 - winner.length_s / plan_cost(winner.problem, first).length_s)
        yield f"the exact search corrected the plan of planner {first.planner}: {shorter:.2g} % shorter"


def _what_was_refined(winner: Contender, after: StagedPlan, schedule: str | None) -> Iterator[str]:
    before, problem = winner.plan, winner.problem
    if before is None or (before.cuts, before.device_cuts) == (after.cuts, after.device_cuts):
        return
    gain = 100 * (1 - objective_s(problem, after, schedule) / objective_s(problem, before, schedule))
    what = "the length" if schedule is None else f"the simulated length under {schedule}"
    yield f"refined by single instructions: {what} is {gain:.2g} % shorter"


def _what_is_faster(
    problem: StagedProblem, length_s: float, contenders: Sequence[Contender], make: MakePlanner
) -> Iterator[str]:
    """That data parallelism is faster, where it was not asked."""
    if any(each.problem.stages == 1 for each in contenders):
        return
    one_stage = replace(problem, stages=1)
    try:
        its_length_s = plan_cost(one_stage, make("data-parallel", None).plan(one_stage)).length_s
    except Infeasible:
        return
    if its_length_s < length_s:
        saved = 100 * (1 - its_length_s / length_s)
        yield f"plain data parallelism (--stages 1) would be {saved:.1f} % shorter"


def _nothing_fits(contenders: Sequence[Contender], make: MakePlanner) -> Infeasible:
    """The error of the problem with the most stages and the smallest micro-batches, and what would help."""
    last = contenders[-1]
    nothing = last.nothing or Infeasible("no plan was found that fits the memory", where="planner auto")
    uniform = _uniform(last.problem, make)
    if len(contenders) > 2:
        proven = all(each.outcome == "does not fit" for each in contenders)
        what = f"no plan {'' if proven else 'that was found '}fits in any of {len(contenders)} combinations tried"
        least = f"with {last.problem.stages} stages and {last.problem.micro_batches} micro-batches {nothing.what}"
        nothing = Infeasible(f"{what}; {least}", where="planner auto", do=nothing.do)
    elif isinstance(uniform, Infeasible) and last.problem.stages > 1 and uniform.what != nothing.what:
        nothing = Infeasible(f"{nothing.what}; with uniform cuts {uniform.what}", where=nothing.where, do=nothing.do)
    tried = {each.problem.stages for each in contenders}
    most = min(last.problem.cluster.devices, last.problem.grid.cut_points.size + 1)
    others = sorted(set(range(1, most + 1)) - tried, key=lambda s: (abs(s - last.problem.stages), s))
    for stages in others:
        if isinstance(_uniform(replace(last.problem, stages=stages), make), StagedPlan):
            return Infeasible(nothing.what, where=nothing.where, do=f"--stages {stages} would fit")
    return nothing


def _uniform(problem: StagedProblem, make: MakePlanner) -> StagedPlan | Infeasible:
    try:
        return make("uniform", None).plan(problem)
    except Infeasible as nothing:
        return nothing


class AutoPlanner(PipelinePlanner):
    """`choose` behind the one interface; the number of stages is the problem's."""

    name: ClassVar[str] = "auto"

    def __init__(self, options: PlannerOptions | None = None) -> None:
        super().__init__(options)
        self._make = remembering()

    def plan(self, problem: StagedProblem) -> StagedPlan:
        """The best of the policy's plan, uniform cuts and what the exact search makes of them, under its maker's name.

        Raises:
            Infeasible: nothing fits the memory in that many stages.
        """
        return choose([problem], self.options, make=self._make).plan
