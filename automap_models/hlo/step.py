"""A training step to be traced: a function and the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingStep:
    """A JAX training step that has not been traced yet.

    Attributes:
        name: the model's name.
        function: forward pass, loss, gradients and update; `jax.jit(function).lower(*arguments)` must work.
        arguments: pytrees of jax.ShapeDtypeStruct, one for each parameter of the function.
        trainable: position of the pytree of trainable parameters among the arguments.
        inputs: positions of what each step gets anew (the batch); everything else is state.
        microbatch_size: samples in one call of the function.
        dtype: the type that the model computes in, such as "float32".
        unread: whether operations that nothing reads are part of it, as they are of the shipped profiles.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    trainable: int
    inputs: tuple[int, ...]
    microbatch_size: int
    dtype: str = "float32"
    unread: bool = False
