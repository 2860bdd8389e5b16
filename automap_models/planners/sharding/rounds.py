"""Searches for a sharding plan that play episodes, round by round, as planners: the proof, Ctrl-C, who is watching."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.sharding import ShardingOptimality, ShardingPlan, ShardingProblem
from automap_models.planners.base import ShardingPlanner
from automap_models.planners.rounds import Round
from automap_models.planners.sharding.milp import TIME_LIMIT_S, most_partitioned, plan_of


class Best(NamedTuple):
    """The best plan so far: candidates that it partitions, their bytes, and its classes, bool [k]."""

    partitioned: float
    nbytes: float
    sharded: NDArray[np.bool_]


class Search(ABC):
    """Plays episodes and keeps the best plan, as the optimum is defined: most candidates, of equally many most bytes.

    Args:
        problem: to search for a plan of.
        watch: is told of every round.

    Attributes:
        best: the best plan so far.
        episodes, decisions: how many were played and made.
    """

    def __init__(self, problem: ShardingProblem, watch: Callable[[Round], None] | None = None) -> None:
        self.problem, self.watch = problem, watch
        self.best = Best(0.0, 0.0, np.zeros(len(problem.classes), dtype=np.bool_))
        self.episodes = self.decisions = 0
        self._weights = np.stack([problem.weights.astype(np.float64), problem.weights_bytes], axis=1)

    @abstractmethod
    def run(self, episodes: int | None = None, good_enough: float = float("inf")) -> None:
        """Search; after an interruption, go on.

        Args:
            episodes: to play in all; None is as many as it takes.
            good_enough: the search ends with the first plan that partitions as many candidates.
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

    def tell(self, stage: int, epsilon: float, greedy: int | None, scores: list[int]) -> None:
        """Tell who is watching of a round."""
        if self.watch is not None:
            self.watch(Round(stage, self.episodes, epsilon, greedy, tuple(scores), int(self.best.partitioned)))


class SearchPlanner(ShardingPlanner):
    """Returns the best plan that a search came across, with the proven optimum beside it.

    The proof is found before the search begins, but serves it only with `stop_at_optimum`.
    """

    def plan(self, problem: ShardingProblem) -> ShardingPlan:
        """The best plan found; after Ctrl-C the best one until then, marked `interrupted`.

        Raises:
            BadInput: an option cannot be used.
        """
        options, begun = self.options, time.perf_counter()
        search = self.search(problem)
        proven = most_partitioned(problem, options.time_limit_s or TIME_LIMIT_S)
        interrupted = False
        try:
            search.run(options.episodes, proven.bound if options.stop_at_optimum else float("inf"))
        except KeyboardInterrupt:
            interrupted = True
        return plan_of(
            problem,
            np.flatnonzero(search.best.sharded).tolist(),
            self.name,
            search_s=time.perf_counter() - begun,
            episodes=search.episodes,
            optimality=ShardingOptimality(proven.bound, "exact" if proven.proven else "relaxation"),
            interrupted=interrupted,
        )

    @abstractmethod
    def search(self, problem: ShardingProblem) -> Search:
        """The search, ready to run."""
