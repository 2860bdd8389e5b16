"""What a placement costs: time per sample of a pipeline (throughput), time of one sample (latency), or of one step.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), with the
variants of its appendix; the authors' `throughput-ip/ip.py` and `latency-greedy/greedy.cpp` compute the same.

An accelerator that holds the nodes S pays, beside their times, the transfer of each output that crosses its border:
of every node u with an edge u → v of which exactly one end is in S, once, whoever reads it. CPUs read and write where
the data lies and pay nothing.

A step is simulated operation by operation (cost.makespan); there an output is moved once to each device that reads it.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np

from automap_models.core.dag import topological_order
from automap_models.core.placement import (
    ROUNDING,
    FloatArray,
    IntArray,
    PlacementGraph,
    PlacementPlan,
    PlacementProblem,
    PlacementResult,
    device_memory_bytes,
    job_of_nodes,
    job_successors,
    sums_by,
)
from automap_models.cost.makespan import StepTimeline, simulate_step
from automap_models.cost.step_tables import StepTables


@dataclass(frozen=True, eq=False)
class PlacementCost:
    """What a plan costs.

    Attributes:
        value_s: what the problem minimises; infinite where subgraphs wait for each other.
        loads_s: [devices] how long each is busy with one sample; of a step, how long it computes.
        compute_s: [devices] how long it computes.
        transfer_s: [devices] how long it sends and receives; 0 on CPUs. Of a step, how long it receives.
        memory_bytes: [devices] what its nodes take; of a step, the most that it holds at a time.
        feasible: whether the plan is valid, memory included.
        timeline: of a step, when everything happens.
    """

    value_s: float
    loads_s: FloatArray
    compute_s: FloatArray
    transfer_s: FloatArray
    memory_bytes: FloatArray
    feasible: bool
    timeline: StepTimeline | None = None


def placement_cost(problem: PlacementProblem, plan: PlacementPlan) -> PlacementCost:
    """What the plan costs.

    Args:
        problem: n nodes on D devices.
        plan: one that puts each node on one of these.
    """
    if problem.objective == "step":
        return _step_cost(problem, plan)
    compute, transfer = _pass_times(problem, plan)
    if not problem.split_passes:  # transfers overlap with either pass
        compute, transfer = compute.sum(axis=0, keepdims=True), transfer.sum(axis=0, keepdims=True)
    busy = np.maximum(compute, transfer) if problem.communication == "max" else compute + transfer
    throughput = problem.objective == "throughput"
    return PlacementCost(
        value_s=float(busy.max(axis=1).sum()) if throughput else latency_s(problem, plan),
        loads_s=busy.sum(axis=0),
        compute_s=compute.sum(axis=0),
        transfer_s=transfer.sum(axis=0),
        memory_bytes=device_memory_bytes(problem, plan.assignment),
        feasible=plan.check_valid(problem)[0],
    )


def _step_cost(problem: PlacementProblem, plan: PlacementPlan) -> PlacementCost:
    timeline = simulate_step(StepTables.from_problem(problem), plan.assignment)
    compute = sums_by(plan.assignment, timeline.finish_s - timeline.start_s, problem.devices)
    received = sums_by(timeline.target, timeline.received_s - timeline.sent_s, problem.devices)
    fits = timeline.peak_bytes <= problem.step_devices.memory_bytes * (1.0 + ROUNDING)
    feasible = bool(fits.all()) and plan.check_valid(problem)[0]
    return PlacementCost(timeline.makespan_s, compute, compute, received, timeline.peak_bytes, feasible, timeline)


def one_device_s(problem: PlacementProblem) -> float | None:
    """Value of everything on the first device; None where it does not fit there."""
    cost = placement_cost(problem, PlacementPlan("single", np.zeros(len(problem.graph), dtype=np.int64)))
    return cost.value_s if cost.feasible else None


def gap(result: PlacementResult) -> float | None:
    """How far the plan's value may be above the best, relative to the proven bound; None without a positive bound."""
    if result.cost is None or result.bound is None or result.bound.value <= 0:
        return None
    return max(0.0, float(result.cost.value_s) / result.bound.value - 1.0)


def latency_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Time from the first operator of one sample to the end of the last; infinite where subgraphs wait for each other.

    A subgraph of an accelerator starts when all that it reads is there and the accelerator's subgraph before it is
    done; it receives, computes and sends one after the other, and all its nodes finish when it does. A node on a CPU
    starts when its inputs are there: there are as many cores as needed.
    """
    duration = _job_durations(problem, plan).tolist()
    successors = job_successors(problem, plan)
    order = topological_order(successors)
    if len(order) < len(successors):
        return math.inf
    start = [0.0] * len(successors)
    for job in order:
        finish = start[job] + duration[job]
        for waiting in successors[job]:
            start[waiting] = max(start[waiting], finish)
    return float(max(map(operator.add, start, duration)))


def _job_durations(problem: PlacementProblem, plan: PlacementPlan) -> FloatArray:
    """[jobs] receiving, computing and sending of each (see `job_of_nodes`)."""
    graph, jobs = problem.graph, job_of_nodes(problem, plan)
    paying = problem.accelerators * problem.pieces
    total = paying + len(graph)
    producers, places = _crossing(graph, jobs, paying)
    transfer = sums_by(places, graph.transfer_s[producers], total)
    return transfer + sums_by(jobs, _node_times(problem, plan.assignment), total)


def _pass_times(problem: PlacementProblem, plan: PlacementPlan) -> tuple[FloatArray, FloatArray]:
    """[2, devices] compute and [2, devices] transfers of the forward and of the backward pass.

    A transfer belongs to the pass of the node whose output it moves.
    """
    graph, devices = problem.graph, problem.devices
    paying = problem.accelerators * problem.pieces
    producers, jobs = _crossing(graph, job_of_nodes(problem, plan), paying)
    first_of_pass = graph.backward * devices
    compute = sums_by(first_of_pass + plan.assignment, _node_times(problem, plan.assignment), 2 * devices)
    transfer = sums_by(first_of_pass[producers] + jobs // problem.pieces, graph.transfer_s[producers], 2 * devices)
    return compute.reshape(2, devices), transfer.reshape(2, devices)


def _node_times(problem: PlacementProblem, assignment: IntArray) -> FloatArray:
    on_accelerator = assignment < problem.accelerators
    return np.asarray(np.where(on_accelerator, problem.graph.accelerator_s, problem.graph.cpu_s))


def _crossing(graph: PlacementGraph, jobs: IntArray, paying: int) -> tuple[IntArray, IntArray]:
    """Node u and job for each output that crosses a job's border, both ways, each once; jobs from `paying` on are free.

    Args:
        graph: n nodes.
        jobs: [n] job of each.
        paying: number of the jobs that pay.
    """
    producers, readers = graph.edges.T
    cut = jobs[producers] != jobs[readers]
    moved = np.concatenate([producers[cut], producers[cut]])
    places = np.concatenate([jobs[producers[cut]], jobs[readers[cut]]])
    pays = places < paying
    keys = np.unique(moved[pays] * paying + places[pays])
    return np.divmod(keys, max(1, paying))  # without jobs that pay there are no keys
