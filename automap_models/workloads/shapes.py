"""Shapes of what a step reads."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def token_shapes(labels: tuple[int, ...], *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Name → int32 [batch, sequence] for each name, with labels = (batch, sequence)."""
    return {name: _array(labels, jnp.int32) for name in names}


def image_shapes(labels: tuple[int, ...], size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Float32 images [batch, size, size, 3] and a class number for each, with labels = (batch,)."""
    return {"images": _array((*labels, size, size, 3), jnp.float32), "labels": _array(labels, jnp.int32)}


def _array(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
