"""What stages cost, as arrays over all places where a plan may cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.paces import StagePaces
from automap_models.core.profile import FloatArray, SharedParameter
from automap_models.core.profiled_model import ShardedProfile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import before_stage, stage_memory_bytes
from automap_models.planners.staged.device_tables import DeviceTables, device_tables, require_few_devices
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.search_arrays import ShardingArrays, StageLimits


@dataclass(frozen=True, eq=False)
class SharedWork:
    """What a sharding adds to a stage whose devices share each replica's instructions (cost.staged).

    Attributes:
        gather_s: [E, m+1] putting together, on one replica, what crosses a boundary, at the speed of the profile's
            device.
        start_s, start_forward_s: [m+1] prefix sums of what all-reduces of activations cost whatever the replicas.
        gradient_s: [E, m+1] prefix sums of the all-reduces of replicated parameters' gradients.
    """

    gather_s: FloatArray
    start_s: FloatArray
    start_forward_s: FloatArray
    gradient_s: FloatArray


class Pace(NamedTuple):
    """How fast several stages in one sharding are.

    Attributes:
        rate: [n] seconds of profile that each gets done in a second.
        ring: [n] seconds per byte of its all-reduces over the replicas.
        place: [n] the kind of place where its devices are, an index of `ShardingTables.C`; or 0 of all.
    """

    rate: FloatArray
    ring: FloatArray
    place: IntArray | int

    def take(self, index: IntArray) -> Pace:
        """Of some of the stages."""
        place = self.place if isinstance(self.place, int) else self.place[index]
        return Pace(self.rate[index], self.ring[index], place)


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of parameters that stages hold because instructions before them use these, too: P of them at m+1 places.

    Attributes:
        end: [P, m+1] a stage that begins at that boundary holds a copy if it ends at this one or later; m+1 is never.
        nbytes: [P] of a copy on each device.
    """

    end: IntArray
    nbytes: FloatArray

    def between(self, i: IntArray | int, k: IntArray | int) -> FloatArray | float:
        """[n] bytes of the copies that stages between boundaries i < k hold; any shapes that go together."""
        return sum((nbytes * (k >= end[i]) for end, nbytes in zip(self.end, self.nbytes, strict=True)), 0.0)


