"""Auto-MAP's search for a sharding plan: a Rainbow agent learns on the one problem, then backtraces (§3.2, §3.3).

First stage: rounds of episodes, one of them greedy, the others ε-greedy, and learner iterations after each. The
strategy is stable once neither the best plan nor the greedy one has become better for `patience` episodes. Second
stage: each class that the best plan replicates although it could be sharded is sharded, whatever excludes it is
undone, and the agent decides the rest again; and so on for as long as the plan becomes better.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch._dynamo  # torch's first optimiser imports it, which takes a second: pay for it before any deadline runs
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.sharding import ShardingProblem
from automap_models.envs.sharding.env import Decided, ShardingTables
from automap_models.envs.sharding.propagation import PARTITIONED, REPLICATED, UNDECIDED
from automap_models.planners.agent_yaml import SearchDocument
from automap_models.planners.base import NEVER, SILENT, Deadline, Progress, Watch
from automap_models.rl.decisions import DecisionLearner, Moment, ShardingAgent, ShardingQNetwork
from automap_models.rl.learner import one_thread


class Round(NamedTuple):
    """A round of episodes, as it stands in a result's search log and as a watcher receives it.

    Attributes:
        stage: 1 while the search explores, 2 while it backtraces.
        episodes: played so far, these included.
        epsilon: share of exploratory decisions; 0 where the agent only follows its policy.
        greedy: score of the episode that followed the policy alone; None where none did.
        scores: of all episodes of the round in their order: candidates that the plan of each partitions.
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


class AgentSearch:
    """A search that can be interrupted between any two instructions and run on; deterministic but for that.

    It keeps the best plan as the optimum is defined: most candidates, of equally many most bytes.

    Args:
        problem: to search for a plan of; its mesh has one axis and its objective is the count.

    Attributes:
        episodes, decisions: numbers of those played and taken.
    """

    def __init__(self, problem: ShardingProblem, config: SearchDocument, seed: int, watch: Watch = SILENT) -> None:
        self.config, self.watch = config, watch
        (along,), kind = problem.along, problem.mesh[0].kind
        self._weights = np.stack([along.weights.astype(np.float64), along.weights_bytes], axis=1)
        self.best = Best(0.0, 0.0, np.zeros(len(problem.classes), dtype=np.bool_))
        self.rounds: list[Round] = []
        self.episodes = self.decisions = 0
        self.tables = ShardingTables.from_problem(problem, linkage_groups=config.of_kind(kind).linkage_groups)
        seeds = [int(drawn) for drawn in np.random.SeedSequence(seed).generate_state(3)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds[0])
            online = ShardingQNetwork(len(self.tables.order), config.hidden, config.layers)
        target = copy.deepcopy(online).requires_grad_(False)
        self.agent = ShardingAgent(self.tables, online, target, config.agent_config(kind))
        self.generator = torch.Generator().manual_seed(seeds[1])
        self.learner = DecisionLearner(self.agent, config.learner.config(), np.random.default_rng(seeds[2]))
        self._patience = config.patience
        self._best_greedy = -1

    def run(self, episodes: int | None = None, good_enough: float = float("inf"), deadline: Deadline = NEVER) -> None:
        """Search in both stages; after an interruption, go on.

        Args:
            episodes: after which the first stage ends, stable or not; None is as many as it takes.
            good_enough: the search ends with the first plan that partitions as many candidates.
        """
        most = float("inf") if episodes is None else episodes
        with one_thread():
            while self._patience > 0 and self.episodes < most and self._goes_on(good_enough, deadline):
                self._learn_from_a_round(deadline)
            while self._goes_on(good_enough, deadline) and self._backtrace(deadline):
                pass

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
        self.watch(Progress(what, self.episodes))

    def _goes_on(self, good_enough: float, deadline: Deadline) -> bool:
        return self.best.partitioned < good_enough and not deadline.passed

    def _learn_from_a_round(self, deadline: Deadline) -> None:
        before, exploring = self.best, self.agent.config.epsilon(self.decisions)
        epsilon = torch.full((self.config.round,), exploring)
        epsilon[0] = 0.0
        start = self.tables.reset(self.config.round)
        moments, scores = self._play(start, epsilon, deadline)
        better = self.best is not before or scores[0] > self._best_greedy
        self._best_greedy = max(self._best_greedy, scores[0])
        self._patience = self.config.patience if better else self._patience - self.config.round
        if not deadline.passed:
            self.learner.remember(moments)
        for _ in range(self.config.learner.iterations):
            if deadline.passed:
                break
            self.learner.learn()
        self.record(1, exploring, scores[0], scores)

    def _backtrace(self, deadline: Deadline) -> bool:
        """Whether sharding a class that the best plan replicates, all such classes tried, makes it better."""
        before, excludes = self.best, self.tables.excludes
        chosen = torch.from_numpy(before.sharded)
        flipped = (self.tables.live & (self.tables.sizes > 0) & ~chosen).nonzero().squeeze(1)
        if not len(flipped):
            return False
        sharded = (chosen & ~excludes[flipped]).scatter(1, flipped.unsqueeze(1), True)
        replicated = (sharded.float() @ excludes.float()) > 0
        classes = torch.where(sharded, PARTITIONED, torch.where(replicated, REPLICATED, UNDECIDED)).to(torch.int8)
        _, scores = self._play(self.tables.start(classes), 0.0, deadline)
        self.record(2, 0.0, None, scores)
        return self.best is not before

    def _play(self, start: Decided, epsilon: float | Tensor, deadline: Deadline) -> tuple[list[Moment], list[int]]:
        """Episodes from their start to their end or to the deadline, and the scores of their plans.

        An episode that is cut off leaves a legal plan: what it has not decided is replicated.
        """
        moments, classes = [], start.classes.clone()
        for moment in self.agent.play(start, epsilon, self.generator):
            moments.append(moment)
            classes[moment.rows] = moment.s_t.classes
            self.decisions += len(moment.rows)
            if deadline.passed:
                break
        return moments, self.rate((classes == PARTITIONED).numpy())
