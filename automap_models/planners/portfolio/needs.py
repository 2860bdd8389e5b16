"""What would have to be different for a plan to fit: the least memory of a device, or the fewest nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from automap_models.core.constraints import Constraints
from automap_models.errors import Infeasible
from automap_models.planners.deadline import Deadline, OutOfTime
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.one_stage import one_stage_plans
from automap_models.planners.portfolio.space import Space
from automap_models.planners.portfolio.staged_search import search_staged, staged_problems, tables_of
from automap_models.planners.staged.feasibility import chain_exists, least_memory_bytes
from automap_models.planners.staged.stage_tables import MOST_DEVICES, StageTables

SLACK = 2e-3
"""How much more memory than the least, relatively, the plan gets that verifies it: twice the bisection's precision."""
VERIFY_S = 10.0
"""How long finding that plan may take."""
NODES_S = 30.0
"""How long the number of nodes is searched for."""
MOST_TIMES = 8
"""How many times the nodes are tried before it is said that more of them would not help."""


def least_memory(space: Space, constraints: Constraints, *, staged_only: bool = False) -> float:
    """Bytes that the fullest device of any plan needs at least, to 0.1 %, where that is more than the devices have.

    It is inf where no plan satisfies the constraints.

    Args:
        staged_only: whether plans of one stage are left out.
    """
    one_stage = [] if staged_only else [plan.memory_bytes for plan in _one_stage(space, constraints)]
    least = min(one_stage, default=math.inf)
    for tables in _every_table(space, constraints):
        if chain_exists(tables, math.inf, least):
            least = min(least, least_memory_bytes(tables))
    return least


def _one_stage(space: Space, constraints: Constraints) -> list[Candidate]:
    if not constraints.allow(space.model.profile, 1):
        return []
    return one_stage_plans(space, lambda plan: constraints.satisfied(plan.problem, plan.plan)[0])


def _every_table(space: Space, constraints: Constraints) -> Iterator[StageTables]:
    """Tables of all problems of several stages that have plans, those with the smallest micro-batches first."""
    problems = sorted(staged_problems(space, constraints), key=lambda each: -each.micro_batches)
    for problem in problems:
        tables = tables_of(problem, constraints)
        if tables is not None:
            yield tables


def nothing_fits(space: Space, constraints: Constraints) -> Infeasible:
    """The error for a space none of whose plans fits, saying what would; verified by a plan each."""
    have, devices = space.cluster.memory, space.cluster.devices
    least = least_memory(space, constraints)
    if not math.isfinite(least):
        return Infeasible(
            f"{space.global_batch} samples a step cannot be shared out among the {devices} devices as asked",
            where=space.model.profile.model,
            do="give a larger --global-batch, a smaller cluster or fewer constraints",
        )
    if least <= have:
        return Infeasible(
            "no plan was found in time, though one may fit",
            where=space.model.profile.model,
            do="give a larger --budget, or --thorough",
        )
    offers = []
    roomier = replace(space, cluster=replace(space.cluster, memory=least * (1.0 + SLACK)))
    if (plan := _some_plan(roomier, constraints)) is not None:
        offers.append(f"devices with {plan.memory_bytes / 1e9:.4g} GB would fit ({plan.name})")
    if (nodes := _fewest_nodes(space, constraints)) is not None:
        offers.append(f"{nodes} nodes like these would fit")
    return Infeasible(
        f"no plan fits the {have / 1e9:.4g} GB of cluster {space.cluster.name}: every one needs "
        f"{least / 1e9:.4g} GB or more on its fullest device",
        where=space.model.profile.model,
        do=", ".join(offers) or "give devices with more memory, smaller micro-batches or a smaller --state-factor",
    )


def _some_plan(space: Space, constraints: Constraints) -> Candidate | None:
    """A plan that fits; None if none is found in time."""
    fitting = [plan for plan in _one_stage(space, constraints) if plan.fits]
    if fitting:
        return min(fitting, key=lambda plan: plan.memory_bytes)
    return search_staged(space, constraints, math.inf, Deadline(VERIFY_S)).best


def _fewest_nodes(space: Space, constraints: Constraints) -> int | None:
    """The fewest nodes on which a plan fits, by doubling and bisection; None if that is none, or not found in time."""
    most = min(MOST_TIMES * space.cluster.nodes, MOST_DEVICES // space.cluster.devices_per_node)
    deadline = Deadline(NODES_S)
    low, high = space.cluster.nodes, 2 * space.cluster.nodes
    try:
        while high <= most and not _fits(_with_nodes(space, high), constraints, deadline):
            low, high = high, 2 * high
        while high <= most and high - low > 1:
            middle = (low + high) // 2
            fits = _fits(_with_nodes(space, middle), constraints, deadline)
            low, high = (low, middle) if fits else (middle, high)
    except OutOfTime:
        return None
    verified = high <= most and _some_plan(_with_nodes(space, high), constraints) is not None
    return high if verified else None


def _fits(space: Space, constraints: Constraints, deadline: Deadline) -> bool:
    """Whether a plan fits.

    Raises:
        OutOfTime: before that is known.
    """
    if any(plan.fits for plan in _one_stage(space, constraints)):
        return True
    for tables in _every_table(space, constraints):
        if chain_exists(tables, math.inf, tables.memory):
            return True
        deadline.check()
    return False


def _with_nodes(space: Space, nodes: int) -> Space:
    return replace(space, cluster=replace(space.cluster, nodes=nodes))
