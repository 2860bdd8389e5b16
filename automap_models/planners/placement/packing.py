"""Whether operations fit the memory at all: a packing by size, and the memory with which there is one.

    classes, the largest first ── each where the smallest share of the memory is taken then ── peaks ── enough memory

Nothing proves that the packing is the best one; the least memory that is named is proven: the mean of what is held all
the time, or the largest class.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from automap_models.core.placement import FloatArray, IntArray, PlacementPlan, PlacementProblem, model_name
from automap_models.core.units import rounded_up
from automap_models.cost.placement import placement_cost
from automap_models.errors import Infeasible


def packed(problem: PlacementProblem) -> IntArray:
    """[n] devices: the largest classes first, each on the accelerator that has the smallest share of its memory taken.

    What no accelerator supports, and what finds none with room, goes to the first CPU where there is one.
    """
    graph, count = problem.graph, problem.accelerators
    room = np.maximum(_memory_bytes(problem), 1e-9)
    held = np.zeros(count)
    labels, first = np.unique(graph.classes, return_index=True)
    sizes, supported = problem.class_memory_bytes[first], problem.class_supported[first]
    home = np.zeros(labels.size, dtype=np.int64)
    for i in np.argsort(-sizes, kind="stable").tolist():
        share = (held + sizes[i]) / room
        at = int(share.argmin()) if count and supported[i] else count
        if at == count or (share[at] > 1.0 and problem.cpus):
            home[i] = count
            continue
        home[i] = at
        held[at] += sizes[i]
    device: IntArray = home[np.searchsorted(labels, graph.classes)]
    return device


def no_placement(problem: PlacementProblem, planner: str) -> Infeasible:
    """Why a heuristic has no plan: none of those that it looked at fits, which proves something only of too much."""
    need, memory = float(problem.graph.memory_bytes.sum()), _memory_bytes(problem) / 1e9
    sizes = "" if not memory.size else f" of {memory.min():.3g} GB"
    if memory.size and memory.max() > memory.min():
        sizes = f" of {memory.min():.3g} to {memory.max():.3g} GB"
    least = _least(problem)
    proven = f": nothing fits below {least}" if least else ""
    return Infeasible(
        f"found no placement of {model_name(problem.graph)} ({need / 1e9:.3g} GB) on {problem.accelerators} "
        f"accelerator(s){sizes} and {problem.cpus} CPU(s){proven}",
        where=f"planner {planner}",
        do=_advice(problem),
    )


def _memory_bytes(problem: PlacementProblem) -> FloatArray:
    """[K] memory of the accelerators."""
    if problem.network is not None:
        return problem.network.memory_bytes[: problem.accelerators]
    return np.full(problem.accelerators, problem.memory_bytes)


def _least(problem: PlacementProblem) -> str:
    """Memory below which no placement fits, where there is less and nothing but equal accelerators."""
    memory = _memory_bytes(problem)
    if problem.cpus or not memory.size or memory.max() > memory.min():
        return ""
    held = float(problem.graph.memory_bytes.sum())
    least = max(held / problem.accelerators, float(problem.class_memory_bytes.max()))
    return f"{rounded_up(least) / 1e9:.3g} GB for each" if least > memory[0] else ""


def _advice(problem: PlacementProblem) -> str:
    """What to try: a planner that finds a packing, or memory with which there is one."""
    of_steps, memory = problem.objective == "step", _memory_bytes(problem)
    others = "more devices" if of_steps else "more devices, or planner milp"
    if not memory.size:
        return f"try {others}"
    needed = placement_cost(_boundless(problem), PlacementPlan("packing", packed(problem))).memory_bytes
    share = float((needed[: memory.size] / np.maximum(memory, 1e-9)).max())
    if share <= 1.0:
        planner = "local-search" if of_steps else "milp"
        return f"try planner {planner}, since one is known to fit, or more devices"
    enough = f"{rounded_up(share * memory[0]) / 1e9:.3g} GB for each accelerator"
    if memory.max() > memory.min():
        enough = f"{math.ceil(share * 100) / 100:.3g} times the memory of each device"
    return f"try {enough}, with which there is one, {others}"


def _boundless(problem: PlacementProblem) -> PlacementProblem:
    """The same problem with enough memory for everything on every accelerator."""
    network = problem.network
    if network is not None:
        network = replace(network, memory_bytes=np.full(len(network), math.inf))
    most = max(float(problem.graph.memory_bytes.sum()), problem.memory_bytes)
    return replace(problem, memory_bytes=most, network=network)
