"""The default: the policy's plan, held against uniform cuts and plain data parallelism; the best that fits is returned.

The exact search, bounded by that plan's length, proves it optimal or corrects it as far as the time allows
(planners.certificate). Then its cuts move off the grid (planners.refine). Where the policy is not at home the exact
planner takes its place (formats.md, "Commands").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import DEFAULT_GRANULARITY, Grid
from automap_models.core.plan import Optimality, PipelinePlan
from automap_models.core.problem import PipelineProblem
from automap_models.core.profile import Profile
from automap_models.cost.pipeline import plan_cost
from automap_models.errors import Infeasible
from automap_models.planners.base import PipelinePlanner, PlannerOptions
from automap_models.planners.certificate import certify
from automap_models.planners.refine import objective_s, refine
from automap_models.planners.registry import make_planner

MakePlanner = Callable[[str, PlannerOptions | None], PipelinePlanner]


@dataclass(frozen=True, eq=False)
class Choice:
    """What `choose` decided.

    Attributes:
        problem: the problem that the plan solves; with the number of stages left open it may have one stage
            where the problem asked had several.
        plan: the best plan that fits, under the name of the planner that made it, with a bound on its length.
        length_s: its length L.
        notes: sentences about how the plan came to be that a person should read.
    """

    problem: PipelineProblem
    plan: PipelinePlan
    length_s: float
    notes: tuple[str, ...] = ()

    def proving(self, optimality: Optimality) -> Choice:
        """The same choice with what is proven about the best length."""
        return replace(self, plan=replace(self.plan, optimality=optimality))


def default_stages(profile: Profile, cluster: Cluster, granularity: int = DEFAULT_GRANULARITY) -> int:
    """One stage a node, as in the paper, or as many as the profile can be cut into where those are fewer."""
    return min(cluster.nodes, Grid(len(profile), granularity).cut_points.size + 1)


def choose(
    problem: PipelineProblem,
    options: PlannerOptions | None = None,
    *,
    stages_fixed: bool = True,
    make: MakePlanner = make_planner,
) -> Choice:
    """The best plan that fits the memory.

    Args:
        problem: with S stages.
        options: for the policy, the proof and the refinement.
        stages_fixed: whether it must be S; otherwise data parallelism competes as a plan with one stage.
        make: where planners come from.

    Raises:
        Infeasible: nothing fits; says which stage needs how much and how many stages would help.
    """
    options = options or PlannerOptions()
    one_stage = _attempt(make("data-parallel", None), replace(problem, stages=1))
    if problem.stages == 1:
        if isinstance(one_stage, Infeasible):
            raise _with_what_would_help(one_stage, problem, make)
        return one_stage.proving(Optimality(one_stage.length_s, "exact"))
    searched = _search(problem, options, make)
    uniform = _attempt(make("uniform", None), problem)
    contenders = (searched, uniform) if stages_fixed else (searched, uniform, one_stage)
    feasible = [contender for contender in contenders if isinstance(contender, Choice)]
    if isinstance(searched, Infeasible) and not feasible:
        raise _with_what_would_help(_naming_a_stage(searched, uniform), problem, make)
    best = min(feasible, key=lambda choice: choice.length_s)
    if isinstance(searched, Infeasible):
        return best.proving(Optimality(best.length_s, "exact"))  # nothing else fits
    planned = min((c for c in (searched, uniform) if isinstance(c, Choice)), key=lambda choice: choice.length_s)
    proven = _certified(best, planned, options.certify_s)
    refined = _refined(proven, planned, None if stages_fixed else one_stage, options)
    notes = (*_what_was_corrected(planned, proven, refined), *_what_was_refined(proven, refined, options.schedule))
    return replace(refined, notes=(*searched.notes, *notes, *_what_is_faster(refined, one_stage)))


def _attempt(planner: PipelinePlanner, problem: PipelineProblem, *notes: str) -> Choice | Infeasible:
    try:
        plan = planner.plan(problem)
    except Infeasible as nothing:
        return nothing
    return Choice(problem, plan, plan_cost(problem, plan).length_s, notes)


def _search(problem: PipelineProblem, options: PlannerOptions | None, make: MakePlanner) -> Choice | Infeasible:
    """The policy's plan, or the exact planner's where the policy is not at home or finds nothing that fits."""
    policy = make("policy", options)
    outside = policy.out_of_range(problem)
    if outside is None:
        found = _attempt(policy, problem)
        if isinstance(found, Choice):
            return found
        outside = "the policy found no plan that fits the memory"
    return _attempt(make("exact", options), problem, f"{outside.rstrip('.')}: the exact planner took its place")


def _certified(best: Choice, planned: Choice, budget_s: float) -> Choice:
    """The best plan with what is proven about all that compete; the optimum in its place where that is shorter.

    Args:
        best: the plan with several stages that follows, or data parallelism.
        planned: the best plan with several stages.
        budget_s: time for the proof.
    """
    if planned.plan.optimality is not None:
        known = planned.plan.optimality
        return best.proving(replace(known, bound_s=min(known.bound_s, best.length_s)))
    certificate = certify(planned.problem, planned.plan, budget_s, best.length_s)
    if certificate.plan is None:
        return best.proving(certificate.optimality)
    return Choice(planned.problem, certificate.plan, plan_cost(planned.problem, certificate.plan).length_s)


def _refined(proven: Choice, planned: Choice, one_stage: Choice | Infeasible | None, options: PlannerOptions) -> Choice:
    """The plan with its cuts moved off the grid; data parallelism, if it competes, where that simulates shorter."""
    problem, schedule = proven.problem, options.schedule
    if problem.stages == 1 or not options.refine_s:
        return proven
    plan = refine(problem, proven.plan, options.refine_s, schedule, before_proof=planned.plan)
    if isinstance(one_stage, Choice) and one_stage.length_s < objective_s(problem, plan, schedule):
        return replace(one_stage, plan=replace(one_stage.plan, optimality=plan.optimality))
    return replace(proven, plan=plan, length_s=plan_cost(problem, plan).length_s)


def _what_was_corrected(planned: Choice, proven: Choice, refined: Choice) -> Iterator[str]:
    if refined.plan.planner == "exact" != planned.plan.planner:
        shorter = 100 * (1 - proven.length_s / planned.length_s)
        yield f"the exact search corrected the plan of planner {planned.plan.planner}: {shorter:.2g} % shorter"


def _what_was_refined(proven: Choice, refined: Choice, schedule: str | None) -> Iterator[str]:
    before, after = proven.plan, refined.plan
    if (before.cuts, before.device_cuts) == (after.cuts, after.device_cuts) or after.stages == 1:
        return
    gain = 100 * (1 - objective_s(refined.problem, after, schedule) / objective_s(proven.problem, before, schedule))
    what = "the length" if schedule is None else f"the simulated length under {schedule}"
    yield f"refined by single instructions: {what} is {gain:.2g} % shorter"


def _what_is_faster(best: Choice, one_stage: Choice | Infeasible) -> Iterator[str]:
    if best.problem.stages > 1 and isinstance(one_stage, Choice) and one_stage.length_s < best.length_s:
        saved = 100 * (1 - one_stage.length_s / best.length_s)
        yield f"plain data parallelism (--stages 1) would be {saved:.1f} % shorter"


def _naming_a_stage(nothing: Infeasible, uniform: Choice | Infeasible) -> Infeasible:
    """The exact planner's proof that nothing fits, with a stage as an example."""
    if isinstance(uniform, Choice):
        return nothing
    return Infeasible(f"{nothing.what}; with uniform cuts {uniform.what}", where=nothing.where, do=nothing.do)


def _with_what_would_help(nothing: Infeasible, problem: PipelineProblem, make: MakePlanner) -> Infeasible:
    """The same error, naming the nearest number of stages at which even uniform cuts fit."""
    most = min(problem.cluster.devices, problem.grid.cut_points.size + 1)
    others = sorted(set(range(1, most + 1)) - {problem.stages}, key=lambda s: (abs(s - problem.stages), s))
    for stages in others:
        if isinstance(_attempt(make("uniform", None), replace(problem, stages=stages)), Choice):
            return Infeasible(nothing.what, where=nothing.where, do=f"--stages {stages} would fit")
    return nothing


class AutoPlanner(PipelinePlanner):
    """`choose` behind the one interface; the number of stages is the problem's."""

    name: ClassVar[str] = "auto"

    def plan(self, problem: PipelineProblem) -> PipelinePlan:
        """The best of the policy's plan, uniform cuts and what the exact search makes of them, under its maker's name.

        Raises:
            Infeasible: nothing fits the memory in that many stages.
        """
        return choose(problem, self.options).plan
