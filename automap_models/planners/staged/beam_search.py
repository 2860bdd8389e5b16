"""A beam search keeps a few suffixes of each place: good plans among very many in milliseconds, nothing proven.

It goes through the stages from the last to the first as the exact search does (planners.staged.exact), but each stage
begins at one of some places given, and of the suffixes that begin at a place only two stay: the one with which the
prefix of a plan known beforehand would be shortest, and the one that is shortest by itself, T + R, after the fastest
transfer into it that any sender could make. The plan known beforehand is never lost where its own places are given:
nothing longer comes out. On equal devices the loops are compiled where numba is installed (beam_kernel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np

from automap_models.core.compiled import is_compiled
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedPlan
from automap_models.cost.staged import before_transfer
from automap_models.planners import effort
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages, plain_of
from automap_models.planners.staged.stage_tables import StageTables

SPARE = 0.3
"""How much longer than the plan known beforehand, relatively, a suffix may look behind that plan's prefix: another
prefix may be shorter."""
SLACK = 1e-9
"""Relative rounding: the plan known beforehand shall not be lost, and is no shorter than itself."""

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


@dataclass(frozen=True)
class _Prefix:
    """What comes before a stage, the transfer into it left out.

    Attributes:
        busy: Σ u_j over stages and transfers before.
        span: max (Σ_{j<e} u_j + M·u_e) over them.
        hidden: Σ of their backward and transfer times.
        exposed: max (AR - hidden) over the stages before.
        sender: first device of the stage right before.
    """

    busy: float = 0.0
    span: float = 0.0
    hidden: float = 0.0
    exposed: float = -np.inf
    sender: int = 0


def _prefixes(tables: StageTables, route: Route) -> list[_Prefix]:
    """[S] of a route's stages."""
    k, d, rounds, prefixes = route.boundary, route.device, tables.micro_batches, [_Prefix()]
    for s in range(tables.stages - 1):
        was, rate = prefixes[-1], tables.shardings[0].paces.rate[d[s], d[s + 1]]
        if s:
            x = tables.A[k[s]] * tables.devices.transfer[d[s]][was.sender, d[s + 1] - d[s] - 1]
            span = max(was.span, was.busy + 2.0 * rounds * x)
            was = _Prefix(was.busy + 2.0 * x, span, was.hidden + x, was.exposed, was.sender)
        u = (tables.C[k[s + 1]] - tables.C[k[s]]) / rate
        backward = u - (tables.F[k[s + 1]] - tables.F[k[s]]) / rate
        reduce = tables.shardings[0].all_reduce[d[s], d[s + 1]] * tables.shardings[0].weights_bytes(k[s], k[s + 1])
        prefixes.append(
            _Prefix(
                busy=float(was.busy + u),
                span=float(max(was.span, was.busy + rounds * u)),
                hidden=float(was.hidden + backward),
                exposed=float(max(was.exposed, reduce - was.hidden)),
                sender=int(d[s]),
            )
        )
    return prefixes


@dataclass(frozen=True, eq=False)
class _Suffixes:
    """Ways to go on from the beginning of a stage, ascending by q.

    Attributes:
        q, k: device and boundary where the stage begins.
        e: device where it ends; -1 of what comes after the last stage.
        parent: index of the rest among the next stage's suffixes.
        span, exposed: T and R.
    """

    q: IntArray
    k: IntArray
    e: IntArray
    parent: IntArray
    span: FloatArray
    exposed: FloatArray


def shortest_through(tables: StageTables, known: Route, places: Sequence[Places]) -> Route | None:
    """The shortest plan found whose stages begin at the places given; None where none is shorter than the one known.

    Args:
        tables: of the problem.
        known: a plan; prefixes are judged by its own.
        places: for each stage but the first.
    """
    kernel, plain = compiled_kernel(), plain_of(tables)
    if kernel is not None and plain is not None and tables.stages > 1:
        return _compiled_through(kernel, plain, known, places)
    limit_s, prefixes = known.length_s, _prefixes(tables, known)
    nothing = np.array([-1])
    suffixes = [
        _Suffixes(
            np.array([tables.replicas_in_all]),
            np.array([tables.end]),
            nothing,
            nothing,
            np.zeros(1),
            np.full(1, -np.inf),
        )
    ]
    for stage in range(tables.stages - 1, -1, -1):
        first = np.zeros(1, dtype=np.int64)
        begin = _within_reach(tables, *places[stage - 1], limit_s) if stage else (first, first)
        suffixes.append(_before(tables, stage, begin, suffixes[-1], prefixes[stage], limit_s))
        if not suffixes[-1].q.size:
            return None
    length = suffixes[-1].span + suffixes[-1].exposed
    j = int(length.argmin())
    if length[j] >= limit_s * (1.0 - SLACK):
        return None
    boundary, device, length_s = [], [], float(length[j])
    for of_stage in reversed(suffixes):
        boundary.append(int(of_stage.k[j]))
        device.append(int(of_stage.q[j]))
        j = int(of_stage.parent[j])
    return Route(np.array(boundary), np.array(device), length_s)


@cache
def compiled_kernel() -> ModuleType | None:
    """The compiled beam search; None where numba is not installed."""
    from automap_models.planners.staged import beam_kernel  # numba takes half a second to import

    return beam_kernel if is_compiled(beam_kernel.shortest) else None