@dataclass(frozen=True, eq=False)
class ShardingTables:
    """One sharding in which a stage may run: what it costs between boundaries i < k, all but transfers.

    For fixed devices all of it splits into a part of the boundary where the stage begins and one of where it ends.

    Attributes:
        sharding: the instructions one by one, on each device that shares them.
        shared_parameters, shared_frozen: of the profile.
        C, F: [E, m+1] prefix sums of time and forward time, s, at the speed of the profile's device. What devices that
            share operators spend on communication depends on where they are, of which there are E kinds.
        W, H, frozen: [m+1] prefix sums of parameters, stash and what is not trained, bytes.
        all_reduce: [D+1, D+1] seconds per byte of parameters on devices a … q-1.
        degree: devices that share a replica.
        paces: how fast a stage on devices a … q-1 works, and into how many parts it splits a micro-batch.
        allowed: [D+1, D+1] whether a stage may run in this sharding on devices a … q-1.
        copies, frozen_copies: of tied weights, and of what several instructions use and none trains.
        shared: None where devices share nothing.
        place: [D+1, D+1] which of the E kinds of places devices a … q-1 are; None where there is one.
    """

    sharding: ShardedProfile
    shared_parameters: tuple[SharedParameter, ...]
    shared_frozen: tuple[SharedParameter, ...]
    C: FloatArray
    F: FloatArray
    W: FloatArray
    H: FloatArray
    frozen: FloatArray
    all_reduce: FloatArray
    degree: int
    paces: StagePaces
    allowed: NDArray[np.bool_]
    copies: Copies
    frozen_copies: Copies
    shared: SharedWork | None = None
    place: IntArray | None = None

    def pace(self, a: IntArray, q: IntArray | int) -> Pace:
        """[n] how fast stages on devices a … q-1 work and reduce."""
        return Pace(self.paces.rate[a, q], self.all_reduce[a, q], 0 if self.place is None else self.place[a, q])

    @cached_property
    def least_C(self) -> FloatArray:
        """[m+1] prefix sums of the least time of each piece at any kind of place, s."""
        several = len(self.C) > 1
        least: FloatArray = np.append(0.0, np.diff(self.C, axis=1).min(0)).cumsum() if several else self.C[0]
        return least

    @cached_property
    def arrays(self) -> ShardingArrays:
        """All of it for compiled loops."""
        nothing = np.zeros_like(self.C)
        shared = self.shared or SharedWork(nothing, nothing[0], nothing[0], nothing)
        return ShardingArrays(
            C=np.ascontiguousarray(self.C),
            F=np.ascontiguousarray(self.F),
            least_C=np.ascontiguousarray(self.least_C),
            W=np.ascontiguousarray(self.W),
            H=np.ascontiguousarray(self.H),
            frozen=np.ascontiguousarray(self.frozen),
            gather_s=np.ascontiguousarray(shared.gather_s),
            start_s=np.ascontiguousarray(shared.start_s),
            start_forward_s=np.ascontiguousarray(shared.start_forward_s),
            gradient_s=np.ascontiguousarray(shared.gradient_s),
            copies_end=np.ascontiguousarray(self.copies.end),
            copies_nbytes=np.ascontiguousarray(self.copies.nbytes),
            frozen_end=np.ascontiguousarray(self.frozen_copies.end),
            frozen_nbytes=np.ascontiguousarray(self.frozen_copies.nbytes),
            place=np.zeros(self.allowed.shape, dtype=np.int64) if self.place is None else self.place,
            rate=np.ascontiguousarray(self.paces.rate),
            ring=np.ascontiguousarray(self.all_reduce),
            parts=np.ascontiguousarray(self.paces.parts),
            memory=np.ascontiguousarray(self.paces.memory),
            allowed=np.ascontiguousarray(self.allowed),
        )

    def work_s(self, i: IntArray, k: IntArray, pace: Pace) -> FloatArray:
        """[n] forward and backward time of one micro-batch but for what is gathered: never more for a smaller stage."""
        work: FloatArray = (self.C[pace.place, k] - self.C[pace.place, i]) / pace.rate
        if self.shared:
            work += self.shared.start_s[k] - self.shared.start_s[i]
        return work

    def busy_s(self, i: IntArray, k: IntArray, pace: Pace) -> FloatArray:
        """[n] forward and backward time of one micro-batch, u."""
        both = self.work_s(i, k, pace)
        if self.shared:
            both += (self.shared.gather_s[pace.place, i] + self.shared.gather_s[pace.place, k]) / pace.rate
        return both

    def forward_s(self, i: IntArray, k: IntArray, pace: Pace) -> FloatArray:
        """[n] the forward part of it, f."""
        forward: FloatArray = (self.F[pace.place, k] - self.F[pace.place, i]) / pace.rate
        if self.shared:
            start = self.shared.start_forward_s
            forward += self.shared.gather_s[pace.place, i] / pace.rate + (start[k] - start[i])
        return forward

    def reduce_s(self, i: IntArray, k: IntArray, pace: Pace, weights_bytes: FloatArray | None = None) -> FloatArray:
        """[n] the all-reduce of gradients, AR; the bytes of parameters are worked out where they are not given."""
        weights = self.weights_bytes(i, k) if weights_bytes is None else weights_bytes
        reduce: FloatArray = pace.ring * weights
        if self.shared:
            reduce += self.shared.gradient_s[pace.place, k] - self.shared.gradient_s[pace.place, i]
        return reduce

    def weights_bytes(self, i: IntArray | int, k: IntArray | int) -> FloatArray:
        """[n] bytes of parameters on each device, with the copies of tied ones; never less for a larger stage."""
        weights: FloatArray = self.W[k] - self.W[i] + self.copies.between(i, k)
        return weights

    def state_bytes(self, i: IntArray | int, k: IntArray | int, state_factor: float) -> FloatArray:
        """[n] σ·ΣW + Σfrozen on each device, with copies; never less for a larger stage."""
        return state_factor * self.weights_bytes(i, k) + self.frozen_bytes(i, k)

    def frozen_bytes(self, i: IntArray | int, k: IntArray | int) -> FloatArray:
        """[n] bytes on each device that are not trained, with copies."""
        frozen: FloatArray = self.frozen[k] - self.frozen[i] + self.frozen_copies.between(i, k)
        return frozen

    def bytes_held(self, own: slice, parts: float, in_flight: int, state_factor: float) -> float:
        """On each device of a stage of these instructions, to the last bit as the cost models have it."""
        held = self.sharding.weights_held(self.shared_parameters, own.start, own.stop)
        frozen = self.sharding.frozen_held(self.shared_frozen, own.start, own.stop)
        sums = (float(np.add.reduceat(x, [0])[0]) for x in (held, self.sharding.stash[own], frozen))
        weights, stash, frozen_bytes = sums
        return stage_memory_bytes(weights, stash, parts, in_flight, state_factor, frozen_bytes)


