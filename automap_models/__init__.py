"""automap: from a profiled training step and a cluster to the best way of training the one on the other.

Importing this package imports nothing but the standard library: what it offers is imported when first used, and torch,
onnxruntime, hydra and lightning only inside the modules that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from automap_models.version import __version__ as __version__

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.profile import Profile
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.cost.staged import plan_cost
    from automap_models.errors import AutomapError, BadInput, Infeasible
    from automap_models.formats.files import read_profile
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.planners.registry import make_planner
    from automap_models.planners.staged.batch import Outcome, plan_batch

__all__ = [
    "AutomapError",
    "BadInput",
    "Cluster",
    "Infeasible",
    "Outcome",
    "Profile",
    "StagedPlan",
    "StagedProblem",
    "make_planner",
    "plan_batch",
    "plan_cost",
    "read_cluster",
    "read_profile",
]

_WHERE = {
    "AutomapError": "automap_models.errors",
    "BadInput": "automap_models.errors",
    "Cluster": "automap_models.core.cluster",
    "Infeasible": "automap_models.errors",
    "Outcome": "automap_models.planners.staged.batch",
    "Profile": "automap_models.core.profile",
    "StagedPlan": "automap_models.core.staged",
    "StagedProblem": "automap_models.core.staged",
    "make_planner": "automap_models.planners.registry",
    "plan_batch": "automap_models.planners.staged.batch",
    "plan_cost": "automap_models.cost.staged",
    "read_cluster": "automap_models.formats.hardware_yaml",
    "read_profile": "automap_models.formats.files",
}
"""Public name → the module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
