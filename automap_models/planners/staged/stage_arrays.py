"""A problem as arrays: what a stage costs in each of its shardings, for compiled loops.

    between boundaries i < k on devices a … q-1 in sharding j, with the row kind[j, a, q] of `sums` and its pace:

    u  = (C[k] - C[i] + GATHER[i] + GATHER[k]) / RATE + START[k] - START[i]
    f  = (F[k] - F[i] + GATHER[i]) / RATE + START_FORWARD[k] - START_FORWARD[i]
    AR = RING · (W[k] - W[i] and copies) + GRADIENT[k] - GRADIENT[i]

Everything is as cost.staged has it, to rounding; the loops are in stage_kernel. What devices do is in stage_devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from automap_models.core.constraints import ROUNDING, UNCONSTRAINED, Windows, least_work
from automap_models.core.instruction_graph import IntArray
from automap_models.core.profile import FloatArray, SharedParameter
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import sum_start_s
from automap_models.planners.staged.stage_devices import StageDevices, require_devices, sharding_devices

C, F, W, H, FROZEN, START, START_FORWARD, GRADIENT, GATHER = range(9)
"""Rows of `StageArrays.sums`. Few arrays compile in a fraction of the time of many."""
RATE, RING, PARTS, MEMORY, PADDING = range(5)
"""Columns of `StageArrays.paces`: seconds of profile that a stage gets done in a second; seconds per byte of its
all-reduce; parts of a micro-batch; bytes of a device; and samples of the fullest replica over an even share."""
TRAINED, UNTRAINED = range(2)
"""Rows of `StageArrays.copies_nbytes`."""


class Nodes(NamedTuple):
    """The nodes of a cluster.

    Attributes:
        number: [D] of the node of each device.
        begin: [N+1] the first device of each node, and D.
        intra, inter: [N] bytes/s of links inside each node, and to others.
        fastest: of the links inside nodes.
    """

    number: IntArray
    begin: IntArray
    intra: FloatArray
    inter: FloatArray
    fastest: float


class StageArrays(NamedTuple):
    """A problem between its boundaries 0 … m: D devices, J shardings, K kinds of stages.

    Boundary 0 is the model's start, m its end, those between are places where a stage may end.

    Attributes:
        sums: [K, 9, m+1] prefix sums of what a stage takes, and what is gathered at each boundary; devices of kind 0
            share nothing.
        crossing: [m+1] bytes that cross each boundary, 0 at both ends.
        kind: [J, D+1, D+1] of a stage on devices a … q-1 in each sharding; -1 where it may not be.
        speeds: [J, D+1, D+1, 5] of these.
        copies_end, copies_nbytes: [P, m+1] a stage that begins at a boundary holds copies, as instructions before it
            use these parameters, too, if it ends at this one or later, m+1 is never; and [K, 2, P] bytes of them.
        tied_until, tied_nbytes: [T, m+1] the same of the parameter, copy or not; and [K, T] bytes of each.
        windows: [S, 2] the first and the last boundary at which each stage may begin.
        in_flight: [S] micro-batches whose activations a stage holds at once.
        nodes: of the cluster.
        state_factor, micro_batches: σ and M.
        least_C, least_W: work that a stage holds one or the other of (core.constraints.least_work), s and bytes;
            below 0 where it may hold none.
        overlap, update_s, gradient_share: of the problem; update_s is of a byte of parameters.
    """

    sums: FloatArray
    crossing: FloatArray
    kind: IntArray
    speeds: FloatArray
    copies_end: IntArray
    copies_nbytes: FloatArray
    tied_until: IntArray
    tied_nbytes: FloatArray
    windows: IntArray
    in_flight: IntArray
    nodes: Nodes
    state_factor: float
    micro_batches: float
    least_C: float
    least_W: float
    overlap: float
    update_s: float
    gradient_share: float

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return int(self.in_flight.size)

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return int(self.kind.shape[1]) - 1

    @property
    def last(self) -> int:
        """The last boundary, m."""
        return int(self.crossing.size) - 1


def stage_arrays(problem: StagedProblem, places: IntArray | None = None) -> tuple[StageArrays, IntArray]:
    """The stages of a problem between places to cut, and [m+1] the instructions before which its boundaries lie.

    Args:
        problem: to be planned; its shardings keep their index among its own.
        places: [m-1] instructions after which it may be cut, ascending; None for those of its grid. Places where its
            constraints ask for a cut are added.

    Raises:
        BadInput: constraints contradict one another, or leave no way to share the devices out among the stages.
    """
    arrays, boundary = arrays_of(Places(problem, places))
    least = _least_work(problem)
    windows = stage_windows(problem.stages, boundary.size) if _alike(problem) else arrays.windows
    in_flight = np.array([problem.in_flight(s) for s in range(problem.stages)], dtype=np.int64)
    micro_batches = float(problem.micro_batches)
    if problem.constraints.equal_replicas:
        arrays = arrays._replace(kind=of_equal_stages(arrays.kind, problem.stages))
        require_devices(problem, np.any(arrays.kind >= 0, axis=0))
    return arrays._replace(
        windows=windows, in_flight=in_flight, micro_batches=micro_batches, least_C=least[0], least_W=least[1]
    ), boundary


def of_equal_stages(kind: IntArray, stages: int) -> IntArray:
    """[J, D+1, D+1] the kinds of places, of which stages on equally many devices have theirs alone."""
    even = np.arange(stages + 1) * ((kind.shape[1] - 1) // stages)
    equal = np.full_like(kind, -1)
    equal[:, even[:-1], even[1:]] = kind[:, even[:-1], even[1:]]
    return equal


def _alike(problem: StagedProblem) -> bool:
    """Whether what its stages cost does not depend on how many they are; of equal ones places are left out after it."""
    constraints = problem.constraints
    others = replace(constraints, min_stage=0.0, max_stages=None, target=None, equal_replicas=False)
    free = others == UNCONSTRAINED
    return free and not problem.shardings and problem.stages > 1


class Places:
    """A problem between places to cut; equal to another one where stages cost the same."""

    def __init__(self, problem: StagedProblem, places: IntArray | None) -> None:
        self.problem, self.places = problem, places
        if _alike(problem) and problem.constraints.equal_replicas:
            self.problem = replace(problem, constraints=UNCONSTRAINED)
        alone = None if _alike(problem) else (problem.stages, problem.constraints, problem.micro_batches)
        key = problem.profile, problem.cluster, problem.links, problem.granularity, problem.shardings, problem.slowdown
        step = problem.runs, problem.overlap, problem.update_s_per_byte, problem.state_factor, problem.launch_s
        cuts = None if places is None else places.tobytes()
        self.key = (*key, *step, problem.max_replicas, problem.schedule is None, alone, cuts)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self.key == other.key


@lru_cache(maxsize=64)
def arrays_of(where: Places) -> tuple[StageArrays, IntArray]:
    """See stage_arrays; of any problem that is equal to this one."""
    problem, constraints = where.problem, where.problem.constraints
    windows = constraints.windows(problem.profile, problem.stages) if constraints.restrict_cuts else None
    cut = grid_cuts(problem) if where.places is None else where.places
    cut = cut if windows is None else windows.cuts(cut)
    boundary = np.concatenate(([0], cut + 1, [len(problem.profile)]))
    shardings = problem.all_shardings[:1] if "operator" in constraints.forbidden else problem.all_shardings
    on = [sharding_devices(problem, sharding) for sharding in shardings]
    require_devices(problem, np.any([devices.kind >= 0 for devices in on], axis=0))
    first = np.cumsum([0, *(len(devices.links) for devices in on)])
    kind = np.stack([np.where(one.kind < 0, -1, one.kind + begin) for one, begin in zip(on, first, strict=False)])
    speeds = np.stack([devices.speeds for devices in on])
    if where.places is not None and _alike(problem):  # of a thousand devices they take 50 MB
        elsewhere = arrays_of(Places(problem, None))[0]
        kind, speeds = elsewhere.kind, elsewhere.speeds
    of_kinds = [sharding for sharding, one in zip(shardings, on, strict=True) for _ in one.links]
    copies_end, copies_nbytes = _copies(problem, of_kinds, boundary)
    shared, links = problem.profile.shared_parameters, problem.links
    tied = np.array([one.shared_bytes for one in of_kinds]).reshape(len(of_kinds), len(shared))
    return StageArrays(
        sums=np.concatenate([_sums(problem, *both, boundary) for both in zip(shardings, on, strict=True)]),
        crossing=np.concatenate(([0.0], problem.profile.A[cut], [0.0])),
        kind=kind,
        speeds=speeds,
        copies_end=copies_end,
        copies_nbytes=copies_nbytes,
        tied_until=np.array([_until(parameter, boundary) for parameter in shared], dtype=np.int64).reshape(
            len(shared), boundary.size
        ),
        tied_nbytes=tied.astype(np.float64),
        windows=_in_boundaries(stage_windows(problem.stages, boundary.size), windows, boundary),
        in_flight=np.array([problem.in_flight(s) for s in range(problem.stages)], dtype=np.int64),
        nodes=Nodes(
            links.node_of, links.node_bounds, links.node_intra, links.node_inter, float(links.node_intra.max())
        ),
        state_factor=float(problem.state_factor),
        micro_batches=float(problem.micro_batches),
        least_C=-1.0,
        least_W=-1.0,
        overlap=float(problem.overlap),
        update_s=float(problem.update_s_per_byte),
        gradient_share=float(problem.gradient_share),
    ), boundary


def grid_cuts(problem: StagedProblem) -> IntArray:
    """[m-1] instructions after which a plan on the grid may cut."""
    return problem.grid.instruction_of_point[problem.grid.cut_points]


def stage_windows(stages: int, boundaries: int) -> IntArray:
    """[S, 2] the first and the last boundary at which each stage may begin, where nothing else restricts it."""
    stage = np.arange(stages)
    return np.stack((stage, np.where(stage, boundaries - 1 - stages + stage, 0)), axis=1)


def _in_boundaries(free: IntArray, windows: Windows | None, boundary: IntArray) -> IntArray:
    """[S, 2] the windows as boundaries, no wider than where nothing else restricts them."""
    if windows is None:
        return free
    least = np.searchsorted(boundary, windows.least)
    most = np.searchsorted(boundary, windows.most, side="right") - 1
    return np.stack((np.maximum(free[:, 0], least), np.minimum(free[:, 1], most)), axis=1)


def _sums(problem: StagedProblem, sharding: ShardedProfile, devices: StageDevices, boundary: IntArray) -> FloatArray:
    """[E, 9, m+1] of one sharding, for each kind of place where its devices are."""
    start_s = sum_start_s(problem, sharding.degree)
    rows = []
    for links in devices.links:
        of_byte = links.fewer * links.s_per_byte / links.slow
        forward = sharding.C_fwd + of_byte * sharding.reduced_fwd
        both = forward + (sharding.C - sharding.C_fwd + of_byte * sharding.reduced_bwd)
        ahead = start_s * _prefix(boundary, sharding.starts_fwd)
        rows.append(
            [
                _prefix(boundary, sharding.C if sharding.degree == 1 else both),
                _prefix(boundary, forward),
                *(_prefix(boundary, array) for array in (sharding.W, sharding.stash, sharding.frozen)),
                start_s * _prefix(boundary, sharding.starts_fwd + sharding.starts_bwd),
                ahead,
                problem.gradient_share * links.s_per_byte * _prefix(boundary, sharding.gradients),
                links.fewer * sharding.gathered[boundary] / links.intra / links.slow,
            ]
        )
    return np.array(rows)


def _prefix(boundary: IntArray, array: FloatArray) -> FloatArray:
    """[m+1] sums of what lies before each boundary."""
    sums: FloatArray = np.concatenate(([0.0], np.cumsum(array)))[boundary]
    return sums


def _copies(
    problem: StagedProblem, of_kinds: Sequence[ShardedProfile], boundary: IntArray
) -> tuple[IntArray, FloatArray]:
    """[P, m+1] from where on a stage holds copies, and [K, 2, P] bytes of them, trained and not.

    Those that stages hold together make one row.
    """
    ends: dict[bytes, tuple[IntArray, FloatArray]] = {}
    for row, shared in enumerate((problem.profile.shared_parameters, problem.profile.shared_frozen)):
        for number, parameter in enumerate(shared):
            end = np.where(boundary > parameter.instructions[0], _until(parameter, boundary), boundary.size)
            _, nbytes = ends.setdefault(end.tobytes(), (end, np.zeros((len(of_kinds), 2))))
            nbytes[:, row] += [(one.shared_frozen_bytes if row else one.shared_bytes)[number] for one in of_kinds]
    if not ends:
        return np.empty((0, boundary.size), dtype=np.int64), np.empty((len(of_kinds), 2, 0))
    rows = list(ends.values())
    return np.array([end for end, _ in rows]), np.stack([nbytes for _, nbytes in rows], axis=-1)


def _until(parameter: SharedParameter, boundary: IntArray) -> IntArray:
    """[m+1] the boundary at which a stage that begins at another one has to end to hold the parameter."""
    uses = np.array([*parameter.instructions, boundary[-1]])
    return np.searchsorted(boundary, uses[np.searchsorted(uses, boundary)], side="right")


def _least_work(problem: StagedProblem) -> tuple[float, float]:
    """What a stage holds one or the other of, less rounding; -1 of each where it may hold nothing."""
    share = problem.constraints.min_stage
    if not share or problem.stages == 1:
        return -1.0, -1.0
    least_s, least_bytes = least_work(problem.profile, problem.stages, share)
    return least_s * (1.0 - ROUNDING), least_bytes * (1.0 - ROUNDING)
