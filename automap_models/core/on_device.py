"""A profile whose times are of one kind of device, on a cluster that is made of another.

A mixed cluster has a speed for each kind (`Cluster.relative_to`). A uniform one has none: the profile itself is scaled,
by the time that both kinds take for a micro-batch by the clock. So both kinds of clusters agree:

    V100's profile     on A100, A100            times of A100
                       on A100, A100, V100      times of V100, and A100 as much faster
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import origin_of
from automap_models.core.profile import Profile, require_magnitudes

_SCALED = "scaled_from"


def clock_factor(profile: Profile, cluster: Cluster) -> float:
    """Time of the devices of a uniform cluster over that of the profile's; 1 where either kind is not known."""
    of_kinds = profile.roofline_s
    if cluster.groups or not {cluster.device, profile.device} <= set(of_kinds):
        return 1.0
    return of_kinds[cluster.device] / of_kinds[profile.device]


def on_device(profile: Profile, device: str, factor: float) -> Profile:
    """The profile on another kind of device, which takes so many times its times.

    Raises:
        BadInput: times get larger or smaller than any model's.
    """
    arrays = {"C": factor * profile.C, "C_fwd": factor * profile.C_fwd}
    require_magnitudes(arrays, f"the profile on {device}")
    for array in arrays.values():
        array.setflags(write=False)
    meta = {**profile.meta, **origin_of(profile), "device": device, _SCALED: [profile.device, factor]}
    scaled: Mapping[str, Any] = arrays
    return replace(profile, **scaled, meta=meta)


def device_notes(profile: Profile, cluster: Cluster) -> Iterator[str]:
    """Whose times a plan has, where that is not what the cluster says.

    Args:
        profile: as planned.
    """
    scaled, profiled = profile.meta.get(_SCALED), profile.device
    if isinstance(scaled, list):
        origin, factor = scaled
        yield f"times of {origin} are scaled to {cluster.device} by the clock: {factor:.3g} of them"
    elif not profiled or cluster.groups:
        return
    elif not cluster.device:
        yield f"cluster {cluster.name} does not say its `device`: taken for the profile's, {profiled}"