def prefix_at(boundary: IntArray, array: FloatArray) -> FloatArray:
    """[m+1] sums of what lies before each boundary."""
    sums: FloatArray = np.concatenate(([0.0], np.cumsum(array)))[boundary]
    return sums


def copies_at(boundary: IntArray, shared: Sequence[SharedParameter], shared_bytes: FloatArray) -> Copies:
    """The copies that stages between these boundaries hold, of so many bytes each; those that go together are added."""
    ends: dict[bytes, tuple[IntArray, float]] = {}
    for parameter, nbytes in zip(shared, shared_bytes.tolist(), strict=True):
        uses = np.array([*parameter.instructions, boundary[-1]])
        next_use = uses[np.searchsorted(uses, boundary)]
        end = np.where(boundary > uses[0], np.searchsorted(boundary, next_use, side="right"), boundary.size)
        ends[end.tobytes()] = end, nbytes + ends.get(end.tobytes(), (end, 0.0))[1]
    rows = list(ends.values())
    return Copies(
        np.array([end for end, _ in rows], dtype=np.int64).reshape(len(rows), boundary.size),
        np.array([nbytes for _, nbytes in rows]),
    )


ROUNDING = 1e-12
"""Relative error allowed to a difference of two prefix sums."""


@dataclass
class Reach:
    """What is known about the lengths that successive stages can have within the memory (planners.staged.feasibility).

    Attributes:
        too_short_s: no successive stages are so short, or shorter; nan where nothing is known.
        enough_s: some are no longer than that; nan where nothing is known.
    """

    too_short_s: float = np.nan
    enough_s: float = np.nan


