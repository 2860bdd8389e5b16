"""What a step's arguments and results are: which result replaces which argument, first values, and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from automap_models.errors import BadInput
from automap_models.hlo.random_keys import drawn_keys, folded, is_key, is_typed_key, physical
from automap_models.hlo.sharded_step import STATE
from automap_models.hlo.step import TrainingStep

_WANTED = "let it return the updated parameters and state in the order of its arguments, and the loss"


@dataclass(frozen=True)
class StepResults:
    """Which result of a step is what; leaves are counted in the order in which JAX flattens trees.

    Attributes:
        replaces: leaf of the arguments → leaf of the results that is its next value; of parameters and state.
        loss: leaf of the results.
    """

    replaces: dict[int, int]
    loss: int


def step_results(step: TrainingStep) -> StepResults:
    """Match a step's results with its arguments: in order, each one that is no input with the first of its shapes.

    Raises:
        BadInput: an argument has no next value, or nothing else is one floating-point number.
    """
    returned = jax.eval_shape(step.function, *step.arguments)
    parts = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    starts = np.cumsum([0, *(len(jax.tree.leaves(part)) for part in parts)]).tolist()
    free, first = list(range(len(parts))), 0
    replaces: dict[int, int] = {}
    for position, argument in enumerate(step.arguments):
        leaves = len(jax.tree.leaves(argument))
        if position not in step.inputs:
            match = next((i for i in free if _alike(parts[i], argument)), None)
            if match is None and leaves:
                what = f"does not return argument {position}, updated"
                raise BadInput(what, where=step.name, do=_WANTED)
            if match is not None:
                free.remove(match)
                replaces |= {first + k: starts[match] + k for k in range(leaves)}
        first += leaves
    results = [starts[i] + k for i in free for k, leaf in enumerate(jax.tree.leaves(parts[i])) if _is_number(leaf)]
    if not results:
        raise BadInput("returns no floating-point number, the loss", where=step.name, do=_WANTED)
    return StepResults(replaces, results[0])


def _alike(part: Any, argument: Any) -> bool:
    if str(jax.tree.structure(part)) != str(jax.tree.structure(argument)):
        return False
    pairs = zip(jax.tree.leaves(part), jax.tree.leaves(argument), strict=True)
    return all(one.shape == other.shape and one.dtype == other.dtype for one, other in pairs)


def _is_number(leaf: Any) -> bool:
    return leaf.shape == () and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def micro_batches(step: TrainingStep, batch: Sequence[Any], count: int) -> list[list[Any]]:
    """[M] the leaves of the inputs of each micro-batch, with typed keys as their bits.

    Arrays whose first dimension is that of samples are cut into M; a random key is folded with the number of the
    micro-batch, so that each one has its own dropout; everything else is the same for all.

    Args:
        batch: the inputs for a global batch, one tree for each of `step.inputs`.
        count: M.

    Raises:
        BadInput: another number of inputs, or an array of another shape.
    """
    if len(batch) != len(step.inputs):
        raise BadInput(f"{len(batch)} inputs, the step has {len(step.inputs)}", where=step.name, do="give each")
    cut: list[list[Any]] = [[] for _ in range(count)]
    for position, given in zip(step.inputs, batch, strict=True):
        wanted, leaves = jax.tree.leaves(step.arguments[position]), jax.tree.leaves(given)
        if str(jax.tree.structure(step.arguments[position])) != str(jax.tree.structure(given)):
            what = f"input {position} has another structure than the step's"
            raise BadInput(what, where=step.name, do="give the arrays that the step was traced with")
        for leaf, shape in zip(leaves, wanted, strict=True):
            for m, part in enumerate(_parts(leaf, shape, count, step)):
                cut[m].append(part)
    return cut


def _parts(leaf: Any, shape: Any, count: int, step: TrainingStep) -> list[Any]:
    size, given = step.microbatch_size, tuple(np.shape(leaf))
    if is_key(shape) or (is_typed_key(shape) and shape.shape[:1] != (size,)):
        if given == shape.shape:
            return [physical(folded(leaf, m)) for m in range(count)]
        if given == (count, *shape.shape):
            return [physical(leaf[m]) for m in range(count)]
    elif shape.shape[:1] == (size,):
        if given == (count * size, *shape.shape[1:]):
            return [physical(leaf[m * size : (m + 1) * size]) for m in range(count)]
        if given[1:] == shape.shape[1:]:
            what = f"a batch of {given[0]} samples is not {count} micro-batches of {size}"
            raise BadInput(what, where=step.name, do=f"give {count * size} samples")
    elif given == shape.shape:
        return [leaf] * count
    what = f"an input has the shape {list(given)}, the step was traced with {list(shape.shape)}"
    raise BadInput(what, where=step.name, do=f"give {count * size} samples of that shape")


def drawn_arguments(step: TrainingStep, seed: int) -> list[Any]:
    """First values of the arguments that are no inputs.

    Kernels are normal with variance 1/fan-in, scales (vectors of that name) normal around 1, other vectors around 0,
    with deviation 0.1. Floating-point state is sharded_step.STATE: Adam's first update is then a smooth function of the
    gradient, where from zero it is its sign, which rounding errors turn. Random keys are the seed's, other state is 0.

    Returns:
        A tree for each argument, None for inputs.
    """
    random = np.random.default_rng(seed)

    def parameter(path: Any, leaf: Any) -> np.ndarray:
        values = random.standard_normal(leaf.shape)
        if len(leaf.shape) > 1:
            return np.asarray(values * math.prod(leaf.shape[:-1]) ** -0.5).astype(leaf.dtype)
        is_scale = jax.tree_util.keystr(path[-1:], simple=True).endswith("scale")
        return np.asarray(0.1 * values + is_scale).astype(leaf.dtype)

    def state(path: Any, leaf: Any) -> Any:
        if is_key(leaf) or is_typed_key(leaf):
            return drawn_keys(leaf, leaf.shape, seed)
        return np.full(leaf.shape, STATE if jnp.issubdtype(leaf.dtype, jnp.floating) else 0, leaf.dtype)

    return [
        None
        if i in step.inputs
        else jax.tree_util.tree_map_with_path(parameter if i == step.trainable else state, argument)
        for i, argument in enumerate(step.arguments)
    ]


def drawn_batch(step: TrainingStep, seed: int, count: int, largest: int) -> list[Any]:
    """Inputs of a global batch of M micro-batches: floating-point ones normal, whole numbers below `largest`."""
    random = np.random.default_rng(seed)

    def values(leaf: Any) -> Any:
        shape = leaf.shape
        if shape[:1] == (step.microbatch_size,) and not is_key(leaf):
            shape = (count * shape[0], *shape[1:])
        if is_key(leaf) or is_typed_key(leaf):
            return drawn_keys(leaf, shape, seed)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return np.asarray(random.standard_normal(shape)).astype(leaf.dtype)
        high = 2 if leaf.dtype == np.bool_ else largest
        return random.integers(0, high, shape).astype(leaf.dtype)

    return [jax.tree.map(values, step.arguments[i]) for i in step.inputs]
