"""A problem under a schedule as arrays: what a stage costs in each of its shardings, for compiled loops.

    between boundaries i < k on devices a … q-1 in sharding j, with the row kind[j, a, q] of `sums` and its pace:

    u  = (C[k] - C[i] + GATHER[i] + GATHER[k]) / RATE + START[k] - START[i]
    f  = (F[k] - F[i] + GATHER[i]) / RATE + START_FORWARD[k] - START_FORWARD[i]
    AR = RING · (W[k] - W[i] and copies) + GRADIENT[k] - GRADIENT[i]

Everything is as cost.staged has it, to rounding; the loops are in stage_kernel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from automap_models.core.constraints import ROUNDING, UNCONSTRAINED, least_work
from automap_models.core.profile import FloatArray
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.problem_tables import tables_of
from automap_models.planners.staged.stage_tables import Copies, ShardingTables, StageTables, stage_windows

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
    """A problem between its boundaries 0 … m, as in StageTables: D devices, J shardings, K kinds of stages.

    Attributes:
        sums: [K, 9, m+1] prefix sums of what a stage takes, and what is gathered at each boundary; devices of kind 0
            share nothing.
        crossing: [m+1] bytes that cross each boundary, 0 at both ends.
        kind: [J, D+1, D+1] of a stage on devices a … q-1 in each sharding; -1 where it may not be.
        paces: [J, D+1, D+1, 5] of these.
        copies_end, copies_nbytes: [P, m+1] and [K, 2, P] of what several instructions use, as in `Copies`.
        tied_until, tied_nbytes: [T, m+1] a stage that begins at a boundary holds the parameter if it ends at this one
            or later, m+1 is never; and [K, T] bytes of each.
        windows: [S, 2] the first and the last boundary at which each stage may begin.
        held: [S] micro-batches whose activations a stage holds at once.
        nodes: of the cluster.
        state_factor, micro_batches: σ and M.
        least_C, least_W: work that a stage holds one or the other of (core.constraints.least_work), s and bytes;
            below 0 where it may hold none.
        overlap, update_s, gradient_share: of the problem; update_s is of a byte of parameters.
    """

    sums: FloatArray
    crossing: FloatArray
    kind: IntArray
    paces: FloatArray
    copies_end: IntArray
    copies_nbytes: FloatArray
    tied_until: IntArray
    tied_nbytes: FloatArray
    windows: IntArray
    held: IntArray
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
        return int(self.held.size)

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
        problem: with a schedule.
        places: [m-1] instructions after which it may be cut, ascending; None for those of its grid.

    Raises:
        BadInput: constraints contradict one another, or leave no way to share the devices out among the stages.
    """
    arrays, boundary = arrays_of(Places(problem, places))
    least = _least_work(problem)
    windows = stage_windows(problem.stages, boundary.size) if _alike(problem) else arrays.windows
    held = np.array([problem.in_flight(s) for s in range(problem.stages)], dtype=np.int64)
    micro_batches = float(problem.micro_batches)
    return arrays._replace(
        windows=windows, held=held, micro_batches=micro_batches, least_C=least[0], least_W=least[1]
    ), boundary


def _alike(problem: StagedProblem) -> bool:
    """Whether what its stages cost and where they may be does not depend on how many they are."""
    constraints = problem.constraints
    free = replace(constraints, min_stage=0.0, max_stages=None, target=None) == UNCONSTRAINED
    return free and not problem.shardings and problem.stages > 1


class Places:
    """A problem between places to cut; equal to another one where stages cost the same."""

    def __init__(self, problem: StagedProblem, places: IntArray | None) -> None:
        self.problem, self.places = problem, places
        alone = None if _alike(problem) else (problem.stages, problem.constraints, problem.micro_batches)
        key = problem.profile, problem.cluster, problem.links, problem.granularity, problem.shardings, problem.slowdown
        step = problem.one_ring, problem.overlap, problem.update_s_per_byte, problem.state_factor, problem.launch_s
        cuts = None if places is None else places.tobytes()
        self.key = (*key, *step, problem.max_replicas, alone, cuts)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self.key == other.key


