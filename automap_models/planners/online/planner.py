"""The planner `online`: Auto-MAP's pipeline planning by online training on the one profile (§3.4, §4.4)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from automap_models.core.result import Bound, Result, Status
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.online.pivots import DEFAULT_RADIUS, Candidates, candidates
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, OutOfTime, Planner, Progress, Watch
from automap_models.planners.staged.costs import does_not_fit
from automap_models.planners.staged.label_setting import PLANNER, SLACK, ranked
from automap_models.planners.staged.relaxation import PrefixBounds, lower_bound_s, prefix_bounds
from automap_models.planners.staged.stage_tables import stage_tables
from automap_models.simulate.step import step_cost

if TYPE_CHECKING:
    from automap_models.planners.agent_yaml import OnlineAgentConfig
    from automap_models.planners.online.search import OnlineRound, OnlineSearch


@dataclass(frozen=True)
class OnlineConfig:
    """Who trains online, and for how long.

    Attributes:
        agent: hyper-parameters: a shipped config (conf/online) or a YAML file.
        radius: of the candidate device cuts around the centre solution.
        episodes: how many to play; None is as many as the agent's hyper-parameters say.
        seed: of every random draw.
        warm_start: a plan to begin with; it may be returned where nothing shorter is found.
        prove_s: how long the exact search on the same candidates may take after the training, seconds.
    """

    agent: str | Path = "default"
    radius: int = DEFAULT_RADIUS
    episodes: int | None = None
    seed: int = 0
    warm_start: StagedPlan | None = None
    prove_s: float = 0.0


class OnlinePlanner(Planner[StagedProblem, StagedPlan, OnlineConfig]):
    """The shortest plan that an agent comes across while it trains on the profile; cuts after any instruction.

    Its search log is the rounds of episodes (OnlineRound), which `watch` is told of, too. Its facts are

        candidates       what plans were chosen from (Candidates)
        candidate_bound  what is proven about the plans on these candidates (Bound); nothing is about all others
        pivots           how many of the candidates the agent played on
        episodes         played in all
        interrupted      whether Ctrl-C ended the training early

    Raises:
        BadInput: an unknown agent, a file of one that cannot be used, or torch is not installed.
    """

    name: ClassVar[str] = "online"
    config_type: ClassVar[type[OnlineConfig]] = OnlineConfig

    def __init__(self, config: OnlineConfig | None = None) -> None:
        super().__init__(config)
        self.agent = agent_config(self.config.agent)

    def solve(
        self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[StagedProblem, StagedPlan]:
        """Train the agent on the problem. Ctrl-C ends the training, once there is a plan, not the program.

        An agent learns to make the length L small. Its plan for a problem with a schedule is that for the length, with
        what it costs under the schedule; nothing is proven about that.

        Raises:
            BadInput: one stage, a negative radius, a warm start that is no plan of the problem, or a mixed cluster.
            KeyboardInterrupt: before there was any plan.
        """
        from automap_models.planners.online.search import OnlineSearch
        from automap_models.rl.learner import one_thread

        problem.cluster.require_uniform("online training", "plan with automap infer, or give a cluster of equal nodes")
        if problem.schedule is not None:
            return _under_schedule(problem, self.solve(replace(problem, schedule=None), deadline=deadline, watch=watch))
        begun_s = time.perf_counter()
        warm_start = _on_this_problem(self.config.warm_start, problem)

        def without_plan(status: Status, reason: Infeasible, **more: Any) -> Result[StagedProblem, StagedPlan]:
            return Result(problem, None, None, status, taken_s=time.perf_counter() - begun_s, reason=reason, **more)

        try:
            possible = candidates(problem, self.config.radius)
        except Infeasible as reason:
            return without_plan("stopped", reason)
        try:
            least_s = lower_bound_s(at_instructions(problem), deadline)
        except Infeasible as reason:
            return without_plan("infeasible", reason)
        total = self.agent.episodes if self.config.episodes is None else self.config.episodes
        with one_thread():
            search = OnlineSearch(possible, self.agent, self.config.seed, warm_start)
            rounds, interrupted = _rounds(search, total, deadline, watch)
        if search.best is None:
            return without_plan("stopped", _nothing_fits(possible, search.episodes), search_log=tuple(rounds))
        prove_s = 0.0 if interrupted else min(self.config.prove_s, deadline.left_s)
        bound = candidate_optimum(possible, search.best_s, least_s, deadline.part(prove_s))
        facts = {
            "candidates": possible,
            "candidate_bound": bound,
            "pivots": search.pivots.number,
            "episodes": search.episodes,
            "interrupted": interrupted,
        }
        cost = plan_cost(problem, search.best)
        return Result(
            problem,
            search.best,
            cost,
            "feasible",
            notes=_notes(search.best, cost.length_s, facts),
            search_log=tuple(rounds),
            facts=facts,
            taken_s=time.perf_counter() - begun_s,
        )


def _under_schedule(
    problem: StagedProblem, result: Result[StagedProblem, StagedPlan]
) -> Result[StagedProblem, StagedPlan]:
    """What came out for the length L as a result for the problem's schedule."""
    if result.plan is None:
        return replace(result, problem=problem)
    cost = step_cost(problem, result.plan)
    if cost.feasible:
        return replace(result, problem=problem, cost=cost, bound=None)
    reason = does_not_fit(problem, result.plan, cost)
    return replace(result, problem=problem, plan=None, cost=None, bound=None, status="stopped", reason=reason)


