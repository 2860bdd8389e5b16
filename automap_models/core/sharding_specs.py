"""A sharding plan in the words of the frameworks that run it: JAX's PartitionSpec, PyTorch's placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from automap_models.core.sharding_classes import REPLICATED, Variable
from automap_models.errors import BadInput

Along = Sequence[tuple[str, Mapping[Variable, int]]]
"""For each mesh axis its name, and which dimension of each variable it partitions; axes partition different ones."""


def partition_specs(along: Along, params: Any) -> Any:
    """See ShardingPlan.partition_specs."""
    try:
        import jax
        from jax.sharding import PartitionSpec
    except ImportError as error:
        raise BadInput(
            f"partition specs need the jax extra ({error})", do="pip install 'automap-models[jax]'"
        ) from None
    ends = [(axis, _ends(dims)) for axis, dims in along]

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        axis_of_dim = {_dim(of_axis, name, tuple(leaf.shape)): axis for axis, of_axis in ends}
        return PartitionSpec(*(axis_of_dim.get(dim) for dim in range(1 + max(axis_of_dim))))  # type: ignore[no-untyped-call]

    return jax.tree_util.tree_map_with_path(spec, params)


def placements(along: Along) -> dict[str, list[Any]]:
    """See ShardingPlan.placements."""
    try:
        from torch.distributed.tensor import Replicate, Shard
    except ImportError as error:
        raise BadInput(
            f"DTensor placements need the torch extra ({error})", do="pip install 'automap-models[torch]'"
        ) from None
    dims_along = [dims for _, dims in along]
    return {
        variable.name: [Replicate() if dims[variable] == REPLICATED else Shard(dims[variable]) for dims in dims_along]
        for variable in dims_along[0]
    }


def _ends(dims: Mapping[Variable, int]) -> dict[str, list[tuple[int, Variable, int]]]:
    """Each end of a variable's path (`block/kernel` of `params/block/kernel`) → how much is left out, it, its dim."""
    ends: dict[str, list[tuple[int, Variable, int]]] = {}
    for variable, dim in dims.items():
        keys = variable.name.split("/")
        for left_out in range(len(keys)):
            ends.setdefault("/".join(keys[left_out:]), []).append((left_out, variable, dim))
    return ends


def _dim(ends: dict[str, list[tuple[int, Variable, int]]], path: str, shape: tuple[int, ...]) -> int:
    """The partitioned dimension of the variable whose path ends like this with the least left out.

    A parameter therefore comes before the moments under its name. A key that repeats the one before it is left out,
    as in the names of variables.
    """
    name = "/".join(key for key, _ in groupby(path.split("/")))
    matches = sorted(ends.get(name, []), key=lambda end: end[0])
    if not matches:
        raise BadInput("is none of the plan's variables", where=path, do="give the pytree that the plan was made for")
    if len(matches) > 1 and matches[0][0] == matches[1][0]:
        raise BadInput(
            f"may be {matches[0][1].name} or {matches[1][1].name}",
            where=path,
            do="give the arguments with their whole paths",
        )
    _, variable, dim = matches[0]
    if variable.shape != shape:
        raise BadInput(
            f"has the shape {list(shape)}, the plan's variable {list(variable.shape)}",
            where=path,
            do="plan again for this model",
        )
    return dim
