"""Operator partitioning and auto data parallelism by a learning agent, as Auto-MAP does it (§3.2, §3.3)."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

from automap_models.core.sharding import CANDIDATES, ShardingProblem
from automap_models.errors import BadInput
from automap_models.planners.base import PlannerOptions
from automap_models.planners.sharding.rounds import Search, SearchPlanner


class ShardingAgentPlanner(SearchPlanner):
    """Learns on the one problem, then backtraces; see planners.sharding.search.

    Raises:
        BadInput: torch is not installed, or the options' `agent` is neither a shipped one nor a usable file.
    """

    name: ClassVar[str] = "agent"

    def __init__(self, options: PlannerOptions | None = None) -> None:
        super().__init__(options)
        if importlib.util.find_spec("torch") is None:
            raise BadInput(
                "the learning agent needs torch",
                where="--planner agent",
                do="pip install 'automap-models[torch]' or give --planner milp",
            )
        from automap_models.planners.sharding.config import read_search_config

        self._configs = {kind: read_search_config(self.options.agent, kind) for kind in CANDIDATES}

    def search(self, problem: ShardingProblem) -> Search:
        """The agent's, with the hyper-parameters for that kind of plan."""
        from automap_models.planners.sharding.search import AgentSearch

        return AgentSearch(problem, self._configs[problem.kind], self.options.seed, self.options.watch)
