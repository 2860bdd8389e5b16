"""The one step-time and memory model: what any plan costs, of stages that replicate and partition.

A stage of r = d·t devices splits a micro-batch over d replicas, and t devices share each replica's instructions. With
t = 1 everywhere this is the pipeline model to the last bit; with one stage it is data parallelism, operator
partitioning, or both.

- f_s = (ΣC_fwd + ρ·ΣR_fwd + g_in/β) / d + λ·Σstarts_fwd, and b_s likewise with the backward parts and g_out: the
  instructions, the all-reduces of what is summed over a partitioned dimension (ρ seconds a byte on t devices, λ for
  each that starts), and what a device gathers of the slices that other stages hand over (β bytes a second in a node).
- Transfers between stages are those of the pipeline model: every device sends and receives its slice.
- AR_s = ΣW·(seconds a byte over d replicas, whose t groups share the links) + ρ·Σgradients.
- mem_s = σ·ΣW + min(M, S - s)·ΣH / d, with the parameters and activations that each device holds.

Nothing overlaps inside a stage. Span and length follow from these times as in cost-model.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray
from automap_models.core.staged import HybridPlan, HybridProblem
from automap_models.cost.collectives import mesh_all_reduce_s_per_byte, transfer_s_per_byte
from automap_models.cost.memory import stage_memory_bytes
from automap_models.cost.pipeline import StagedCost, span_and_length


@dataclass(frozen=True, eq=False)
class HybridCost(StagedCost):
    """What a plan costs; `forward_s` and `backward_s` hold everything that keeps a stage's devices busy.

    Attributes:
        compute_s: [S] of them the instructions of a micro-batch.
        reduce_s: [S] all-reduces of activations and their gradients in a micro-batch.
        gather_s: [S] putting together what other stages hand over in slices.
    """

    compute_s: FloatArray
    reduce_s: FloatArray
    gather_s: FloatArray


def all_reduce_start_s(degree: int, launch_s: float) -> float:
    """What an all-reduce of activations costs whatever its size: the launches of a tree, up and down."""
    return 2 * math.ceil(math.log2(degree)) * launch_s


def stage_rates(cluster: Cluster, first: int, stop: int, degree: int) -> tuple[float, float]:
    """Seconds per byte of all-reduces over the replicas, and over the devices that share a replica.

    Args:
        first, stop: the stage's devices are first … stop-1.
        degree: how many neighbours share a replica.
    """
    over_replicas, inside = mesh_all_reduce_s_per_byte(cluster, ((stop - first) // degree, degree), first)
    return over_replicas, inside


def hybrid_cost(problem: HybridProblem, plan: HybridPlan) -> HybridCost:
    """Cost of a structurally valid plan; lengths are given for plans that do not fit, too (`feasible` says so)."""
    pipeline = problem.pipeline
    cluster, stages = pipeline.cluster, plan.stages
    bounds = (0, *plan.pipeline.device_cuts, cluster.devices)
    rows = []
    for s, (first, last) in enumerate(plan.pipeline.stage_instructions(len(pipeline.profile))):
        in_flight = min(pipeline.micro_batches, stages - s)
        rows.append(_stage(problem, plan.chosen[s], slice(first, last + 1), (bounds[s], bounds[s + 1]), in_flight))
    forward, backward, all_reduce, memory, compute, reduce, gather = np.array(rows, dtype=np.float64).T
    transfer = np.array(
        [
            pipeline.profile.A[cut] * transfer_s_per_byte(cluster, bounds[s], bounds[s + 1], bounds[s + 2])
            for s, cut in enumerate(plan.pipeline.cuts)
        ],
        dtype=np.float64,
    )
    span, length, pivot = span_and_length(forward, backward, transfer, all_reduce, pipeline.micro_batches)
    return HybridCost(
        forward,
        backward,
        transfer,
        all_reduce,
        memory,
        span,
        length,
        pivot,
        feasible=bool((memory <= cluster.memory).all()),
        compute_s=compute,
        reduce_s=reduce,
        gather_s=gather,
    )


def _stage(
    problem: HybridProblem, way: int, own: slice, devices: tuple[int, int], in_flight: int
) -> tuple[float, float, float, float, float, float, float]:
    """forward, backward, all-reduce, memory, and of the first two compute, reductions and gathering."""
    pipeline, each = problem.pipeline, problem.choices[way]
    replicas = (devices[1] - devices[0]) // each.degree
    over_replicas, inside = stage_rates(pipeline.cluster, *devices, each.degree)
    start_s = all_reduce_start_s(each.degree, problem.launch_s)

    def total(array: FloatArray) -> float:
        return float(np.add.reduceat(array[own], [0])[0])

    gather_in, gather_out = (float(each.gathered[at]) / pipeline.cluster.intra for at in (own.start, own.stop))
    compute_fwd, compute_bwd = total(each.C_fwd), total(each.C - each.C_fwd)
    reduce_fwd = inside * total(each.reduced_fwd) / replicas + start_s * total(each.starts_fwd)
    reduce_bwd = inside * total(each.reduced_bwd) / replicas + start_s * total(each.starts_bwd)
    weights = total(each.W)
    memory = stage_memory_bytes(weights, total(each.stash), replicas, in_flight, pipeline.state_factor)
    return (
        (compute_fwd + gather_in) / replicas + reduce_fwd,
        (compute_bwd + gather_out) / replicas + reduce_bwd,
        weights * over_replicas + inside * total(each.gradients),
        memory,
        (compute_fwd + compute_bwd) / replicas,
        reduce_fwd + reduce_bwd,
        (gather_in + gather_out) / replicas,
    )
