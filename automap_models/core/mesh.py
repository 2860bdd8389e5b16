"""Devices along named axes, the kinds of plans, two of which partition along an axis, and variables by their paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from automap_models.core.cluster import Cluster
from automap_models.core.sharding_classes import Variable
from automap_models.errors import BadInput

PlanKind = Literal["data", "operator", "pipeline", "hybrid"]
"""How a plan divides a training step: its inputs (auto data parallelism), its trainable parameters (operator
partitioning), its instructions in stages (pipeline), or several of these (hybrid)."""

AXES: dict[str, PlanKind] = {"data": "data", "model": "operator"}
"""Name of a mesh axis → the kind of plan made along it."""


class MeshAxis(NamedTuple):
    """An axis of a mesh: "data" partitions inputs, "model" trainable parameters."""

    name: str
    size: int

    @property
    def kind(self) -> PlanKind:
        """The kind of plan made along it."""
        return AXES[self.name]


Mesh = tuple[MeshAxis, ...]
"""One or two axes; devices are numbered along the last one first."""


def check_mesh(mesh: Sequence[MeshAxis], cluster: Cluster) -> Mesh:
    """The mesh itself if the cluster has the devices for it.

    Raises:
        BadInput: no axis or more than two, an unknown name, a name twice, an axis of fewer than two devices, or more
            devices than the cluster has.
    """
    where = "`mesh`"
    names = [axis.name for axis in mesh]
    if not 1 <= len(mesh) <= len(AXES) or len(set(names)) < len(names) or not set(names) <= set(AXES):
        what = mesh_text(mesh) or "no axis"
        raise BadInput(what, where=where, do="name each axis once: data=2,model=4, or either alone")
    devices = math.prod(axis.size for axis in mesh)
    for axis in mesh:
        if axis.size < 2:
            what = f"{axis.size} device(s) along the axis {axis.name}"
            raise BadInput(what, where=where, do=f"give 2 to {cluster.devices}")
    if devices > cluster.devices:
        what = f"{devices} devices, cluster {cluster.name} has {cluster.devices}"
        raise BadInput(what, where=where, do=f"give 2 to {cluster.devices} in all")
    return tuple(mesh)


def mesh_text(mesh: Sequence[MeshAxis]) -> str:
    """`data=2, model=4`, as people write a mesh."""
    return ", ".join(f"{axis.name}={axis.size}" for axis in mesh)


def path_ends(dims: Mapping[Variable, int]) -> dict[str, list[tuple[int, Variable, int]]]:
    """Each end of a variable's path (`block/kernel` of `params/block/kernel`) → how much is left out, it, its dim."""
    ends: dict[str, list[tuple[int, Variable, int]]] = {}
    for variable, dim in dims.items():
        keys = variable.name.split("/")
        for omitted in range(len(keys)):
            ends.setdefault("/".join(keys[omitted:]), []).append((omitted, variable, dim))
    return ends


def dim_at(ends: dict[str, list[tuple[int, Variable, int]]], path: str, shape: tuple[int, ...]) -> int:
    """The partitioned dimension of the variable whose path ends like this with the least left out.

    A parameter therefore comes before the moments under its name. A key that repeats the one before it is left out,
    as in the names of variables.

    Raises:
        BadInput: there is none, there are two, or it has another shape.
    """
    name = "/".join(key for key, _ in groupby(path.split("/")))
    matches = sorted(ends.get(name, []), key=lambda end: end[0])
    if not matches:
        raise BadInput("is none of the plan's variables", where=path, do="give the pytree that the plan was made for")
    if len(matches) > 1 and matches[0][0] == matches[1][0]:
        what = f"may be {matches[0][1].name} or {matches[1][1].name}"
        raise BadInput(what, where=path, do="give the arguments with their whole paths")
    _, variable, dim = matches[0]
    if variable.shape != shape:
        what = f"has the shape {list(shape)}, the plan's variable {list(variable.shape)}"
        raise BadInput(what, where=path, do="plan again for this model")
    return dim
