"""All planners by kind and name, imported only when asked for."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

from automap_models.errors import BadInput
from automap_models.planners.base import Planner, config_of

if TYPE_CHECKING:
    from automap_models.core.observed import PlacedPlan, ReplanProblem
    from automap_models.core.placement import PlacementPlan, PlacementProblem
    from automap_models.core.sharding import ShardingPlan, ShardingProblem
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.core.strategy import Strategy
    from automap_models.planners.strategies.problem import StrategyProblem

PLANNERS: dict[str, dict[str, str]] = {
    "staged": {
        "policy": "automap_models.planners.staged.policy:PolicyPlanner",
        "tables": "automap_models.planners.staged.search:TablesPlanner",
        "exact": "automap_models.planners.staged.search:ExactPlanner",
        "uniform": "automap_models.planners.staged.baselines:UniformPlanner",
        "data-parallel": "automap_models.planners.staged.baselines:DataParallelPlanner",
        "auto": "automap_models.planners.portfolio.auto:AutoPlanner",
        "explore": "automap_models.planners.portfolio.explore:ExplorePlanner",
        "online": "automap_models.planners.online.planner:OnlinePlanner",
    },
    "placement": {
        "ideals": "automap_models.planners.placement.ideals:IdealsPlanner",
        "milp": "automap_models.planners.placement.milp:MilpPlanner",
        "metis": "automap_models.planners.placement.step_search:MetisPlanner",
        "local-search": "automap_models.planners.placement.local_search:LocalSearchPlanner",
        "expert": "automap_models.planners.placement.expert:ExpertPlanner",
        "m-etf": "automap_models.planners.placement.list_scheduling:EtfPlanner",
        "learned": "automap_models.planners.placement.learned:LearnedPlanner",
    },
    "sharding": {
        "agent": "automap_models.planners.sharding.agent:ShardingAgentPlanner",
        "milp": "automap_models.planners.sharding.milp:ShardingMilpPlanner",
    },
    "strategy": {
        "strategies": "automap_models.planners.strategies.planner:StrategiesPlanner",
    },
    "replan": {
        "replan": "automap_models.planners.replan.replan:ReplanPlanner",
    },
}
"""Kind of problem → planner name → module:class."""


@overload
def make_planner(
    name: str, kind: Literal["staged"] = "staged", **config: Any
) -> Planner[StagedProblem, StagedPlan, Any]: ...


@overload
def make_planner(
    name: str, *, kind: Literal["placement"], **config: Any
) -> Planner[PlacementProblem, PlacementPlan, Any]: ...


@overload
def make_planner(
    name: str, *, kind: Literal["sharding"], **config: Any
) -> Planner[ShardingProblem, ShardingPlan, Any]: ...


@overload
def make_planner(name: str, *, kind: Literal["strategy"], **config: Any) -> Planner[StrategyProblem, Strategy, Any]: ...


@overload
def make_planner(name: str, *, kind: Literal["replan"], **config: Any) -> Planner[ReplanProblem, PlacedPlan, Any]: ...


def make_planner(name: str, kind: str = "staged", **config: Any) -> Planner[Any, Any, Any]:
    """The planner of that name for problems of that kind.

    Args:
        name: see `planner_names`.
        kind: of problem.
        config: options of the planner's own configuration, by name.

    Raises:
        BadInput: an unknown name, or an option that the planner does not have; the known ones are listed.
    """
    registered = PLANNERS[kind]
    if name not in registered:
        raise BadInput(f"unknown planner {name!r}", where="`planner`", do=f"choose from {', '.join(registered)}")
    module, _, attribute = registered[name].partition(":")
    planner: type[Planner[Any, Any, Any]] = getattr(import_module(module), attribute)
    return planner(config_of(planner.config_type, f"planner {name}", **config))


def config_names(name: str) -> frozenset[str]:
    """The options that the configuration of a planner of stages has."""
    module, _, attribute = PLANNERS["staged"][name].partition(":")
    planner: type[Planner[Any, Any, Any]] = getattr(import_module(module), attribute)
    return frozenset(field.name for field in fields(planner.config_type))


def planner_names(kind: str) -> tuple[str, ...]:
    """Names of the planners for problems of that kind."""
    return tuple(PLANNERS[kind])
