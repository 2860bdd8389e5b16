"""A staged problem as tables of the exact search: what a stage costs in each of its shardings (cost.staged)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints, Windows
from automap_models.core.paces import equal_paces, most_between
from automap_models.core.profile import FloatArray
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import stage_rates, sum_start_s
from automap_models.errors import BadInput
from automap_models.planners.staged.costs import is_plain
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import (
    ShardingTables,
    SharedWork,
    StageTables,
    coarse_cuts,
    copies_at,
    prefix_at,
    replicas_s_per_byte,
    stage_tables,
)


def tables_of(problem: StagedProblem, stride: int = 1, cut: IntArray | None = None) -> StageTables:
    """Tables of all valid plans that cut on the grid, at one of so many of its points, or after given instructions.

    Places where the problem's constraints ask for a cut are added. Shardings keep their index among the problem's.

    Raises:
        BadInput: constraints contradict one another, or leave no way to share the devices out among the stages.
    """
    cut = coarse_cuts(problem, stride) if cut is None else cut
    if is_plain(problem):
        return stage_tables(problem, cut)
    constraints = problem.constraints
    windows = constraints.windows(problem.profile, problem.stages) if constraints.restrict_cuts else None
    cut = cut if windows is None else windows.cuts(cut)
    tables = stage_tables(problem, cut)
    partitioned = () if "operator" in constraints.forbidden else problem.shardings
    whole = replace(tables.shardings[0], allowed=_wanted(problem, tables.shardings[0].allowed, 1))
    shardings = (whole, *(_sharding(problem, sharding, tables) for sharding in partitioned))
    tables = replace(tables, shardings=shardings, windows=_in_boundaries(tables, windows))
    _require_devices(tables, constraints, _most_replicas(problem))
    return tables


def _in_boundaries(tables: StageTables, windows: Windows | None) -> IntArray:
    """[S, 2] the windows as boundaries of the tables."""
    if windows is None:
        return tables.windows
    least = np.searchsorted(tables.boundary, windows.least)
    most = np.searchsorted(tables.boundary, windows.most, side="right") - 1
    first, last = tables.windows.T
    return np.stack((np.maximum(first, least), np.minimum(last, most)), axis=1)


def _sharding(problem: StagedProblem, sharding: ShardedProfile, tables: StageTables) -> ShardingTables:
    """Tables of one sharding at the boundaries of those of plain replication."""
    cluster, at, stages = problem.links, tables.boundary, tables.stages
    allowed = _wanted(problem, _aligned(cluster, stages, sharding.degree), sharding.degree)
    all_reduce = np.zeros_like(tables.devices.link)
    if stages == 1 and allowed.any():
        all_reduce[0, -1], _ = stage_rates(problem, 0, cluster.devices, sharding.degree)
    elif allowed.any():
        all_reduce = replicas_s_per_byte(problem, tables.devices, sharding.degree)
    slowest, place, kinds = _places(problem, sharding.degree, allowed)
    start_s = sum_start_s(problem, sharding.degree)
    forward, both, gather, gradient = [], [], [], []
    for slow, intra, per_byte, fewer in kinds:
        of_byte = fewer * per_byte / slow
        forward.append(sharding.C_fwd + of_byte * sharding.reduced_fwd)
        both.append(forward[-1] + (sharding.C - sharding.C_fwd + of_byte * sharding.reduced_bwd))
        gather.append(fewer * sharding.gathered[at] / intra / slow)
        gradient.append(problem.gradient_share * per_byte * prefix_at(at, sharding.gradients))
    paces = equal_paces(problem.shares, problem.speeds, cluster.device_memory, sharding.degree)
    return ShardingTables(
        sharding=sharding,
        shared_parameters=problem.profile.shared_parameters,
        shared_frozen=problem.profile.shared_frozen,
        C=np.stack([prefix_at(at, of_kind) for of_kind in both]),
        F=np.stack([prefix_at(at, of_kind) for of_kind in forward]),
        W=prefix_at(at, sharding.W),
        H=prefix_at(at, sharding.stash),
        frozen=prefix_at(at, sharding.frozen),
        all_reduce=all_reduce,
        degree=sharding.degree,
        paces=paces if slowest is None else replace(paces, rate=paces.rate / slowest),
        allowed=allowed,
        copies=copies_at(at, problem.profile.shared_parameters, sharding.shared_bytes),
        frozen_copies=copies_at(at, problem.profile.shared_frozen, sharding.shared_frozen_bytes),
        shared=SharedWork(
            gather_s=np.stack(gather),
            start_s=start_s * prefix_at(at, sharding.starts_fwd + sharding.starts_bwd),
            start_forward_s=start_s * prefix_at(at, sharding.starts_fwd),
            gradient_s=np.stack(gradient),
        ),
        place=place,
    )


def _places(
    problem: StagedProblem, degree: int, allowed: NDArray[np.bool_]
) -> tuple[FloatArray | None, IntArray | None, list[tuple[float, float, float, float]]]:
    """The kinds of places where devices can share operators: by their slowest device and their slowest links inside.

    Replicas divide what is sent by their number, and times of instructions by less (`StagedProblem.speeds`): how much
    less is a kind of place, too, so that one rate divides both.

    Returns:
        [D+1, D+1] time of the slowest of devices a … q-1 over that of the profile's, None where all take as long; the
        kind of place of these devices, None where there is one; of each kind the slowest device, the slowest bandwidth
        inside a node, the seconds per byte of an all-reduce over the devices that share a replica, and the rate of the
        replicas over the parts of a micro-batch.
    """
    cluster = problem.links
    slowest = None if problem.slowdowns is None else most_between(problem.slowdowns)
    least = most_between(cluster.node_intra[cluster.node_of], np.minimum)
    slow = np.ones_like(least) if slowest is None else slowest
    if not allowed.any():
        return slowest, None, [(1.0, cluster.intra, 0.0, 1.0)]
    cut = np.arange(cluster.devices + 1)
    fewer = (problem.speeds / problem.shares)[np.maximum((cut - cut[:, None]) // degree, 0)]
    rows = np.stack((slow[allowed], least[allowed], fewer[allowed]))
    distinct, place = np.unique(rows, axis=1, return_inverse=True)
    kinds = []
    for of_kind, intra, of_replicas in distinct.T.tolist():
        per_byte = 2.0 * (degree - 1) / degree / intra
        if problem.stages == 1:  # one kind; devices that share a replica may be in several nodes
            _, per_byte = stage_rates(problem, 0, cluster.devices, degree)
        kinds.append((of_kind, intra, per_byte, of_replicas))
    if len(kinds) == 1:
        return slowest, None, kinds
    of_devices = np.zeros(allowed.shape, dtype=np.int64)
    of_devices[allowed] = place.ravel()
    return slowest, of_devices, kinds


def _aligned(cluster: Cluster, stages: int, degree: int) -> NDArray[np.bool_]:
    """[D+1, D+1] whether devices a … q-1 are groups of neighbours inside nodes; of all devices, of a single stage."""
    cut = np.arange(cluster.devices + 1)
    starts = cut % degree == 0
    allowed: NDArray[np.bool_] = starts[:, None] & starts & (cut[:, None] < cut)
    if stages == 1:
        allowed[1:], allowed[:, :-1] = False, False
    elif cluster.devices_per_node % degree:
        allowed[:] = False
    return allowed


def _most_replicas(problem: StagedProblem) -> int | None:
    """Replicas of a stage at most; None is no limit."""
    return 1 if "data" in problem.constraints.forbidden else problem.max_replicas


def _wanted(problem: StagedProblem, allowed: NDArray[np.bool_], degree: int) -> NDArray[np.bool_]:
    """[D+1, D+1] on which devices a … q-1, of those allowed, a stage in a sharding of that degree may be."""
    cut, most = np.arange(allowed.shape[0]), _most_replicas(problem)
    devices = cut - cut[:, None]
    if most is not None:
        allowed = allowed & (devices <= most * degree)
    if problem.constraints.equal_replicas:
        share = cut[-1] // problem.stages
        allowed = allowed & (cut[:, None] % share == 0) & (devices == share)
    return allowed


def _require_devices(tables: StageTables, constraints: Constraints, max_replicas: int | None) -> None:
    """Nothing, where the stages can share out the devices.

    Raises:
        BadInput: they cannot, which is due to techniques that are forbidden, or to replicas without a sample.
    """
    allowed = np.any([sharding.allowed for sharding in tables.shardings], axis=0)
    reached = np.zeros(tables.replicas_in_all + 1, dtype=bool)
    reached[0] = True
    for _ in range(tables.stages):
        reached = allowed[reached].any(axis=0)
    if not reached[-1]:
        forbidden = [f"`forbidden='{name}'`" for name in ("data", "operator") if name in constraints.forbidden]
        both = forbidden if len(forbidden) > 1 else [*forbidden, f"`stages={tables.stages}`"]
        raise BadInput(
            f"{tables.stages} stage(s) cannot share out {tables.replicas_in_all} devices: a stage has at most "
            f"{max_replicas} replica(s) of as many devices as operators are partitioned over",
            where=" and ".join(both),
            do="allow data parallelism, larger micro-batches, or take another number of stages",
        )
