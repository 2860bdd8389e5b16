"""`--mesh 4` and `--mesh data=2,model=4`."""

from __future__ import annotations

import argparse
import re

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import AXES, Mesh, MeshAxis, PlanKind
from automap_models.errors import BadInput

from .arguments import LARGEST

_NAMED = re.compile(r"([a-z]+)=([1-9][0-9]*)", re.ASCII)


def mesh_argument(text: str) -> int | Mesh:
    """An argument's type: devices along the one axis, or named axes."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST:
        return int(text)
    found = [_NAMED.fullmatch(part) for part in text.split(",")]
    mesh = tuple(MeshAxis(match[1], int(match[2])) for match in found if match)
    named = {axis.name for axis in mesh}
    if len(mesh) < len(found) or len(named) < len(mesh) or not named <= set(AXES):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of devices nor axes such as data=2,model=4")
    if any(axis.size > LARGEST for axis in mesh):
        raise argparse.ArgumentTypeError(f"{text!r} has more than {LARGEST:,} devices")
    return mesh


def mesh_of(given: int | Mesh | None, kind: PlanKind, cluster: Cluster) -> Mesh:
    """The mesh that was asked for; by default one axis of all the cluster's devices."""
    if isinstance(given, tuple):
        return given
    (name,) = (name for name, of in AXES.items() if of == kind)
    return (MeshAxis(name, given or cluster.devices),)


def one_axis(given: int | Mesh | None, kind: PlanKind, cluster: Cluster) -> Mesh:
    """The mesh of the one axis of a plan that is made by counting.

    Raises:
        BadInput: two axes, or the other one.
    """
    mesh = mesh_of(given, kind, cluster)
    if [axis.kind for axis in mesh] != [kind]:
        (name,) = (name for name, of in AXES.items() if of == kind)
        raise BadInput("variables are counted along one axis", where="--mesh", do=f"give {name}=N, or --objective time")
    return mesh
