"""Plans that run: stages on processes of torch, or on sub-meshes of JAX, in the order of a schedule.

    from automap_models.run import Pipeline

`Pipeline` is the object for one's own training loop; `automap run` is the command. torch and jax are imported only by
the modules of their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

if TYPE_CHECKING:
    from types import ModuleType

    from automap_models.run.torch_pipeline import Pipeline

__all__ = ["BACKENDS", "Pipeline", "make_backend"]

BACKENDS: Mapping[str, str] = {
    "torch": "automap_models.run.torch_backend",
    "jax": "automap_models.run.jax_backend",
}
"""Framework that runs plans → the module whose `run` does (run.base)."""


def __getattr__(name: str) -> object:
    if name != "Pipeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from automap_models.run.torch_pipeline import Pipeline

    return Pipeline


def make_backend(name: str) -> ModuleType:
    """The backend of that name.

    Raises:
        BadInput: there is none, or its framework is not installed.
    """
    if name not in BACKENDS:
        raise BadInput(f"no backend {name!r}", where="`backend`", do=f"choose from {', '.join(BACKENDS)}")
    try:
        return import_module(BACKENDS[name])
    except ModuleNotFoundError as error:
        if error.name not in BACKENDS:
            raise
        do = f"pip install 'automap-models[{error.name}]'"
        raise BadInput(f"needs {error.name}, which is not installed", where=f"backend {name}", do=do) from error
