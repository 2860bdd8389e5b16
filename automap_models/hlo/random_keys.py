"""JAX's random keys among the arguments of a step: typed ones (`jax.random.key`) and bare ones (`PRNGKey`)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def is_typed_key(leaf: Any) -> bool:
    """Whether an array, or its shape, is made of typed keys."""
    return hasattr(leaf, "dtype") and bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def is_key(leaf: Any) -> bool:
    """Whether an array, or its shape, is one random key: a typed one, or a bare one of two or four 32-bit words."""
    return holds_keys(leaf) and len(leaf.shape) == (0 if is_typed_key(leaf) else 1)


def holds_keys(leaf: Any) -> bool:
    """Whether an array, or its shape, is one key or may be an array of them.

    Numbers of 32 bits, two or four in each row, look like bare keys and may be something else.
    """
    return is_typed_key(leaf) or (bool(leaf.dtype == np.uint32) and leaf.shape[-1:] in [(2,), (4,)])


def drawn_keys(leaf: Any, shape: tuple[int, ...], seed: int) -> Any:
    """The key, or the typed keys of a shape, that a seed makes for a leaf that is made of keys."""
    if not is_typed_key(leaf):
        return np.asarray(jax.random.PRNGKey(seed))
    key = jax.random.key(seed)
    return jax.random.split(key, shape) if shape else key


def folded(keys: Any, number: int) -> Any:
    """Each key folded with a number; see `jax.random.fold_in`."""
    fold = jax.random.fold_in
    for _ in keys.shape if is_typed_key(keys) else ():
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(keys, number)


def physical(leaf: Any) -> Any:
    """An array as a module has it: typed keys as their bits."""
    return jax.random.key_data(leaf) if is_typed_key(leaf) else leaf