@lru_cache(maxsize=64)
def arrays_of(where: Places) -> tuple[StageArrays, IntArray]:
    """See stage_arrays; of any problem that is equal to this one."""
    problem = where.problem
    tables = tables_of(problem, cut=where.places)
    kinds, kind = _kinds(tables)
    paces = np.stack([_paces(of) for of in tables.shardings])
    if where.places is not None and _alike(problem):  # of a thousand devices they take 50 MB
        elsewhere = arrays_of(Places(problem, None))[0]
        kind, paces = elsewhere.kind, elsewhere.paces
    copies_end, copies_nbytes = _copies(tables, kinds)
    shared, links = problem.profile.shared_parameters, problem.links
    intra = links.node_intra
    tied = np.array([of.sharding.shared_bytes for of, _ in kinds]).reshape(len(kinds), len(shared))
    return StageArrays(
        sums=np.stack([_sums(of, place) for of, place in kinds]),
        crossing=tables.A,
        kind=kind,
        paces=paces,
        copies_end=copies_end,
        copies_nbytes=copies_nbytes,
        tied_until=_until([parameter.instructions for parameter in shared], tables.boundary),
        tied_nbytes=tied.astype(np.float64),
        windows=tables.windows,
        held=np.array(tables.held, dtype=np.int64),
        nodes=Nodes(links.node_of, links.node_bounds, intra, links.node_inter, float(intra.max())),
        state_factor=float(problem.state_factor),
        micro_batches=float(problem.micro_batches),
        least_C=-1.0,
        least_W=-1.0,
        overlap=float(problem.overlap),
        update_s=float(problem.update_s_per_byte),
        gradient_share=float(problem.gradient_share),
    ), tables.boundary


def _kinds(tables: StageTables) -> tuple[list[tuple[ShardingTables, int]], IntArray]:
    """The K kinds, each a sharding and a kind of place; and [J, D+1, D+1] which of them a stage is."""
    kinds: list[tuple[ShardingTables, int]] = []
    rows = []
    for of in tables.shardings:
        place = np.zeros(of.allowed.shape, dtype=np.int64) if of.place is None else of.place
        rows.append(np.where(of.allowed, len(kinds) + place, -1))
        kinds += [(of, number) for number in range(len(of.C))]
    return kinds, np.stack(rows)


def _sums(of: ShardingTables, place: int) -> FloatArray:
    """[9, m+1] of one kind."""
    own = [of.C[place], of.F[place], of.W, of.H, of.frozen]
    if of.shared is None:
        return np.stack([*own, *np.zeros((4, of.W.size))])
    shared = of.shared
    return np.stack([*own, shared.start_s, shared.start_forward_s, shared.gradient_s[place], shared.gather_s[place]])


def _paces(of: ShardingTables) -> FloatArray:
    """[D+1, D+1, 5] of one sharding."""
    paces = of.paces
    padding = paces.replicas / paces.parts
    return np.stack((paces.rate, of.all_reduce, paces.parts, paces.memory, padding), axis=-1)


def _copies(tables: StageTables, kinds: list[tuple[ShardingTables, int]]) -> tuple[IntArray, FloatArray]:
    """[P, m+1] from where on a stage holds copies, and [K, 2, P] bytes of them, trained and not; one row for each."""
    ends: dict[bytes, IntArray] = {}
    nbytes: list[list[dict[bytes, float]]] = []
    for of, _ in kinds:
        nbytes.append([_by_end(copies, ends) for copies in (of.copies, of.frozen_copies)])
    rows = [[[by_end.get(key, 0.0) for key in ends] for by_end in of_kind] for of_kind in nbytes]
    end = np.array([*ends.values()], dtype=np.int64).reshape(len(ends), tables.boundary.size)
    return end, np.array(rows).reshape(len(kinds), 2, len(ends))


def _by_end(copies: Copies, ends: dict[bytes, IntArray]) -> dict[bytes, float]:
    """Bytes of copies by where stages hold them, which is added to `ends`."""
    by_end: dict[bytes, float] = {}
    for end, nbytes in zip(copies.end, copies.nbytes.tolist(), strict=True):
        ends.setdefault(end.tobytes(), end)
        by_end[end.tobytes()] = by_end.get(end.tobytes(), 0.0) + nbytes
    return by_end


def _until(uses: list[tuple[int, ...]], boundary: IntArray) -> IntArray:
    """[T, m+1] the boundary at which a stage that begins at another one has to end to hold each parameter."""
    until = np.empty((len(uses), boundary.size), dtype=np.int64)
    for row, instructions in zip(until, uses, strict=True):
        every = np.array([*instructions, boundary[-1]])
        row[:] = np.searchsorted(boundary, every[np.searchsorted(every, boundary)], side="right")
    return until


def _least_work(problem: StagedProblem) -> tuple[float, float]:
    """What a stage holds one or the other of, less rounding; -1 of each where it may hold nothing."""
    share = problem.constraints.min_stage
    if not share or problem.stages == 1:
        return -1.0, -1.0
    least_s, least_bytes = least_work(problem.profile, problem.stages, share)
    return least_s * (1.0 - ROUNDING), least_bytes * (1.0 - ROUNDING)
