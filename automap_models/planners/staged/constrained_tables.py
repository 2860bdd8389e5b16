"""A hybrid problem as tables of the label search: what a stage costs in each of its ways (cost.staged, tabulated)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Constraints, Windows
from automap_models.core.profile import FloatArray
from automap_models.core.sharded_profile import ShardedProfile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import all_reduce_start_s, stage_rates
from automap_models.errors import BadInput
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.sharding_tables import SharedWork, WayTables, prefix_at
from automap_models.planners.staged.stage_tables import DeviceTables, StageTables, coarse_cuts, stage_tables


class ConstrainedTables:
    """Makes the tables of one problem under constraints, coarse and fine.

    Raises:
        BadInput: constraints contradict one another, or leave no way to share the devices out among the stages.
    """

    def __init__(self, problem: StagedProblem, constraints: Constraints) -> None:
        pipeline = problem
        self.problem = problem
        self.windows: Windows | None = None
        windows = constraints.windows(pipeline.profile, pipeline.stages)
        if constraints.restrict_cuts:
            self.windows = windows
        without = replace(problem, shardings=()) if "operator" in constraints.forbidden else problem
        self._ways = without.all_shardings
        self._max_replicas = 1 if "data" in constraints.forbidden else problem.max_replicas
        _require_devices(self.tables(), constraints, self._max_replicas)

    def tables(self, stride: int = 1) -> StageTables:
        """Tables of plans that cut on the grid, or at one of so many of its points; and where the constraints need it.

        Ways keep their index among the problem's choices.
        """
        cut = coarse_cuts(self.problem, stride)
        if self.windows is not None:
            cut = self.windows.cuts(cut)
        tables = stage_tables(self.problem, cut)
        ways = (tables.ways[0], *(self._way(each, tables) for each in self._ways[1:]))
        if self._max_replicas is not None:
            ways = tuple(replace(way, allowed=way.allowed & _replicas(way, self._max_replicas)) for way in ways)
        return replace(tables, ways=ways, windows=self._in_boundaries(tables))

    def _in_boundaries(self, tables: StageTables) -> IntArray:
        """[S, 2] the windows as boundaries of the tables."""
        if self.windows is None:
            return tables.windows
        least = np.searchsorted(tables.boundary, self.windows.least)
        most = np.searchsorted(tables.boundary, self.windows.most, side="right") - 1
        first, last = tables.windows.T
        return np.stack((np.maximum(first, least), np.minimum(last, most)), axis=1)

    def _way(self, each: ShardedProfile, tables: StageTables) -> WayTables:
        """Tables of one partitioning at the boundaries of those without any."""
        cluster, at, stages = self.problem.cluster, tables.boundary, tables.stages
        allowed = _aligned(cluster, stages, each.degree)
        all_reduce, per_byte = np.zeros_like(tables.devices.all_reduce), 0.0
        if stages == 1 and allowed.any():
            all_reduce[0, -1], per_byte = stage_rates(cluster, 0, cluster.devices, each.degree)
        elif allowed.any():
            all_reduce = _over_replicas(cluster, tables.devices, each.degree)
            _, per_byte = stage_rates(cluster, 0, each.degree, each.degree)
        start_s = all_reduce_start_s(each.degree, self.problem.launch_s)
        forward = each.C_fwd + per_byte * each.reduced_fwd
        backward = each.C - each.C_fwd + per_byte * each.reduced_bwd
        return WayTables(
            weights=each.W,
            stash=each.stash,
            C=prefix_at(at, forward + backward),
            F=prefix_at(at, forward),
            W=prefix_at(at, each.W),
            H=prefix_at(at, each.stash),
            all_reduce=all_reduce,
            degree=each.degree,
            allowed=allowed,
            shared=SharedWork(
                gather_s=each.gathered[at] / cluster.intra,
                start_s=start_s * prefix_at(at, each.starts_fwd + each.starts_bwd),
                start_forward_s=start_s * prefix_at(at, each.starts_fwd),
                gradient_s=per_byte * prefix_at(at, each.gradients),
            ),
        )


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


def _over_replicas(cluster: Cluster, devices: DeviceTables, degree: int) -> FloatArray:
    """[D+1, D+1] seconds per byte of all-reduces over the replicas on devices a … q-1 (cost.staged.stage_rates).

    Devices that share a replica are neighbours in a node, so that all groups of replicas have equally many devices in
    each node, and all of them leave it at a time.
    """
    inside, across = np.maximum(devices.inside // degree, 1), devices.across
    return 2.0 * (inside - 1) / inside / cluster.intra + 2.0 * (across - 1) / across / cluster.inter * degree


def _replicas(way: WayTables, most: int) -> NDArray[np.bool_]:
    """[D+1, D+1] whether devices a … q-1 are so many replicas at most."""
    cut = np.arange(way.allowed.shape[0])
    few: NDArray[np.bool_] = cut - cut[:, None] <= most * way.degree
    return few


def _require_devices(tables: StageTables, constraints: Constraints, max_replicas: int | None) -> None:
    """Nothing, where the stages can share out the devices.

    Raises:
        BadInput: they cannot, which is due to techniques that are forbidden, or to replicas without a sample.
    """
    allowed = np.any([way.allowed for way in tables.ways], axis=0)
    reached = np.zeros(tables.replicas_in_all + 1, dtype=bool)
    reached[0] = True
    for _ in range(tables.stages):
        reached = allowed[reached].any(axis=0)
    if not reached[-1]:
        forbidden = [f"--forbid {each}" for each in ("data", "operator") if each in constraints.forbidden]
        both = forbidden if len(forbidden) > 1 else [*forbidden, f"--stages {tables.stages}"]
        raise BadInput(
            f"{tables.stages} stage(s) cannot share out {tables.replicas_in_all} devices: a stage has at most "
            f"{max_replicas} replica(s) of as many devices as operators are partitioned over",
            where=" and ".join(both),
            do="allow data parallelism, larger micro-batches, or take another number of stages",
        )
