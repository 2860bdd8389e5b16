"""Local search in large neighbourhoods, for problems not all of whose plans can be looked at: nothing is proven.

A round offers each stage some hundred places to begin at, the present plan's own among them, and takes the best way
through all of them at once (planners.staged.beam_search). First each cut may move by any power of two of boundaries and
of devices: from the plan given, from an even one and from the best on a coarse grid, each as far as that leads. Then,
for the shortest of the three first, the places of a round are drawn at random around it: at independent offsets of any
magnitude; along the plan, where a cut and its devices move together so that the stages stay balanced; or where any of
the three has its own. The longer nothing shorter comes out, the more places are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray
from automap_models.planners.base import Deadline
from automap_models.planners.staged.beam_search import Places, Route, shortest_through
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.stage_tables import StageTables

STALE = 24
"""Random rounds in a row without a shorter plan, after which the next of the three plans has its turn."""
GROWTH = 1 / 32
"""How many more places are drawn, relatively, with each of those rounds."""
BOUNDARIES, DEVICES = 24, 16
"""Offsets drawn for a cut and for its device."""
ALONG, BESIDE = 32, 12
"""Devices drawn for a stage that moves along the plan, and boundaries beside each of them."""
COARSE = 32
"""Segments of the coarse grid, and most groups of devices there."""


def local_search(tables: StageTables, cluster: Cluster, start: Route, deadline: Deadline, seed: int = 0) -> Route:
    """A plan no longer than the start: the shortest found until the deadline, or until nothing shorter comes out.

    Args:
        tables: where plans may cut.
        cluster: of the problem.
        start: a plan.
        deadline: when to stop.
        seed: of the places drawn. With the same one a search that comes to its end finds the same plan everywhere.
    """
    rng, ends = np.random.default_rng(seed), [_descend(tables, start, deadline)]
    for other in (_coarse, _even):
        if not deadline.passed:
            ends.append(_descend(tables, other(tables, cluster, start), deadline))
    ends.sort(key=lambda route: route.length_s)
    for j, route in enumerate(ends):
        ends[j] = _wander(tables, route, ends[:j] + ends[j + 1 :], rng, deadline)
    return min(ends, key=lambda route: route.length_s)


def _wander(
    tables: StageTables, best: Route, others: Sequence[Route], rng: np.random.Generator, deadline: Deadline
) -> Route:
    """From plan to shorter plan by random rounds, until STALE of them in a row have come to nothing."""
    stale, turn = 0, 0
    while stale < STALE and not deadline.passed:
        shorter = shortest_through(tables, best, _drawn(tables, best, others, rng, turn, 1.0 + GROWTH * stale))
        best, stale = (best, stale + 1) if shorter is None else (shorter, 0)
        turn += 1
    return best


def _descend(tables: StageTables, route: Route, deadline: Deadline) -> Route:
    """From plan to shorter plan as long as there is one whose every cut moves by powers of two."""
    by_boundary, by_device = far_offsets(tables.end, tables.replicas_in_all)
    while not deadline.passed:
        k, d = route.boundary, route.device
        near = [every_pair(tables, s, k[s] + by_boundary, d[s] + by_device) for s in range(1, tables.stages)]
        shorter = shortest_through(tables, route, near)
        if shorter is None:
            break
        route = shorter
    return route


def powers_of_two(most: int) -> IntArray:
    """0 and ± all powers of two up to the most, or up to 1."""
    return powers(2, most)


@cache
def powers(base: int, most: int) -> IntArray:
    """0 and ± all powers of a whole number up to the most, or up to 1."""
    some = [1]
    while some[-1] * base <= most:
        some.append(some[-1] * base)
    return np.array([*(-power for power in reversed(some)), 0, *some])


def far_offsets(boundaries: int, devices: int, base: int = 2) -> tuple[IntArray, IntArray]:
    """By how many boundaries and devices the stages of an even plan may move to begin with: powers of a number."""
    return powers(base, boundaries // 4), powers(base, devices // 4)


def every_pair(tables: StageTables, stage: int, boundary: IntArray, device: IntArray) -> Places:
    """Those boundaries with those devices, where they leave enough for the stages before and after."""
    first, last = tables.windows[stage]
    k = np.unique(boundary[(boundary >= first) & (boundary <= last)])
    most = tables.replicas_in_all - tables.stages + stage
    d = np.unique(device[(device >= stage) & (device <= most)])
    return np.repeat(d, k.size), np.tile(k, d.size)


def _coarse(tables: StageTables, cluster: Cluster, start: Route) -> Route:
    """A plan that cuts on a coarse grid, at node boundaries or finer where there are fewer nodes than stages.

    The start where none is found.
    """
    stride, size = max(tables.end // COARSE, 1), cluster.devices_per_node
    while size > 1 and cluster.devices // size < tables.stages:
        size //= 2
    while cluster.devices // size > COARSE:
        size *= 2
    k, d = np.arange(stride, tables.end, stride), np.arange(size, cluster.devices, size)
    anything = Route(start.boundary, start.device, np.inf)
    coarse = shortest_through(tables, anything, [every_pair(tables, s, k, d) for s in range(1, tables.stages)])
    return start if coarse is None else coarse


def _even(tables: StageTables, _cluster: Cluster, _start: Route) -> Route:
    return even_route(tables)


def even_route(tables: StageTables) -> Route:
    """Stages of equal computation on equally many devices; how long it is, or whether it fits, is not known."""
    boundary, device = even_places(tables.C, tables.stages, tables.replicas_in_all)
    return Route(boundary, device, np.inf)


def even_places(C: FloatArray, stages: int, devices: int) -> IntArray:
    """[2, S+1] the boundaries and devices where such stages begin, and the end, from [m+1] prefix sums of time."""
    stage, end = np.arange(stages + 1), C.size - 1
    boundary = np.searchsorted(C, C[-1] * stage / stages)
    boundary[0], boundary[-1] = 0, end
    return np.stack((spread_out(boundary, end), np.rint(stage * devices / stages).astype(np.int64)))


def spread_out(places: IntArray, end: int) -> IntArray:
    """Ascending places, moved where two are equal: each one after the one before it, and early enough for the rest."""
    stage = np.arange(places.size)
    apart: IntArray = np.maximum.accumulate(places - stage) + stage
    return np.minimum(apart, end - stage[::-1])


def _drawn(
    tables: StageTables, best: Route, others: Sequence[Route], rng: np.random.Generator, turn: int, share: float
) -> list[Places]:
    """The places of a random round, so many times the usual number; the kinds take turns."""
    stages = range(1, tables.stages)
    if turn % 4 == 3 and others:
        return [_joined(tables, [best, *others], s) for s in stages]
    kind = _scattered if turn % 2 else _along
    return [kind(tables, best, s, rng, share) for s in stages]


def _joined(tables: StageTables, routes: Sequence[Route], stage: int) -> Places:
    """Where any of the plans begins the stage, and one boundary or device beside."""
    around = np.arange(-1, 2)
    k = np.add.outer([route.boundary[stage] for route in routes], around)
    d = np.add.outer([route.device[stage] for route in routes], around)
    return every_pair(tables, stage, k.ravel(), d.ravel())


def _scattered(tables: StageTables, route: Route, stage: int, rng: np.random.Generator, share: float) -> Places:
    """Boundaries and devices around those of a stage, independently."""
    k, d = route.boundary[stage], route.device[stage]
    by_boundary = _offsets(rng, int(share * BOUNDARIES), tables.end // 3)
    by_device = _offsets(rng, int(share * DEVICES), tables.replicas_in_all // 2)
    return every_pair(tables, stage, np.append(k + by_boundary, k), np.append(d + by_device, d))


def _offsets(rng: np.random.Generator, count: int | tuple[int, int], most: int) -> IntArray:
    """Offsets of either sign and of any magnitude up to the most, small ones as likely as large ones."""
    size = np.exp(rng.uniform(0.0, np.log(max(most, 2)), count))
    offsets: IntArray = np.rint(size * rng.choice((-1.0, 1.0), count)).astype(np.int64)
    return offsets


def _along(tables: StageTables, route: Route, stage: int, rng: np.random.Generator, share: float) -> Places:
    """Devices around those of a stage, each with boundaries near the one that the route has or would have there."""
    own = route.device[stage]
    d = np.append(own + _offsets(rng, int(share * ALONG), tables.replicas_in_all // 2), own)
    d = np.unique(d[(d >= stage) & (d <= tables.replicas_in_all - tables.stages + stage)])
    k = np.searchsorted(tables.C, np.interp(d, route.device, tables.C[route.boundary]))
    k[d == own] = route.boundary[stage]
    beside = _offsets(rng, (d.size, int(share * BESIDE)), tables.end // 10)
    near = np.concatenate((k[:, None], k[:, None] + beside), axis=1)
    first, last = tables.windows[stage]
    key: IntArray = np.unique(d[:, None] * (tables.end + 1) + np.clip(near, first, last))
    return key // (tables.end + 1), key % (tables.end + 1)
