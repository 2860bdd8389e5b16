"""Proven lower bounds on the length of a pipeline: of whole plans, and of what must come before a stage.

Notation of cost-model.md: u_s = f_s + b_s, hidden_s = Σ of backward and transfer times before stage s,
T ≥ Σ_{j<2s} u_j + M·u_s, L = max_s (T - hidden_s + AR_s).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.core.units import counted
from automap_models.errors import Infeasible
from automap_models.planners import effort
from automap_models.planners.base import Deadline
from automap_models.planners.staged.feasibility import best_packed, stages_exist
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.stage_tables import ROUNDING, StageTables


@dataclass(frozen=True, eq=False)
class PrefixBounds:
    """For every place [s, a, i] where stage s may begin, device a and boundary i; inf where no short plan begins it.

    A plan whose stages s … S-1 alone have span T and exposed all-reduce R (both counted from the start of
    stage s, the transfer into it included) has L ≥ T + max(busy, R + forward).

    Attributes:
        busy: [S, D+1, m+1] lower bound of Σ u_j over the stages before, transfers into earlier stages
            included, plus the all-reduce they cannot hide.
        forward: [S, D+1, m+1] lower bound of Σ (f_j + x_j) over the same: what R cannot hide behind.
    """

    busy: FloatArray
    forward: FloatArray


def prefix_bounds(tables: StageTables, length_s: float, deadline: Deadline) -> PrefixBounds:
    """Bounds over all prefixes that a plan of at most that length can have.

    For a fixed pair of device cuts and a sharding every term of the recursion splits into a part of i and a part of k,
    so that the best i for each k is a minimum over the window of those i that are not too far before k.
    Transfers are taken at their least over the sender's first device.

    Args:
        tables: of the problem.
        length_s: of a plan at most.
        deadline: when to stop.

    Raises:
        OutOfTime: before it is done.
    """
    shape = (tables.stages, tables.replicas_in_all + 1, tables.end + 1)
    busy, forward = np.full(shape, np.inf), np.full(shape, np.inf)
    busy[0, 0, 0] = forward[0, 0, 0] = 0.0
    bounds = PrefixBounds(busy, forward)
    for s in range(tables.stages - 1):
        later = tables.stages - 2 - s
        for q in range(s + 1, tables.replicas_in_all - later):
            deadline.check()
            effort.count(effort.PREFIXES)
            a = begin_devices(bounds, s, q)
            if not a.size:
                continue
            through = through_shardings(tables, bounds, s, a, q, length_s)
            reached, hidden = (least.min(axis=0) for least in least_through(through, a.size, tables.end))
            never = reached > length_s
            first, last = tables.windows[s + 1]
            never[:first], never[last + 1 :] = True, True
            busy[s + 1, q] = np.where(never, np.inf, reached)
            forward[s + 1, q] = np.where(never, np.inf, hidden)
    return bounds


def begin_devices(bounds: PrefixBounds, stage: int, stop: int) -> IntArray:
    """The devices before `stop` at which a short plan may begin the stage."""
    return np.flatnonzero(np.isfinite(bounds.busy[stage, :stop]).any(axis=1))


@dataclass(frozen=True, eq=False)
class Through:
    """The least prefixes that end with a stage in one sharding, for several of its first devices.

    Attributes:
        sharding: index of the sharding.
        rows: which of the first devices it may have.
        busy, forward: [rows, m+1] as in PrefixBounds, by the boundary where the stage ends.
    """

    sharding: int
    rows: IntArray
    busy: FloatArray
    forward: FloatArray


def through_shardings(
    tables: StageTables, bounds: PrefixBounds, stage: int, a: IntArray, q: int, length_s: float
) -> list[Through]:
    """For each sharding in which the stage may run on devices a … q-1, the least prefixes that end with it.

    L ≥ T + AR_s - hidden_s and T ≥ Σ_{j≤2s} u_j + …, so the prefix counts u_s + AR_s + (Σ u_j - hidden_s).
    """
    arrives = (tables.devices.arrival[a, q] if stage else np.zeros(a.size))[:, None] * tables.A
    from automap_models.planners.staged import search_kernel

    through = []
    effort.count(effort.THROUGH, a.size * (tables.end + 1) * len(tables.shardings))
    for index, sharding in enumerate(tables.shardings):
        rows = np.flatnonzero(sharding.allowed[a, q])
        if not rows.size:
            continue
        before, limits = (bounds.busy[stage], bounds.forward[stage], arrives[rows]), tables.limits(stage, length_s)
        least = search_kernel.least_through(sharding.arrays, limits, *before, a[rows], q)
        through.append(Through(index, rows, *least))
    return through


def least_through(through: list[Through], first_devices: int, end: int) -> tuple[FloatArray, FloatArray]:
    """[a, m+1] the busy and the forward time of the least prefixes over all shardings."""
    if len(through) == 1 and through[0].rows.size == first_devices:
        return through[0].busy, through[0].forward
    busy, forward = np.full((2, first_devices, end + 1), np.inf)
    for prefixes in through:
        busy[prefixes.rows] = np.minimum(busy[prefixes.rows], prefixes.busy)
        forward[prefixes.rows] = np.minimum(forward[prefixes.rows], prefixes.forward)
    return busy, forward


def lower_bound_s(problem: StagedProblem, deadline: Deadline | None = None) -> float:
    """A proven lower bound on L over all plans of S stages, within milliseconds ("relaxation").

    Proof. T ≥ Σ_{j<2s} u_j + M·u_s and Σ_{j<2s} u_j ≥ hidden_s, so L ≥ T - hidden_s + AR_s ≥ M·u_s + AR_s for
    every stage; L ≥ T ≥ 2M·x_s for every transfer, and a step is (M+1)·x_s at least, as messages go both ways at
    once. A length is out of reach when no S successive stages meet
    these and the memory. Time, parameters and stash of a stage only grow with its instructions, so the stages
    that go furthest (transfers at their least over all device cuts, a stage possibly empty) decide it. A
    bisection narrows the length down to 0.1 %, and what is returned is the side proven out of reach.

    It bounds plans that cut on the problem's grid; granularity = n bounds those that cut anywhere. A deadline
    ends the bisection early: the bound is as valid, and lower.

    Raises:
        Infeasible: no plan of S stages fits the memory, whatever its length.
    """
    tables = tables_of(problem)
    if not stages_exist(tables, np.inf, tables.memory):
        raise out_of_memory(problem)
    return least_length_s(tables, deadline or Deadline())


NEAR = 1.001
"""So many times the bound is a length that the relaxation does not rule out."""


def least_length_s(tables: StageTables, deadline: Deadline, near: float = NEAR, guess_s: float = 0.0) -> float:
    """The bound of `lower_bound_s` for tables that have successive stages of some length within the memory.

    Args:
        tables, deadline: see there.
        near: so many times the bound is a length that the relaxation does not rule out, if there is time.
        guess_s: about what the bound is, such as that of one stage fewer; 0 or infinite is not known.
    """
    low = tables.micro_batches * _least_work_s(tables) / float(tables.capacity[-1])
    if stages_exist(tables, low, tables.memory):
        return low * (1.0 - ROUNDING)
    high, wider = 1.1 * low, near**0.5
    if low * near < guess_s < np.inf and not deadline.passed:
        below, high = guess_s / wider, guess_s * wider
        low = low if stages_exist(tables, below, tables.memory) else below
        high = below if low < below else high
    while not deadline.passed and not stages_exist(tables, high, tables.memory):
        low, high = high, 1.5 * high
    while not deadline.passed and high > near * low * (1.0 + ROUNDING):
        middle = (low * high) ** 0.5
        if stages_exist(tables, middle, tables.memory):
            high = middle
        else:
            low = middle
    return low


def _least_work_s(tables: StageTables) -> float:
    """Least device time of a micro-batch, Σ t·C over the devices that share it, each piece in its best sharding.

    It is at the speed of the profile's device. Devices a … q-1 whose slowest one takes σ times as long get done
    d / σ seconds of profile in a second with d replicas of t devices, and t·d / σ is no more than they have capacity.
    """
    return float(np.sum(np.min([sharding.degree * np.diff(sharding.least_C) for sharding in tables.shardings], axis=0)))


def evenly_s(problem: StagedProblem) -> float:
    """No plan is shorter: all micro-batches, each instruction in its best sharding, evenly on all devices."""
    work_s = np.min([sharding.degree * sharding.C for sharding in problem.all_shardings], axis=0).sum()
    return float(problem.micro_batches * work_s / problem.capacity)


def out_of_reach(problem: StagedProblem, length_s: float) -> bool:
    """Whether the relaxation of `lower_bound_s` proves that no plan on the grid that fits is so short, or shorter."""
    effort.count(effort.REACH, (problem.stages + effort.REACH_MORE) * problem.cluster.devices**2)
    return not stages_exist(tables_of(problem), length_s, problem.cluster.memory)


def out_of_memory(problem: StagedProblem) -> Infeasible:
    """The error for a problem none of whose plans fits: what the fullest stage of the best-packed one needs."""
    fullest, restrictions = best_packed(tables_of(problem)), problem.constraints.in_words
    plans = counted(problem.stages, "stage") + (f" with {restrictions}" if restrictions else "")
    return Infeasible(
        f"none of the plans of {plans} fits the {fullest.limit_bytes / 1e9:.3g} GB of cluster "
        f"{problem.cluster.name}: in the best-packed one stage {fullest.stage} needs {fullest.nbytes / 1e9:.3g} GB on "
        f"each device for instructions {fullest.first}…{fullest.last}",
        where="planner exact",
        do="try more stages, a finer `granularity`, smaller micro-batches, a smaller `state_factor`"
        f"{', more shardings' if problem.shardings else ''}{', fewer restrictions' if restrictions else ''} "
        "or devices with more memory",
    )
