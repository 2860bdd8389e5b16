"""What `--mesh 4` and `--mesh data=2,model=4` mean on a cluster."""

from __future__ import annotations

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import AXES, Mesh, MeshAxis, PlanKind
from automap_models.errors import BadInput

from .arguments import MeshSizes


def mesh_of(given: int | MeshSizes | None, kind: PlanKind, cluster: Cluster) -> Mesh:
    """The mesh that was asked for; by default one axis of all the cluster's devices."""
    if isinstance(given, tuple):
        return tuple(MeshAxis(name, size) for name, size in given)
    (name,) = (name for name, of in AXES.items() if of == kind)
    return (MeshAxis(name, given or cluster.devices),)


def one_axis(given: int | MeshSizes | None, kind: PlanKind, cluster: Cluster) -> Mesh:
    """The mesh of the one axis of a plan that is made by counting.

    Raises:
        BadInput: two axes, or the other one.
    """
    mesh = mesh_of(given, kind, cluster)
    if [axis.kind for axis in mesh] != [kind]:
        (name,) = (name for name, of in AXES.items() if of == kind)
        raise BadInput("variables are counted along one axis", where="--mesh", do=f"give {name}=N, or --objective time")
    return mesh