def _rounds(search: OnlineSearch, total: int, deadline: Deadline, watch: Watch) -> tuple[list[OnlineRound], bool]:
    """Rounds until so many episodes, the deadline, a proof that nothing shorter is left, or Ctrl-C, and whether that.

    Raises:
        KeyboardInterrupt: before there was any plan.
    """
    rounds: list[OnlineRound] = []
    try:
        while search.episodes < total and not deadline.passed and not (rounds and search.finished):
            latest = search.round()
            rounds.append(latest)
            watch(Progress(f"training, best so far {latest.best_s:.4g} s", latest.episodes, total, latest))
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return rounds, True
    return rounds, False


def candidate_optimum(possible: Candidates, known_s: float, least_s: float, deadline: Deadline) -> Bound:
    """The shortest length of all plans on the candidates, or a lower bound of it, by the exact search.

    The search does not know that every stage has to train something. Where its optimum breaks that, or where its time
    is up, what is proven is a bound ("relaxation").

    Args:
        possible: what plans may choose from.
        known_s: length of a plan, on the candidates or not; nothing is said about those on them that are longer.
        least_s: no plan of the problem that cuts after any instruction is shorter.
        deadline: when to stop.
    """
    problem = possible.problem
    tables = stage_tables(problem, possible.cuts)
    try:
        bounds = _restricted(possible, prefix_bounds(tables, known_s * (1.0 + SLACK), deadline))
        lengths = [(known_s, True)]
        ties = ranked(tables, bounds, known_s * (1.0 + SLACK), deadline).ties
        for row in range(len(ties)):
            plan = ties.plan(tables, row, PLANNER)
            lengths.append((plan_cost(problem, plan).length_s, possible.every_stage_trains(plan.cuts)))
    except OutOfTime as stopped:
        return Bound(max(stopped.bound_s, least_s), "relaxation")
    best_s, trains = min(lengths, key=lambda length: (length[0], not length[1]))
    return Bound(best_s, "exact" if trains else "relaxation")


def _restricted(possible: Candidates, bounds: PrefixBounds) -> PrefixBounds:
    """The bounds, infinite where a stage would begin on a device that is no candidate."""
    allowed = np.zeros(bounds.busy.shape[:2], dtype=bool)
    allowed[0, 0] = True
    for s, devices in enumerate(possible.device_cuts, start=1):
        allowed[s, devices] = True
    never = ~allowed[:, :, None]
    return PrefixBounds(np.where(never, np.inf, bounds.busy), np.where(never, np.inf, bounds.forward))


def agent_config(name_or_path: str | Path) -> OnlineAgentConfig:
    """The shipped agent of that name, or the one in that YAML file.

    Raises:
        BadInput: there is none, the file cannot be used, or torch is not installed.
    """
    try:
        from automap_models.planners.agent_yaml import read_online_agent
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        do = "pip install 'automap-models[train]'"
        raise BadInput("torch is not installed", where="planner online", do=do) from None
    return read_online_agent(name_or_path)


def at_instructions(problem: StagedProblem) -> StagedProblem:
    """The problem on the grid of all its instructions, on which plans by online training lie."""
    return replace(problem, granularity=max(len(problem.profile), 2))


def _on_this_problem(warm_start: StagedPlan | None, problem: StagedProblem) -> StagedPlan | None:
    """The plan with its cuts as points of this problem's grid.

    Raises:
        BadInput: it is no plan of this problem.
    """
    if warm_start is None:
        return None
    plan = replace(warm_start, coarse_cuts=problem.grid.to_points(warm_start.cuts))
    valid, reason = plan.check_valid(problem)
    if not valid:
        raise BadInput(
            reason, where="the warm start", do="give a plan of the same profile, cluster, stages and micro-batches"
        )
    return plan


def _notes(plan: StagedPlan, length_s: float, facts: dict[str, Any]) -> tuple[str, ...]:
    """Sentences on what was searched, how far the plan is from the best there, and what the pruning may cost."""
    possible, bound, episodes = facts["candidates"], facts["candidate_bound"], facts["episodes"]
    searched = (
        f"{possible.pivots:,} candidate pivots (device cuts within {possible.radius} of the centre solution), "
        f"{facts['pivots']:,} of them played on in {episodes:,} episodes"
    )
    beside = "the shortest plan" if bound.proof == "exact" else "a lower bound"
    proven = f"{100 * (length_s / bound.value - 1):.2f} % above {beside} on these candidates ({bound.value:.4g} s)"
    if not possible.contain(plan.cuts, plan.device_cuts):  # the plan that it started from
        proven = "the plan it started from, which is not on these candidates"
        if bound.proof == "exact":
            proven += ": none on them is shorter"
    if facts["interrupted"]:
        return f"interrupted: the best plan of {episodes:,} episodes, not the end of the training", searched, proven
    return searched, proven


def _nothing_fits(possible: Candidates, episodes: int) -> Infeasible:
    problem = possible.problem
    return Infeasible(
        f"none of {episodes} plans with {problem.stages} stages fits the {problem.cluster.memory / 1e9:.3g} GB of "
        f"cluster {problem.cluster.name}",
        where="planner online",
        do="try more stages, a larger `radius`, smaller micro-batches, a smaller `state_factor` or more memory",
    )
