"""Contiguous placements for throughput: the best one, or the best along one line through the graph.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §5.1. Contiguous is
what core.contraction says: devices can be numbered so that no order edge goes back. Of these placements `ideals`
returns the best, which is what status "optimal" says. Where the passes of a training step need not both follow the
forward order, or devices may wait for each other both ways, there can be better placements: the integer programs look
for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.placement import PlacementPlan, PlacementProblem, Status, model_name
from automap_models.core.placement_graph import IntArray
from automap_models.cost.placement import throughput_s
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import PlacementPlanner
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.placement.ideal_lattice import Lattice, TooManyIdeals, chain_lattice, ideal_lattice
from automap_models.planners.placement.ideal_loads import unit_loads
from automap_models.planners.placement.ideal_passes import PassesOutOfTime, optimum_of_passes
from automap_models.planners.placement.ideal_search import IdealSearch, Split, devices_in_use

MAX_IDEALS = 250_000
"""More take minutes."""

MEMORY_BYTES = 2**31
"""What the tables may take."""

__all__ = ["IdealsPlanner", "LinearPlanner", "dfs_order"]


@dataclass(frozen=True, eq=False)
class _Answer:
    """The best split found and a lower bound on all that the lattice has."""

    split: Split | None
    bound_s: float
    finished: bool


class IdealsPlanner(PlacementPlanner):
    """The best contiguous placement, by dynamic programming over the ideals of the graph.

    With a time limit that ends the search, the best one along one line, and a lower bound.
    """

    name: ClassVar[str] = "ideals"

    def plan(self, problem: PlacementProblem) -> PlacementPlan:
        """The contiguous placement with the smallest time per sample; `bound_s` holds for the contiguous ones.

        Status "feasible", and no bound, where the search was stopped, or where memory is scarce and so many operators
        take no time that only placements with these beside their only neighbour were looked at.

        Raises:
            BadInput: the objective is latency, or the graph has too many ideals.
            Infeasible: no contiguous placement fits the memory.
        """
        _require_throughput(self.name, problem)
        deadline = Deadline(np.inf if self.options.time_limit_s is None else self.options.time_limit_s)
        contraction, lattice = _units_and_ideals(problem)
        line = _search(problem, contraction, chain_lattice(dfs_order(len(contraction), contraction.order)), Deadline())
        answer = _search(problem, contraction, lattice, deadline, line.split)
        return _as_plan(self.name, problem, contraction, answer)


class LinearPlanner(PlacementPlanner):
    """The best placement in consecutive parts of a depth-first order of the graph: quick, and nearly as good."""

    name: ClassVar[str] = "linear"

    def plan(self, problem: PlacementProblem) -> PlacementPlan:
        """The placement with the smallest time per sample of those along the order.

        Raises:
            BadInput: the objective is latency, or there are too many operators for so many devices.
            Infeasible: no placement along the order fits the memory.
        """
        _require_throughput(self.name, problem)
        contraction = contract(problem)
        if len(contraction) + 1 > (limit := _ideal_limit(problem, len(contraction))):
            raise BadInput(
                f"{len(contraction):,} units to place on {problem.devices} devices, {limit:,} are possible",
                where=model_name(problem.graph),
                do="try fewer --devices and --cpus, or --planner greedy",
            )
        answer = _search(
            problem, contraction, chain_lattice(dfs_order(len(contraction), contraction.order)), Deadline()
        )
        return _as_plan(self.name, problem, contraction, _Answer(answer.split, 0.0, finished=False))


def dfs_order(units: int, order: IntArray) -> IntArray:
    """[units] a topological order that goes on from what was last added, where it can.

    Args:
        units: how many there are.
        order: [o, 2] edges between them; acyclic, each once.
    """
    missing = np.bincount(order[:, 1], minlength=units).tolist()
    readers: list[list[int]] = [[] for _ in range(units)]
    for before, after in order.tolist():
        readers[before].append(after)
    ready = [unit for unit in range(units) if not missing[unit]]
    line = []
    while ready:
        line.append(ready.pop())
        for unit in readers[line[-1]]:
            missing[unit] -= 1
            if not missing[unit]:
                ready.append(unit)
    return np.array(line, dtype=np.int64)


def _require_throughput(planner: str, problem: PlacementProblem) -> None:
    if problem.objective != "throughput":
        raise BadInput(
            f"planner {planner} is for throughput, not for {problem.objective}",
            where="--planner",
            do="choose milp or greedy, or --objective throughput",
        )


def _units_and_ideals(problem: PlacementProblem) -> tuple[Contraction, Lattice]:
    """Units and their ideals, without loss if that has few enough ideals.

    Raises:
        BadInput: there are too many ideals either way.
    """
    contraction = contract(problem)
    if not contraction.lossless:
        finer = contract(problem, lossless=True)
        try:
            return finer, ideal_lattice(len(finer), finer.order, _ideal_limit(problem, len(finer)))
        except TooManyIdeals:
            pass
    limit = _ideal_limit(problem, len(contraction))
    try:
        return contraction, ideal_lattice(len(contraction), contraction.order, limit)
    except TooManyIdeals:
        raise BadInput(
            f"{limit:,} ideals were counted and there are more, too many for planner ideals",
            where=model_name(problem.graph),
            do="try --planner linear, which is nearly as good, or milp-ordered, which needs no ideals",
        ) from None


def _ideal_limit(problem: PlacementProblem, units: int) -> int:
    """How many ideals fit into MEMORY_BYTES, at most MAX_IDEALS.

    One takes two bit sets, a hash and its place in a table, while arrays double; some steps out of it; its entries.
    """
    accelerators, cpus = devices_in_use(problem, units)
    bit_sets = 2 * 2 * 8 * (units // 64 + 1)
    entries = (accelerators + 1) * (cpus + 1) * 12
    return min(MAX_IDEALS, MEMORY_BYTES // (bit_sets + entries + 200))


def _search(
    problem: PlacementProblem,
    contraction: Contraction,
    lattice: Lattice,
    deadline: Deadline,
    incumbent: Split | None = None,
) -> _Answer:
    """The best split on a lattice, or the incumbent if none is better or none was found in time."""
    try:
        if problem.split_passes:
            split = optimum_of_passes(problem, contraction, lattice, deadline, incumbent)
        else:
            search = IdealSearch(problem, unit_loads(contraction), lattice, deadline)
            split = search.optimum(None if incumbent is None else incumbent.value_s) or incumbent
    except PassesOutOfTime as stopped:
        return _Answer(stopped.incumbent, stopped.bound_s, finished=False)
    except OutOfTime as stopped:
        return _Answer(incumbent, stopped.bound_s, finished=False)
    return _Answer(split, np.inf if split is None else split.value_s, finished=True)


def _as_plan(planner: str, problem: PlacementProblem, contraction: Contraction, answer: _Answer) -> PlacementPlan:
    if answer.split is None:
        raise Infeasible(
            "no contiguous placement was found that fits "
            f"{problem.accelerators} accelerators of {problem.memory_bytes / 1e9:.3g} GB",
            where=f"planner {planner}",
            do="try more --memory, more --devices, at least one CPU with --cpus, or --planner milp",
        )
    assignment = contraction.expand(answer.split.devices)
    status: Status = "optimal" if answer.finished and contraction.lossless else "feasible"
    bound_s = answer.bound_s if contraction.lossless and answer.bound_s > 0 else None
    if status == "optimal":
        bound_s = throughput_s(problem, assignment)
    return PlacementPlan(planner, assignment, bound_s=bound_s, status=status)
