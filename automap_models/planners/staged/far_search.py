"""Plans on hundreds of devices: quick descents from unlike routes, then beam searches of several shapes from the best.

    even computation ──▶ far beam search ──▶ descent ─┐
    even points      ──▶ far beam search ──▶ descent ─┼─▶ the shortest goes on, beside itself and through the others
    even parameters  ──▶ far beam search ──▶ descent ─┘
    (even memory, where none of these leads to what fits)

On so many devices thousands of routes are such that no search around them shortens them, some twice as long as others.
Where a search ends depends on where it begins, and on the shape of what it looks at. A round looks at one window around
every place of the route, the next round at the next one. A beam search takes the square of a window's area, so that
windows that are long one way and narrow the other come further in the same time than square ones
(benchmarks/results/huge_problems.md). Of the last searches, in boundaries and devices beside a place:

    boundaries  ±24  ┃ ┃ ┃                ±12 ┃ ┃ ┃              ±2 ▒▒▒▒▒▒▒ ▒ ▒  ▒   ▒
    devices        -16 0 16                  -4 0 4                 0 … 8, 16 … 64, 128
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.profile import FloatArray
from automap_models.planners.staged.beam_kernel import route_length_s, shortest_around
from automap_models.planners.staged.local_search import even_places, far_offsets, spread_out
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages

DESCENT_ROUNDS = 5
"""Beam searches of a descent at most."""
LAST_ROUNDS = 60
"""Beam searches from the best of the descents at most; most often some twenty."""
LEAST_GAIN = 1e-6
"""A round that makes a plan shorter by less has not helped."""


class Windows(NamedTuple):
    """Shapes of what beam searches look at.

    Attributes:
        boundaries: [n] how far a stage may begin beside a route's place.
        devices: [n, m] by how many devices, padded with 0.
    """

    boundaries: IntArray
    devices: IntArray


def far_routes(stages: PlainStages, reach: int, begin: IntArray | None = None) -> IntArray:
    """[n, 2, S+1] the boundaries and devices where stages begin, and the end, of plans; the shortest first.

    Args:
        stages: two or more.
        reach: boundaries beside a route at which stages may begin, about; 0 leaves what the first searches come to.
        begin: the one route to set out from; several even ones without one.
    """
    starts = even_routes(stages) if begin is None else begin[None]
    far = far_offsets(stages.C.size - 1, stages.devices)
    first, last = _windows(reach)
    return _searched(stages, starts, *far, first, last, DESCENT_ROUNDS if reach else 0, LAST_ROUNDS if reach else 0)


def even_routes(stages: PlainStages) -> IntArray:
    """[4, 2, S+1] routes of even computation, numbers of points and parameters, and for need of even memory.

    Stages get equally many devices in the first and the last, and in the others as they have to compute.
    """
    count, devices, points = stages.stages, stages.devices, np.arange(stages.C.size, dtype=np.float64)
    routes = [even_places(stages.C, count, devices)]
    for measure in (points, stages.W):
        boundary = even_places(_ascending(measure), count, devices)[0]
        own = np.rint(devices * stages.C[boundary] / stages.C[-1]).astype(np.int64)
        routes.append(np.stack((boundary, spread_out(own, devices))))
    stash = float(np.mean(stages.held)) / float(stages.parts[max(devices // count, 1)]) * stages.H
    routes.append(even_places(_ascending(stages.state_factor * stages.W + stash), count, devices))
    return np.array(routes)


def _ascending(sums: FloatArray) -> FloatArray:
    """Prefix sums to which every point adds a little, so that they can be divided."""
    return sums + 1e-9 * max(float(sums[-1]), 1.0) * np.arange(sums.size)


@cache
def _windows(reach: int) -> tuple[Windows, Windows]:
    """Those of the descents, and those of the last searches."""
    narrow, wide = max(reach // 4, 1), 3 * reach // 2
    many = (*range(1, 9), 16, 24, 32, 40, 48, 64, 128)
    descent = ((wide, (8,)), (narrow, (1, 2, 4, 16, 32)))
    last = ((3 * reach, (16,)), (wide, (4,)), (narrow, many))
    return _padded(descent), _padded(last)


def _padded(windows: tuple[tuple[int, tuple[int, ...]], ...]) -> Windows:
    devices = np.zeros((len(windows), 2 * max(len(by) for _, by in windows)), dtype=np.int64)
    for row, (_, by) in zip(devices, windows, strict=True):
        row[: 2 * len(by)] = (*by, *(-d for d in by))
    return Windows(np.array([width for width, _ in windows]), devices)


@jit
def _searched(
    stages: PlainStages,
    starts: IntArray,
    far_boundary: IntArray,
    far_device: IntArray,
    first: Windows,
    last: Windows,
    descent_rounds: int,
    last_rounds: int,
) -> IntArray:
    """[n, 2, S+1] the routes from the best of the starts on, the shortest first, and where the other starts led.

    Args:
        starts: [n, 2, S+1]; of several the last is for need, where none of those before it leads to what fits.
        far_boundary, far_device: beside these the first searches look.
        first, last: windows of the descents, and of the searches behind them.
        descent_rounds, last_rounds: how many searches these may take.
    """
    count, none, length_s = starts.shape[0], starts[:0], np.full(starts.shape[0], np.inf)
    routes = np.zeros((last_rounds + count, *starts.shape[1:]), dtype=np.int64)
    ends = routes[last_rounds:]
    ends[:] = starts
    for n in range(count):
        if n == count - 1 and np.isfinite(length_s).any():
            count = n
            break
        length_s[n], ends[n] = shorter(stages, ends[n], np.inf, none, far_boundary, far_device)
        if np.isfinite(length_s[n]):
            ahead = ends[n : n + 1].copy()
            length_s[n], _ = descent(stages, ahead, length_s[n], none, first, descent_rounds, False)
            ends[n] = ahead[0]
    ends, length_s = ends[:count], length_s[:count]
    order = np.argsort(length_s, kind="mergesort")
    ends[:] = ends[order]
    best_s, at = length_s[order[0]], last_rounds
    if np.isfinite(best_s):
        _, at = descent(stages, routes[: last_rounds + 1], best_s, ends[1:].copy(), last, last_rounds, True)
    return routes[at : last_rounds + count]


@jit
def shorter(
    stages: PlainStages,
    route: IntArray,
    length_s: float,
    others: IntArray,
    by_boundary: IntArray,
    by_device: IntArray,
) -> tuple[float, IntArray]:
    """The shortest route beside one and others, or that route and its length where none is shorter.

    Args:
        length_s: of the route; inf where it is not known.
    """
    known_s = route_length_s(stages, route) if np.isinf(length_s) else length_s
    other_s, other = shortest_around(stages, route, known_s, others, by_boundary, by_device)
    return (other_s, other) if other_s < known_s else (known_s, route)


@jit
def descent(
    stages: PlainStages,
    routes: IntArray,
    length_s: float,
    others: IntArray,
    windows: Windows,
    rounds: int,
    stays: bool,
) -> tuple[float, int]:
    """Go through windows, one after the other, from a route on, until none of them helps.

    Args:
        routes: [n, 2, S+1] the last one is where to begin; shorter ones are put before it, and replace the first.
        length_s: of the last one.
        others: routes that a round may go through as well.
        stays: whether a window that helped is looked through once more before the next.

    Returns:
        Length and number of the shortest route.
    """
    at = routes.shape[0] - 1
    turn = failed = 0
    for _ in range(rounds):
        own, was_s = turn % windows.boundaries.size, length_s
        beside = np.arange(-windows.boundaries[own], windows.boundaries[own] + 1)
        length_s, route = shorter(stages, routes[at], length_s, others, beside, windows.devices[own])
        if length_s < was_s:
            at = max(at - 1, 0)
            routes[at] = route
        helped = length_s < was_s * (1.0 - LEAST_GAIN)
        failed = 0 if helped else failed + 1
        if failed == windows.boundaries.size:
            break
        if not (helped and stays):
            turn += 1
    return length_s, at
