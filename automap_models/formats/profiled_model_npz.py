"""A profiled model with its shardings as one .npz archive: what the cache of the explorer keeps."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel, ShardedProfile
from automap_models.errors import BadInput
from automap_models.formats.npz import LARGEST_LABELS_BYTES, Archive, SharedDocument, shared_document
from automap_models.formats.schema import Count, Document, decode_json

_PROFILE = ("C", "A", "W", "C_fwd", "stash")
_LABELS = ("names", "layers")
_SHARDED = (
    "C",
    "C_fwd",
    "held",
    "W",
    "stash",
    "reduced_fwd",
    "reduced_bwd",
    "starts_fwd",
    "starts_bwd",
    "gradients",
    "shared_bytes",
)
"""All arrays of a ShardedProfile but A, which is the profile's."""


class ShardingDocument(Document):
    """What is no array in a ShardedProfile."""

    name: str
    degree: Count
    dims: dict[str, int]


class ModelDocument(Document):
    """What is no array in a ProfiledModel."""

    meta: dict[str, Any]
    shared_parameters: list[SharedDocument]
    shardings: list[ShardingDocument]
    launch_s: float
    batch_dims: dict[str, int] | None
    notes: list[str]


def model_to_npz(model: ProfiledModel) -> bytes:
    """The archive; equal models give equal bytes."""
    profile = model.profile
    arrays: dict[str, Any] = {key: getattr(profile, key) for key in _PROFILE}
    arrays |= {key: np.array(getattr(profile, key), dtype=np.str_) for key in _LABELS if getattr(profile, key)}
    for i, sharding in enumerate(model.shardings):
        arrays |= {f"{i}/{key}": getattr(sharding, key) for key in _SHARDED}
    document = {
        "meta": dict(profile.meta),
        "shared_parameters": shared_document(profile),
        "shardings": [{"name": p.name, "degree": p.degree, "dims": dict(p.dims)} for p in model.shardings],
        "launch_s": model.launch_s,
        "batch_dims": None if model.batch_dims is None else dict(model.batch_dims),
        "notes": list(model.notes),
    }
    arrays["document"] = np.array(json.dumps(document, sort_keys=True, allow_nan=False))
    archive = io.BytesIO()
    np.savez_compressed(archive, **arrays)
    return archive.getvalue()


def model_from_npz(content: bytes) -> ProfiledModel:
    """The model in an archive of `model_to_npz`; nothing in it is ever unpickled.

    Raises:
        BadInput: it is something else.
    """
    where = "cache"
    with Archive(io.BytesIO(content), where) as archive:
        arrays: dict[str, Any] = {name: archive.read(name, LARGEST_LABELS_BYTES) for name in archive.names}
    try:
        document = decode_json(str(arrays["document"]).encode(), ModelDocument, where=where)
        profile = Profile.create(
            **{key: arrays[key] for key in _PROFILE},
            **{key: arrays[key].tolist() for key in _LABELS if key in arrays},
            meta=document.meta,
            shared_parameters=[entry.parameter() for entry in document.shared_parameters],
        )
        shardings = tuple(
            ShardedProfile(
                sharding.name,
                sharding.degree,
                A=profile.A,
                **{key: arrays[f"{i}/{key}"] for key in _SHARDED},
                dims=sharding.dims,
            )
            for i, sharding in enumerate(document.shardings)
        )
        return ProfiledModel(profile, shardings, document.launch_s, document.batch_dims, tuple(document.notes))
    except BadInput:
        raise
    except Exception as error:  # arrays of other shapes fail wherever they meet
        raise BadInput("is no profiled model of this version", where=where) from error
