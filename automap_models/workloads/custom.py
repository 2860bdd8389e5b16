"""What a user's factory returned → a training step, or a sentence on what a factory has to return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from automap_models.errors import BadInput
from automap_models.hlo.random_keys import holds_keys
from automap_models.hlo.step import TrainingStep

WANTED = (
    "return a TrainingStep, or (function, arguments) with the trainable parameters as the first argument, "
    "the batch as the last ones and state between them"
)


def step_from(spec: str, returned: object, dtype: str | None) -> TrainingStep:
    """Check what the factory named `spec` returned, and make a training step of it.

    Args:
        dtype: what the factory was asked for; None: the first parameter's.

    Raises:
        BadInput: anything but a usable TrainingStep or (function, arguments), see `workloads.from_factory`.
    """
    match returned:
        case TrainingStep():
            return _checked(spec, replace(returned, arguments=_shapes(spec, returned.arguments)))
        case (function, (_, _, *_) as arguments) if callable(function):
            return _step(spec, function, tuple(arguments), dtype)
    raise BadInput(f"returned {_described(returned)}", where=spec, do=f"{WANTED}; for PyTorch, (model, inputs)")


def _step(spec: str, function: Callable[..., Any], arguments: tuple[Any, ...], dtype: str | None) -> TrainingStep:
    last = len(arguments) - 1
    step = TrainingStep(spec, function, _shapes(spec, arguments), 0, (last,), 1, dtype or "")
    _checked(spec, step)
    first, size = jax.tree.leaves(step.arguments[0])[0], _batch_size(spec, step.arguments)
    inputs = _batch_positions(step.arguments, size)
    return replace(step, inputs=inputs, microbatch_size=size, dtype=dtype or str(first.dtype))


def _batch_positions(arguments: tuple[Any, ...], size: int) -> tuple[int, ...]:
    """The last argument and those right before it whose arrays have as many samples, or are random keys.

    So `step(params, state, tokens, labels)` has two inputs; an optimiser's state has arrays of other sizes.
    """
    first = len(arguments) - 1
    while first > 1 and all(
        holds_keys(array) or (array.ndim and array.shape[0] == size) for array in jax.tree.leaves(arguments[first - 1])
    ):
        first -= 1
    return tuple(range(first, len(arguments)))


def _batch_size(spec: str, arguments: tuple[Any, ...]) -> int:
    """Samples in a batch: the first dimension of all arrays of the last argument that is not made of random keys.

    Where every argument but the parameters looks like keys (tokens of `uint32`, two or four a sample), it is the last.
    """
    batches = [jax.tree.leaves(argument) for argument in arguments[:0:-1]]
    arrays = next((some for batch in batches if (some := [a for a in batch if not holds_keys(a)])), batches[0])
    sizes = {array.shape[0] for array in arrays if array.ndim}
    if len(sizes) == 1:
        return int(sizes.pop())
    raise BadInput(
        f"the arrays of the batch have the first dimensions {sorted(sizes)}, so the micro-batch is unknown",
        where=spec,
        do="return a TrainingStep, which says it",
    )


def _checked(spec: str, step: TrainingStep) -> TrainingStep:
    positions = range(len(step.arguments))
    if step.trainable not in positions or not set(step.inputs) <= set(positions) - {step.trainable}:
        raise BadInput(
            f"of {len(positions)} arguments, trainable is {step.trainable} and inputs are {step.inputs}",
            where=spec,
            do="give positions from 0 on, trainable not among the inputs",
        )
    if not jax.tree.leaves(step.arguments[step.trainable]):
        raise BadInput(f"argument {step.trainable}, the trainable parameters, has no arrays", where=spec, do=WANTED)
    if not jax.tree.leaves([step.arguments[i] for i in step.inputs]):
        raise BadInput("the batch has no arrays", where=spec, do=WANTED)
    return step


def _shapes(spec: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        shapes: tuple[Any, ...] = jax.eval_shape(lambda *given: given, *arguments)
    except TypeError as error:
        raise BadInput(
            f"an argument is not made of arrays: {str(error).splitlines()[0]}", where=spec, do=WANTED
        ) from None
    return shapes


def _described(returned: object) -> str:
    if isinstance(returned, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in returned) or 'nothing'}"
    return f"a {type(returned).__name__}"
