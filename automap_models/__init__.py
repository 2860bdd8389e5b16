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
        PricedStrategy,
        export,
        infer,
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
    from automap_models.requests.strategies import StrategyResult
    from automap_models.workloads.source import read_model_work

__all__ = ["AutomapError", "BadInput", "Cluster", "Device", "Estimate", "ExploredResult", "Infeasible", "Outcome"]
__all__ += [
    "PlannedResult",
    "PricedStrategy",
    "Profile",
    "Result",
    "Runtime",
    "StagedPlan",
    "StagedProblem",
    "Strategy",
    "StrategyResult",
]
__all__ += ["export", "infer", "make_planner", "plan", "plan_batch", "plan_cost", "price", "profile"]
__all__ += ["read_cluster", "read_model_work", "read_plan", "read_profile", "run"]

_NAMES = {
    "api": "ExploredResult PlannedResult PricedStrategy export infer plan price profile read_plan run",
    "core.cluster": "Cluster",
    "core.device": "Device",
    "core.estimate": "Estimate",
    "core.profile": "Profile",
    "core.result": "Result",
    "core.staged": "StagedPlan StagedProblem",
    "core.strategy": "Strategy",
    "cost.layer_times": "Runtime",
    "cost.staged": "plan_cost",
    "errors": "AutomapError BadInput Infeasible",
    "formats.files": "read_profile",
    "formats.hardware_yaml": "read_cluster",
    "planners.registry": "make_planner",
    "planners.staged.batch": "Outcome plan_batch",
    "requests.strategies": "StrategyResult",
    "workloads.source": "read_model_work",
}
"""Module → the public names that it defines."""
_WHERE = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

for _name in ("export", "infer", "run"):  # a package takes its name here when it is first imported, and not again
    import_module(f"{__name__}.{_name}")
    del globals()[_name]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
