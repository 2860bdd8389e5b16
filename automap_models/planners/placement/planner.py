"""What all planners of placements share: from what a search comes to, to a `Result` whose plan is costed once.

Where none of the placements that a heuristic looked at fits the memory, operations are packed by size:

    classes, the largest first ── each where the smallest share of the memory is taken then ── peaks ── enough memory

Nothing proves that the packing is the best one; the least memory that is named is proven: the mean of what is held all
the time, or the largest class.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from automap_models.core.placement import (
    FloatArray,
    IntArray,
    Objective,
    PlacementPlan,
    PlacementProblem,
    PlacementResult,
    device_name,
    model_name,
)
from automap_models.core.result import TIE, Bound, Result, Status
from automap_models.core.units import counted, rounded_up, size
from automap_models.cost.makespan import makespan_bound_s
from automap_models.cost.placement import PlacementCost, placement_cost
from automap_models.cost.step_tables import StepTables
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import NEVER, SILENT, ConfigT, Deadline, Planner, Watch

WORDS: Mapping[Objective, str] = {"throughput": "throughput", "latency": "latency", "step": "steps"}
"""What messages call the objectives."""


@dataclass(frozen=True)
class SeedConfig:
    """The configuration of a planner that draws at random.

    Attributes:
        seed: of every draw.
    """

    seed: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search comes to.

    Attributes:
        plan: the best one, None where there is none.
        cost: of the plan, where the search evaluated it already.
        bound_s: no plan that the planner chooses from has a smaller value; infinite where there is no such plan.
        optimal: whether the plan is proven to be the best of these.
        reason: why there is no plan; None where the plan's own check is to say that.
    """

    plan: PlacementPlan | None = None
    cost: PlacementCost | None = None
    bound_s: float = 0.0
    optimal: bool = False
    reason: Infeasible | None = None
    notes: tuple[str, ...] = ()


