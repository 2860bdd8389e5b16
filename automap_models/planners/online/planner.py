"""The planner `online`: Auto-MAP's pipeline planning by online training on the one profile (§3.4, §4.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from automap_models.core.result import Bound
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.online_pivots import DEFAULT_RADIUS, Candidates, candidates
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import PipelinePlanner
from automap_models.planners.deadline import Deadline
from automap_models.planners.online.candidate_optimum import candidate_optimum
from automap_models.planners.staged.relaxation import lower_bound_s

if TYPE_CHECKING:
    from automap_models.planners.online.config import OnlineConfig
    from automap_models.planners.online.search import OnlineRound, OnlineSearch

DEFAULT_AGENT = "default"


@dataclass(frozen=True)
class OnlineOptions:
    """How to train.

    Attributes:
        agent: hyper-parameters: a shipped config (conf/online) or a YAML file.
        radius: of the candidate device cuts around the centre solution.
        episodes: how many to play; None is as many as the agent's configuration says.
        seed: of every random draw.
        warm_start: a plan to begin with; it may be returned where nothing shorter is found.
        time_limit_s: after so long training stops with the best plan so far.
        prove_s: how long the exact search on the same candidates may take.
        watch: is told of every round and of how many episodes there are to be.
    """

    agent: str | Path = DEFAULT_AGENT
    radius: int = DEFAULT_RADIUS
    episodes: int | None = None
    seed: int = 0
    warm_start: StagedPlan | None = None
    time_limit_s: float | None = None
    prove_s: float = 10.0
    watch: Callable[[OnlineRound, int], None] | None = None


@dataclass(frozen=True)
class Trained:
    """What online training came to.

    Attributes:
        plan: the shortest plan seen; its `optimality` is about plans with any device cuts.
        candidates: what it was chosen from.
        optimum: what is proven about plans on these candidates.
        pivots: how many of them the agent played on.
        rounds: of episodes, in their order.
        interrupted: whether Ctrl-C ended it early.
    """

    plan: StagedPlan
    candidates: Candidates
    optimum: Bound
    pivots: int
    rounds: tuple[OnlineRound, ...]
    interrupted: bool

    @property
    def gap(self) -> float:
        """How far the plan is above the bound on its candidates, as a fraction; negative for a warm start off them."""
        return plan_cost(self.candidates.problem, self.plan).length_s / self.optimum.value - 1.0


class OnlinePlanner(PipelinePlanner):
    """The shortest plan that an agent comes across while it trains on the profile; cuts after any instruction."""

    name: ClassVar[str] = "online"

    def plan(self, problem: StagedProblem) -> StagedPlan:
        """The default agent's plan, within the default radius; see `train_online`.

        Raises:
            Infeasible: no plan fits, or there are too few trainable variables for so many stages.
            BadInput: one stage, or torch is not installed.
        """
        options = OnlineOptions(seed=self.options.seed, time_limit_s=self.options.time_limit_s, prove_s=0.0)
        return train_online(problem, options).plan


def train_online(problem: StagedProblem, options: OnlineOptions | None = None) -> Trained:
    """Train an agent on one problem. Ctrl-C ends the training, once there is a plan, not the program.

    Raises:
        Infeasible: no plan fits, or none that the agent saw, or fewer trainable variables than stages.
        BadInput: one stage, a negative radius, an unknown agent, or torch is not installed.
    """
    options = options or OnlineOptions()
    possible = candidates(problem, options.radius)
    config = agent_config(options.agent)
    from automap_models.planners.online.search import OnlineSearch
    from automap_models.rl.threads import one_thread

    lower_bound_s(at_instructions(problem), Deadline(0.0))  # says at once where nothing fits
    search = OnlineSearch(possible, config, options.seed, options.warm_start)
    total = config.episodes if options.episodes is None else options.episodes
    deadline = Deadline(float("inf") if options.time_limit_s is None else options.time_limit_s)
    with one_thread():
        rounds, interrupted = _rounds(search, total, deadline, options.watch)
    if search.best is None:
        raise _nothing_fits(possible, search.episodes)
    optimum = candidate_optimum(possible, search.best_s, Deadline(0.0 if interrupted else options.prove_s))
    return Trained(search.best, possible, optimum, search.pivots.number, tuple(rounds), interrupted)


def _rounds(
    search: OnlineSearch, total: int, deadline: Deadline, watch: Callable[[OnlineRound, int], None] | None
) -> tuple[list[OnlineRound], bool]:
    """Rounds until so many episodes, the deadline, a proof that nothing shorter is left, or Ctrl-C, and whether that.

    Raises:
        KeyboardInterrupt: before there was any plan.
    """
    rounds: list[OnlineRound] = []
    try:
        while search.episodes < total and not deadline.passed and not (rounds and search.finished):
            rounds.append(search.round())
            if watch:
                watch(rounds[-1], total)
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return rounds, True
    return rounds, False


def agent_config(name_or_path: str | Path) -> OnlineConfig:
    """The shipped agent of that name, or the one in that YAML file.

    Raises:
        BadInput: there is none, the file cannot be used, or torch is not installed.
    """
    try:
        from automap_models.planners.online.config import read_online_config
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        do = "pip install 'automap-models[train]'"
        raise BadInput("torch is not installed", where="planner online", do=do) from None
    return read_online_config(name_or_path)


def _nothing_fits(possible: Candidates, episodes: int) -> Infeasible:
    problem = possible.problem
    return Infeasible(
        f"none of {episodes} plans with {problem.stages} stages fits the {problem.cluster.memory / 1e9:.3g} GB of "
        f"cluster {problem.cluster.name}",
        where="planner online",
        do="try more stages, a larger --radius, smaller micro-batches, a smaller --state-factor or more memory",
    )


def at_instructions(problem: StagedProblem) -> StagedProblem:
    """The problem on the grid of all its instructions, on which plans by online training lie."""
    return replace(problem, granularity=max(len(problem.profile), 2))
