"""What a stage costs in one of its shardings: replicas that share nothing, or that partition operators.

For a fixed sharding and fixed devices all of it splits into a part of the boundary where the stage begins and a part of
the one where it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.cost.memory import stage_memory_bytes
from automap_models.planners.staged.pareto import IntArray


@dataclass(frozen=True, eq=False)
class SharedWork:
    """What a sharding adds to a stage whose devices share each replica's instructions (cost.staged).

    Attributes:
        gather_s: [m+1] putting together, on one replica, what crosses a boundary.
        start_s, start_forward_s: [m+1] prefix sums of what all-reduces of activations cost whatever the replicas.
        gradient_s: [m+1] prefix sums of the all-reduces of replicated parameters' gradients.
    """

    gather_s: FloatArray
    start_s: FloatArray
    start_forward_s: FloatArray
    gradient_s: FloatArray


@dataclass(frozen=True, eq=False)
class ShardingTables:
    """One sharding in which a stage may run: what it costs between boundaries i < k on r replicas, all but transfers.

    Attributes:
        weights, stash: [n] bytes of each instruction, on each device that shares it.
        C, F, W, H: [m+1] prefix sums of time, forward time (s), parameters and stash (bytes).
        all_reduce: [D+1, D+1] seconds per byte of parameters on devices a … q-1.
        degree: devices that share a replica.
        allowed: [D+1, D+1] whether a stage may run in this sharding on devices a … q-1.
        shared: None where devices share nothing.
    """

    weights: FloatArray
    stash: FloatArray
    C: FloatArray
    F: FloatArray
    W: FloatArray
    H: FloatArray
    all_reduce: FloatArray
    degree: int
    allowed: NDArray[np.bool_]
    shared: SharedWork | None = None

    def work_s(self, i: IntArray, k: IntArray, replicas: IntArray) -> FloatArray:
        """[n] forward and backward time of one micro-batch but for what is gathered: never more for a smaller stage."""
        work: FloatArray = (self.C[k] - self.C[i]) / replicas
        if self.shared:
            work += self.shared.start_s[k] - self.shared.start_s[i]
        return work

    def busy_s(self, i: IntArray, k: IntArray, replicas: IntArray) -> FloatArray:
        """[n] forward and backward time of one micro-batch, u."""
        both = self.work_s(i, k, replicas)
        if self.shared:
            both += (self.shared.gather_s[i] + self.shared.gather_s[k]) / replicas
        return both

    def forward_s(self, i: IntArray, k: IntArray, replicas: IntArray) -> FloatArray:
        """[n] the forward part of it, f."""
        forward: FloatArray = (self.F[k] - self.F[i]) / replicas
        if self.shared:
            start = self.shared.start_forward_s
            forward += self.shared.gather_s[i] / replicas + (start[k] - start[i])
        return forward

    def reduce_s(self, i: IntArray, k: IntArray, ring: FloatArray) -> FloatArray:
        """[n] the all-reduce of gradients, AR, at so many seconds per byte over the replicas."""
        reduce: FloatArray = ring * (self.W[k] - self.W[i])
        if self.shared:
            reduce += self.shared.gradient_s[k] - self.shared.gradient_s[i]
        return reduce

    def potentials(self, replicas: FloatArray, ring: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Each of u, f and u + AR of a stage from i to k as a difference: leaving[k] - entering[i].

        Args:
            replicas, ring: [a, 1] of several stages.

        Returns:
            entering, leaving: [3, a, m+1].
        """
        compute, forward, reduce = self.C / replicas, self.F / replicas, ring * self.W
        if not self.shared:
            same = np.stack([compute, forward, compute + reduce])
            return same, same
        gather = self.shared.gather_s / replicas
        compute, forward = compute + self.shared.start_s, forward + self.shared.start_forward_s
        both = compute + reduce + self.shared.gradient_s
        return (
            np.stack([compute - gather, forward - gather, both - gather]),
            np.stack([compute + gather, forward, both + gather]),
        )

    def bytes_held(self, own: slice, replicas: int, in_flight: int, state_factor: float) -> float:
        """On each device of a stage of these instructions, to the last bit as the cost models have it."""
        weights, stash = (float(np.add.reduceat(x[own], [0])[0]) for x in (self.weights, self.stash))
        return stage_memory_bytes(weights, stash, replicas, in_flight, state_factor)


def prefix_at(boundary: IntArray, array: FloatArray) -> FloatArray:
    """[m+1] sums of what lies before each boundary."""
    sums: FloatArray = np.concatenate(([0.0], np.cumsum(array)))[boundary]
    return sums
