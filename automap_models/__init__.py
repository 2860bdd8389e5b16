"""automap: from a profiled training step and a cluster to the best way of training the one on the other.

Importing this package imports nothing but the standard library: what it offers is imported when first used, and torch,
onnxruntime, hydra and lightning only inside the modules that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from automap_models.version import __version__ as __version__

if TYPE_CHECKING:
    from automap_models.api import (
        ExploredResult,
        PlannedResult,
        StrategyResult,
        export,
        plan,
        price,
        profile,
        read_plan,
        run,
    )
    from automap_models.core.cluster import Cluster
    from automap_models.core.device import Device
    from automap_models.core.estimate import Estimate
    from automap_models.core.profile import Profile
    from automap_models.core.result import Result
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.core.strategy import Strategy
    from automap_models.cost.layer_times import Runtime
    from automap_models.cost.staged import plan_cost
    from automap_models.errors import AutomapError, BadInput, Infeasible
    from automap_models.formats.files import read_profile
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.planners.registry import make_planner
    from automap_models.planners.staged.batch import Outcome, plan_batch
    from automap_models.workloads.source import read_model_work

__all__ = [
    "AutomapError",
    "BadInput",
    "Cluster",
    "Device",
    "Estimate",
    "ExploredResult",
    "Infeasible",
    "Outcome",
    "PlannedResult",
    "Profile",
    "Result",
    "Runtime",
    "StagedPlan",
    "StagedProblem",
    "Strategy",
    "StrategyResult",
    "export",
    "make_planner",
    "plan",
    "plan_batch",
    "plan_cost",
    "price",
    "profile",
    "read_cluster",
    "read_model_work",
    "read_plan",
    "read_profile",
    "run",
]

_WHERE = {
    "AutomapError": "automap_models.errors",
    "BadInput": "automap_models.errors",
    "Cluster": "automap_models.core.cluster",
    "Device": "automap_models.core.device",
    "Estimate": "automap_models.core.estimate",
    "ExploredResult": "automap_models.api",
    "Infeasible": "automap_models.errors",
    "Outcome": "automap_models.planners.staged.batch",
    "PlannedResult": "automap_models.api",
    "Profile": "automap_models.core.profile",
    "Result": "automap_models.core.result",
    "Runtime": "automap_models.cost.layer_times",
    "StagedPlan": "automap_models.core.staged",
    "StagedProblem": "automap_models.core.staged",
    "Strategy": "automap_models.core.strategy",
    "StrategyResult": "automap_models.api",
    "export": "automap_models.api",
    "make_planner": "automap_models.planners.registry",
    "plan": "automap_models.api",
    "plan_batch": "automap_models.planners.staged.batch",
    "plan_cost": "automap_models.cost.staged",
    "price": "automap_models.api",
    "profile": "automap_models.api",
    "read_cluster": "automap_models.formats.hardware_yaml",
    "read_model_work": "automap_models.workloads.source",
    "read_plan": "automap_models.api",
    "read_profile": "automap_models.formats.files",
    "run": "automap_models.api",
}
"""Public name → the module that defines it."""


for _name in ("export", "run"):  # a package takes its name here when it is first imported; from then on it is free
    import_module(f"{__name__}.{_name}")
    del globals()[_name]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
