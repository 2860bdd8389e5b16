"""A named schedule as arrays: its passes, and the moments at which its ranks hold most.

core.schedules.Schedule is the same with one object a pass. Prices of strategies by the thousand need no more than this,
and a schedule of a hundred ranks is laid out in milliseconds, by loops (pass_kernels) that are imported when a schedule
is first laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from automap_models.core.pass_orders import WARM_UPS, micro_batches_per_round
from automap_models.core.schedules import SCHEDULES, ranks_of_stages, require_few_passes, require_runnable

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PassTable:
    """The passes of every rank.

    Attributes:
        name: a key of SCHEDULES.
        orders: [S] arrays [3, n]: kind (pass_orders), virtual stage and micro-batch of each pass of a rank.
        micro_batches, virtual: M, vp.
        rank_of: [V] the rank of each virtual stage.
    """

    name: str
    orders: tuple[IntArray, ...]
    micro_batches: int
    virtual: int
    rank_of: IntArray

    @property
    def ranks(self) -> int:
        """S."""
        return len(self.orders)

    @property
    def stages(self) -> int:
        """V."""
        return int(self.rank_of.size)

    @cached_property
    def fullest(self) -> tuple[tuple[tuple[int, ...], IntArray], ...]:
        """[S] virtual stages of a rank, and [m, 2, vp] the moments of its order (Schedule.waiting) that no other has
        more of everything than, those of most in all first."""
        from automap_models.core import pass_kernels

        columns = np.zeros(self.stages, np.int64)
        of_ranks = []
        for rank, order in enumerate(self.orders):
            own = np.flatnonzero(self.rank_of == rank)
            columns[own] = np.arange(own.size)
            moments = pass_kernels.pareto_moments(order, columns, self.virtual)
            of_ranks.append((tuple(own.tolist()), moments.reshape(-1, 2, self.virtual)))
        return tuple(of_ranks)

    @cached_property
    def _moments(self) -> tuple[IntArray, NDArray[np.float64], IntArray]:
        """[n, vp] the virtual stages and [n, 2, vp] the numbers of all moments in `fullest`, rank by rank; [S] where
        those of each begin."""
        stages = [np.broadcast_to(own, (len(waiting), len(own))) for own, waiting in self.fullest]
        begin = np.cumsum([0, *(len(waiting) for _, waiting in self.fullest)])[:-1]
        waiting = np.concatenate([waiting for _, waiting in self.fullest]).astype(np.float64)
        return np.concatenate(stages), waiting, begin

    def most_held(self, saved: Sequence[float], kept: Sequence[float]) -> tuple[float, ...]:
        """[S] as core.schedules.most_held."""
        stages, waiting, begin = self._moments
        held = np.array([saved, kept], dtype=np.float64)[:, stages]  # [2, n, vp]
        return tuple(np.maximum.reduceat(np.einsum("npv,pnv->n", waiting, held), begin).tolist())


@lru_cache(maxsize=1024)
def pass_table(name: str, ranks: int, micro_batches: int, virtual: int) -> PassTable:
    """The schedule of that name for S ranks, M micro-batches and vp virtual stages a rank.

    Raises:
        BadInput: see core.schedules.build_schedule.
    """
    require_runnable(name, ranks, micro_batches, virtual)
    require_few_passes(name, ranks * virtual, micro_batches)
    lies = np.array(ranks_of_stages(ranks * virtual, ranks, SCHEDULES[name].placement))
    orders = tuple(_order(name, rank, ranks, micro_batches, virtual) for rank in range(ranks))
    return PassTable(name, orders, micro_batches, virtual, lies)


def _order(name: str, rank: int, ranks: int, micro_batches: int, virtual: int) -> IntArray:
    from automap_models.core import pass_kernels

    if name == "zb-v":
        return pass_kernels.zb_v_order(rank, ranks, micro_batches)
    if name == "dualpipev":
        return pass_kernels.dualpipev_order(rank, ranks, micro_batches)
    a_round, after = micro_batches_per_round(ranks, micro_batches) if virtual > 1 else micro_batches, ranks - 1 - rank
    delay = -1
    if name in WARM_UPS:
        warm_up = WARM_UPS[name](rank, ranks, micro_batches)
    elif name == "interleaved":
        warm_up = (virtual - 1) * a_round + 2 * after + 1
    elif name == "zb-h1":
        warm_up, delay = (virtual - 1) * a_round + ranks - rank, rank
    else:  # zb-h2
        warm_up, delay = 2 * after + 1, 2 * rank
    most = min(warm_up, micro_batches * virtual)
    return pass_kernels.rounds_order(rank, ranks, micro_batches, virtual, a_round, most, delay)
