"""Staged plans: where a model is cut into pipeline stages, which devices each gets, and how these share its work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import DEFAULT_GRANULARITY, Grid, grid_of
from automap_models.core.constraints import UNCONSTRAINED, Constraints
from automap_models.core.device import Device
from automap_models.core.microbatch import (
    clock_factor,
    clocked_s,
    microbatch_size,
    on_device,
    required_size,
    rescaled,
    time_factors,
)
from automap_models.core.profile import FloatArray, Profile
from automap_models.core.profiled_model import ShardedProfile, require_alike, unsharded
from automap_models.core.schedules import require_schedule, warm_up
from automap_models.core.stage_speeds import StageSpeeds, equal_speeds, idle_positions, unequal_speeds
from automap_models.core.training_state import default_state_factor
from automap_models.errors import BadInput

DEFAULT_MICRO_BATCHES = 16
MAX_GRANULARITY = 65_536
"""Beyond this nobody plans: numbers so large are mistakes, and would exhaust memory."""


@dataclass(frozen=True, eq=False)
class StagedProblem:
    """To cut a training step into stages, each on devices of its own that replicate it or share its operators.

    Without shardings every stage is replicated on its devices: the problem of plain pipelines.

    What a plan shall make small is the step under a schedule, as it runs: with whole samples on every replica, and
    gradients that are reduced while the backward pass goes on (cost-model, "The step that runs"). Without a schedule it
    is Auto-MAP's length L.

    Times of another kind of device than a uniform cluster is made of are scaled to it by the clock (core.microbatch).

    Attributes:
        profile: the model's training step, for one micro-batch.
        cluster: where it shall run.
        stages: number of stages S; 1 is data parallelism, operator partitioning, or both.
        micro_batches: micro-batches M in a global batch.
        state_factor: σ, bytes of training state per byte of parameters (cost-model, "Memory"); unless given, Adam's at
            the precision of the profile's parameters.
        granularity: number of cut points the instructions are coarsened to.
        shardings: of the profile, in which a stage may run beside as it is; each of degree 2 or more.
        launch_s: of a kernel; in the length L an all-reduce of activations costs 2·⌈log2 t⌉ of them beside its bytes.
        max_replicas: of a stage, such as the samples of a micro-batch, of which each needs one; None is no limit. With
            a limit none of them is left without a sample (`may_have`).
        constraints: what people ask of a plan beside being short; a plan that breaks them is not valid.
        schedule: a key of `core.schedules.WARM_UPS`, whose step counts; None for the length L.
        slowdown: [D] time of the device at each position over that of a healthy one of its kind; None where all are
            healthy. A stage waits for the slowest of its devices that work.
        device: the kind of device, of which a step that runs takes what training steps reach of links and of memory,
            and how much of the gradients' all-reduces goes on beside the backward pass. None: all that the cluster has,
            and all of them; all-reduces are Auto-MAP's, and the update of the parameters takes no time.

    Raises:
        BadInput: an unknown schedule, S, M or σ out of range for this profile and cluster, devices that do not make S
            equal stages where these are asked for, a sharding of another profile or of degree 1, kinds of devices
            whose speeds the profile does not tell (`Cluster.relative_to`).
    """

    profile: Profile
    cluster: Cluster
    stages: int
    micro_batches: int = DEFAULT_MICRO_BATCHES
    state_factor: float = None  # type: ignore[assignment]  # never None after __post_init__
    granularity: int = DEFAULT_GRANULARITY
    shardings: tuple[ShardedProfile, ...] = ()
    launch_s: float = 0.0
    max_replicas: int | None = None
    constraints: Constraints = UNCONSTRAINED
    schedule: str | None = None
    slowdown: tuple[float, ...] | None = None
    device: Device | None = None

    def __post_init__(self) -> None:
        self.cluster.require_one_zone("a plan of stages")
        if self.state_factor is None:
            object.__setattr__(self, "state_factor", default_state_factor(self.profile))
        speed = clock_factor(self.profile, self.cluster)
        if speed != 1.0:
            shardings = tuple(sharding.timed(speed, speed) for sharding in self.shardings)
            object.__setattr__(self, "shardings", shardings)
            object.__setattr__(self, "profile", on_device(self.profile, self.cluster.device, speed))
        profiled = (self.profile.device, self.profile.roofline_s, self.profile.dtype)
        object.__setattr__(self, "cluster", self.cluster.relative_to(*profiled))
        if self.schedule is not None:
            require_schedule(self.schedule)
        if not 1 <= self.micro_batches <= 1_000_000_000:  # more is a mistake, and would exhaust the range of a float
            raise BadInput(f"{self.micro_batches} micro-batches", where="`micro_batches`", do="give 1 to 1,000,000,000")
        if not (math.isfinite(self.state_factor) and self.state_factor > 0):
            raise BadInput(f"state factor {self.state_factor}", where="`state_factor`", do="give a positive number")
        if not 2 <= self.granularity <= MAX_GRANULARITY:
            do = f"give 2 to {MAX_GRANULARITY:,}"
            raise BadInput(f"granularity {self.granularity}", where="`granularity`", do=do)
        if self.stages < 1:
            raise BadInput(f"{self.stages} stages", where="`stages`", do="give at least 1")
        if self.stages > self.cluster.devices:
            what = f"{self.stages} stages on the {self.cluster.devices} device(s) of cluster {self.cluster.name}"
            do = f"a stage needs a device of its own: give at most {self.cluster.devices}"
            raise BadInput(what, where="`stages`", do=do)
        cut_points = self.grid.cut_points.size
        if self.stages - 1 > cut_points:
            what = f"{self.stages} stages, but the profile can be cut in {cut_points} place(s)"
            raise BadInput(what, where="`stages`", do=f"give at most {cut_points + 1}")
        self.constraints.check_devices(self.cluster.devices, self.stages)
        for sharding in self.shardings:
            require_alike(self.profile, sharding)
            if sharding.degree < 2:
                raise BadInput(f"degree {sharding.degree}", where=f"sharding {sharding.name}", do="divide by 2 or more")
        slowdown = self.slowdown
        if slowdown is not None and not (
            len(slowdown) == self.cluster.devices and all(math.isfinite(slow) and slow > 0 for slow in slowdown)
        ):
            do = f"give {self.cluster.devices} positive numbers, one a device"
            raise BadInput(f"{len(slowdown)} numbers", where="`slowdown`", do=do)

    @property
    def grid(self) -> Grid:
        """The coarse grid on this profile."""
        return grid_of(len(self.profile), self.granularity)

    @cached_property
    def all_shardings(self) -> tuple[ShardedProfile, ...]:
        """How a stage may run: first as it is (t = 1), then sharded; what a plan's shardings are indices of."""
        return (unsharded(self.profile), *self.shardings)

    @cached_property
    def samples(self) -> int | None:
        """Samples N of a micro-batch that replicas get as a whole; None where a micro-batch splits evenly."""
        return None if self.schedule is None else microbatch_size(self.profile)

    @cached_property
    def shares(self) -> FloatArray:
        """[D+1] into how many equal parts d replicas split a micro-batch: N / ⌈N/d⌉ of whole samples, else d; 1 for 0.

        The fullest replica sets the time and the memory of a stage.
        """
        replicas = np.maximum(np.arange(self.cluster.devices + 1), 1).astype(np.float64)
        return replicas if self.samples is None else self.samples / np.ceil(self.samples / replicas)

    @cached_property
    def speeds(self) -> FloatArray:
        """[D+1] how many times as fast d replicas are as one: t(N) / t(⌈N/d⌉) by the clock, 1 for 0.

        Where the profile has no clock it is their share of the samples (`shares`). No replicas are faster than that,
        nor are fewer of them faster than more.
        """
        own_s = None if self.samples is None else clocked_s(self.profile, self.samples)
        if self.samples is None or own_s is None:
            return self.shares
        shares, which = np.unique(self.shares, return_inverse=True)
        few_s = [clocked_s(self.profile, round(self.samples / share)) or own_s for share in shares.tolist()]
        return np.asarray(np.maximum.accumulate(np.minimum(shares, own_s / np.array(few_s)))[which])

    @cached_property
    def may_have(self) -> NDArray[np.bool_]:
        """[D+1] whether a stage may have so many replicas: where each needs a sample, ⌈N/⌈N/d⌉⌉ = d of them get one.

        40 samples on 24 replicas are 2 for each of 20 and none for 4. One stage has all devices: there is no other
        number to take. Of devices of unequal speed some stand idle anyway (core.stage_speeds).
        """
        replicas = np.arange(self.cluster.devices + 1)
        if self.max_replicas is None:
            return replicas >= 0
        allowed: NDArray[np.bool_] = replicas <= self.max_replicas
        if self.samples is None or self.stages == 1 or self.slowdowns is not None:
            return allowed
        filled: NDArray[np.bool_] = np.ceil(self.samples / np.ceil(self.samples / np.maximum(replicas, 1))) == replicas
        return allowed & filled

    @cached_property
    def links(self) -> Cluster:
        """The cluster with the bandwidths that collectives reach in a step that runs; as it is for the length L."""
        if self.schedule is None or self.device is None:
            return self.cluster
        constants = self.device.constants
        return self.cluster.attained(constants.intra_efficiency, constants.inter_efficiency)

    @property
    def runs(self) -> bool:
        """Whether it is of a step that runs on a device, whose collectives have latencies; the length L is not."""
        return self.schedule is not None and self.device is not None

    @property
    def overlap(self) -> float:
        """Share of the all-reduces of gradients that can go on beside the backward pass; 0 for the length L."""
        if self.schedule is None:
            return 0.0
        return 1.0 if self.device is None else self.device.constants.overlap

    @property
    def gradient_share(self) -> float:
        """Bytes of gradients that are reduced over those of parameters; 1 for the length L."""
        return 1.0 if self.schedule is None else self.profile.gradient_share

    @property
    def update_s_per_byte(self) -> float:
        """Seconds of updating a byte of parameters; 0 for the length L.

        Gradients and the optimiser's state are read, state and parameters written; parameters in float32 are read, too.
        """
        if self.schedule is None or self.device is None:
            return 0.0
        master = 1.0 if self.profile.element_bytes in (None, 4.0) else 0.0
        return (2.0 * self.state_factor - 2.0 + master) / self.device.bytes_per_s

    @cached_property
    def slowdowns(self) -> FloatArray | None:
        """[D] time of the device at each position over that of the profile's; None where all are as fast as that."""
        of_kinds = self.cluster.slowdown
        if self.slowdown is None:
            return of_kinds
        factors = np.array(self.slowdown)
        return factors if of_kinds is None else factors * of_kinds

    @cached_property
    def capacity(self) -> float:
        """Devices of the profile's speed that all devices together are worth."""
        return float(self.cluster.devices if self.slowdowns is None else (1.0 / self.slowdowns).sum())

    @property
    def stage_speeds(self) -> StageSpeeds:
        """How fast each stage without a sharding works, and on how many of its devices."""
        if self.slowdowns is None:
            return equal_speeds(self.shares, self.speeds, self.cluster.device_memory)
        return unequal_speeds(self.shares, self.speeds, self.slowdowns, self.cluster.device_memory)

    def idle_positions(self, plan: StagedPlan) -> tuple[int, ...]:
        """Positions whose devices would hold up their stage more than they help it: they stand idle."""
        if self.slowdowns is None:
            return ()
        bounds = plan.stage_devices(self.cluster.devices)
        replicated = tuple(ends for ends, sharding in zip(bounds, plan.shardings, strict=True) if not sharding)
        return idle_positions(self.speeds, self.slowdowns, replicated)

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at once."""
        return warm_up(self.schedule, stage, self.stages, self.micro_batches)

    def with_split(self, stages: int, micro_batches: int, global_batch: int | None = None) -> StagedProblem:
        """The same problem in another number of stages and micro-batches, these of B / M samples if there is a batch.

        Raises:
            BadInput: the profile does not say how many samples it describes, or M does not divide B.
        """
        profile, shardings = self.profile, self.shardings
        if global_batch is not None:
            profile_samples, (samples, rest) = required_size(profile), divmod(global_batch, micro_batches)
            if rest:
                what = f"{global_batch} samples do not make {micro_batches} equal micro-batches"
                raise BadInput(what, where="`micro_batches`", do="give a divisor of the global batch")
            if samples != profile_samples:
                factors = time_factors(profile, samples)
                shardings = tuple(sharding.rescaled(samples / profile_samples, *factors) for sharding in shardings)
            profile = _rescaled(profile, samples)
        return replace(self, profile=profile, stages=stages, micro_batches=micro_batches, shardings=shardings)


_rescaled = lru_cache(maxsize=64)(rescaled)
"""One profile for all problems with micro-batches of that size: what their stages cost is worked out once."""
Outcome = Literal["planned", "does not fit", "discarded", "proven"]
"""How far a planner got with one of several problems; see `SearchLogEntry`."""


@dataclass(frozen=True)
class SearchLogEntry:
    """One number of stages and micro-batches among which a planner chose.

    Attributes:
        stages, micro_batches: S and M.
        microbatch_size: samples in a micro-batch; None where the profile does not say.
        planner: who made its best plan on the grid; None where there is none.
        step_s: what its step takes, seconds: simulated under the schedule, or without one the length L; of the one
            that was chosen that of the plan returned.
        bound_s: no plan of it on the grid is shorter; None where no plan fits.
        outcome: `planned`, `does not fit`, or that it is out of the question that it has a shorter plan on the grid
            than the best of all: `discarded` by a relaxation, `proven` by the exact search.
        chosen: whether it is the one whose plan was returned.
        schedule: of its steps; None for the length L.
    """

    stages: int
    micro_batches: int
    microbatch_size: int | None
    planner: str | None
    step_s: float | None
    bound_s: float | None
    outcome: Outcome
    chosen: bool
    schedule: str | None = None


@dataclass(frozen=True)
class StagedPlan:
    """The decision as searches encode it: cuts and counts, by number, of one problem; cost.staged prices it.

    Who runs or exports a plan takes `core.plan.Plan`, whose stages have names, devices and predicted times: the plan as
    its file tells it. `formats.staged_plan.StagedDocument.plan` alone makes it of this, `staged_document(report).plan`.

    Attributes:
        cuts: last instruction of each stage but the last, [S-1], increasing.
        device_cuts: first device of each stage but the first, [S-1], increasing.
        micro_batches: micro-batches in a global batch.
        planner: who made it.
        coarse_cuts: the cuts as points of the grid; None when they are not on it.
        shardings: [S] index of each stage's sharding among the problem's `all_shardings`; 0 is plain replication.
            Left out, it is 0 for every stage: a pipeline.
    """

    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]
    micro_batches: int
    planner: str
    coarse_cuts: tuple[int, ...] | None = None
    shardings: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.shardings:
            object.__setattr__(self, "shardings", (0,) * self.stages)

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.cuts) + 1

    def stage_instructions(self, n: int) -> tuple[tuple[int, int], ...]:
        """First and last instruction of each stage of a model with n instructions."""
        last = (*self.cuts, n - 1)
        first = (0, *(cut + 1 for cut in self.cuts))
        return tuple(zip(first, last, strict=True))

    def stage_devices(self, devices: int) -> tuple[tuple[int, int], ...]:
        """First and last device of each stage on a cluster of that many devices."""
        first = (0, *self.device_cuts)
        last = (*(cut - 1 for cut in self.device_cuts), devices - 1)
        return tuple(zip(first, last, strict=True))

    def degrees(self, problem: StagedProblem) -> tuple[tuple[int, int], ...]:
        """[S] data-parallel replicas d and degree of operator partitioning t of each stage; it has d·t devices."""
        bounds = self.stage_devices(problem.cluster.devices)
        degrees = [problem.all_shardings[index].degree for index in self.shardings]
        return tuple(((last - first + 1) // t, t) for (first, last), t in zip(bounds, degrees, strict=True))

    def check_valid(self, problem: StagedProblem) -> tuple[bool, str]:
        """Whether this plan solves that problem's structure, and if not, why not.

        Devices that share an operator are neighbours inside a node, in a plan of several stages. Memory is the cost
        model's business: a valid plan may still not fit.
        """
        n, devices = len(problem.profile), problem.cluster.devices
        increasing_cuts = all(a < b for a, b in pairwise((-1, *self.cuts, n - 1)))
        increasing_devices = all(a < b for a, b in pairwise((0, *self.device_cuts, devices)))
        off_grid = self.coarse_cuts is not None and self.coarse_cuts != problem.grid.to_points(self.cuts)
        shardings = len(problem.shardings) + 1
        unsharded = len(self.shardings) != self.stages or not all(0 <= index < shardings for index in self.shardings)
        cuts, device_cuts, coarse = list(self.cuts), list(self.device_cuts), list(self.coarse_cuts or ())
        batches = self.micro_batches, problem.micro_batches
        objections = {
            f"{len(cuts)} instruction cut(s) but {len(device_cuts)} device cut(s)": len(device_cuts) != len(cuts),
            f"{self.stages} stages instead of {problem.stages}": self.stages != problem.stages,
            "{} micro-batches instead of {}".format(*batches): batches[0] != batches[1],
            f"instruction cuts {cuts} do not increase inside 0..{n - 2}": not increasing_cuts,
            f"device cuts {device_cuts} do not increase inside 1..{devices - 1}": not increasing_devices,
            f"coarse cuts {coarse} do not stand for cuts {cuts}": off_grid,
            f"shardings {list(self.shardings)} do not give each of {self.stages} stages one of {shardings}": unsharded,
        }
        objection = next((reason for reason, wrong in objections.items() if wrong), None)
        objection = objection or self._misplaced(problem) or self._unwanted(problem)
        return (True, "") if objection is None else (False, objection)

    def _misplaced(self, problem: StagedProblem) -> str | None:
        """Which stage has devices that cannot share its operators, or too many replicas; None where all is well."""
        if problem.max_replicas is None and not any(self.shardings):
            return None
        per_node = problem.cluster.devices_per_node
        for s, (first, last) in enumerate(self.stage_devices(problem.cluster.devices)):
            t = problem.all_shardings[self.shardings[s]].degree
            if (last - first + 1) % t or (self.stages > 1 and (first % t or per_node % t)):
                return f"stage {s} on devices {first}…{last} has no groups of {t} inside nodes"
            if not problem.may_have[replicas := (last - first + 1) // t]:
                many = problem.max_replicas is not None and replicas > problem.max_replicas
                wrong = (
                    f"more than {problem.max_replicas}" if many else f"some without any of {problem.samples} samples"
                )
                return f"stage {s} has {replicas} replicas, {wrong}"
        return None

    def _unwanted(self, problem: StagedProblem) -> str | None:
        """Which of the problem's constraints the plan breaks."""
        if problem.constraints == UNCONSTRAINED:
            return None
        return problem.constraints.broken_by(problem.profile, self.cuts, self.degrees(problem))
