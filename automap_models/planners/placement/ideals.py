"""Contiguous placements for throughput: the best one, or the best along one line through the graph.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §5.1. Contiguous is
what core.contraction says: devices can be numbered so that no order edge goes back. Of these placements `ideals`
returns the best, which is what status "optimal" says. Where the passes of a training step need not both follow the
forward order, or devices may wait for each other both ways, there can be better placements: the integer programs look
for those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from automap_models.core.contraction import Contraction, contract
from automap_models.core.dag import depth_first_order
from automap_models.core.placement import Objective, PlacementPlan, PlacementProblem
from automap_models.core.units import counted, size
from automap_models.errors import Infeasible
from automap_models.planners.base import NEVER, SILENT, Deadline, OutOfTime, Progress, Watch
from automap_models.planners.placement.ideal_kernel import unit_loads
from automap_models.planners.placement.ideal_search import (
    IdealSearch,
    Lattice,
    Split,
    TooManyIdeals,
    devices_in_use,
    ideal_lattice,
    line_lattice,
    optimum_of_passes,
)
from automap_models.planners.placement.planner import Outcome, PlacementPlanner


@dataclass(frozen=True)
class IdealsConfig:
    """How large a problem may be.

    Attributes:
        most_ideals: more take minutes.
        table_bytes: what the tables may take.
    """

    most_ideals: int = 250_000
    table_bytes: int = 2**31


class _Best(NamedTuple):
    """The best split that a search met, a lower bound on all that the lattice has, and whether the search finished."""

    split: Split | None
    bound_s: float
    finished: bool


class IdealsPlanner(PlacementPlanner[IdealsConfig]):
    """The best contiguous placement, by dynamic programming over the ideals of the graph.

    Stopped by its deadline it returns the best placement along one line, and a lower bound; that placement alone where
    the graph has too many ideals.
    """

    name: ClassVar[str] = "ideals"
    config_type: ClassVar[type[IdealsConfig]] = IdealsConfig
    objectives: ClassVar[tuple[Objective, ...]] = ("throughput",)

    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The contiguous placement with the smallest time per sample; the bound holds for the contiguous ones.

        Status "feasible" where the search was stopped and, without a bound, where there are too many ideals, or memory
        is scarce and so many operators take no time that only placements with these beside their only neighbour were
        looked at.
        """
        watch(Progress("counting ideals"))
        contraction, lattice = _units_and_ideals(problem, self.config)
        line = _line_split(problem, contraction, self.config, watch)
        if lattice is not None:
            best = _search(problem, contraction, lattice, deadline, watch, line)
            return _outcome(self.name, problem, contraction, best)
        note = "too many ideals: the best placement along one line; planner milp needs no ideals"
        return replace(_outcome(self.name, problem, contraction, _Best(line, 0.0, finished=False)), notes=(note,))


def plan_along_line(problem: PlacementProblem) -> PlacementPlan | None:
    """The best placement in consecutive parts of a depth-first order of the graph: nearly as good as the best one.

    None where none of them fits, or there are too many operators for so many devices. It is so quick that no deadline
    stops it.
    """
    contraction = contract(problem)
    split = _line_split(problem, contraction, IdealsConfig())
    return None if split is None else PlacementPlan("", contraction.expand(split.devices))


def _line_split(
    problem: PlacementProblem, contraction: Contraction, config: IdealsConfig, watch: Watch = SILENT
) -> Split | None:
    """The best split whose ideals are the prefixes of a depth-first order of the units; see `plan_along_line`."""
    if len(contraction) + 1 > _ideal_limit(problem, len(contraction), config):
        return None
    line = line_lattice(np.array(depth_first_order(contraction.successors()), dtype=np.int64))
    return _search(problem, contraction, line, NEVER, watch).split


def _units_and_ideals(problem: PlacementProblem, config: IdealsConfig) -> tuple[Contraction, Lattice | None]:
    """Units and their ideals, without loss if that has few enough ideals; None where there are too many either way."""
    contraction = contract(problem)
    candidates = [contraction] if contraction.lossless else [contract(problem, lossless=True), contraction]
    for units in candidates:
        try:
            return units, ideal_lattice(len(units), units.order, _ideal_limit(problem, len(units), config))
        except TooManyIdeals:
            continue
    return contraction, None


def _ideal_limit(problem: PlacementProblem, units: int, config: IdealsConfig) -> int:
    """How many ideals there may be: as many as fit into the bytes of the tables.

    One takes two bit sets, its number, some steps out of it, and its entries.
    """
    accelerators, cpus = devices_in_use(problem, units)
    bit_sets = 2 * (24 + units // 7)
    entries = (accelerators + 1) * (cpus + 1) * 12
    return min(config.most_ideals, config.table_bytes // (bit_sets + entries + 400))


def _search(
    problem: PlacementProblem,
    contraction: Contraction,
    lattice: Lattice,
    deadline: Deadline,
    watch: Watch,
    incumbent: Split | None = None,
) -> _Best:
    """The best split on a lattice; the incumbent if the search meets no better one in time."""
    try:
        if problem.split_passes:
            split = optimum_of_passes(problem, contraction, lattice, deadline, watch, incumbent)
        else:
            search = IdealSearch(problem, unit_loads(contraction), lattice, deadline, watch)
            split = search.optimum(None if incumbent is None else incumbent.value_s) or incumbent
    except OutOfTime as stopped:
        return _Best(stopped.incumbent or incumbent, stopped.bound_s, finished=False)
    return _Best(split, np.inf if split is None else split.value_s, finished=True)


def _outcome(planner: str, problem: PlacementProblem, contraction: Contraction, best: _Best) -> Outcome:
    """What follows about all contiguous placements: nothing, where the contraction lost some."""
    proven = best.finished and contraction.lossless
    bound_s = best.bound_s if contraction.lossless else 0.0
    if best.split is None:
        reason = Infeasible(
            "no contiguous placement was found that fits "
            f"{counted(problem.accelerators, 'accelerator')} of {size(problem.memory_bytes)}",
            where=f"planner {planner}",
            do="try more `memory_bytes`, more `accelerators`, at least one CPU with `cpus`, or `planner='milp'`",
        )
        return Outcome(bound_s=np.inf if proven else 0.0, reason=reason)
    plan = PlacementPlan(planner, contraction.expand(best.split.devices))
    return Outcome(plan, bound_s=np.inf if proven else bound_s, optimal=proven)
