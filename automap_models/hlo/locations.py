"""What an operation's location says: the layer it belongs to and whether automatic differentiation made it.

JAX writes the scopes in which an operation was traced, `jit(train_step)/transpose(jvp(T5))/enc_0/self/q/dot_general`:
jitted functions, transformations around the scope that they were applied in, module paths (flax.linen, or
`jax.named_scope`), the primitive last. TensorFlow writes `gradient_tape/t5/enc_0/q/MatMul`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

_CALL = re.compile(r"(\w+)\((.*)\)")
_DROPPED_CALLS = {"jit", "pjit", "xla_pmap", "pmap", "PjitFunction"}
_CONTROL = {
    "checkpoint", "remat", "remat2", "rematted_computation", "closed_call", "core_call", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "shard_map", "while", "scan", "cond",
    "StatefulPartitionedCall", "PartitionedCall", "gradient_tape",
}  # fmt: skip
ATTENTION_CORE = "attention_core"
"""The scope, `jax.named_scope`, of scores, softmax and their product with values: no layer of its own."""
_AFTER_WHILE = {"body", "cond"}
_BRANCH = re.compile(r"branch_\d+_fun")
_BACKWARD = re.compile(r"(?:^|/)(?:transpose\(|gradient_tape(?:/|$)|gradients(?:/|$))")
_DIFFERENTIATED = re.compile(r"(?:^|[/(])jvp\(")


def is_backward(path: str) -> bool:
    """Whether automatic differentiation's backward pass made an operation; rematerialised forward work counts."""
    return _BACKWARD.search(path) is not None


def is_differentiated(path: str) -> bool:
    """Whether an operation belongs to a function that is being differentiated, in either direction."""
    return _DIFFERENTIATED.search(path) is not None


@lru_cache(maxsize=1 << 16)
def scopes(path: str) -> tuple[str, ...]:
    """The module path in a location, without jitted functions, transformations, control flow and the primitive.

    >>> scopes("jit(train_step)/transpose(jvp(T5))/enc_0/self/q/dot_general")
    ('T5', 'enc_0', 'self', 'q')
    """
    path_scopes: list[str] = []
    parts = split(path)
    for before, part in zip(["", *parts], parts[:-1], strict=False):
        for scope in split(_unwrapped(part)):
            if not _is_scope(scope, before):
                continue
            if not path_scopes or path_scopes[-1] != scope:
                path_scopes.append(scope)
    return tuple(path_scopes)


def layers(paths: Sequence[str]) -> tuple[str, ...]:
    """The layer of each operation: its scopes without the model's own, in which most differentiated ones stand."""
    every = [scopes(path) for path in paths]
    root = _root([s for s, path in zip(every, paths, strict=True) if is_differentiated(path)] or every)
    return tuple("/".join(s[1:] if s[:1] == (root,) else s) for s in every)


def split(path: str) -> list[str]:
    """A path's parts; a slash inside parentheses separates nothing."""
    if "(" not in path:
        return path.split("/") if path else []
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append(path[start:i])
            start = i + 1
    return [*parts, path[start:]]


def _unwrapped(part: str) -> str:
    """`transpose(jvp(T5))` → `T5`; a jitted function's name is no scope."""
    while call := _CALL.fullmatch(part):
        part = "" if call[1] in _DROPPED_CALLS else call[2]
    return part


def _is_scope(part: str, before: str) -> bool:
    if not part or part in _CONTROL or part == ATTENTION_CORE or _BRANCH.fullmatch(part):
        return False
    if part in _AFTER_WHILE and before == "while":
        return False
    return "," not in part and "->" not in part  # einsum's formula


def _root(every: Sequence[tuple[str, ...]]) -> str:
    """The outermost scope of most of the operations that stand in nested scopes; "" where none has most."""
    firsts = Counter(s[0] for s in every if len(s) > 1)
    if not firsts:
        return ""
    name, count = min(firsts.items(), key=lambda item: (-item[1], item[0]))
    return name if 2 * count > sum(firsts.values()) else ""
