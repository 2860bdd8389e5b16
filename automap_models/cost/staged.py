"""The cost of a staged plan: the one definition that everything else is held against (cost-model.md).

A stage of r = d·t devices splits a micro-batch over d replicas, and t devices share each replica's instructions. With
t = 1 everywhere the plan is a pipeline; with one stage it is data parallelism, operator partitioning, or both.

- f_s = (ΣC_fwd + ρ·ΣR_fwd + g_in/β) / d + λ·Σstarts_fwd, and b_s likewise with the backward parts and g_out: the
  instructions, the all-reduces of what is summed over a partitioned dimension (ρ seconds a byte on t devices, λ for
  each that starts), and what a device gathers of the slices that other stages hand over (β bytes a second in a node).
- Every device sends and receives its slice in a transfer between stages, whatever the stages' shardings.
- AR_s = ΣW·(seconds a byte over d replicas, whose t groups share the links) + ρ·Σgradients.
- mem_s = σ·ΣW + Σfrozen + min(M, S - s)·ΣH / d, with the parameters and activations that each device holds; under a
  schedule its own number of micro-batches in flight. What is not trained (frozen) is held once.

On a mixed cluster a stage waits for the slowest of its devices that work: the times of instructions are multiplied by
how much longer that one takes than the profile's device. Its links inside nodes and between them are the slowest of its
nodes', and its memory limit is that of its smallest device that works. All devices of a sharded stage work.

A parameter that several stages use (tied weights) counts in ΣW, or Σfrozen, of each of them. Under a schedule the h
stages that hold a trained one sum its gradients once a step, which takes 2(h-1)/h times its bytes over the slower of
the links between them, those of all devices of a node over its link.

A problem with a schedule is of a step that runs. Its samples are whole: N of them in a micro-batch on d replicas take
the memory of ⌈N/d⌉ of N wherever it says "/ d" above, and the time that the clock says of so many. Links have what
collectives reach of them (`StagedProblem.links`), only what of an all-reduce of gradients the last backward pass cannot
hide (cost.overlap) counts below, one of activations starts after its latencies
(`sum_start_s`), and after all a stage updates its parameters. So the step of a plan is that of the same strategy
(simulate.strategy). Without a schedule nothing overlaps inside a stage.

From the times of its stages and transfers follow the span T and the length L of a plan, forwards (`span_and_length`) or
from the last stage to the first (planners.staged.stage_kernel.pipeline_length):

    stage 0 → transfer 0 → stage 1 → … → transfer S-2 → stage S-1       u = f + b of a stage, 2·x of a transfer
    T(s) = max(M·u_s, u_s + max(2M·x_s, 2·x_s + T(s+1)))                T(S-1) = M·u_{S-1}
    R(s) = max(AR_s, R(s+1) - x_s - b_s)                                R(S-1) = AR_{S-1}
    L = T(0) + R(0)
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray
from automap_models.core.stage_speeds import StageSpeed, stage_speed
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.collectives import (
    LATENCY_S,
    RING_DEVICES,
    all_reduce_start_s,
    mesh_all_reduce_s_per_byte,
    transfer_s_per_byte,
)
from automap_models.cost.overlap import TiedSum, exposed_s


@dataclass(frozen=True, eq=False)
class StagedCost:
    """What a plan costs; seconds and bytes.

    Attributes:
        forward_s, backward_s: [S] what keeps a stage's devices busy for one micro-batch, f_s and b_s.
        transfer_s: [S-1] time of one micro-batch over the boundary after stage s, one direction, x_s.
        all_reduce_s: [S] gradient all-reduce of a stage, AR_s.
        exposed_s: [S] what of it its last backward pass cannot hide; all of it where the problem has no schedule.
        update_s: [S] of a stage's parameters, once a step.
        memory_bytes: [S] on each device of a stage.
        span_s: T, until the last backward of the first stage.
        length_s: L, until the last all-reduce.
        pivot: index of the pseudo-stage (stages even, transfers odd) whose steady phase sets T.
        limit_bytes: [S] what the smallest of a stage's devices that work has.
        compute_s: [S] the instructions' part of forward_s + backward_s.
        reduce_s: [S] the part of the all-reduces of activations and their gradients.
        gather_s: [S] the part of putting together what other stages hand over in slices.
        tied: of a problem with a schedule: gradients of parameters that several stages hold.
        simulated_s: the step under the problem's schedule (simulate.plan_step); None where it has none, or before that.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    all_reduce_s: FloatArray
    exposed_s: FloatArray
    update_s: FloatArray
    memory_bytes: FloatArray
    span_s: float
    length_s: float
    pivot: int
    limit_bytes: FloatArray
    compute_s: FloatArray
    reduce_s: FloatArray
    gather_s: FloatArray
    tied: tuple[TiedSum, ...] = ()
    simulated_s: float | None = None

    @property
    def feasible(self) -> bool:
        """Whether every stage fits the memory of its devices."""
        return bool((self.memory_bytes <= self.limit_bytes).all())

    @property
    def fullest(self) -> int:
        """The stage that takes the largest share of its devices' memory."""
        return int((self.memory_bytes / self.limit_bytes).argmax())

    @property
    def step_s(self) -> float:
        """What a plan shall make small: the simulated step where the problem has a schedule, else the length L."""
        return self.length_s if self.simulated_s is None else self.simulated_s

    def as_tuple(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """forward_s, backward_s, transfer_s, all_reduce_s: what a simulation of passes needs."""
        return self.forward_s, self.backward_s, self.transfer_s, self.all_reduce_s


def span_and_length(
    forward_s: FloatArray, backward_s: FloatArray, transfer_s: FloatArray, all_reduce_s: FloatArray, micro_batches: int
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Span T, length L and the pivot of pipelines from their stage, transfer and all-reduce times.

    Pseudo-stages e_0 … e_{2S-2}: T = max_e (Σ_{j<e} u_j + M·u_e); L = max_s (T - Σ_{j<2s} B_j + AR_s).

    Args:
        forward_s, backward_s, all_reduce_s: [S, …], stages first.
        transfer_s: [S-1, …].
        micro_batches: M.

    Returns:
        […] each of T, L and the index of the pseudo-stage that sets T; scalars for one pipeline.
    """
    both, back = np.zeros((2, 2 * len(forward_s) - 1, *forward_s.shape[1:]))
    both[0::2], both[1::2] = forward_s + backward_s, 2.0 * transfer_s
    back[0::2], back[1::2] = backward_s, transfer_s
    candidates = both.cumsum(0) - both + micro_batches * both
    span = candidates.max(0)
    hidden = (back.cumsum(0) - back)[0::2]
    return span, (span - hidden + all_reduce_s).max(0), candidates.argmax(0)


def stage_rates(problem: StagedProblem, first: int, stop: int, degree: int) -> tuple[float, float]:
    """Seconds per byte of all-reduces over the replicas, and over the devices that share a replica.

    Args:
        first, stop: the stage's devices are first … stop-1.
        degree: how many neighbours share a replica.
    """
    mesh = (stop - first) // degree, degree
    over_replicas, inside = mesh_all_reduce_s_per_byte(problem.links, mesh, first)
    return problem.gradient_share * over_replicas, inside


def sum_start_s(problem: StagedProblem, degree: int) -> float:
    """Seconds that devices which share a replica take for an all-reduce whatever its size.

    In a step that runs, the latencies of what a strategy's groups make (cost.process_groups): a ring of few devices,
    or a tree. In Auto-MAP's length, launches.
    """
    if not problem.runs:
        return all_reduce_start_s(degree, problem.launch_s)
    inside = math.gcd(degree, problem.cluster.devices_per_node)
    rounds = inside - 1 + math.ceil(math.log2(degree // inside))
    if inside == degree > RING_DEVICES:
        rounds = math.ceil(math.log2(degree))
    return 2 * rounds * LATENCY_S


def plan_cost(problem: StagedProblem, plan: StagedPlan, idle: Collection[int] | None = None) -> StagedCost:
    """Cost of a structurally valid plan; lengths are given for plans that do not fit, too (`feasible` says so).

    Where devices are unequal, a stage without a sharding waits for the slowest of its devices that work.

    Args:
        problem: with the times of healthy devices.
        plan: valid for it.
        idle: positions whose devices hold nothing and do not work; of every stage one works at least. Transfers and
            all-reduces are those of all devices all the same. None: those that would hold up their stage.
    """
    profile, links = problem.profile, problem.links
    bounds = (0, *plan.device_cuts, links.devices)
    spans = [slice(begin, last + 1) for begin, last in plan.stage_instructions(len(profile))]
    degrees = [problem.all_shardings[index].degree for index in plan.shardings]
    working = [_working(problem, *stage_span, idle) for stage_span in zip(degrees, bounds, bounds[1:], strict=False)]
    costs = [
        _stage_cost(problem, index, spans[s], bounds[s : s + 2], problem.in_flight(s), working[s])
        for s, index in enumerate(plan.shardings)
    ]
    forward, backward, all_reduce, memory, compute, reduce, gather, weights = np.array(costs).T
    replicas = np.array([stage.replicas for stage in working])
    padding = replicas / problem.shares[replicas]
    transfer = np.array(
        [
            profile.A[cut]
            * transfer_s_per_byte(links, bounds[s], bounds[s + 1], bounds[s + 2], float(padding[s : s + 2].max()))
            for s, cut in enumerate(plan.cuts)
        ],
        dtype=np.float64,
    )
    exposed = exposed_s(all_reduce, backward, problem.overlap)
    span, length, pivot = span_and_length(forward, backward, transfer, exposed, plan.micro_batches)
    return StagedCost(
        forward,
        backward,
        transfer,
        all_reduce,
        exposed,
        problem.update_s_per_byte * weights,
        memory,
        float(span),
        float(length),
        int(pivot),
        limit_bytes=np.array([stage.memory for stage in working]),
        compute_s=compute,
        reduce_s=reduce,
        gather_s=gather,
        tied=() if problem.schedule is None else plan_tied_sums(problem, plan),
    )


def stage_weights_bytes(problem: StagedProblem, plan: StagedPlan) -> list[float]:
    """[S] bytes of trainable parameters on each device of a stage, the copies of tied ones included."""
    spans = plan.stage_instructions(len(problem.profile))
    return [
        float(_weights_bytes(problem, sharding, slice(first, last + 1)).sum())
        for sharding, (first, last) in zip(plan.shardings, spans, strict=True)
    ]


def stage_state_bytes(problem: StagedProblem, plan: StagedPlan) -> list[float]:
    """[S] σ·ΣW + Σfrozen on each device of a stage, the copies of tied parameters included."""
    spans = plan.stage_instructions(len(problem.profile))
    frozen = (
        frozen_bytes(problem, sharding, slice(a, b + 1)) for sharding, (a, b) in zip(plan.shardings, spans, strict=True)
    )
    weights = stage_weights_bytes(problem, plan)
    return [problem.state_factor * trained + untrained for trained, untrained in zip(weights, frozen, strict=True)]


def frozen_bytes(problem: StagedProblem, index: int, span: slice) -> float:
    """What a stage of these instructions holds on each device in that sharding and does not train."""
    sharding = problem.all_shardings[index]
    frozen = sharding.frozen_bytes(problem.profile.shared_frozen, span.start, span.stop)
    return float(np.add.reduceat(frozen, [0])[0])


def _weights_bytes(problem: StagedProblem, index: int, span: slice) -> FloatArray:
    """[k] bytes of the parameters that a stage of these instructions holds on each device, in that sharding."""
    return problem.all_shardings[index].weights_bytes(problem.profile.shared_parameters, span.start, span.stop)


def tied_sums(
    problem: StagedProblem,
    sharding: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    stop: NDArray[np.int64],
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """What summing the gradients of T shared parameters over their copies takes in P plans.

    Every device sends what it holds of the parameter to its partners in the other stages, as Megatron's embedding
    groups do: what leaves a node shares its link.

    Args:
        sharding: [P, S] of each stage, an index of the problem's.
        begin, end: [P, S] the first instruction of each stage and the one after its last.
        first, stop: [P, S] its first device and the one after its last.

    Returns:
        [P, T] seconds, and [P, T, S] the stages that hold a copy; 0 and none where a single stage holds the parameter.
    """
    cluster, shared = problem.links, problem.profile.shared_parameters
    sum_s, holders = np.zeros((len(begin), len(shared))), np.zeros((len(begin), len(shared), begin.shape[1]), bool)
    for p, parameter in enumerate(shared):
        uses = np.array(parameter.instructions)
        holds = np.searchsorted(uses, end) > np.searchsorted(uses, begin)
        copies = holds.sum(1)
        shares = np.array([option.shared_bytes[p] for option in problem.all_shardings])[sharding]
        first_node = cluster.node_of[np.where(holds, first, cluster.devices).min(1)]
        last_node = cluster.node_of[np.where(holds, stop, 0).max(1) - 1]
        inside_s = problem.gradient_share * np.where(holds, shares, 0.0).max(1) / cluster.node_intra[first_node]
        leaving = np.where(holds, shares * _in_fullest_node(cluster, first, stop), 0.0).max(1)
        between_s = problem.gradient_share * leaving / _slowest_link(cluster, holds, first, stop)
        one_way_s = np.where(last_node > first_node, between_s, inside_s)
        sum_s[:, p], holders[:, p] = 2.0 * (copies - 1) / copies * one_way_s, holds & (copies > 1)[:, None]
    return sum_s, holders


def _in_fullest_node(cluster: Cluster, first: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """[P, S] how many of each stage's devices are in the node that has most of them."""
    bounds, most = cluster.node_bounds, np.zeros_like(first)
    for begin, end in pairwise(bounds.tolist()):
        most = np.maximum(most, np.minimum(stop, end) - np.maximum(first, begin))
    return most


def _slowest_link(
    cluster: Cluster, holds: NDArray[np.bool_], first: NDArray[np.int64], stop: NDArray[np.int64]
) -> FloatArray:
    """[P] bytes/s of the slowest of the links that leave the nodes of the stages that hold something, [P, S] each."""
    begin, end = cluster.node_of[first], cluster.node_of[stop - 1] + 1
    slowest = np.full(len(holds), np.inf)
    for inter in np.unique(cluster.node_inter):
        before = np.concatenate(([0], np.cumsum(cluster.node_inter == inter)))
        meets = (before[end] > before[begin]) & holds
        slowest = np.minimum(slowest, np.where(meets.any(1), inter, np.inf))
    return slowest


def plan_tied_sums(problem: StagedProblem, plan: StagedPlan) -> tuple[TiedSum, ...]:
    """Of one plan, the sums that several stages take part in, whether a schedule counts them or not."""
    spans = plan.stage_instructions(len(problem.profile))
    begin, end = np.array([[(first, last + 1) for first, last in spans]]).transpose(2, 0, 1)
    devices = np.array([(0, *plan.device_cuts, problem.cluster.devices)])
    sum_s, holders = tied_sums(problem, np.array([plan.shardings]), begin, end, devices[:, :-1], devices[:, 1:])
    named = zip(problem.profile.shared_parameters, sum_s[0].tolist(), holders[0], strict=True)
    return tuple(
        TiedSum(tuple(np.flatnonzero(stages).tolist()), seconds, parameter.name)
        for parameter, seconds, stages in named
        if stages.any()
    )


def _working(problem: StagedProblem, degree: int, first: int, stop: int, idle: Collection[int] | None) -> StageSpeed:
    """How a stage on devices first … stop-1 works; those that share operators all do.

    Args:
        degree: how many devices share a replica.
        idle: see `plan_cost`.
    """
    memory = problem.cluster.device_memory[first:stop]
    slowdown = np.ones(stop - first) if problem.slowdowns is None else problem.slowdowns[first:stop]
    if degree == 1 and idle is None:
        return stage_speed(problem.speeds, slowdown, memory)
    works = np.ones(stop - first, dtype=bool)
    if degree == 1:
        works[[position - first for position in idle or () if first <= position < stop]] = False
    replicas, slowest = int(works.sum()) // degree, float(slowdown[works].max())
    return StageSpeed(replicas, float(problem.speeds[replicas]) / slowest, float(memory[works].min()), slowest)


def _stage_cost(
    problem: StagedProblem, index: int, span: slice, devices: tuple[int, ...], in_flight: int, working: StageSpeed
) -> tuple[float, ...]:
    """What a stage of these instructions and devices first … stop-1 costs in one of the problem's shardings.

    In the order of `plan_cost`: forward_s, backward_s, all_reduce_s, memory_bytes, compute_s, reduce_s, gather_s of
    StagedCost, and the bytes of its parameters.
    """
    sharding, (first, stop) = problem.all_shardings[index], devices
    parts, rate = float(problem.shares[working.replicas]), working.rate
    over_replicas, inside = stage_rates(problem, first, stop, sharding.degree)

    def total(array: FloatArray) -> float:
        return float(np.add.reduceat(array, [0])[0])

    compute_fwd, compute_bwd = total(sharding.C_fwd[span]), total(sharding.C[span] - sharding.C_fwd[span])
    gather_in = gather_out = reduce_fwd = reduce_bwd = gradients = 0.0
    if sharding.degree > 1:
        start_s, gathered = sum_start_s(problem, sharding.degree), sharding.gathered
        intra = float(problem.links.node_intra[problem.links.node_of[first:stop]].min())
        gather_in, gather_out = float(gathered[span.start]) / intra, float(gathered[span.stop]) / intra
        reduce_fwd = inside * total(sharding.reduced_fwd[span]) / parts + start_s * total(sharding.starts_fwd[span])
        reduce_bwd = inside * total(sharding.reduced_bwd[span]) / parts + start_s * total(sharding.starts_bwd[span])
        gradients = problem.gradient_share * inside * total(sharding.gradients[span])
    weights = float(np.add.reduceat(_weights_bytes(problem, index, span), [0])[0])
    frozen = frozen_bytes(problem, index, span)
    return (
        compute_fwd / rate + gather_in / parts + reduce_fwd,
        compute_bwd / rate + gather_out / parts + reduce_bwd,
        weights * over_replicas + gradients,
        problem.state_factor * weights + frozen + in_flight * total(sharding.stash[span]) / parts,
        (compute_fwd + compute_bwd) / rate,
        reduce_fwd + reduce_bwd,
        (gather_in + gather_out) / parts,
        weights,
    )
