"""automap: from a profiled training step and a cluster to the best way of training the one on the other.

Importing this package imports nothing but the standard library: what it offers is imported when first used, and torch,
onnxruntime, hydra and lightning only inside the modules that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from automap_models.version import __version__ as __version__

if TYPE_CHECKING:
    from automap_models.api import ExploredResult as ExploredResult
    from automap_models.api import PlannedResult as PlannedResult
    from automap_models.api import PricedStrategy as PricedStrategy
    from automap_models.api import doctor as doctor
    from automap_models.api import export as export
    from automap_models.api import fit as fit
    from automap_models.api import infer as infer
    from automap_models.api import plan as plan
    from automap_models.api import price as price
    from automap_models.api import profile as profile
    from automap_models.api import read_plan as read_plan
    from automap_models.api import run as run
    from automap_models.core.cluster import Cluster as Cluster
    from automap_models.core.device import Device as Device
    from automap_models.core.estimate import Estimate as Estimate
    from automap_models.core.profile import Profile as Profile
    from automap_models.core.result import Result as Result
    from automap_models.core.staged import StagedPlan as StagedPlan
    from automap_models.core.staged import StagedProblem as StagedProblem
    from automap_models.core.strategy import Strategy as Strategy
    from automap_models.cost.runtime import Runtime as Runtime
    from automap_models.cost.staged import plan_cost as plan_cost
    from automap_models.errors import AutomapError as AutomapError
    from automap_models.errors import BadInput as BadInput
    from automap_models.errors import Infeasible as Infeasible
    from automap_models.formats.files import read_profile as read_profile
    from automap_models.formats.hardware_yaml import read_cluster as read_cluster
    from automap_models.planners.registry import make_planner as make_planner
    from automap_models.planners.staged.batch import Outcome as Outcome
    from automap_models.planners.staged.batch import plan_batch as plan_batch
    from automap_models.requests.doctor import DoctorResult as DoctorResult
    from automap_models.requests.fit import FitResult as FitResult
    from automap_models.requests.strategies import StrategyResult as StrategyResult
    from automap_models.workloads.source import read_model_work as read_model_work

_NAMES = {
    "api": "ExploredResult PlannedResult PricedStrategy doctor export fit infer plan price profile read_plan run",
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
    "requests.doctor": "DoctorResult",
    "requests.fit": "FitResult",
    "requests.strategies": "StrategyResult",
    "workloads.source": "read_model_work",
}
"""Module → the public names that it defines."""
_WHERE = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_WHERE)

for _name in ("export", "infer", "run"):  # a package takes its name here when it is first imported, and not again
    import_module(f"{__name__}.{_name}")
    del globals()[_name]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
