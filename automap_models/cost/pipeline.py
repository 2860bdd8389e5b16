"""The length of a pipeline plan: the one definition that everything else is held against (cost-model.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import all_reduce_s_per_byte, transfer_s_per_byte
from automap_models.cost.memory import stage_memory_bytes


@dataclass(frozen=True, eq=False)
class StagedCost:
    """What a plan costs; seconds and bytes.

    Attributes:
        forward_s, backward_s: [S] time of one micro-batch on a stage, f_s and b_s.
        transfer_s: [S-1] time of one micro-batch over the boundary after stage s, one direction, x_s.
        all_reduce_s: [S] gradient all-reduce of a stage, AR_s.
        memory_bytes: [S] on each device of a stage.
        span_s: T, until the last backward of the first stage.
        length_s: L, until the last all-reduce.
        pivot: index of the pseudo-stage (stages even, transfers odd) whose steady phase sets T.
        feasible: whether every stage fits the device memory.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    all_reduce_s: FloatArray
    memory_bytes: FloatArray
    span_s: float
    length_s: float
    pivot: int
    feasible: bool

    def as_tuple(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """forward_s, backward_s, transfer_s, all_reduce_s: what a simulation needs."""
        return self.forward_s, self.backward_s, self.transfer_s, self.all_reduce_s


def span_and_length(
    forward_s: FloatArray, backward_s: FloatArray, transfer_s: FloatArray, all_reduce_s: FloatArray, micro_batches: int
) -> tuple[float, float, int]:
    """Span T, length L and the pivot of a pipeline from its stage, transfer and all-reduce times.

    Pseudo-stages e_0 … e_{2S-2}: T = max_e (Σ_{j<e} u_j + M·u_e); L = max_s (T - Σ_{j<2s} B_j + AR_s).
    """
    stages = forward_s.size
    both = np.zeros(2 * stages - 1)
    back = np.zeros(2 * stages - 1)
    both[0::2], both[1::2] = forward_s + backward_s, 2.0 * transfer_s
    back[0::2], back[1::2] = backward_s, transfer_s
    before = np.cumsum(both) - both
    candidates = before + micro_batches * both
    pivot = int(np.argmax(candidates))
    span = float(candidates[pivot])
    hidden = (np.cumsum(back) - back)[0::2]
    length = float(np.max(span - hidden + all_reduce_s))
    return span, length, pivot


def pipeline_cost(
    profile: Profile,
    cluster: Cluster,
    cuts: Sequence[int],
    device_cuts: Sequence[int],
    micro_batches: int,
    state_factor: float = 4.0,
) -> StagedCost:
    """Cost of a structurally valid plan; lengths are given for plans that do not fit, too (`feasible` says so)."""
    first = np.array((0, *(cut + 1 for cut in cuts)), dtype=np.int64)
    bound = (0, *device_cuts, cluster.devices)
    replicas = np.array([b - a for a, b in pairwise(bound)], dtype=np.int64)
    stages = replicas.size

    def per_stage(array: FloatArray) -> FloatArray:
        return np.add.reduceat(array, first)

    forward = per_stage(profile.C_fwd) / replicas
    backward = per_stage(profile.C - profile.C_fwd) / replicas
    weights, stash = per_stage(profile.W), per_stage(profile.stash)
    transfer = np.array(
        [
            profile.A[cut] * transfer_s_per_byte(cluster, bound[s], bound[s + 1], bound[s + 2])
            for s, cut in enumerate(cuts)
        ],
        dtype=np.float64,
    )
    all_reduce = np.array([weights[s] * all_reduce_s_per_byte(cluster, bound[s], bound[s + 1]) for s in range(stages)])
    memory = np.array(
        [
            stage_memory_bytes(
                float(weights[s]), float(stash[s]), int(replicas[s]), min(micro_batches, stages - s), state_factor
            )
            for s in range(stages)
        ]
    )
    span, length, pivot = span_and_length(forward, backward, transfer, all_reduce, micro_batches)
    return StagedCost(
        forward,
        backward,
        transfer,
        all_reduce,
        memory,
        span,
        length,
        pivot,
        feasible=bool((memory <= cluster.memory).all()),
    )


def plan_cost(problem: StagedProblem, plan: StagedPlan) -> StagedCost:
    """Cost of a plan on its problem."""
    return pipeline_cost(
        problem.profile,
        problem.cluster,
        plan.cuts,
        plan.device_cuts,
        plan.micro_batches,
        problem.state_factor,
    )
