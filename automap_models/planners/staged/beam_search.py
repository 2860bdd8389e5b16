"""A beam search keeps a few suffixes of each place: good plans among very many in milliseconds, nothing proven.

It goes through the stages from the last to the first as the exact search does (planners.staged.exact), but each stage
begins at one of some places given, and of the suffixes that begin at a place only two stay: the one with which the
prefix of a plan known beforehand would be shortest, and the one that is shortest by itself, T + R, after the fastest
transfer into it that any sender could make. The plan known beforehand is never lost where its own places are given:
nothing longer comes out. The loops are compiled (beam_kernel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap_models.core.staged import StagedPlan
from automap_models.planners import effort
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import plain_of
from automap_models.planners.staged.stage_tables import StageTables

Places = tuple[IntArray, IntArray]
"""Devices and boundaries at which a stage may begin, pairs ascending by device and then by boundary."""


@dataclass(frozen=True, eq=False)
class Route:
    """A plan as places in tables.

    Attributes:
        boundary, device: [S+1] where each stage begins, and the end.
        length_s: its length L; inf where it does not fit the memory.
    """

    boundary: IntArray
    device: IntArray
    length_s: float

    def cuts(self, tables: StageTables) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Instruction cuts and device cuts of the plan."""
        return tuple((tables.boundary[self.boundary[1:-1]] - 1).tolist()), tuple(self.device[1:-1].tolist())


def route_of(tables: StageTables, plan: StagedPlan, length_s: float) -> Route:
    """A plan whose cuts are all among the tables' boundaries."""
    inside = np.searchsorted(tables.boundary, np.array(plan.cuts, dtype=np.int64) + 1)
    boundary = np.concatenate(([0], inside, [tables.end]))
    return Route(boundary, np.array([0, *plan.device_cuts, tables.replicas_in_all]), length_s)


def shortest_through(tables: StageTables, known: Route, places: Sequence[Places]) -> Route | None:
    """The shortest plan found whose stages begin at the places given; None where none is shorter than the one known.

    Args:
        tables: of the problem; where devices differ or there is one stage nothing is looked for.
        known: a plan; prefixes are judged by its own.
        places: for each stage but the first.
    """
    plain = plain_of(tables)
    if plain is None or tables.stages == 1:
        return None
    from automap_models.planners.staged import beam_kernel  # numba takes half a second to import

    sizes = np.array([1, *(device.size for device, _ in places)])
    effort.count(effort.BEAM, float((sizes[:-1] * sizes[1:] + effort.BEAM_MORE).sum()))
    begin = np.concatenate(([0], sizes.cumsum()))
    device, boundary = (np.concatenate(([0], *(place[half] for place in places))) for half in (0, 1))
    length_s, route = beam_kernel.shortest(plain, known.boundary, known.device, known.length_s, boundary, device, begin)
    return None if np.isinf(length_s) else Route(route[0], route[1], length_s)
