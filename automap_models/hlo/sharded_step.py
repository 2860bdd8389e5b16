"""A training step compiled and run by XLA with the shardings of a plan, to be held against one device and a price.

XLA makes as many devices out of a host as it is told before jax starts:
`XLA_FLAGS=--xla_force_host_platform_device_count=8`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from automap_models.core.sharding import Collectives
from automap_models.errors import BadInput
from automap_models.hlo.module import Tensor
from automap_models.hlo.random_keys import drawn_keys, is_key, is_typed_key, physical
from automap_models.hlo.step import TrainingStep

try:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ImportError as error:
    raise BadInput(f"running a step needs the jax extra ({error})", do="pip install 'automap-models[jax]'") from None

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
STATE = 1e-3
"""What all floating-point state holds: Adam's first update is then a smooth function of the gradient, and its first
moment shows the gradient."""

_INSTRUCTION = re.compile(rf"= (.*?) ({'|'.join(COLLECTIVES)})\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


@dataclass(frozen=True)
class Compiled:
    """A step compiled for a mesh, its shardings, and the collectives in it by XLA's word."""

    call: Any
    shardings: list[Any]
    communication: dict[str, Collectives] = field(default_factory=dict)


def partition_specs(axes: Sequence[str], dims: Sequence[Sequence[int]], leaves: int) -> list[PartitionSpec]:
    """The PartitionSpec of each leaf of a step's arguments; see `compile_step`.

    Raises:
        BadInput: the plan is for another number of them.
    """
    of_leaf = list(zip(*dims, strict=True))
    if len(of_leaf) != leaves:
        raise BadInput(f"the plan has {len(of_leaf)} arguments, the step {leaves}", do="plan again for this model")
    axis_of_dim = [dict(zip(of_axes, axes, strict=True)) for of_axes in of_leaf]
    return [PartitionSpec(*(axis.get(dim) for dim in range(1 + max(axis)))) for axis in axis_of_dim]  # type: ignore[no-untyped-call]


def compile_step(step: TrainingStep, sizes: Mapping[str, int], dims: Sequence[Sequence[int]]) -> Compiled:
    """The step with a plan's shardings of its arguments; where results go is left to XLA.

    Args:
        sizes: axis name → devices.
        dims: for each axis, the partitioned dimension of each leaf of the step's arguments, -1 for none.

    Raises:
        BadInput: there are fewer devices than the mesh has, or the plan is for other arguments.
    """
    count = int(np.prod([*sizes.values()]))
    if jax.device_count() < count:
        raise BadInput(f"{count} devices are needed, jax has {jax.device_count()}", where=step.name)
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(tuple(sizes.values())), tuple(sizes))
    leaves, structure = jax.tree.flatten(step.arguments)
    shardings = [NamedSharding(mesh, spec) for spec in partition_specs([*sizes], dims, len(leaves))]
    jitted = jax.jit(step.function, in_shardings=jax.tree.unflatten(structure, shardings), keep_unused=True)
    compiled = jitted.lower(*step.arguments).compile()
    return Compiled(compiled, shardings, communication(compiled.as_text() or ""))


def communication(hlo: str) -> dict[str, Collectives]:
    """The collectives in a compiled module's text, each counted once even in a loop."""
    number: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for shape, kind in _INSTRUCTION.findall(hlo):
        number[kind] += 1
        for dtype, sizes in _SHAPE.findall(shape):  # of `(f32[2,3], s32[])`
            array = Tensor(tuple(int(size) for size in sizes.split(",") if size), dtype.replace("pred", "i1"))
            nbytes[kind] += int(array.nbytes)
    return {kind: Collectives(number[kind], float(nbytes[kind])) for kind in sorted(number)}


def run(compiled: Compiled, step: TrainingStep, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The step's results on these arguments, whole, as leaves."""
    placed = [jax.device_put(value, sharding) for value, sharding in zip(values, compiled.shardings, strict=True)]
    given = jax.tree.unflatten(jax.tree.structure(step.arguments), placed)
    return [np.asarray(physical(leaf)) for leaf in jax.tree.leaves(compiled.call(*given))]


def on_one_device(step: TrainingStep, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Arguments drawn for a step, and its results on one device.

    Parameters are normal with variance 1/fan-in, inputs normal, floating-point state is STATE. Integers are drawn below
    the largest size of a parameter with which all results are finite, so that no index is out of range.

    Raises:
        BadInput: nothing like that gives finite results.
    """
    jitted = jax.jit(step.function, keep_unused=True)
    sizes = {size for leaf in jax.tree.leaves(step.arguments[step.trainable]) for size in leaf.shape}
    for largest in sorted(sizes | {2}, reverse=True):
        values = list(_drawn(step, seed, largest))
        given = jax.tree.unflatten(jax.tree.structure(step.arguments), values)
        results = [np.asarray(physical(leaf)) for leaf in jax.tree.leaves(jitted(*given))]
        if all(np.isfinite(result).all() for result in results if _floating(result)):
            return values, results
    raise BadInput("gives no finite results on random arguments", where=step.name, do="leave out `verify`")


def differences(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> tuple[float, float]:
    """Largest relative difference among scalars (the loss), and among arrays (in the Euclidean norm)."""
    scalars, arrays = [0.0], [0.0]
    for result, right in zip(results, expected, strict=True):
        if _floating(right):
            result64, right64 = result.astype(np.float64), right.astype(np.float64)
            scale = float(np.linalg.norm(right64.ravel())) or 1.0
            (arrays if right.ndim else scalars).append(float(np.linalg.norm((result64 - right64).ravel())) / scale)
    return max(scalars), max(arrays)


def _drawn(step: TrainingStep, seed: int, largest: int) -> Iterator[np.ndarray]:
    """Arguments of a step, leaf by leaf; integers below `largest`."""
    random = np.random.default_rng(seed)
    for position, argument in enumerate(step.arguments):
        for leaf in jax.tree.leaves(argument):
            if is_key(leaf) or is_typed_key(leaf):
                yield drawn_keys(leaf, leaf.shape, seed)
            elif not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
                high = largest if position in step.inputs else 1
                yield random.integers(0, high, leaf.shape).astype(leaf.dtype)
            elif position == step.trainable:
                fan_in = np.prod(leaf.shape[:-1] or (100,))
                yield (random.standard_normal(leaf.shape) / fan_in**0.5).astype(leaf.dtype)
            elif position in step.inputs:
                yield random.standard_normal(leaf.shape).astype(leaf.dtype)
            else:
                yield np.full(leaf.shape, STATE, leaf.dtype)


def _floating(array: np.ndarray) -> bool:
    return bool(jax.numpy.issubdtype(array.dtype, jax.numpy.floating))
