"""Plans by compiled cost-to-go tables: a fraction of a millisecond for 16 devices, some ten for 128.

    even plan ──▶ beam search around it ──▶ tables, rough then fine, of what is no longer ──▶ the plans from the best
    first stages ──▶ beam searches through and beside all of them: by powers of two, once by every step, and again

The tables (table_kernel) hold one rest for each place, the best under a guess of what comes before; where
the all-reduce of earlier stages is hidden or not decides between rests, so that small problems are looked at under two
guesses. The beam search (beam_kernel) then mends what the tables' coarse points and units have lost. On hundreds of
devices it begins with the even plan alone. Nothing is learned, and nothing is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.staged.beam_kernel import route_length_s, shortest_around
from automap_models.planners.staged.local_search import even_places, far_offsets, powers_of_two
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import A, PlainStages, plain_stages
from automap_models.planners.staged.stage_arrays import C, F, H, W
from automap_models.planners.staged.table_kernel import ANY_LENGTH, plans_by_tables


class Look(NamedTuple):
    """One set of tables.

    Attributes:
        points, units: where the rest of a pipeline may be cut and groups that devices are counted in, at most.
        guess: how many times what comes before is guessed to reduce (table_kernel).
    """

    points: int
    units: int
    guess: float = 1.0


MOST_DEVICES = 256
"""That fine tables are made for; with more there is one set of coarse ones."""
FEW_DEVICES = 32
"""On more, stages of the even plan move by powers of three to begin with, not of two, which are half as many places;
and in the end along boundaries and along devices in turns, not both at once: 16 stages on 128 devices take 0.85 of the
time, plans are 0.1 % longer."""
LOOKS: tuple[tuple[float, tuple[Look, ...]], ...] = (
    (FEW_DEVICES, (Look(48, 32), Look(32, 32, 0.0))),
    (MOST_DEVICES, (Look(32, 32), Look(64, 64))),
    (np.inf, (Look(32, 32),)),
)
"""Most devices → the tables that such a problem is looked at by, one after another."""
STAGE_UNITS = np.array((*range(1, 32), *range(32, 48, 2), 48, 56, 64, 80, 96, 112))
"""Units that a stage of the rest may have, but for the last one, which gets all that are left."""
JOINS = 30
"""Beam searches through and beside the plans in the end, at most; most often the third one is the last."""
LIMIT_SLACK = 1.0 + 1e-5
"""Tables are in float32: plans as long as the best one known shall not be lost."""


def table_plans(
    problem: StagedProblem, beam: int, reach: int, planner: str, looks: Sequence[Look] | None = None
) -> list[StagedPlan]:
    """Plans of several stages on equal nodes for the length L, the best first; none of them may fit the memory.

    Args:
        problem: its schedule only says what fits.
        beam: ends of the first stage from which the tables are followed, of each look, and plans returned at most.
        reach: boundaries and devices beside the best route at which stages may begin in the end; 0 leaves it as it is.
        planner: name of who plans.
        looks: the tables to look at; None for those that LOOKS has.
    """
    stages, boundary = plain_stages(problem)
    looks = looks or next(looks for most, looks in LOOKS if stages.devices <= most)
    routes = best_routes(stages, float(problem.samples or 0), beam, reach, looks)
    return [_plan_of(problem, boundary, route, planner) for route in routes]


def shortened(problem: StagedProblem, plan: StagedPlan, reach: int) -> StagedPlan:
    """What beam searches from a plan on come to, without tables; that plan where nothing shorter comes out.

    Args:
        problem: of several stages on equal nodes.
        plan: on its grid.
        reach: as in `table_plans`.
    """
    stages, boundary = plain_stages(problem)
    begin = np.zeros((2, problem.stages + 1), dtype=np.int64)
    begin[0, 1:-1], begin[0, -1] = np.searchsorted(boundary, np.array(plan.cuts) + 1), stages.sums.shape[1] - 1
    begin[1, 1:-1], begin[1, -1] = plan.device_cuts, stages.devices
    route = best_routes(stages, float(problem.samples or 0), 1, reach, (), begin)[0]
    return plan if (route == begin).all() else _plan_of(problem, boundary, route, plan.planner)


def _plan_of(problem: StagedProblem, boundary: IntArray, route: IntArray, planner: str) -> StagedPlan:
    cuts = tuple((boundary[route[0, 1:-1]] - 1).tolist())
    devices = tuple(route[1, 1:-1].tolist())
    return StagedPlan(cuts, devices, problem.micro_batches, planner, problem.grid.to_points(cuts))


def best_routes(
    stages: PlainStages,
    samples: float,
    beam: int,
    reach: int,
    looks: Sequence[Look],
    begin: IntArray | None = None,
) -> list[IntArray]:
    """[2, S+1] the boundaries and devices where stages begin, and the end, of different plans; the shortest first.

    Args:
        stages: two or more.
        samples: in a micro-batch, 0 where a profile does not say.
        beam, reach: see `table_plans`.
        looks: the tables to look at, one after another.
        begin: the route that the first beam search sets out from; even stages without one.
    """
    ideal_s = float(stages.sums[C, -1]) * stages.micro_batches / stages.devices
    arrays, given = scaled(stages, ideal_s, samples)
    finest = np.array(looks, dtype=np.float32).reshape(-1, 3)
    even = even_places(stages.sums[C], stages.stages, stages.devices) if begin is None else begin
    square = stages.devices <= FEW_DEVICES
    far = far_offsets(stages.sums.shape[1] - 1, stages.devices, 2 if square else 3)
    near, few = np.arange(-reach, reach + 1), powers_of_two(reach)
    joins = JOINS if reach else 0
    routes = looked_at(stages, arrays, given, ideal_s, finest, even, *far, near, few, beam, joins, square)
    return _different(routes, beam)


def _different(routes: IntArray, most: int) -> list[IntArray]:
    different = {route.tobytes(): route for route in routes}
    return list(different.values())[:most]


@jit
def looked_at(
    stages: PlainStages,
    arrays: NDArray[np.float32],
    given: NDArray[np.float32],
    ideal_s: float,
    looks: NDArray[np.float32],
    even: IntArray,
    far_boundary: IntArray,
    far_device: IntArray,
    near: IntArray,
    few: IntArray,
    beam: int,
    joins: int,
    square: bool,
) -> IntArray:
    """[n, 2, S+1] the routes of all looks and of what joins them, the shortest first; some may be equal.

    Args:
        arrays, given: see `scaled`, by ideal_s.
        looks: [l, 3] points, units and guess of each.
        even: the route to begin with; far_boundary, far_device: how far its stages may move.
        near: how far those of the best one may in the end, in up to so many joins: first and last by a few of these, as
            long as that helps, and in between once by all of them, or in turns along boundaries and devices.
        few: some of them, or all, which are then looked at from the beginning on.
        beam: routes of each look.
        square: whether stages move along boundaries and devices by all at once.
    """
    length_s, number = np.full(1 + looks.shape[0] * beam, np.inf), 1
    routes = np.zeros((length_s.size + joins, *even.shape), dtype=np.int64)
    none = routes[:0]
    even_s = route_length_s(stages, even)
    length_s[0], best = shortest_around(stages, even, even_s, none, far_boundary, far_device)
    if np.isinf(length_s[0]):
        length_s[0], best = even_s, even
    routes[joins] = best
    for look in range(looks.shape[0]):
        limit = np.float32(min(length_s.min() / ideal_s * LIMIT_SLACK, ANY_LENGTH))
        units = min(int(looks[look, 1]), stages.parts.size - 1)
        sizes = STAGE_UNITS[max(units, 2) > STAGE_UNITS]
        lengths, places = plans_by_tables(arrays, given, int(looks[look, 0]), units, sizes, looks[look, 2], limit, beam)
        for b in range(lengths.size):
            length_s[number], routes[joins + number, :, 1:-1] = lengths[b] * ideal_s, places[b]
            routes[joins + number, :, -1] = even[:, -1]
            number += 1
    routes[joins : joins + number] = routes[joins : joins + number][np.argsort(length_s[:number], kind="mergesort")]
    known_s, first, others = length_s.min() * LIMIT_SLACK, joins, routes[joins + 1 : joins + number]
    widest = 1 if square else 2  # turns: few by few, then near by near, or near by few and few by near, then few by few
    turn = 0 if few.size < near.size else widest + 1
    for _ in range(joins):  # in float32 the best route may seem a little shorter than it is
        by_boundary, by_device = near if turn == 1 else few, near if turn == widest else few
        shorter_s, shorter = shortest_around(stages, routes[first], known_s, others, by_boundary, by_device)
        if np.isfinite(shorter_s):
            known_s, first = shorter_s, first - 1
            routes[first] = shorter
        elif turn >= widest:
            break
        turn += 0 < turn <= widest or np.isinf(shorter_s)
    return routes[first : joins + number]


def scaled(stages: PlainStages, ideal_s: float, samples: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[5, m] channels at the boundaries but the first and [7] numbers, as `plans_by_tables` takes them."""
    s = stages
    moved = s.inter * ideal_s
    channels = (s.sums[C] / ideal_s, s.sums[A] / moved, s.sums[W] / moved, s.sums[F] / ideal_s, s.sums[H] / s.memory)
    state = s.state_factor * moved / s.memory
    given = (s.devices, s.per_node, s.inter / s.intra, state, s.stages, s.micro_batches, samples)
    return np.array([channel[1:] for channel in channels], dtype=np.float32), np.array(given, dtype=np.float32)
