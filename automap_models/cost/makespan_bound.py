"""A proven lower limit of a step's makespan, whatever the placement.

    t(v)     least time of v on any device      head(v)  longest path to v, without v     tail(v)  longest path after v
    w(v)     min over devices d of λ_d · time(d, v), for shares λ ≥ 0 that add up to 1

Two things are true of every schedule. No path is faster than its operations on their fastest devices: the makespan is
at least head(v) + t(v) + tail(v). And a set S of operations keeps the D devices busy between the first of them that
can start and the last that has something behind it: since Σ_d λ_d · busy(d) ≥ Σ_S w(v) for any λ, the makespan is at
least min_S head + Σ_S w + min_S tail (the dual of the linear program that splits operations over unequal devices;
heads and tails as in Carlier's bound, EJOR 11(1), 1982). Transfers, memory and co-location are left out, so the limit
is valid with them.
"""

from __future__ import annotations

import numpy as np

from automap_models.core.placement import FloatArray
from automap_models.cost.makespan import heads_and_tails
from automap_models.cost.step_tables import StepTables


def makespan_bound_s(tables: StepTables) -> float:
    """Seconds that no placement's step is shorter than."""
    if not tables.order.size:
        return 0.0
    least = tables.time_s.min(axis=0)
    head, tail = heads_and_tails(tables, least)
    path = float((head + tail).max())
    tail = tail - least
    weight = _weights(tables.time_s)
    best = max(path, float(weight.sum()))
    for low in _thresholds(head):
        late = head >= low
        for behind in _thresholds(tail[late]):
            chosen = late & (tail >= behind)
            if chosen.any():
                best = max(best, float(head[chosen].min() + weight[chosen].sum() + tail[chosen].min()))
    return best * (1.0 - 1e-12)  # sums in another order than the simulator's


def _weights(time_s: FloatArray, steps: int = 300) -> FloatArray:
    """[n] w(v) for the best shares met: equal ones of equal devices, else by multiplicative steps from these.

    Any shares give a valid limit.
    """
    rows, copies = np.unique(time_s, axis=0, return_counts=True)
    if len(rows) == 1:
        return np.asarray(rows[0] / copies[0])
    usable = np.isfinite(rows)
    filled = np.where(usable, rows, 0.0)
    speed = 1.0 / np.maximum(filled.sum(axis=1), 1e-300)
    share = speed / (speed * copies).sum()  # of one device of each row
    best, best_total = np.zeros(rows.shape[1]), -1.0
    for step in range(steps):
        scaled = np.where(usable, filled * share[:, None], np.inf)
        choice = scaled.argmin(axis=0)
        weight = scaled[choice, np.arange(choice.size)]
        total = float(weight.sum())
        if total > best_total:
            best, best_total = weight, total
        load = np.bincount(choice, weights=filled[choice, np.arange(choice.size)], minlength=len(rows)) / copies
        share = share * np.exp(0.5 / np.sqrt(1.0 + step) * (load / max(float(load.max()), 1e-300) - 1.0))
        share /= (share * copies).sum()
    return best


def _thresholds(values: FloatArray, levels: int = 24) -> FloatArray:
    return np.unique(np.quantile(values, np.linspace(0.0, 1.0, levels, endpoint=False), method="lower"))
