"""The work of a transformer by layers, traced once and kept in the cache; and what identifies a training step there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from automap_models.core.model_work import ModelWork
from automap_models.formats.atomic import Cache, fingerprint
from automap_models.formats.schema import read_bytes
from automap_models.version import __version__
from automap_models.workloads.source import Begin, Source, SourceKind, transformer

_TRACERS = ("jax", "flax", "optax", "torch")


def work_once(source: Source, cache: Cache, begin: Begin) -> ModelWork:
    """What a built-in transformer or that of a config.json costs, layer by layer.

    Raises:
        BadInput: it is neither, cannot be read, or its step cannot be traced.
    """
    model = transformer(source)
    key = f"work-{fingerprint({'step': built_step(source), 'versions': versions()})}"

    def traced() -> ModelWork:
        begin(f"tracing {source.what}")
        return model.work()

    return cache.once(key, ModelWork, traced)


def built_step(source: Source) -> Mapping[str, object]:
    """What identifies the training step of a built-in model, or of a config.json."""
    sizes = {**source.sizes, "dropout": source.dropout}
    if source.kind is SourceKind.CONFIG:  # its path names the model
        path = Path(source.what).resolve()
        return {"config": digest(read_bytes(path)), "names": path.parts[-2:], **sizes}
    return {"what": source.what, **sizes}


def versions() -> dict[str, str | None]:
    """Of everything that a trace depends on; None where it is not installed."""
    return {"automap": __version__, **{name: _version(name) for name in _TRACERS}}


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