class PlacementPlanner(Planner[PlacementProblem, PlacementPlan, ConfigT]):
    """A planner of placements.

    Status "optimal", the bound and status "infeasible" are about the plans that the planner chooses from: `ideals`,
    for one, chooses from contiguous placements only.

    Attributes:
        objectives: what it plans for.
    """

    objectives: ClassVar[tuple[Objective, ...]]

    @abstractmethod
    def search(self, problem: PlacementProblem, deadline: Deadline, watch: Watch) -> Outcome:
        """The best plan that the planner finds.

        Raises:
            BadInput: the planner is not made for such a problem, its objective aside.
        """

    def outcome(self, problem: PlacementProblem, assignment: IntArray | None, notes: tuple[str, ...] = ()) -> Outcome:
        """What a heuristic comes to that proves nothing.

        Args:
            assignment: [n] devices; None where none of those that it looked at fits the memory.
        """
        if assignment is None:
            return Outcome(reason=no_placement(problem, self.name))
        return Outcome(PlacementPlan(self.name, assignment), notes=notes)

    def solve(self, problem: PlacementProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> PlacementResult:
        """The best plan that the planner finds, its cost, and the bound that it proves.

        Raises:
            BadInput: the planner is not made for such a problem, or a package that it needs is not installed.
        """
        if problem.objective not in self.objectives:
            objectives = " and ".join(WORDS[objective] for objective in self.objectives)
            do = "give another `objective` or another planner"
            raise BadInput(f"is for {objectives} only", where=f"planner {self.name}", do=do)
        begin_s = time.perf_counter()
        outcome = self.search(problem, deadline, watch)
        plan, cost, reason = outcome.plan, outcome.cost, outcome.reason
        if plan is not None and cost is None:
            cost = placement_cost(problem, plan)
        # Searches count memory by their own arrays; the reference has the last word.
        if plan is not None and cost is not None and not cost.feasible:
            reason = _invalid(self.name, problem, plan, cost)
            plan = cost = None
        if plan is not None and cost is not None and problem.objective == "step":
            outcome = _with_bound(problem, outcome, cost)
        status: Status = "infeasible" if outcome.bound_s == float("inf") else "stopped"
        bound = None
        if plan is not None and cost is not None:
            status = "optimal" if outcome.optimal else "feasible"
            reason = None
            if outcome.optimal or outcome.bound_s > 0:
                # Solvers round: a bound may lie above the value by as much.
                bound_s = min(outcome.bound_s, cost.value_s)
                bound = Bound(bound_s, "exact" if outcome.optimal and bound_s == cost.value_s else "relaxation")
        facts = {"seed": self.config.seed} if isinstance(self.config, SeedConfig) else {}
        taken_s = time.perf_counter() - begin_s
        notes = outcome.notes if plan is not None else ()
        return Result(problem, plan, cost, status, bound, notes, facts=facts, taken_s=taken_s, reason=reason)


def _with_bound(problem: PlacementProblem, outcome: Outcome, cost: PlacementCost) -> Outcome:
    """With the bound of all placements; one that reaches it is the best."""
    bound_s = max(outcome.bound_s, makespan_bound_s(StepTables.from_problem(problem)))
    reached = cost.value_s <= bound_s * (1.0 + TIE)
    return replace(outcome, bound_s=cost.value_s if reached else bound_s, optimal=outcome.optimal or reached)


def _invalid(planner: str, problem: PlacementProblem, plan: PlacementPlan, cost: PlacementCost) -> Infeasible:
    valid, reason = plan.check_valid(problem)
    if valid:  # but its outputs are too much
        limits = problem.step_devices.memory_bytes
        device = int((cost.memory_bytes - limits).argmax())
        reason = (
            f"device {device_name(problem, device)} holds {cost.memory_bytes[device] / 1e9:.3g} GB at a time, "
            f"it has {limits[device] / 1e9:.3g} GB"
        )
    return Infeasible(reason, where=f"planner {planner}", do="try another planner, more devices or more memory")


def least_enough(high: float, enough: Callable[[float], bool]) -> float:
    """The least value from 0 to `high` that is enough, up to rounding; `high` where nothing smaller is.

    Args:
        high: a value that is enough.
        enough: whether a value is; with one that is, every larger one is, too.
    """
    low = 0.0
    for _ in range(60):  # until nothing changes any more: a double has 53 binary digits
        middle = (low + high) / 2.0
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def packed(problem: PlacementProblem) -> IntArray:
    """[n] devices: the largest classes first, each on the accelerator that has the smallest share of its memory taken.

    What no accelerator supports, and what finds none with room, goes to the first CPU where there is one.
    """
    graph, count = problem.graph, problem.accelerators
    room = np.maximum(_memory_bytes(problem), 1e-9)
    used = np.zeros(count)
    labels, first = np.unique(graph.classes, return_index=True)
    sizes, supported = problem.class_memory_bytes[first], problem.class_supported[first]
    home = np.zeros(labels.size, dtype=np.int64)
    for i in np.argsort(-sizes, kind="stable").tolist():
        share = (used + sizes[i]) / room
        place = int(share.argmin()) if count and supported[i] else count
        if place == count or (share[place] > 1.0 and problem.cpus):
            home[i] = count
            continue
        home[i] = place
        used[place] += sizes[i]
    device: IntArray = home[np.searchsorted(labels, graph.classes)]
    return device


def no_placement(problem: PlacementProblem, planner: str) -> Infeasible:
    """Why a heuristic has no plan: none of those that it looked at fits, which proves something only of too much."""
    need, memory = float(problem.graph.memory_bytes.sum()), _memory_bytes(problem)
    sizes = "" if not memory.size else f" of {size(float(memory.min()))}"
    if memory.size and memory.max() > memory.min():
        sizes += f" to {size(float(memory.max()))}"
    least = _least(problem)
    proven = f": nothing fits below {least}" if least else ""
    return Infeasible(
        f"found no placement of {model_name(problem.graph)} ({size(need)}) on "
        f"{counted(problem.accelerators, 'accelerator')}{sizes} and {counted(problem.cpus, 'CPU')}{proven}",
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
    total_bytes = float(problem.graph.memory_bytes.sum())
    least = max(total_bytes / problem.accelerators, float(problem.class_memory_bytes.max()))
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
