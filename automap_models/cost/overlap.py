"""Gradients that are reduced while the backward pass goes on: in buckets, as DistributedDataParallel does.

The last backward pass of a stage comes upon its instructions from the last to the first. Their gradients fill a bucket;
the one that reaches BUCKET_BYTES closes it, and it is ready when the backward pass of its earliest instruction is done.
Buckets are reduced one after the other, each as soon as it is ready.

    backward pass   |· 5 ·|· 4 ·|···· 3 ····|· 2 ·|· 1 ·|              gradients of instructions 5 … 1
    all-reduces                 |== 5, 4 ==|      |=== 3, 2 ===|= 1 =|
                                                        └─────────────┘ exposed: what ends after the backward pass

A parameter that several stages use is held by each of them. Their gradients are summed once all these stages have
reduced theirs (`TiedSum`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from automap_models.core.profile import FloatArray

BUCKET_BYTES = 25 * 2**20
"""Of gradients in a bucket: `bucket_cap_mb` of torch's DistributedDataParallel."""


class Bucket(NamedTuple):
    """Gradients of one stage that are reduced together.

    Attributes:
        ready_s: when the last of them is there, counted from the end of the stage's last backward pass; 0 or less.
        all_reduce_s: how long they take.
    """

    ready_s: float
    all_reduce_s: float


class TiedSum(NamedTuple):
    """Gradients of a parameter that several stages hold a copy of, and sum once a step, after their buckets.

    Attributes:
        stages: that hold the copies, ascending.
        sum_s: how long it takes.
        name: of the parameter.
    """

    stages: tuple[int, ...]
    sum_s: float
    name: str = ""


def gradient_buckets(weights: FloatArray, all_reduce_s: FloatArray, backward_s: FloatArray) -> tuple[Bucket, ...]:
    """The buckets of a stage in the order in which they are reduced; none where nothing is to be reduced.

    Args:
        weights: [k] bytes of each instruction's gradients on a device, in execution order of the forward pass.
        all_reduce_s: [k] seconds that reducing them takes.
        backward_s: [k] seconds of each instruction's backward pass.
    """
    held = np.flatnonzero(all_reduce_s)[::-1]
    if not held.size:
        return ()
    filled, begin, full = np.cumsum(weights[held]), [0], BUCKET_BYTES
    while (last := int(np.searchsorted(filled, full))) + 1 < held.size:
        begin.append(last + 1)
        full = filled[last] + BUCKET_BYTES
    earliest = held[np.array([*begin[1:], held.size]) - 1]
    before = np.cumsum(backward_s) - backward_s
    durations = np.add.reduceat(all_reduce_s[held], begin)
    return tuple(map(Bucket, (-before[earliest]).tolist(), durations.tolist()))


def exposed_s(buckets: Sequence[Bucket]) -> float:
    """How long after its last backward pass a stage's all-reduces end, if nothing else uses its links; 0 or more."""
    end_s = 0.0 if not buckets else buckets[0].ready_s
    for bucket in buckets:
        end_s = max(end_s, bucket.ready_s) + bucket.all_reduce_s
    return max(end_s, 0.0)
