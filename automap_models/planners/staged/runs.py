"""Runs of boundaries between which next to nothing lies, as one boundary each: far fewer plans, which cost no more.

Many cuts of a model differ by next to nothing: those behind a reshape, a mask, a bias. What lies inside a run is left
out of the tables, and of what crosses its boundaries the least counts. So a plan that cuts at runs costs no more than
any of its members, the plans that cut at boundaries of these runs:

    boundaries   0 │ 1  2  3 │ 4 │ 5  6 │ 7        a plan that cuts at runs B and D has 3 · 2 members
    runs         A │    B    │ C │  D   │ E        what lies between 1 and 3, and between 5 and 6, counts nothing

All numbers of cost.suffixes never fall when a time rises, and neither does what is simulated where messages that may
go either way do not wait for one another (simulate.batch). A stage may begin and end in one run: it lies inside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import warm_up
from automap_models.planners.staged.pareto import IntArray, ragged_ranges
from automap_models.planners.staged.plan_batch import PlanBatch
from automap_models.planners.staged.stage_tables import StageTables, stage_windows

SHARE = 5e-4
"""Of the model's time, of its parameters and of its stash: so much lies inside a run at most."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The boundaries of a problem in runs.

    Attributes:
        first, last: [r] the boundaries of each run; the model's start and its end are runs by themselves.
        tables: of the problem, with a run as a boundary.
    """

    first: IntArray
    last: IntArray
    tables: StageTables

    def members(self, batch: PlanBatch) -> IntArray:
        """[P] how many ways there are to choose a boundary of each run that a plan cuts at."""
        sizes: IntArray = np.prod((self.last - self.first + 1)[batch.k], axis=1)
        return sizes

    def expanded(self, batch: PlanBatch) -> PlanBatch:
        """The members of all of these plans: in the problem's own boundaries, without empty stages."""
        owner, way = ragged_ranges(np.zeros(len(batch), dtype=np.int64), self.members(batch))
        first, size = self.first[batch.k], (self.last - self.first + 1)[batch.k]
        k = np.empty((owner.size, batch.k.shape[1]), dtype=np.int64)
        for s in range(batch.k.shape[1]):
            way, inside = np.divmod(way, size[owner, s])
            k[:, s] = first[owner, s] + inside
        some = np.flatnonzero((np.diff(k, axis=1) > 0).all(axis=1))
        return PlanBatch(k[some], batch.q[owner[some]], batch.sharding[owner[some]])


def runs_of(tables: StageTables, schedule: str | None) -> Runs | None:
    """The runs of a problem; None where what holds for their plans does not hold for members, or there are no runs.

    That is so without a schedule, where warm-ups of neighbouring stages differ by more than one micro-batch, where
    stages share operators or parameters, and where constraints say where stages may begin.

    Args:
        tables: of the problem.
        schedule: whose step counts.
    """
    own = tables.shardings[0]
    if schedule is None or len(tables.shardings) > 1 or own.shared_parameters or own.shared_frozen:
        return None
    depths = [warm_up(schedule, s, tables.stages, tables.micro_batches) for s in range(tables.stages)]
    plain = stage_windows(tables.stages, tables.boundary.size)
    if (np.abs(np.diff(depths)) > 1).any() or not np.array_equal(tables.windows, plain):
        return None
    first = _begins(
        [sums / max(float(sums[-1]), np.finfo(float).tiny) for sums in (own.C[0], own.W, own.H, own.frozen)]
    )
    if first.size == tables.boundary.size:
        return None
    last = np.append(first[1:] - 1, tables.end)

    def without(sums: FloatArray) -> FloatArray:
        """Prefix sums without what lies inside runs."""
        return np.concatenate(([0.0], np.cumsum(sums[first[1:]] - sums[last[:-1]])))

    C, F, W, H, frozen = (without(sums) for sums in (own.C[0], own.F[0], own.W, own.H, own.frozen))
    merged = replace(own, C=C[None], F=F[None], W=W, H=H, frozen=frozen)
    begin = np.minimum(np.arange(tables.stages), 1)
    return Runs(
        first,
        last,
        replace(
            tables,
            boundary=tables.boundary[first],
            A=np.minimum.reduceat(tables.A, first),
            shardings=(merged,),
            windows=np.stack((begin, begin * (first.size - 2)), axis=1),
            apart=(first == last).astype(np.int64),
            exact=False,
        ),
    )


def _begins(shares: list[FloatArray]) -> IntArray:
    """[r] where runs begin: in none rises a prefix sum by more than SHARE, and both ends lie by themselves."""
    end, first = shares[0].size - 1, [0, 1]
    for k in range(2, end):
        if any(sums[k] - sums[first[-1]] > SHARE for sums in shares):
            first.append(k)
    return np.array([*first, end] if end > 1 else [0, 1])