@dataclass(frozen=True, eq=False)
class StageTables:
    """A problem between its boundaries 0 … m: a stage covers what lies between boundaries i < k.

    Boundary 0 is the model's start, m its end, those between are places where a stage may end.

    Attributes:
        boundary: [m+1] the instruction each boundary lies right before.
        A: [m+1] bytes crossing each boundary; 0 at both ends.
        shardings: in which a stage may run; in the first its replicas share nothing.
        windows: [S, 2] the first and the last boundary at which each stage may begin, both ascending.
        devices, cluster: tables of the links of the cluster, and these (`StagedProblem.links`).
        stages, micro_batches, replicas_in_all, state_factor: S, M, D, σ.
        memory: bytes that each device has at least; what a stage may hold is `ShardingTables.paces.memory`.
        capacity: [D+1] seconds of profile that the devices before each get done in a second at most.
        held: [S] micro-batches whose activations a stage holds at once.
        scheduled: whether plans are of a step under a schedule.
        one_ring, overlap, update_s_per_byte, gradient_share: of the problem.
        reach: what is known by now about the lengths of successive stages.
    """

    boundary: IntArray
    A: FloatArray
    shardings: tuple[ShardingTables, ...]
    windows: IntArray
    devices: DeviceTables
    cluster: Cluster
    stages: int
    micro_batches: int
    replicas_in_all: int
    state_factor: float
    memory: float
    capacity: FloatArray
    held: tuple[int, ...]
    scheduled: bool
    one_ring: bool
    overlap: float
    update_s_per_byte: float
    gradient_share: float
    reach: Reach = field(default_factory=Reach, init=False)

    @property
    def C(self) -> FloatArray:
        """[m+1] prefix sums of time, s, of a stage whose devices share nothing."""
        whole: FloatArray = self.shardings[0].C[0]
        return whole

    @property
    def F(self) -> FloatArray:
        """[m+1] prefix sums of forward time, s."""
        whole: FloatArray = self.shardings[0].F[0]
        return whole

    @property
    def W(self) -> FloatArray:
        """[m+1] prefix sums of parameters, bytes."""
        return self.shardings[0].W

    @property
    def H(self) -> FloatArray:
        """[m+1] prefix sums of stash, bytes."""
        return self.shardings[0].H

    @property
    def end(self) -> int:
        """The last boundary, m."""
        return self.boundary.size - 1

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at once."""
        return self.held[stage]

    def limits(self, stage: int, length_s: float) -> StageLimits:
        """What a stage of a plan of at most that length is bounded by, for compiled loops."""
        held, ending = self.in_flight(stage), (self.overlap, self.update_s_per_byte)
        return StageLimits(self.micro_batches, held, float(self.state_factor), *ending, float(length_s))

    def stage_numbers(
        self,
        sharding: int,
        boundaries: tuple[IntArray, IntArray],
        devices: tuple[IntArray, IntArray],
        rest: FloatArray,
    ) -> FloatArray:
        """[2, n] T and R of suffixes that begin with a stage in that sharding, for the length L.

        Args:
            sharding: index of the sharding.
            boundaries: [n] i where it begins, [n] k where it ends.
            devices: [n] a, [n] q of its devices a … q-1.
            rest: [2, n] of what comes after it, with the transfer into that.
        """
        both, forward, reduce = self.stage_times(sharding, boundaries, devices)
        return np.stack(before_stage(both, both - forward, reduce, rest[0], rest[1], self.micro_batches))

    def stage_times(
        self, sharding: int, boundaries: tuple[IntArray, IntArray], devices: tuple[IntArray, IntArray]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """[n] each of u, f and AR of stages in that sharding; see `stage_numbers`."""
        own, ((i, k), (a, q)) = self.shardings[sharding], (boundaries, devices)
        pace = own.pace(a, q)
        return own.busy_s(i, k, pace), own.forward_s(i, k, pace), own.reduce_s(i, k, pace)

    def fits(
        self,
        stage: int,
        boundaries: tuple[IntArray, IntArray],
        devices: tuple[IntArray, IntArray | int],
        sharding: int = 0,
    ) -> NDArray[np.bool_]:
        """[n] whether stages fit the memory, to the last bit as the cost model has it; arguments as in `stage_numbers`.

        Differences of prefix sums decide all but those as near to the limit as rounding, which are summed again.
        """
        flight, factor, own = self.in_flight(stage), self.state_factor, self.shardings[sharding]
        (i, k), parts, memory = boundaries, own.paces.parts[devices], own.paces.memory[devices]
        held = own.state_bytes(i, k, factor) + flight * (own.H[k] - own.H[i]) / parts
        ok: NDArray[np.bool_] = held <= memory
        doubt = ROUNDING * (factor * own.W[-1] + own.frozen[-1] + flight * own.H[-1])
        close = np.flatnonzero(np.abs(held - memory) <= doubt)
        if close.size:
            spans = self.boundary[np.stack((i[close], k[close]))].astype(np.float64)
            keys, same = np.unique(np.stack((*spans, parts[close], memory[close])), axis=1, return_inverse=True)
            exactly = [
                own.bytes_held(slice(int(begin), int(end)), split, flight, factor) <= limit
                for begin, end, split, limit in keys.T.tolist()
            ]
            ok[close] = np.array(exactly)[same.ravel()]
        return ok


def coarse_cuts(problem: StagedProblem, stride: int = 1) -> IntArray:
    """Instructions after which a plan on the grid may cut; with a stride only one of so many, the one least crosses."""
    grid = problem.grid
    cut = grid.instruction_of_point[grid.cut_points]
    if stride == 1:
        return cut
    group = cut[: cut.size // stride * stride].reshape(-1, stride)
    chosen: IntArray = group[np.arange(group.shape[0]), problem.profile.A[group].argmin(1)]
    return chosen


def stage_tables(problem: StagedProblem, cut: IntArray | None = None) -> StageTables:
    """Tables of a problem whose stages may end after these instructions, ascending; None: after those on the grid.

    Raises:
        BadInput: it is of the length L, and has too many devices for tables of transfers.
    """
    if problem.schedule is None:
        require_few_devices(problem.cluster)
    profile, devices = problem.profile, device_tables(problem.links)
    cut = coarse_cuts(problem) if cut is None else cut
    boundary = np.concatenate(([0], cut + 1, [len(profile)]))
    whole = ShardingTables(
        sharding=problem.all_shardings[0],
        shared_parameters=profile.shared_parameters,
        shared_frozen=profile.shared_frozen,
        C=prefix_at(boundary, profile.C)[None],
        F=prefix_at(boundary, profile.C_fwd)[None],
        W=prefix_at(boundary, profile.W),
        H=prefix_at(boundary, profile.stash),
        frozen=prefix_at(boundary, profile.frozen),
        all_reduce=replicas_s_per_byte(problem, devices),
        degree=1,
        paces=problem.paces,
        allowed=np.triu(np.ones_like(devices.link, dtype=bool), 1),
        copies=copies_at(boundary, profile.shared_parameters, problem.all_shardings[0].shared_bytes),
        frozen_copies=copies_at(boundary, profile.shared_frozen, problem.all_shardings[0].shared_frozen_bytes),
    )
    return StageTables(
        boundary=boundary,
        A=np.concatenate(([0.0], profile.A[cut], [0.0])),
        shardings=(whole,),
        windows=stage_windows(problem.stages, boundary.size),
        devices=devices,
        cluster=problem.links,
        stages=problem.stages,
        micro_batches=problem.micro_batches,
        replicas_in_all=problem.cluster.devices,
        state_factor=problem.state_factor,
        memory=problem.cluster.memory,
        capacity=_capacity(problem),
        held=tuple(problem.in_flight(s) for s in range(problem.stages)),
        scheduled=problem.schedule is not None,
        one_ring=problem.one_ring,
        overlap=problem.overlap,
        update_s_per_byte=problem.update_s_per_byte,
        gradient_share=problem.gradient_share,
    )


def replicas_s_per_byte(problem: StagedProblem, devices: DeviceTables, degree: int = 1) -> FloatArray:
    """[D+1, D+1] seconds per byte of parameters that replicas on devices a … q-1 reduce their gradients in."""
    return problem.gradient_share * devices.replica_all_reduce(degree, shortest=problem.one_ring)


def stage_windows(stages: int, boundaries: int) -> IntArray:
    """[S, 2] the first and the last boundary at which each stage may begin, where nothing else restricts it."""
    stage = np.arange(stages)
    return np.stack((stage, np.where(stage, boundaries - 1 - stages + stage, 0)), axis=1)


def _capacity(problem: StagedProblem) -> FloatArray:
    speeds = np.ones(problem.cluster.devices) if problem.slowdowns is None else 1.0 / problem.slowdowns
    return np.concatenate(([0.0], np.cumsum(speeds)))
