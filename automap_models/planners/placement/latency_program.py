"""The latency program: operators in subgraphs of accelerators, or on CPUs, so that one sample is done soon.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §4.2 and the
authors' `latency-ip/lip.py`, with three changes. Big-M is the latency of a plan that is known, not the sum of all CPU
times. With one subgraph each, the accelerators are numbered so that no edge leads from one to an earlier one. And
`path` gives the relaxation a bound without big-M: the time that the operators on the longest way to a node take, the
transfers on it included, whether they are on CPUs or in subgraphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from automap_models.core.dag import topological_order
from automap_models.core.placement import FloatArray, IntArray, PlacementPlan, PlacementProblem, job_successors
from automap_models.planners.base import NEVER, Deadline
from automap_models.planners.placement.program import Program, in_ticks, memory_steps


@dataclass(frozen=True, eq=False)
class LatencyProgram:
    """A program and what its columns mean.

    Attributes:
        problem: what it states, on c classes with S = accelerators · pieces subgraphs.
        on_cpu: [c] columns that say whether a class is on CPUs.
        inside: [n, S] columns that say whether a node is in a subgraph.
    """

    problem: PlacementProblem
    program: Program
    on_cpu: IntArray
    inside: IntArray

    def plan(self, columns: FloatArray) -> PlacementPlan:
        """What a solution decides."""
        problem = self.problem
        device = np.full(len(problem.graph), problem.accelerators)
        piece = np.zeros_like(device)
        accelerated = columns[self.on_cpu][problem.graph.classes] < 0.5
        chosen = columns[self.inside[accelerated]].argmax(axis=1) if accelerated.any() else 0
        device[accelerated], piece[accelerated] = np.divmod(chosen, problem.pieces)
        return PlacementPlan("", device, piece if problem.pieces > 1 else None)

    def hint(self, plan: PlacementPlan) -> dict[int, int]:
        """Values of the columns of `on_cpu` and `inside` that mean the plan, accelerators in the order of their use."""
        problem, values = self.problem, {}
        piece = np.zeros_like(plan.assignment) if plan.pieces is None else plan.pieces
        rank = _ranks(problem, plan)
        for node, columns in enumerate(self.inside.tolist()):
            device = int(plan.assignment[node])
            accelerated = device < problem.accelerators
            values[int(self.on_cpu[problem.graph.classes[node]])] = int(not accelerated)
            interval = rank[device] * problem.pieces + int(piece[node]) if accelerated else -1
            values.update({column: int(s == interval) for s, column in enumerate(columns)})
        return values


def _ranks(problem: PlacementProblem, plan: PlacementPlan) -> list[int]:
    """[accelerators] the place of each in an order in which their subgraphs can start."""
    jobs = [
        job for job in topological_order(job_successors(problem, plan)) if job < problem.accelerators * problem.pieces
    ]
    order = list(dict.fromkeys([*(job // problem.pieces for job in jobs), *range(problem.accelerators)]))
    return np.argsort(order).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class _Times:
    """[n] times in ticks; `horizon` is the largest latency that is wanted."""

    accelerator: FloatArray
    cpu: FloatArray
    transfer: FloatArray
    horizon: float


def latency_program(
    problem: PlacementProblem, tick_s: float, upper: float, deadline: Deadline = NEVER
) -> LatencyProgram:
    """The program with times in whole ticks.

    Rounding times down to whole ticks keeps lower bounds lower bounds: the latency is a longest path over sums of
    these times, so that in whole ticks no plan takes longer than it does.

    Args:
        upper: no plan with a larger latency is wanted, in ticks.

    Raises:
        OutOfTime: the deadline has passed.
    """
    graph = problem.graph
    ticks = partial(in_ticks, tick_s=tick_s)
    times = _Times(ticks(graph.accelerator_s), ticks(graph.cpu_s), ticks(graph.transfer_s), horizon=upper)
    program = Program(deadline=deadline)
    on_cpu, inside = _places(problem, program)
    start, ready, path = (program.add(k, upper=upper) for k in (inside.shape[1], len(graph), len(graph)))
    into, out = _borders(problem, program, inside)
    _contiguous(problem, program, inside)
    _subgraphs_run(problem, program, times, (inside, into, out), start, ready)
    _nodes_run(problem, program, times, on_cpu, ready)
    _paths(problem, program, times, (on_cpu, inside, out), ready, path)
    program.objective = int(program.add(upper=upper))
    for column in ready.tolist():
        program.at_most([(column, 1), (program.objective, -1)], 0)
    return LatencyProgram(problem, program, on_cpu, inside)


def _places(problem: PlacementProblem, program: Program) -> tuple[IntArray, IntArray]:
    """Columns [c] and [n, S]; every class on CPUs or on one accelerator, which has room for it."""
    graph, q = problem.graph, problem.pieces
    classes = int(graph.classes.max()) + 1
    on_cpu, on = program.add(classes), program.add(classes, problem.accelerators)
    inside = on[graph.classes] if q == 1 else program.add(len(graph), problem.accelerators * q)
    if not problem.cpus:
        program.fix(on_cpu.tolist(), 0)
    program.fix(on[np.unique(graph.classes[~problem.may_accelerate])].ravel().tolist(), 0)
    for cpu, row in zip(on_cpu.tolist(), on.tolist(), strict=True):
        program.equal([(cpu, 1), *((column, 1) for column in row)], 1)
    steps, capacity = memory_steps(graph.memory_bytes, problem.memory_bytes)
    memory = np.bincount(graph.classes, weights=steps, minlength=classes)
    for device in range(problem.accelerators):
        terms = zip(on[:, device].tolist(), memory.tolist(), strict=True)
        program.at_most(terms, capacity)
        for node, row in enumerate(inside.tolist() if q > 1 else []):
            interval = [(column, 1.0) for column in row[device * q : (device + 1) * q]]
            program.equal([*interval, (int(on[graph.classes[node], device]), -1)], 0)
    if q == 1:
        _number_by_order(problem, program, inside)
    return on_cpu, inside


def _number_by_order(problem: PlacementProblem, program: Program, inside: IntArray) -> None:
    """Equal accelerators are numbered so that no edge leads from one to an earlier one: subgraphs form no cycle."""
    for u, v in problem.graph.edges.tolist():
        for last in range(problem.accelerators - 1):
            early = [(int(column), 1.0) for column in inside[v, : last + 1]]
            late = [(int(column), 1.0) for column in inside[u, last + 1 :]]
            program.at_most([*early, *late], 1)


def _borders(problem: PlacementProblem, program: Program, inside: IntArray) -> tuple[IntArray, IntArray]:
    """Columns [n, S], twice: whether a subgraph receives a node's output, and whether it sends it."""
    into, out = (program.add(*inside.shape) for _ in range(2))
    for u, v in problem.graph.edges.tolist():
        for s in range(inside.shape[1]):
            program.at_most([(int(inside[v, s]), 1), (int(inside[u, s]), -1), (int(into[u, s]), -1)], 0)
            program.at_most([(int(inside[u, s]), 1), (int(inside[v, s]), -1), (int(out[u, s]), -1)], 0)
    return into, out


