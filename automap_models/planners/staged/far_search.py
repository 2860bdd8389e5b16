"""Plans on hundreds of devices: quick descents from routes that prices for devices give, then from the best of them.

    a price under each of several bounds ──▶ near beam search ──▶ the shortest few: descents ──▶ the shortest goes on,
    (planners.staged.priced_routes)                                                              beside itself and
    even stages, where none of these fits ──▶ far beam search ──▶ …                              through the others

On so many devices thousands of routes are such that no search around them shortens them, some twice as long as others.
Where a search ends depends on where it begins, and on the shape of what it looks at. A round looks at one window around
every place of the route, the next round at the next one. A beam search takes the square of a window's area, so that
windows that are long one way and narrow the other come further in the same time than square ones
(benchmarks/results/huge_problems.md). Of the last searches, in boundaries and devices beside a place:

    boundaries  ±24  ┃ ┃ ┃                ±16 ┃ ┃ ┃              ±2 ▒▒▒▒▒▒▒ ▒ ▒  ▒   ▒
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
from automap_models.planners.staged.priced_routes import EXPOSED, FACTORS, priced_routes

NEAR_BOUNDARIES, NEAR_DEVICES = (0, 1, 3, -1, -3), (0, 1, 2, 4, 8, 16, 32, -1, -2, -4, -8, -16, -32)
"""Beside a priced route's places, what the first searches look at: nearly all is in its place already."""
DESCENTS, DESCENT_ROUNDS, DESCENT_GAIN = 5, 4, 1e-2
"""How many of the first searches' ends go on, by so many beam searches at most, as long as these help by so much."""
LAST_ROUNDS, LAST_GAIN = 60, 1e-3
"""Beam searches from the best of the descents at most, most often some twenty, and what a round that helps gains."""
OTHERS = 3
"""Ends of other descents that the last searches go through."""


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
        begin: the one route to set out from; without one, routes that prices give, and even ones where none of these
            leads to what fits.
    """
    even = even_routes(stages) if begin is None else begin[None]
    priced = even[:0] if begin is not None else priced_routes(stages, np.array(EXPOSED), np.array(FACTORS))
    near = np.array(NEAR_BOUNDARIES), np.array(NEAR_DEVICES)
    far = far_offsets(stages.C.size - 1, stages.devices)
    rounds = (DESCENT_ROUNDS, LAST_ROUNDS) if reach else (0, 0)
    return _searched(stages, priced, near, even, far, *_windows(reach), *rounds)


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
    routes.append(even_places(_ascending(stages.state_factor * stages.W + stages.frozen + stash), count, devices))
    return np.array(routes)


def _ascending(sums: FloatArray) -> FloatArray:
    """Prefix sums to which every point adds a little, so that they can be divided."""
    return sums + 1e-9 * max(float(sums[-1]), 1.0) * np.arange(sums.size)


@cache
def _windows(reach: int) -> tuple[Windows, Windows]:
    """Those of the descents, and those of the last searches."""
    narrow, many = max(reach // 4, 1), (*range(1, 9), 16, 24, 32, 40, 48, 64, 128)
    descent = ((3 * reach // 2, (8,)), (narrow, (1, 2, 4, 16, 32)))
    last = ((3 * reach, (16,)), (2 * reach, (4,)), (narrow, many))
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
    near: tuple[IntArray, IntArray],
    need: IntArray,
    far: tuple[IntArray, IntArray],
    first: Windows,
    last: Windows,
    descent_rounds: int,
    last_rounds: int,
) -> IntArray:
    """[n, 2, S+1] the routes from the best of the starts on, the shortest first, and where the other starts led.

    Args:
        starts: [n, 2, S+1]; near: beside these boundaries and devices the first searches look.
        need: [n, 2, S+1] and far: the same, for where none of the starts leads to what fits.
        first, last: windows of the descents, and of the searches behind them.
        descent_rounds, last_rounds: how many searches these may take.
    """
    length_s, ends = searched_each(stages, starts, near)
    if not np.isfinite(length_s).any():
        length_s, ends = searched_each(stages, need, far)
    ends = ends[np.argsort(length_s, kind="mergesort")[:DESCENTS]]
    length_s = np.sort(length_s)[:DESCENTS]
    for n in range(length_s.size if descent_rounds else 0):
        if np.isfinite(length_s[n]):
            ahead = ends[n : n + 1].copy()
            length_s[n], _ = descent(stages, ahead, length_s[n], ends[:0], first, descent_rounds, DESCENT_GAIN, False)
            ends[n] = ahead[0]
    ends, best_s = ends[np.argsort(length_s, kind="mergesort")], length_s.min()
    routes, at = np.zeros((last_rounds + ends.shape[0], *ends.shape[1:]), dtype=np.int64), last_rounds
    routes[last_rounds:] = ends
    if np.isfinite(best_s) and last_rounds:
        others = ends[1 : 1 + OTHERS]
        _, at = descent(stages, routes[: last_rounds + 1], best_s, others, last, last_rounds, LAST_GAIN, True)
    return routes[at:]


@jit
def searched_each(
    stages: PlainStages, starts: IntArray, beside: tuple[IntArray, IntArray]
) -> tuple[FloatArray, IntArray]:
    """[n] the lengths and [n, 2, S+1] the routes that one beam search beside each start comes to."""
    length_s, ends = np.full(starts.shape[0], np.inf), starts.copy()
    for n in range(starts.shape[0]):
        length_s[n], ends[n] = shorter(stages, starts[n], np.inf, starts[:0], beside[0], beside[1])
    return length_s, ends


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
    least_gain: float,
    stays: bool,
) -> tuple[float, int]:
    """Go through windows, one after the other, from a route on, until none of them helps.

    Args:
        routes: [n, 2, S+1] the last one is where to begin; shorter ones are put before it, and replace the first.
        length_s: of the last one.
        others: routes that a round may go through as well.
        rounds: at most; least_gain: a round that makes a plan shorter by less, relatively, has not helped.
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
        helped = length_s < was_s * (1.0 - least_gain)
        failed = 0 if helped else failed + 1
        if failed == windows.boundaries.size:
            break
        if not (helped and stays):
            turn += 1
    return length_s, at
