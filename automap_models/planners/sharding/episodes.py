"""Planners that play episodes of sharding decisions: what they share, and those that decide greedily or at random."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.result import Result
from automap_models.core.sharding import UNUSED, ShardingPlan, ShardingProblem
from automap_models.envs.sharding.propagation import PARTITIONED, REPLICATED, Propagation, State, sharded_classes
from automap_models.errors import BadInput
from automap_models.planners.base import NEVER, SILENT, ConfigT, Deadline, NoConfig, Planner, Progress, Watch
from automap_models.planners.sharding.milp import ShardingMilpPlanner, evaluated


@dataclass(frozen=True)
class EpisodesConfig:
    """The configuration of all searches that play episodes.

    Attributes:
        seed: of every random draw.
        episodes: to play at most; None is as many as the search takes by itself.
        stop_at_optimum: whether the search ends with the first plan that is proven to be as good as any.
    """

    seed: int = 0
    episodes: int | None = None
    stop_at_optimum: bool = False


class Round(NamedTuple):
    """A round of episodes, as it stands in a result's search log and as a watcher receives it.

    Attributes:
        stage: 1 while the search explores, 2 while it backtraces.
        episodes: played so far, these included.
        epsilon: share of exploratory decisions; 0 where the agent only follows its policy.
        greedy: score of the episode that followed the policy alone; None where none did.
        scores: of all episodes of the round in their order: candidates that the plan of each partitions.
        best: the best score so far.
    """

    stage: int
    episodes: int
    epsilon: float
    greedy: int | None
    scores: tuple[int, ...]
    best: int


class Best(NamedTuple):
    """The best plan so far: candidates that it partitions, their bytes, and its classes, bool [k]."""

    partitioned: float
    nbytes: float
    sharded: NDArray[np.bool_]


class Search(ABC):
    """Plays episodes and keeps the best plan, as the optimum is defined: most candidates, of equally many most bytes.

    Args:
        problem: to search for a plan of; its mesh has one axis and its objective is the count.
        watch: receives every round.

    Attributes:
        best: the best plan so far.
        rounds: played so far.
        episodes, decisions: numbers of those played and taken.
    """

    def __init__(self, problem: ShardingProblem, watch: Watch = SILENT) -> None:
        self.problem, self.watch = problem, watch
        (self.along,) = problem.along
        self.best = Best(0.0, 0.0, np.zeros(len(problem.classes), dtype=np.bool_))
        self.rounds: list[Round] = []
        self.episodes = self.decisions = 0
        self._weights = np.stack([self.along.weights.astype(np.float64), self.along.weights_bytes], axis=1)

    @abstractmethod
    def run(self, episodes: int | None = None, good_enough: float = float("inf"), deadline: Deadline = NEVER) -> None:
        """Search; after an interruption, go on.

        Args:
            episodes: to play in all; None is as many as it takes.
            good_enough: the search ends with the first plan that partitions as many candidates.
            deadline: after which it ends.
        """

    def rate(self, sharded: NDArray[np.bool_]) -> list[int]:
        """Scores of the plans of B more episodes, bool [B, k]."""
        values = sharded @ self._weights
        first = int(np.lexsort(values.T[::-1])[-1])
        partitioned, nbytes = values[first].tolist()
        if (partitioned, nbytes) > self.best[:2]:
            self.best = Best(partitioned, nbytes, sharded[first].copy())
        self.episodes += len(sharded)
        scores: list[int] = values[:, 0].astype(int).tolist()
        return scores

    def record(self, stage: int, epsilon: float, greedy: int | None, scores: Sequence[int]) -> None:
        """Log a round and report it to the watcher."""
        played = Round(stage, self.episodes, epsilon, greedy, tuple(scores), int(self.best.partitioned))
        self.rounds.append(played)
        how = f"ε {epsilon:.2f}" if stage == 1 else "backtracing"
        what = f"episode {self.episodes:,}: best plan partitions {played.best}, {how}"
        self.watch(Progress(what, self.episodes, detail=played))


class EpisodesPlanner(Planner[ShardingProblem, ShardingPlan, ConfigT]):
    """Returns the best plan of a search, with the proven optimum as its bound.

    The optimum is proven before the search begins. The search itself uses it only with `stop_at_optimum`. The facts of
    the result are `episodes`, `interrupted` (whether Ctrl-C or the deadline cut the search off) and `seed` (None if
    nothing is drawn).
    """

    def __init__(self, config: ConfigT | None = None) -> None:
        super().__init__(config)
        self._prover = ShardingMilpPlanner()

    def solve(
        self, problem: ShardingProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[ShardingProblem, ShardingPlan]:
        """See Planner.solve; after Ctrl-C the best plan until then.

        Raises:
            BadInput: the objective is not the count, or the mesh has several axes.
        """
        self._require_one_counted_axis(problem)
        options = self.config if isinstance(self.config, EpisodesConfig) else None
        episodes, seed = (options.episodes, options.seed) if options else (None, None)
        begun = time.perf_counter()
        proof = self._prover.solve(problem, deadline=deadline.part(deadline.left_s / 4))
        assert proof.bound is not None
        good_enough = proof.bound.value if options and options.stop_at_optimum else float("inf")
        search = self.search(problem, watch)
        try:
            search.run(episodes, good_enough, deadline)
            interrupted = deadline.passed
        except KeyboardInterrupt:
            interrupted = True
        plan = ShardingPlan.from_classes(problem, np.where(search.best.sharded, 0, UNUSED), self.name)
        return evaluated(
            problem,
            plan,
            proof.bound,
            facts={"episodes": search.episodes, "interrupted": interrupted, "seed": seed},
            search_log=tuple(search.rounds),
            taken_s=time.perf_counter() - begun,
        )

    @abstractmethod
    def search(self, problem: ShardingProblem, watch: Watch) -> Search:
        """The search, ready to run."""

    def _require_one_counted_axis(self, problem: ShardingProblem) -> None:
        where, do = f"`planner='{self.name}'`", "give `planner='milp'`"
        if problem.objective != "count":
            raise BadInput(f"counts variables, and cannot plan for the least {problem.objective}", where=where, do=do)
        if len(problem.mesh) > 1:
            raise BadInput("decides along one axis, not along two", where=where, do=do)


def _sharded(problem: ShardingProblem, state: State) -> NDArray[np.bool_]:
    """[k] the classes that are sharded in a state."""
    sharded = np.zeros(len(problem.classes), dtype=np.bool_)
    sharded[list(sharded_classes(state))] = True
    return sharded


class GreedySearch(Search):
    """One episode that partitions every dimension unless that conflicts.

    Args:
        problem, watch: see Search.
        linkage_groups: whether dimensions are decided in descending size of their linkage group; else as they come.
    """

    def __init__(self, problem: ShardingProblem, *, linkage_groups: bool, watch: Watch = SILENT) -> None:
        super().__init__(problem, watch)
        self._linkage_groups = linkage_groups

    def run(self, episodes: int | None = None, good_enough: float = float("inf"), deadline: Deadline = NEVER) -> None:
        """Play the episode, which takes milliseconds: no limit cuts it off."""
        episode = Propagation(self.along).greedy(linkage_groups=self._linkage_groups)
        self.decisions += episode.decisions
        self.record(1, 0.0, None, self.rate(_sharded(self.problem, episode.state)[None]))


class RandomSearch(Search):
    """Episodes of random decisions in the environment of the agent (envs.sharding).

    Args:
        problem, watch: see Search.
        linkage_groups: whether dimensions are decided in descending size of their linkage group and none that conflicts
            by itself; else as they come, until the first conflict.
        seed: of the decisions.
    """

    def __init__(self, problem: ShardingProblem, *, linkage_groups: bool, seed: int, watch: Watch = SILENT) -> None:
        super().__init__(problem, watch)
        self._propagation = Propagation(self.along)
        self._order: list[int] = self._propagation.order(linkage_groups=linkage_groups).tolist()
        self._prunes, self._rng = linkage_groups, np.random.default_rng(seed)

    def run(self, episodes: int | None = None, good_enough: float = float("inf"), deadline: Deadline = NEVER) -> None:
        """See Search.run."""
        most = episodes or 1_000
        while self.episodes < most and self.best.partitioned < good_enough and not deadline.passed:
            number = min(16, most - self.episodes)
            drawn = [self._episode(deadline) for _ in range(number)]
            self.record(1, 1.0, None, self.rate(np.stack(drawn)))

    def _episode(self, deadline: Deadline) -> NDArray[np.bool_]:
        state, draws = State(), self._rng.random(len(self._order)) < 0.5
        for dim, partitions in zip(self._order, draws.tolist(), strict=True):
            if deadline.passed:
                break
            if self._propagation.decided(state, dim):
                continue
            self.decisions += 1
            step = self._propagation.decide(state, dim, PARTITIONED if partitions else REPLICATED)
            if step.conflict and not self._prunes:
                break
            state = self._propagation.decide(state, dim, REPLICATED).state if step.conflict else step.state
        return _sharded(self.problem, state)


class ShardingGreedyPlanner(EpisodesPlanner[NoConfig]):
    """Partitions every dimension that it can, by linkage groups for operators, as they come for data."""

    name: ClassVar[str] = "greedy"

    def search(self, problem: ShardingProblem, watch: Watch) -> Search:
        """See EpisodesPlanner.search."""
        return GreedySearch(problem, linkage_groups=problem.mesh[0].kind == "operator", watch=watch)


class ShardingRandomPlanner(EpisodesPlanner[EpisodesConfig]):
    """The best of many episodes of random decisions, with linkage groups for operators, without for data."""

    name: ClassVar[str] = "random"
    config_type = EpisodesConfig

    def search(self, problem: ShardingProblem, watch: Watch) -> Search:
        """See EpisodesPlanner.search."""
        groups = problem.mesh[0].kind == "operator"
        return RandomSearch(problem, linkage_groups=groups, seed=self.config.seed, watch=watch)
