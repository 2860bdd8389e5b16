"""Which tensors hold samples, and the samples of a micro-batch or of a replica.

The example of one micro-batch tells: a tensor whose first dimension is the number of its samples holds samples, as it
does in a whole batch; all others, such as a mask of [tokens, tokens], are given whole.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

Sampled = tuple[bool, ...]
"""Of each leaf of a tree, whether it is a tensor of samples."""


def sampled(tree: Any, samples: int) -> Sampled:
    """Which leaves of a tree with so many samples are tensors of them."""
    return tuple(
        isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == samples for leaf in pytree.tree_leaves(tree)
    )


def rows(tree: Any, of: Sampled, picked: slice | Tensor) -> Any:
    """The tree with some samples of its tensors of samples, and whatever else it has."""
    leaves, spec = pytree.tree_flatten(tree)
    some = [leaf[picked] if has_samples else leaf for leaf, has_samples in zip(leaves, of, strict=True)]
    return pytree.tree_unflatten(some, spec)
