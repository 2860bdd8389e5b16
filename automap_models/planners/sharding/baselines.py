"""The searches that the learning agent is compared with: greedy decisions and random ones."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.propagation import PARTITIONED, REPLICATED, Propagation, State, sharded_classes
from automap_models.planners.base import NEVER, SILENT, Deadline, NoConfig, Watch
from automap_models.planners.sharding.episodes import EpisodesConfig, EpisodesPlanner, Search

EPISODES = 1_000
"""Of the random search, unless its configuration says otherwise."""
ROUND = 16


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
        most = episodes or EPISODES
        while self.episodes < most and self.best.partitioned < good_enough and not deadline.passed:
            number = min(ROUND, most - self.episodes)
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
