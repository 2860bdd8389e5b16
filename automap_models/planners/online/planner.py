"""The planner `online`: Auto-MAP's pipeline planning by online training on the one profile (§3.4, §4.4).

An agent as `python train/run.py` trains it begins with random weights, plays on this problem alone and learns of it;
the shortest plan that it comes across is the answer. Cuts lie on the problem's grid.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from automap_models.core.result import Bound, Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.errors import BadInput, Infeasible
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Progress, Watch
from automap_models.planners.staged.costs import does_not_fit, plain
from automap_models.planners.staged.feasibility import out_of_memory, plans_fit
from automap_models.planners.staged.search import certify
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.simulate.plan_step import step_cost

if TYPE_CHECKING:
    from automap_models.planners.agent_yaml import PipelineAgentDocument
    from automap_models.planners.online.search import OnlineRound, OnlineSearch


@dataclass(frozen=True)
class OnlineConfig:
    """Who trains online, and for how long.

    Attributes:
        agent: hyper-parameters: a shipped config (conf/agent) or a YAML file.
        episodes: how many to play, at least.
        warm_start: a plan to begin with; it may be returned where nothing shorter is found.
        prove_s: counted seconds (planners.effort) that the exact search may take after the training.
    """

    agent: str | Path = "default"
    episodes: int = 2_304
    seed: int = 0
    warm_start: StagedPlan | None = None
    prove_s: float = 0.0


class OnlinePlanner(Planner[StagedProblem, StagedPlan, OnlineConfig]):
    """The shortest plan that an agent comes across while it trains on the profile.

    Its search log is the rounds of episodes (OnlineRound). Its facts are the number of `episodes` and whether Ctrl-C
    ended the training early, `interrupted`.

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
            BadInput: one stage, a warm start that is no plan of the problem, or a mixed cluster.
            KeyboardInterrupt: before there was any plan.
        """
        from automap_models.planners.online.search import OnlineSearch
        from automap_models.rl.learner import one_thread

        problem.cluster.require_uniform("online training", "plan with automap infer, or give a cluster of equal nodes")
        if problem.schedule is not None:
            return _under_schedule(problem, self.solve(replace(problem, schedule=None), deadline=deadline, watch=watch))
        if problem.stages < 2:
            raise BadInput("there is nothing to cut with 1 stage", where="`stages`", do="give 2 or more")
        begun_s = time.perf_counter()
        warm_start = _on_this_problem(self.config.warm_start, problem)
        if not plans_fit(stage_arrays(problem)[0]):
            reason = out_of_memory(problem)
            return Result(problem, None, None, "infeasible", taken_s=time.perf_counter() - begun_s, reason=reason)
        with one_thread():
            search = OnlineSearch(problem, self.agent, self.config.seed, warm_start)
            rounds, interrupted = _rounds(search, self.config.episodes, deadline, watch)
        more: dict[str, Any] = {
            "facts": {"episodes": search.episodes, "interrupted": interrupted},
            "search_log": tuple(rounds),
        }
        if search.best is None:
            none = _nothing_fits(problem, search.episodes)
            return Result(problem, None, None, "stopped", taken_s=time.perf_counter() - begun_s, reason=none, **more)
        proof = None if interrupted or not self.config.prove_s else deadline.part(self.config.prove_s, effort.counted_s)
        bound = certify(plain(problem), search.best, proof)
        cost = plan_cost(problem, search.best)
        notes = _notes(cost.length_s, bound, search.episodes, interrupted=interrupted)
        taken_s = time.perf_counter() - begun_s
        return Result(problem, search.best, cost, "feasible", bound, notes, taken_s=taken_s, **more)


def _rounds(search: OnlineSearch, total: int, deadline: Deadline, watch: Watch) -> tuple[list[OnlineRound], bool]:
    """Rounds until so many episodes, the deadline or Ctrl-C, and whether that.

    Raises:
        KeyboardInterrupt: before there was any plan.
    """
    rounds: list[OnlineRound] = []
    try:
        while search.episodes < total and not deadline.passed:
            latest = search.round()
            rounds.append(latest)
            watch(Progress(f"training, best so far {latest.best_s:.4g} s", latest.episodes, total))
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return rounds, True
    return rounds, False


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


def agent_config(name_or_path: str | Path) -> PipelineAgentDocument:
    """The shipped agent of that name, or the one in that YAML file.

    Raises:
        BadInput: there is none, the file cannot be used, or torch is not installed.
    """
    try:
        from automap_models.planners.agent_yaml import read_pipeline_agent
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        do = "pip install 'automap-models[train]'"
        raise BadInput("torch is not installed", where="planner online", do=do) from None
    return read_pipeline_agent(name_or_path)


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


def _notes(length_s: float, bound: Bound, episodes: int, *, interrupted: bool) -> tuple[str, ...]:
    """Sentences on how long it trained and how far the plan is from the best on the grid."""
    beside = "the shortest plan" if bound.proof == "exact" else "a lower bound"
    proven = f"{100 * (length_s / bound.value - 1):.2f} % above {beside} on the grid ({bound.value:.4g} s)"
    if interrupted:
        return f"interrupted: the best plan of {episodes:,} episodes, not the end of the training", proven
    return f"the best plan of {episodes:,} episodes", proven


def _nothing_fits(problem: StagedProblem, episodes: int) -> Infeasible:
    return Infeasible(
        f"none of {episodes} plans with {problem.stages} stages fits the {problem.cluster.memory / 1e9:.3g} GB of "
        f"cluster {problem.cluster.name}",
        where="planner online",
        do="try more stages, smaller micro-batches, a smaller `state_factor` or more memory",
    )
