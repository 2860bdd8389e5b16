"""The frameworks that run plans, by name; each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from automap_models.errors import BadInput
from automap_models.run.base import Backend

BACKENDS: Mapping[str, str] = {
    "torch": "automap_models.run.torch_backend:TorchBackend",
    "jax": "automap_models.run.jax_backend:JaxBackend",
}
"""Name → the class."""


def make_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        BadInput: there is none, or its framework is not installed.
    """
    if name not in BACKENDS:
        raise BadInput(f"no backend {name!r}", where="`backend`", do=f"choose from {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        backend: Backend = getattr(import_module(module), attribute)()
    except ModuleNotFoundError as error:
        if error.name not in BACKENDS:
            raise
        do = f"pip install 'automap-models[{error.name}]'"
        raise BadInput(f"needs {error.name}, which is not installed", where=f"backend {name}", do=do) from error
    return backend
