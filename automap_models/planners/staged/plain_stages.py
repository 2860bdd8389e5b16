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

C, F, W, H, FROZEN, A = range(6)
"""Rows of `PlainStages.sums`. Few arrays compile in a fraction of the time of many."""
TRAINED, UNTRAINED = range(2)
"""Rows of `PlainStages.copies_nbytes`."""


class PlainStages(NamedTuple):
    """A problem on equal nodes between its boundaries 0 … m, as in StageTables.

    Attributes:
        sums: [6, m+1] prefix sums of time, forward time, parameters, stash and what is not trained, s and bytes; and
            the bytes crossing each boundary, 0 at both ends.
        copies_end, copies_nbytes: [P, m+1] and [2, P] of what several instructions use, as in `Copies`: the bytes of
            tied weights, and of what none trains.
        parts, speeds: [D+1] into how many parts so many replicas split a micro-batch, and how many times as fast they
            are as one.
        held: [S] micro-batches whose activations a stage holds at once.
        per_node, intra, inter, memory: of the cluster; devices, bytes/s and bytes.
        state_factor, micro_batches: σ and M.
        least_C, least_W: work that a stage holds one or the other of (core.constraints.least_work), s and bytes;
            below 0 where it may hold none.
        most_replicas: of a stage.
        hop_s: seconds per byte of the slowest link of one ring through several nodes; inf where none is made.
        overlap, update_s, gradient_share: of the problem; update_s is of a byte of parameters.
    """

    sums: FloatArray
    copies_end: IntArray
    copies_nbytes: FloatArray
    parts: FloatArray
    speeds: FloatArray
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
    hop_s: float
    overlap: float
    update_s: float
    gradient_share: float

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
    links = problem.links
    summed = profile.C, profile.C_fwd, profile.W, profile.stash, profile.frozen
    sums = [prefix_at(boundary, array) for array in summed]
    return PlainStages(
        sums=np.stack((*sums, np.concatenate(([0.0], profile.A[cut], [0.0])))),
        copies_end=np.concatenate((copies.end, frozen_copies.end)),
        copies_nbytes=_copied(copies.nbytes, frozen_copies.nbytes),
        parts=problem.shares,
        speeds=problem.speeds,
        held=np.array([problem.in_flight(s) for s in range(problem.stages)], dtype=np.int64),
        per_node=float(links.devices_per_node),
        intra=float(links.intra),
        inter=float(links.inter),
        memory=float(links.memory),
        state_factor=float(problem.state_factor),
        micro_batches=float(problem.micro_batches),
        least_C=least[0],
        least_W=least[1],
        most_replicas=float(problem.max_replicas or links.devices),
        hop_s=max(1.0 / links.intra, 1.0 / links.inter) if problem.one_ring else np.inf,
        overlap=problem.overlap,
        update_s=problem.update_s_per_byte,
        gradient_share=problem.gradient_share,
    ), boundary


def _copied(trained: FloatArray, untrained: FloatArray) -> FloatArray:
    """[2, P] bytes of what is trained and of what is not; of one kind each."""
    return np.stack((np.append(trained, np.zeros(untrained.size)), np.append(np.zeros(trained.size), untrained)))


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
    if not cluster.is_uniform or tables.capacity[-1] != tables.replicas_in_all:
        return None
    return PlainStages(
        sums=np.stack((tables.C, tables.F, tables.W, tables.H, own.frozen, tables.A)),
        copies_end=np.concatenate((own.copies.end, own.frozen_copies.end)),
        copies_nbytes=_copied(own.copies.nbytes, own.frozen_copies.nbytes),
        parts=own.paces.parts[0],
        speeds=own.paces.rate[0],
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
        hop_s=max(1.0 / cluster.intra, 1.0 / cluster.inter) if tables.one_ring else np.inf,
        overlap=tables.overlap,
        update_s=tables.update_s_per_byte,
        gradient_share=tables.gradient_share,
    )
