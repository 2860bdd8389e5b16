"""Stages that replicate the model on devices of equal nodes, as a few arrays: what compiled searches work on.

`StageTables` has a number for every pair of devices, and a transfer for every three of them; on equal nodes these are
short formulas (envs.pipeline.table_kernel), which a compiled loop works out faster than it would look them up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.constraints import ROUNDING, least_work
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables, coarse_cuts, copies_at, prefix_at


class PlainStages(NamedTuple):
    """A problem on equal nodes between its boundaries 0 … m, as in StageTables.

    Attributes:
        C, F, W, H, frozen: [m+1] prefix sums of time, forward time, parameters, stash and what is not trained; s and
            bytes.
        A: [m+1] bytes crossing each boundary; 0 at both ends.
        copies_end, copies_nbytes: [P, m+1] and [P] of tied weights, as in `Copies`.
        frozen_end, frozen_nbytes: the same of what several instructions use and none trains.
        parts: [D+1] into how many parts so many replicas split a micro-batch.
        held: [S] micro-batches whose activations a stage holds at once.
        per_node, intra, inter, memory: of the cluster; devices, bytes/s and bytes.
        state_factor, micro_batches: σ and M.
        least_C, least_W: work that a stage holds one or the other of (core.constraints.least_work), s and bytes;
            below 0 where it may hold none.
        most_replicas: of a stage.
    """

    C: FloatArray
    F: FloatArray
    W: FloatArray
    H: FloatArray
    frozen: FloatArray
    A: FloatArray
    copies_end: IntArray
    copies_nbytes: FloatArray
    frozen_end: IntArray
    frozen_nbytes: FloatArray
    parts: FloatArray
    held: IntArray
    per_node: float
    intra: float
    inter: float
    memory: float
    state_factor: float
    micro_batches: float
    least_C: float
    least_W: float
    most_replicas: float

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return self.held.size

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return self.parts.size - 1


def plain_stages(problem: StagedProblem, places: IntArray | None = None) -> tuple[PlainStages, IntArray]:
    """The stages of a problem on equal nodes between places to cut, and [m+1] the boundaries' instructions.

    Devices that are slower count as the others.

    Args:
        problem: without shardings.
        places: [m-1] instructions after which it may be cut, ascending; None for those of its grid.
    """
    profile, cut = problem.profile, coarse_cuts(problem) if places is None else places
    least = _least_work(problem)
    boundary = np.concatenate(([0], cut + 1, [len(profile)]))
    own = problem.all_shardings[0]
    copies = copies_at(boundary, profile.shared_parameters, own.shared_bytes)
    frozen_copies = copies_at(boundary, profile.shared_frozen, own.shared_frozen_bytes)
    cluster = problem.cluster
    return PlainStages(
        C=prefix_at(boundary, profile.C),
        F=prefix_at(boundary, profile.C_fwd),
        W=prefix_at(boundary, profile.W),
        H=prefix_at(boundary, profile.stash),
        frozen=prefix_at(boundary, profile.frozen),
        A=np.concatenate(([0.0], profile.A[cut], [0.0])),
        copies_end=copies.end,
        copies_nbytes=copies.nbytes,
        frozen_end=frozen_copies.end,
        frozen_nbytes=frozen_copies.nbytes,
        parts=problem.shares,
        held=np.array([problem.in_flight(s) for s in range(problem.stages)], dtype=np.int64),
        per_node=float(cluster.devices_per_node),
        intra=float(cluster.intra),
        inter=float(cluster.inter),
        memory=float(cluster.memory),
        state_factor=float(problem.state_factor),
        micro_batches=float(problem.micro_batches),
        least_C=least[0],
        least_W=least[1],
        most_replicas=float(problem.max_replicas or problem.cluster.devices),
    ), boundary


def _least_work(problem: StagedProblem) -> tuple[float, float]:
    """What a stage holds one or the other of, less rounding; -1 of each where it may hold nothing."""
    share = problem.constraints.min_stage
    if not share or problem.stages == 1:
        return -1.0, -1.0
    least_s, least_bytes = least_work(problem.profile, problem.stages, share)
    return least_s * (1.0 - ROUNDING), least_bytes * (1.0 - ROUNDING)


def plain_of(tables: StageTables) -> PlainStages | None:
    """The same of tables; None where devices or nodes differ."""
    own, cluster = tables.shardings[0], tables.cluster
    if not cluster.is_uniform or own.paces.rate is not own.paces.parts:  # equal_paces: all devices work, and as fast
        return None
    return PlainStages(
        C=tables.C,
        F=tables.F,
        W=tables.W,
        H=tables.H,
        frozen=own.frozen,
        A=tables.A,
        copies_end=own.copies.end,
        copies_nbytes=own.copies.nbytes,
        frozen_end=own.frozen_copies.end,
        frozen_nbytes=own.frozen_copies.nbytes,
        parts=own.paces.parts[0],
        held=np.array(tables.held, dtype=np.int64),
        per_node=float(cluster.devices_per_node),
        intra=float(cluster.intra),
        inter=float(cluster.inter),
        memory=float(tables.memory),
        state_factor=float(tables.state_factor),
        micro_batches=float(tables.micro_batches),
        least_C=-1.0,
        least_W=-1.0,
        most_replicas=float(tables.replicas_in_all),
    )