def _compiled_through(kernel: ModuleType, plain: PlainStages, known: Route, places: Sequence[Places]) -> Route | None:
    """`shortest_through` on equal devices."""
    sizes = np.array([1, *(device.size for device, _ in places)])
    effort.count(effort.COMPILED_BEAM, float((sizes[:-1] * sizes[1:] + effort.COMPILED_MORE).sum()))
    begin = np.concatenate(([0], sizes.cumsum()))
    device, boundary = (np.concatenate(([0], *(place[half] for place in places))) for half in (0, 1))
    length_s, route = kernel.shortest(plain, known.boundary, known.device, known.length_s, boundary, device, begin)
    return None if np.isinf(length_s) else Route(route[0], route[1], length_s)


def _within_reach(tables: StageTables, device: IntArray, boundary: IntArray, limit_s: float) -> Places:
    """Those places before and after which the devices can compute all there is in time: M·ΣC / rate ≤ L."""
    before = tables.micro_batches * tables.C[boundary]
    after = tables.micro_batches * tables.C[-1] - before
    most = limit_s * (1.0 + SLACK)
    capacity = tables.capacity[device]
    ok = (before <= most * capacity) & (after <= most * (tables.capacity[-1] - capacity))
    return device[ok], boundary[ok]


def _before(
    tables: StageTables, stage: int, begin: Places, rest: _Suffixes, prefix: _Prefix, limit_s: float
) -> _Suffixes:
    """The best suffixes from each place where the stage may begin, before those of the next stage."""
    rounds, last = tables.micro_batches, stage == tables.stages - 1
    effort.count(effort.BEAM, begin[0].size * rest.q.size)
    a, row_of_place = np.unique(begin[0], return_inverse=True)
    paces, on = tables.shardings[0].paces, (a[:, None], rest.q)
    share = np.where(rest.q > on[0], 1.0 / paces.rate[on], np.nan)
    x = np.zeros(share.shape) if last else _into(tables, a, rest) * tables.A[rest.k]
    after, exposed_after = before_transfer(x, rest.span, rest.exposed, rounds)
    u = (tables.C[rest.k] - tables.C[begin[1]][:, None]) * share[row_of_place]
    span = np.maximum(rounds * u, u + after[row_of_place])
    forward_only = rest.k > begin[1][:, None]
    place, j = np.nonzero((span <= min(limit_s * (1.0 + SLACK), np.finfo(np.float64).max)) & forward_only)
    row, i, k, u, span = row_of_place[place], begin[1][place], rest.k[j], u[place, j], span[place, j]
    weights = tables.shardings[0].weights_bytes(i, k)
    backward = u - (tables.F[k] - tables.F[i]) * share[row, j]
    ring = tables.shardings[0].all_reduce[on]
    exposed = np.maximum(ring[row, j] * weights, exposed_after[row, j] - backward)
    stash = (tables.H[k] - tables.H[i]) / paces.parts[on][row, j]
    held = tables.shardings[0].state_bytes(i, k, tables.state_factor) + tables.in_flight(stage) * stash
    in_x = _from(tables, prefix.sender, a, rest.q)[row, j] * tables.A[i] if stage else np.zeros(i.size)
    whole, uncovered = before_transfer(in_x, span, exposed, rounds)
    least_x = tables.devices.arrival[a[:, None], rest.q][row, j] * tables.A[i] if stage else np.zeros(i.size)
    own = np.add(*before_transfer(least_x, span, exposed, rounds))
    looks = np.maximum(prefix.span, prefix.busy + whole) + np.maximum(prefix.exposed, uncovered - prefix.hidden)
    alive = np.flatnonzero((held <= paces.memory[on][row, j]) & (looks <= limit_s * (1.0 + SPARE)))
    kept = alive[_best_of_groups(place[alive], looks[alive], own[alive])]
    return _Suffixes(begin[0][place[kept]], i[kept], rest.q[j[kept]], j[kept], span[kept], exposed[kept])


def _into(tables: StageTables, a: IntArray, rest: _Suffixes) -> FloatArray:
    """[a, n] seconds per byte from devices a … q-1 into the suffixes' first stages, 0 where there are none."""
    x = np.zeros((a.size, rest.q.size))
    starts = np.flatnonzero(np.concatenate(([True], rest.q[1:] != rest.q[:-1])))
    for start, stop in pairwise([*starts.tolist(), rest.q.size]):
        q = int(rest.q[start])
        senders = a[: np.searchsorted(a, q), None]
        x[: senders.size, start:stop] = tables.devices.transfer[q][senders, rest.e[start:stop] - q - 1]
    return x


def _from(tables: StageTables, sender: int, a: IntArray, q: IntArray) -> FloatArray:
    """[a, n] seconds per byte from the known plan's sender into devices a … q-1, 0 where it would have none."""
    x = np.zeros((a.size, q.size))
    for row, (first, start) in enumerate(zip(a.tolist(), np.searchsorted(q, a, side="right").tolist(), strict=True)):
        if first > sender:
            x[row, start:] = tables.devices.transfer[first][sender, q[start:] - first - 1]
    return x


def _best_of_groups(group: IntArray, *scores: FloatArray) -> IntArray:
    """Indices of the entries of least score in their groups, for any of the scores; groups are ascending."""
    if not group.size:
        return group
    starts = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    best = []
    for score in scores:
        least = np.repeat(np.minimum.reduceat(score, starts), np.diff(np.append(starts, group.size)))
        index = np.flatnonzero(score == least)
        best.append(index[np.concatenate(([True], group[index][1:] != group[index][:-1]))])
    kept: IntArray = np.unique(np.concatenate(best))
    return kept
