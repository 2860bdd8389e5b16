"""JAX: a Python module with a mesh for each stage, and the PartitionSpec of every parameter and other argument.

A sharding plan has one stage. Of a staged plan stage s runs on its own devices, d replicas of t:

    devices   0 1 2 3 │ 4 5 6 7          mesh of stage 1   data ↓ model →   4 5
                stage 0    stage 1                                          6 7

Arguments go by their paths in a pytree, as `jax.tree_util.keystr(path, simple=True, separator="/")` writes them. A path
may leave out the beginning of a name (`block/kernel` of `params/block/kernel`). Written for JAX 0.10.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from automap_models.core.profiled_model import UNSHARDED
from automap_models.core.sharding_classes import REPLICATED
from automap_models.errors import BadInput
from automap_models.export.target import Source, Target, Written, parser_module, require_same
from automap_models.resources import template

NAME = "jax"
DISTRIBUTION = "jax"


class _Stage(NamedTuple):
    """A stage: its first device, the axes of its mesh, and the name of its specs."""

    first: int
    axes: Mapping[str, int]
    specs: str


Specs = dict[str, tuple[str | None, ...]]
"""Argument → the axis of each of its dimensions, without those behind the last that is partitioned."""


def write(source: Source, path: Path) -> Written:
    """The module."""
    stages, specs = _parts(source)
    written = "{\n"
    for name, of_arguments in specs.items():
        lines = [f"        {argument!r}: P({', '.join(map(repr, axes))}),\n" for argument, axes in of_arguments.items()]
        written += f"    {name!r}: {{\n{''.join(lines)}    }},\n"
    listed = "[\n" + "".join(f"    {tuple(stage)!r},\n" for stage in stages) + "]"
    default = source.plan.sharding is None
    return Written(template("jax").format(model=source.name, stages=listed, specs=f"{written}}}", default=default))


def _parts(source: Source) -> tuple[list[_Stage], dict[str, Specs]]:
    """The stages, and what their arguments' specs are."""
    plan = source.plan.sharding
    if plan is not None:
        along = {axis.name: plan.by_variable(a) for a, axis in enumerate(plan.mesh)}
        specs = {
            variable.name: _axes({name: dims[variable] for name, dims in along.items()}) for variable in plan.variables
        }
        return [_Stage(0, {axis.name: int(axis.size) for axis in plan.mesh}, "plan")], {"plan": specs}
    return _staged_parts(source)


def _staged_parts(source: Source) -> tuple[list[_Stage], dict[str, Specs]]:
    """Of a staged plan: replicas along `data`, devices that share operators along `model`."""
    source.require_result(NAME)
    assert source.model is not None
    inputs = dict(source.model.batch_dims or {})
    stages, specs = [], {}
    for stage in source.plan.stages:
        sharding, sharded = stage.sharding or UNSHARDED, source.plan.sharded_dims(stage)
        specs[sharding] = {
            name: _axes({"data": inputs.get(name, REPLICATED), "model": sharded.get(name, REPLICATED)})
            for name in {**sharded, **inputs}
        }
        stages.append(_Stage(stage.devices[0], {"data": stage.replicas, "model": stage.tensor}, sharding))
    return stages, specs


def _axes(dims: Mapping[str, int]) -> tuple[str | None, ...]:
    """The axis of each dimension.

    Raises:
        BadInput: two axes partition the same one.
    """
    axis_of = {dim: axis for axis, dim in dims.items() if dim != REPLICATED}
    if len(axis_of) < sum(dim != REPLICATED for dim in dims.values()):
        raise BadInput("two axes partition one dimension", where="plan", do="plan again")
    return tuple(axis_of.get(dim) for dim in range(1 + max(axis_of, default=-1)))


def check(source: Source, path: Path) -> None:
    """Python runs the module, and JAX takes its meshes and specs."""
    jax_sharding = parser_module("jax.sharding", DISTRIBUTION)
    read = runpy.run_path(str(path))
    stages, specs = _parts(source)
    require_same("stages", [tuple(stage) for stage in read["STAGES"]], [tuple(stage) for stage in stages])
    for index, stage in enumerate(stages):
        mesh = jax_sharding.AbstractMesh(tuple(stage.axes.values()), tuple(stage.axes))
        for argument, axes in specs[stage.specs].items():
            sharding = jax_sharding.NamedSharding(mesh, read["spec"](argument, index))
            require_same(argument, tuple(sharding.spec), axes)


TARGET = Target(NAME, DISTRIBUTION, ".py", ("sharding", "stages"), write, check)
