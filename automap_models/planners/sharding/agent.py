"""Operator partitioning and auto data parallelism by a learning agent, as Auto-MAP does it (§3.2, §3.3)."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from automap_models.core.sharding import CANDIDATES, ShardingProblem
from automap_models.errors import BadInput
from automap_models.planners.base import Watch
from automap_models.planners.sharding.episodes import EpisodesConfig, EpisodesPlanner, Search


@dataclass(frozen=True)
class ShardingAgentConfig(EpisodesConfig):
    """How the agent learns.

    Attributes:
        agent: its hyper-parameters: a shipped configuration (conf/search) or a file like it.
    """

    agent: str | Path = "paper"


class ShardingAgentPlanner(EpisodesPlanner[ShardingAgentConfig]):
    """Learns on the one problem, then backtraces; see planners.sharding.search.

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
        from automap_models.planners.agent_yaml import read_search_config
        from automap_models.planners.sharding.search import AgentSearch

        self._search = AgentSearch
        self._configs = {kind: read_search_config(self.config.agent, kind) for kind in CANDIDATES}

    def search(self, problem: ShardingProblem, watch: Watch) -> Search:
        """The agent's, with the hyper-parameters for that kind of plan."""
        return self._search(problem, self._configs[problem.mesh[0].kind], self.config.seed, watch)
