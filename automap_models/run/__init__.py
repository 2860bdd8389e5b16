"""Plans that run: stages on processes of torch, or on sub-meshes of JAX, in the order of a schedule.

    from automap_models.run import Pipeline

`Pipeline` is the object for one's own training loop; `automap-run` is the command. torch and jax are imported only by
the modules of their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from automap_models.run.torch_pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> object:
    if name != "Pipeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from automap_models.run.torch_pipeline import Pipeline

    return Pipeline
