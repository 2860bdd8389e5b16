"""Plans by compiled cost-to-go tables: a fraction of a millisecond for 16 devices, some ten for 128.

    even plan ──▶ beam search around it ──▶ tables, rough then fine, of what is no longer ──▶ the plans from the best
    first stages ──▶ beam searches through and beside all of them, until nothing shorter comes out

The tables (envs.pipeline.table_kernel) hold one rest for each place, the best under a guess of what comes before; where
the all-reduce of earlier stages is hidden or not decides between rests, so that small problems are looked at under two
guesses. The beam search (beam_kernel) then mends what the tables' coarse points and units have lost. Nothing is learned
and nothing proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.envs.pipeline.table_kernel import ANY_LENGTH, plans_by_tables
from automap_models.planners.staged.beam_kernel import shortest_around
from automap_models.planners.staged.local_search import even_places, powers_of_two
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages, plain_stages


class Look(NamedTuple):
    """One set of tables.

    Attributes:
        points, units: where the rest of a pipeline may be cut and groups that devices are counted in, at most.
        guess: how many times what comes before is guessed to reduce (table_kernel).
    """

    points: int
    units: int
    guess: float = 1.0


LOOKS: tuple[tuple[float, tuple[Look, ...]], ...] = (
    (32, (Look(48, 32), Look(48, 32, 0.3), Look(48, 32, 3.0))),
    (256, (Look(32, 32), Look(48, 128))),
    (np.inf, ()),
)
"""Most devices → the tables that such a problem is looked at by, one after another. On hundreds of devices beam
searches come as far in the time of the first tables (benchmarks/results/table_plans.md)."""
STAGE_UNITS = (*range(1, 32), *range(32, 48, 2), 48, 56, 64, 80, 96, 112)
"""Units that a stage of the rest may have, but for the last one, which gets all that are left."""
FAR_DEVICES = 256
"""On more devices than these a stage may in the end begin few devices beside its place, and powers of two."""
FEW = 2
JOINS = 30
"""Beam searches through and beside the plans in the end, at most; most often the second one finds nothing shorter."""
LIMIT_SLACK = 1.0 + 1e-5
"""Tables are in float32: plans as long as the best one known shall not be lost."""
NONE_YET = np.zeros((0, 2, 2), dtype=np.int64)


def table_plans(problem: StagedProblem, beam: int, reach: int, planner: str) -> list[StagedPlan]:
    """Plans of several stages on equal nodes for the length L, the best first; none of them may fit the memory.

    Args:
        problem: its schedule only says what fits.
        beam: ends of the first stage from which the tables are followed, of each look, and plans returned at most.
        reach: boundaries and devices beside the best route at which stages may begin in the end; 0 leaves it as it is.
        planner: name of who plans.
    """
    stages, boundary = plain_stages(problem)
    plans = []
    looks = next(looks for most, looks in LOOKS if stages.devices <= most)
    for route in best_routes(stages, float(problem.samples or 0), beam, reach, looks):
        cuts = tuple((boundary[route[0, 1:-1]] - 1).tolist())
        devices = tuple(route[1, 1:-1].tolist())
        plans.append(StagedPlan(cuts, devices, problem.micro_batches, planner, problem.grid.to_points(cuts)))
    return plans


def best_routes(stages: PlainStages, samples: float, beam: int, reach: int, looks: Sequence[Look]) -> list[IntArray]:
    """[2, S+1] the boundaries and devices where stages begin, and the end, of different plans; the shortest first."""
    ideal_s = float(stages.C[-1]) * stages.micro_batches / stages.devices
    first = even_places(stages.C, stages.stages, stages.devices)
    length_s, best = shortest_around(stages, first, np.inf, NONE_YET, *_far(stages))
    routes = [(length_s, first if np.isinf(length_s) else best)]
    arrays, given = scaled(stages, ideal_s, samples)
    for look in looks:
        least_s = min(length_s for length_s, _ in routes)
        limit = np.float32(min(least_s / ideal_s * LIMIT_SLACK, ANY_LENGTH))
        units = min(look.units, stages.devices)
        sizes = np.array([size for size in STAGE_UNITS if size < units] or [1])
        lengths, places = plans_by_tables(arrays, given, look.points, units, sizes, np.float32(look.guess), limit, beam)
        routes += zip((lengths.astype(np.float64) * ideal_s).tolist(), _whole(stages, places), strict=True)
    routes.sort(key=itemgetter(0))
    others = np.array([route for _, route in routes[1:]], dtype=np.int64).reshape(-1, *first.shape)
    slack = LIMIT_SLACK  # in float32 the best route may seem a little shorter than it is
    for _ in range(JOINS if reach else 0):
        known_s, known = routes[0]
        length_s, shorter = shortest_around(stages, known, known_s * slack, others, *offsets(stages.devices, reach))
        if np.isinf(length_s):
            break
        routes.insert(0, (length_s, shorter))
        slack = 1.0
    different = {route.tobytes(): route for _, route in routes}
    return list(different.values())[:beam]


def offsets(devices: int, reach: int) -> tuple[IntArray, IntArray]:
    """How many boundaries and devices beside a route its stages may begin."""
    near = np.arange(-reach, reach + 1)
    if devices <= FAR_DEVICES:
        return near, near
    few = np.arange(-FEW, FEW + 1)
    return near, np.unique(np.concatenate((few, powers_of_two(devices // 16))))


def _far(stages: PlainStages) -> tuple[IntArray, IntArray]:
    """Offsets by which even stages may move to begin with."""
    return powers_of_two((stages.C.size - 1) // 4), powers_of_two(stages.devices // 4)


def _whole(stages: PlainStages, places: IntArray) -> IntArray:
    """[b, 2, S-1] → [b, 2, S+1] with the beginning and the end."""
    ends = np.array([stages.C.size - 1, stages.devices])
    shape = (len(places), 2, 1)
    begin, end = np.zeros(shape, dtype=np.int64), np.broadcast_to(ends[:, None], shape)
    routes: IntArray = np.concatenate((begin, places, end), axis=2)
    return routes


def scaled(stages: PlainStages, ideal_s: float, samples: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[5, m] channels at the boundaries but the first and [7] numbers, as `plans_by_tables` takes them."""
    s = stages
    moved = s.inter * ideal_s
    channels = (s.C / ideal_s, s.A / moved, s.W / moved, s.F / ideal_s, s.H / s.memory)
    state = s.state_factor * moved / s.memory
    given = (s.devices, s.per_node, s.inter / s.intra, state, s.stages, s.micro_batches, samples)
    return np.array([channel[1:] for channel in channels], dtype=np.float32), np.array(given, dtype=np.float32)
