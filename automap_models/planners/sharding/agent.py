"""Operator partitioning and auto data parallelism by a learning agent, as Auto-MAP does it (§3.2, §3.3)."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from automap_models.core.result import Result
from automap_models.core.sharding import UNUSED, ShardingPlan, ShardingProblem
from automap_models.errors import BadInput
from automap_models.planners.base import NEVER, SILENT, Deadline, Planner, Watch
from automap_models.planners.sharding.milp import ShardingMilpPlanner, evaluated


@dataclass(frozen=True)
class ShardingAgentConfig:
    """How the agent learns.

    Attributes:
        episodes: to play at most; None is as many as the search takes by itself.
        stop_at_optimum: whether the search ends with the first plan that is proven to be as good as any.
        agent: its hyper-parameters: a shipped configuration (conf/search) or a file like it.
    """

    seed: int = 0
    episodes: int | None = None
    stop_at_optimum: bool = False
    agent: str | Path = "paper"


class ShardingAgentPlanner(Planner[ShardingProblem, ShardingPlan, ShardingAgentConfig]):
    """Learns on the one problem, then backtraces; see planners.sharding.search.

    The optimum is proven before the search begins and is the result's bound. The search itself uses it only with
    `stop_at_optimum`. The facts of the result are `episodes`, `interrupted` (whether Ctrl-C or the deadline cut the
    search off) and `seed`.

    Raises:
        BadInput: torch is not installed, or the configuration's `agent` is neither a shipped one nor a usable file.
    """

    name: ClassVar[str] = "agent"
    config_type = ShardingAgentConfig

    def __init__(self, config: ShardingAgentConfig | None = None) -> None:
        super().__init__(config)
        if importlib.util.find_spec("torch") is None:
            raise BadInput(
                "the learning agent needs torch",
                where="`planner='agent'`",
                do="pip install 'automap-models[torch]' or give `planner='milp'`",
            )
        from automap_models.planners.agent_yaml import read_search_agent
        from automap_models.planners.sharding.search import AgentSearch

        self._search = AgentSearch
        self._document = read_search_agent(self.config.agent)
        self._prover = ShardingMilpPlanner()

    def solve(
        self, problem: ShardingProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT
    ) -> Result[ShardingProblem, ShardingPlan]:
        """See Planner.solve; after Ctrl-C the best plan until then.

        Raises:
            BadInput: the objective is not the count, or the mesh has several axes.
        """
        _require_one_counted_axis(problem)
        begun, seed = time.perf_counter(), self.config.seed
        proof = self._prover.solve(problem, deadline=deadline.part(deadline.remaining_s / 4))
        assert proof.bound is not None
        good_enough = proof.bound.value if self.config.stop_at_optimum else float("inf")
        search = self._search(problem, self._document, seed, watch)
        try:
            search.run(self.config.episodes, good_enough, deadline)
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


def _require_one_counted_axis(problem: ShardingProblem) -> None:
    where, do = "`planner='agent'`", "give `planner='milp'`"
    if problem.objective != "count":
        raise BadInput(f"counts variables, and cannot plan for the least {problem.objective}", where=where, do=do)
    if len(problem.mesh) > 1:
        raise BadInput("decides along one axis, not along two", where=where, do=do)
