"""What many plans of one problem cost, at once: cost.staged over arrays of cuts, from prefix sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray
from automap_models.cost.staged import span_and_length
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables


@dataclass(frozen=True, eq=False)
class ManyCosts:
    """Costs of P plans; see cost.staged.StagedCost.

    Attributes:
        forward_s, backward_s, all_reduce_s: [P, S].
        transfer_s: [P, S-1].
        span_s, length_s: [P] T and L.
        feasible: [P] whether every stage fits the device memory.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    transfer_s: FloatArray
    all_reduce_s: FloatArray
    span_s: FloatArray
    length_s: FloatArray
    feasible: NDArray[np.bool_]


def many_costs(tables: StageTables, boundaries: IntArray, device_cuts: IntArray) -> ManyCosts:
    """Cost of P structurally valid plans.

    Args:
        tables: of the problem.
        boundaries: [P, S-1] index of the boundary after each stage but the last.
        device_cuts: [P, S-1].
    """
    k = np.pad(boundaries, ((0, 0), (1, 1)), constant_values=((0, 0), (0, tables.end)))
    d = np.pad(device_cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, tables.replicas_in_all)))
    replicas = np.diff(d)
    forward = np.diff(tables.F[k]) / replicas
    backward = np.diff(tables.C[k]) / replicas - forward
    all_reduce = tables.devices.all_reduce[d[:, :-1], d[:, 1:]] * np.diff(tables.W[k])
    transfer = tables.A[boundaries] * _transfer_s_per_byte(tables, d)
    span, length, _ = span_and_length(forward.T, backward.T, transfer.T, all_reduce.T, tables.micro_batches)
    stage = range(tables.stages)
    fits = [tables.fits(s, k[:, s], k[:, s + 1], replicas[:, s]) for s in stage]
    return ManyCosts(forward, backward, transfer, all_reduce, span, length, np.logical_and.reduce(fits))


def _transfer_s_per_byte(tables: StageTables, d: IntArray) -> FloatArray:
    """[P, S-1] over each boundary; the few different neighbourhoods of device cuts are looked up once each."""
    triples = np.stack((d[:, :-2], d[:, 1:-1], d[:, 2:]), axis=-1)
    kinds, which = np.unique(triples.reshape(-1, 3), axis=0, return_inverse=True)
    rates = np.array([tables.devices.transfer[q][a, e - q - 1] for a, q, e in kinds.tolist()])
    looked_up: FloatArray = rates[which.reshape(triples.shape[:2])]
    return looked_up