def _contiguous(problem: PlacementProblem, program: Program, inside: IntArray) -> None:
    """No path leaves a subgraph and comes back: z says that a node is inside or behind it with none outside between."""
    for s in range(inside.shape[1]):
        start, z = inside[:, s], program.add(len(inside))
        for node in range(len(inside)):
            program.at_most([(int(start[node]), 1), (int(z[node]), -1)], 0)
        for u, v in problem.graph.edges.tolist():
            program.at_most([(int(z[v]), 1), (int(z[u]), -1)], 0)
            program.at_most([(int(z[v]), 1), (int(start[v]), -1), (int(start[u]), 1)], 1)


def _subgraphs_run(
    problem: PlacementProblem,
    program: Program,
    times: _Times,
    parts: tuple[IntArray, IntArray, IntArray],
    start: IntArray,
    ready: IntArray,
) -> None:
    """A subgraph starts after its inputs and after the one before it; when it has finished, its nodes are ready."""
    inside, into, out = parts
    horizon, reads = times.horizon, np.unique(problem.graph.edges[:, 0]).tolist()
    finish = program.add(len(start), upper=horizon).tolist()
    for s in range(len(start)):
        load = [(int(inside[v, s]), t) for v, t in enumerate(times.accelerator.tolist())]
        load += [(int(columns[u, s]), t) for u, t in enumerate(times.transfer.tolist()) for columns in (into, out)]
        program.at_most([*load, (int(start[s]), 1), (finish[s], -1)], 0)
        for u in reads:
            program.at_most([(int(ready[u]), 1), (int(into[u, s]), horizon), (int(start[s]), -1)], horizon)
        for v in range(len(inside)):
            program.at_most([(finish[s], 1), (int(inside[v, s]), horizon), (int(ready[v]), -1)], horizon)
        if (s + 1) % problem.pieces:
            program.at_most([(finish[s], 1), (int(start[s + 1]), -1)], 0)


def _nodes_run(problem: PlacementProblem, program: Program, times: _Times, on_cpu: IntArray, ready: IntArray) -> None:
    """A node on a CPU takes its time after its inputs are ready."""
    in_place = on_cpu[problem.graph.classes]
    for v in range(len(in_place)):
        program.at_most([(int(in_place[v]), float(times.cpu[v])), (int(ready[v]), -1)], 0)
    for u, v in problem.graph.edges.tolist():
        program.at_most([(int(ready[u]), 1), (int(in_place[v]), float(times.cpu[v])), (int(ready[v]), -1)], 0)


def _paths(
    problem: PlacementProblem,
    program: Program,
    times: _Times,
    parts: tuple[IntArray, IntArray, IntArray],
    ready: IntArray,
    path: IntArray,
) -> None:
    """Time on the way to a node, counting each transfer where it is paid, is no more than until the node is ready.

    Within a subgraph the nodes of a path, the outputs that they send and the one that the first receives are distinct
    parts of its load; a subgraph starts when the node before the path enters it is ready, its sending included.
    """
    on_cpu, inside, out = parts
    in_place = on_cpu[problem.graph.classes]

    def node(v: int) -> list[tuple[int, float]]:
        saved = float(times.cpu[v] - times.accelerator[v])
        return [(int(in_place[v]), saved), (int(path[v]), -1.0)]

    def sends(u: int) -> list[tuple[int, float]]:
        return [(int(column), float(times.transfer[u])) for column in out[u]]

    for v, time in enumerate(times.accelerator.tolist()):
        program.at_most(node(v), -time)
        program.at_most([*sends(v), (int(path[v]), 1), (int(ready[v]), -1)], 0)
    for u, v in problem.graph.edges.tolist():
        received = int(program.add())
        for s in range(inside.shape[1]):
            program.at_most([(int(inside[v, s]), 1), (int(inside[u, s]), -1), (received, -1)], 0)
        edges = [(int(path[u]), 1.0), *sends(u), (received, float(times.transfer[u]))]
        program.at_most([*edges, *node(v)], -float(times.accelerator[v]))
