"""m-SCT of Baechi (Jeon et al., SoCC 2020) on a step, for benchmarks/placer.py.

SCT ("small communication times", Hanen & Munier, 1995) asks a linear program which reader of each operation should
share its device: its favourite child. Then it schedules as m-ETF does, but a device waits for the favourite child of
what it did last, for as long as sending that output elsewhere would take. An operation whose inputs are on every device
already is urgent, and does not wait.

    minimise w        w ≥ s_i + p_i        s_j ≥ s_i + p_i + c_i x_ij        0 ≤ x_ij ≤ 1
    all but one reader j of i have x_ij = 1, all but one input i of j likewise; x_ij < 1/2 makes j the favourite of i
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from automap_models.core.placement import IntArray, PlacementProblem
from automap_models.planners.placement.list_scheduling import etf
from automap_models.planners.placement.step_groups import StepUnits


def favourite_children(units: StepUnits, limit_s: float) -> IntArray | None:
    """[n] the favourite child of each operation, -1 for none; None where the program takes longer than `limit_s`."""
    tables = units.tables
    readers, n = tables.readers, tables.order.size
    e = readers.size
    out_degree = np.diff(tables.readers_start)
    makers = np.repeat(np.arange(n), out_degree)
    time_s = np.where(np.isfinite(tables.time_s), tables.time_s, np.nan)
    took_s = np.nanmean(time_s, axis=0)
    unit_s = max(float(took_s.sum()), 1e-12)
    took = took_s / unit_s
    sent = (tables.latency_s.mean() + tables.s_per_byte.mean() * tables.output_bytes) / unit_s
    # columns: x of each edge, s of each operation, w; rows are A z <= b
    rows, ones = np.arange(e), np.ones(e)
    along = coo_array(
        (
            np.concatenate([sent[makers], ones, -ones]),
            (np.tile(rows, 3), np.concatenate([rows, e + makers, e + readers])),
        ),
        shape=(e, e + n + 1),
    )
    own = np.arange(n)
    ends = coo_array(
        (np.concatenate([np.ones(n), -np.ones(n)]), (np.tile(own, 2), np.concatenate([e + own, np.full(n, e + n)]))),
        shape=(n, e + n + 1),
    )
    from_maker = coo_array((-ones, (makers, rows)), shape=(n, e + n + 1))
    to_reader = coo_array((-ones, (readers, rows)), shape=(n, e + n + 1))
    matrix: Any = csr_array(vstack([along, ends, from_maker, to_reader]))
    in_degree = np.bincount(readers, minlength=n)
    limits = np.concatenate([-took[makers], -took, 1.0 - np.maximum(out_degree, 1), 1.0 - np.maximum(in_degree, 1)])
    cost = np.zeros(e + n + 1)
    cost[-1] = 1.0
    bounds: Any = np.zeros((e + n + 1, 2))
    bounds[:, 1] = np.where(np.arange(e + n + 1) < e, 1.0, np.inf)
    answer = linprog(cost, matrix, limits, bounds=bounds, method="highs", options={"time_limit": limit_s})
    if answer.x is None or answer.status != 0:
        return None
    favourite = np.full(n, -1)
    near = answer.x[:e] < 0.5
    favourite[makers[near]] = readers[near]
    return favourite


def sct(problem: PlacementProblem, limit_s: float) -> IntArray | None:
    """[n] devices of m-SCT; None where its program takes longer, or the memory was used up."""
    units = StepUnits.of(problem)
    favourite = favourite_children(units, limit_s)
    return None if favourite is None else etf(units, favourite)
