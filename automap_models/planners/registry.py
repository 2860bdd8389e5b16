"""All planners by name, imported only when asked for."""

from __future__ import annotations

from importlib import import_module

from automap_models.errors import BadInput
from automap_models.planners.base import Planner, PlannerOptions

PLANNERS: dict[str, str] = {
    "policy": "automap_models.planners.policy:PolicyPlanner",
    "exact": "automap_models.planners.exact:ExactPlanner",
    "uniform": "automap_models.planners.baselines:UniformPlanner",
    "data-parallel": "automap_models.planners.baselines:DataParallelPlanner",
    "auto": "automap_models.planners.auto:AutoPlanner",
}
"""Planner name → module:class."""


def make_planner(name: str, options: PlannerOptions | None = None) -> Planner:
    """The planner of that name.

    Raises:
        BadInput: an unknown name; the known ones are listed.
    """
    if name not in PLANNERS:
        raise BadInput(f"unknown planner {name!r}", where="--planner", do=f"choose from {', '.join(PLANNERS)}")
    module, _, attribute = PLANNERS[name].partition(":")
    planner: type[Planner] = getattr(import_module(module), attribute)
    return planner(options)
