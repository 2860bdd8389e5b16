"""Stages that replicate the model on devices of equal nodes, as a few arrays: what compiled searches work on.

`StageTables` has a number for every pair of devices, and a transfer for every three of them; on equal nodes these are
short formulas (cost.link_kernel), which a compiled loop works out faster than it would look them up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables, coarse_cuts, copies_at, prefix_at

A = 5
"""The last row of `PlainStages.sums`; the others are as those of stage_arrays."""


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
        hop_s: seconds per byte of the slowest link of one ring through several nodes; inf where none is made.
        gradient_share: of the problem.
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
    hop_s: float
    gradient_share: float

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return self.held.size

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return self.parts.size - 1


def plain_stages(problem: StagedProblem) -> tuple[PlainStages, IntArray]:
    """The stages of a problem on equal nodes between the cuts of its grid, and [m+1] the boundaries' instructions.

    Devices that are slower count as the others, and shardings not at all.
    """
    profile, cut = problem.profile, coarse_cuts(problem)
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
        hop_s=max(1.0 / links.intra, 1.0 / links.inter) if problem.one_ring else np.inf,
        gradient_share=problem.gradient_share,
    ), boundary


def _copied(trained: FloatArray, untrained: FloatArray) -> FloatArray:
    """[2, P] bytes of what is trained and of what is not; of one kind each."""
    return np.stack((np.append(trained, np.zeros(untrained.size)), np.append(np.zeros(trained.size), untrained)))


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
        hop_s=max(1.0 / cluster.intra, 1.0 / cluster.inter) if tables.one_ring else np.inf,
        gradient_share=tables.gradient_share,
    )
