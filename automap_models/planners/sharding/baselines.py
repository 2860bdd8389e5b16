"""What a learning search for a sharding plan has to beat: partitioning whatever can be, and random decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.propagation import PARTITIONED, REPLICATED, Propagation, State, sharded_classes
from automap_models.planners.rounds import Round
from automap_models.planners.sharding.rounds import Search, SearchPlanner

EPISODES = 1_000
"""Of the random search, unless told otherwise."""
ROUND = 16


class OrderedSearch(Search):
    """Decides one dimension after the other.

    Args:
        problem, watch: see Search.
        linkage_groups: whether dimensions are decided in descending size of their linkage group; else as they come.
    """

    def __init__(
        self, problem: ShardingProblem, *, linkage_groups: bool, watch: Callable[[Round], None] | None = None
    ) -> None:
        super().__init__(problem, watch)
        self.propagation = Propagation(problem)
        order = self.propagation.by_group_size() if linkage_groups else np.arange(len(self.propagation))
        self.order: list[int] = order.tolist()

    def of(self, state: State) -> NDArray[np.bool_]:
        """[k] the classes that are sharded in a state."""
        sharded = np.zeros(len(self.problem.classes), dtype=np.bool_)
        sharded[list(sharded_classes(state))] = True
        return sharded


class GreedySearch(OrderedSearch):
    """One episode that partitions every dimension unless that conflicts."""

    def run(self, episodes: int | None = None, good_enough: float = float("inf")) -> None:
        """See Search.run."""
        state = State()
        for dim in self.order:
            if not self.propagation.decided(state, dim):
                self.decisions += 1
                step = self.propagation.decide(state, dim, PARTITIONED)
                state = self.propagation.decide(state, dim, REPLICATED).state if step.conflict else step.state
        self.tell(1, 0.0, None, self.rate(self.of(state)[None]))


class RandomSearch(OrderedSearch):
    """Episodes of random decisions in the environment of the agent (envs.sharding.env): with linkage groups none that
    conflicts by itself, without them until the first conflict.

    Args:
        seed: of the decisions.
    """

    def __init__(
        self,
        problem: ShardingProblem,
        *,
        linkage_groups: bool,
        seed: int,
        watch: Callable[[Round], None] | None = None,
    ) -> None:
        super().__init__(problem, linkage_groups=linkage_groups, watch=watch)
        self._prunes, self._rng = linkage_groups, np.random.default_rng(seed)

    def run(self, episodes: int | None = None, good_enough: float = float("inf")) -> None:
        """See Search.run."""
        while self.episodes < (episodes or EPISODES) and self.best.partitioned < good_enough:
            number = min(ROUND, (episodes or EPISODES) - self.episodes)
            self.tell(1, 1.0, None, self.rate(np.stack([self._episode() for _ in range(number)])))

    def _episode(self) -> NDArray[np.bool_]:
        state, draws = State(), self._rng.random(len(self.order)) < 0.5
        for dim, partitions in zip(self.order, draws.tolist(), strict=True):
            if self.propagation.decided(state, dim):
                continue
            self.decisions += 1
            step = self.propagation.decide(state, dim, PARTITIONED if partitions else REPLICATED)
            if step.conflict and not self._prunes:
                break
            state = self.propagation.decide(state, dim, REPLICATED).state if step.conflict else step.state
        return self.of(state)


class GreedyShardingPlanner(SearchPlanner):
    """Partitions every dimension that it can, by linkage groups for operators, as they come for data."""

    name: ClassVar[str] = "greedy"

    def search(self, problem: ShardingProblem) -> Search:
        """See SearchPlanner.search."""
        return GreedySearch(problem, linkage_groups=problem.kind == "operator", watch=self.options.watch)


class RandomShardingPlanner(SearchPlanner):
    """The best of many episodes of random decisions, with linkage groups for operators, without for data."""

    name: ClassVar[str] = "random"

    def search(self, problem: ShardingProblem) -> Search:
        """See SearchPlanner.search."""
        groups = problem.kind == "operator"
        return RandomSearch(problem, linkage_groups=groups, seed=self.options.seed, watch=self.options.watch)
