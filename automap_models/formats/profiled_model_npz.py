"""A profiled model with its partitionings as one .npz archive: what the cache of the explorer keeps."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.sharded_profile import ShardedProfile
from automap_models.errors import BadInput

_PROFILE = ("C", "A", "W", "C_fwd", "stash")
_LABELS = ("names", "layers")
_PARTITIONED = (
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
)
"""All arrays of a ShardedProfile but A, which is the profile's."""


def model_to_npz(model: ProfiledModel) -> bytes:
    """The archive; equal models give equal bytes."""
    profile = model.profile
    arrays: dict[str, Any] = {key: getattr(profile, key) for key in _PROFILE}
    arrays |= {key: np.array(getattr(profile, key), dtype=np.str_) for key in _LABELS if getattr(profile, key)}
    for i, each in enumerate(model.shardings):
        arrays |= {f"{i}/{key}": getattr(each, key) for key in _PARTITIONED}
    told = {
        "meta": dict(profile.meta),
        "partitionings": [{"name": p.name, "degree": p.degree, "dims": dict(p.dims)} for p in model.shardings],
        "launch_s": model.launch_s,
        "batch_dims": None if model.batch_dims is None else dict(model.batch_dims),
        "notes": list(model.notes),
    }
    arrays["told"] = np.array(json.dumps(told, sort_keys=True, allow_nan=False))
    archive = io.BytesIO()
    np.savez_compressed(archive, **arrays)
    return archive.getvalue()


def model_from_npz(archive: bytes) -> ProfiledModel:
    """The model in an archive of `model_to_npz`; nothing in it is ever unpickled.

    Raises:
        BadInput: it is something else.
    """
    try:
        with np.load(io.BytesIO(archive), allow_pickle=False) as loaded:
            arrays = {key: loaded[key] for key in loaded.files}
        told = json.loads(str(arrays["told"]))
        profile = Profile.create(
            **{key: arrays[key] for key in _PROFILE},
            **{key: arrays[key].tolist() for key in _LABELS if key in arrays},
            meta=told["meta"],
        )
        partitionings = tuple(
            ShardedProfile(
                str(each["name"]),
                int(each["degree"]),
                A=profile.A,
                **{key: arrays[f"{i}/{key}"] for key in _PARTITIONED},
                dims={str(name): int(dim) for name, dim in each["dims"].items()},
            )
            for i, each in enumerate(told["partitionings"])
        )
        return ProfiledModel(
            profile, partitionings, float(told["launch_s"]), told["batch_dims"], tuple(map(str, told["notes"]))
        )
    except BadInput:
        raise
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds on foreign data
        raise BadInput("is no profiled model of this version", where="cache") from error
