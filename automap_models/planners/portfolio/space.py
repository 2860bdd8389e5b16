"""Where a portfolio looks for plans: numbers of stages and micro-batches, kinds of plans, constraints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.coarsen import DEFAULT_GRANULARITY, Grid
from automap_models.core.constraints import UNCONSTRAINED, Constraints
from automap_models.core.device import Device
from automap_models.core.microbatch import (
    SAMPLE_TOKENS,
    microbatch_size,
    require_samples,
    required_size,
    rescaled,
    usual_samples,
)
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, StagedProblem
from automap_models.core.training_state import default_state_factor
from automap_models.errors import BadInput
from automap_models.planners.staged.stage_arrays import StageArrays, stage_arrays

MAX_STAGES = 16
"""Stages of the deepest pipeline that is tried; a number asked for by name may be larger."""


def default_stages(profile: Profile, cluster: Cluster, granularity: int = DEFAULT_GRANULARITY) -> int:
    """One stage a node, as in the paper, or as many as the profile can be cut into where those are fewer."""
    return min(cluster.nodes, Grid(len(profile), granularity).cut_points.size + 1)


def default_batch(profile: Profile, devices: int) -> int | None:
    """Samples of a step where nobody says; None where the profile says nothing about samples.

    Of a person's own model of tokens they are usual for its size. Of others they are DEFAULT_MICRO_BATCHES
    micro-batches as profiled, or, where these do not give each device four samples, the least number of whole
    micro-batches that does, and evenly.
    """
    profiled, tokens = microbatch_size(profile), profile.meta.get(SAMPLE_TOKENS)
    if profiled is None:
        return None
    if isinstance(tokens, int) and tokens > 0:
        parameters = float(profile.W.sum() + profile.frozen.sum()) / (profile.element_bytes or 4)
        return usual_samples(parameters, tokens, devices)
    samples = DEFAULT_MICRO_BATCHES * profiled
    multiple = math.lcm(profiled, devices)
    return samples if samples >= 4 * devices else multiple * -(-4 * devices // multiple)


def stage_numbers(problem: StagedProblem) -> range:
    """Every S from 1 (plain data parallelism) to as many as devices and cut points allow.

    It is at most MAX_STAGES, or under a schedule two a node where these are more.
    """
    most = MAX_STAGES if problem.schedule is None else max(MAX_STAGES, 2 * problem.cluster.nodes)
    return range(1, min(problem.cluster.devices, problem.grid.cut_points.size + 1, most) + 1)


def divisors(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True, eq=False)
class PlanningSpace:
    """All problems whose plans compete: of one model on one cluster.

    Attributes:
        model: profiled once, with its shardings.
        cluster: where it shall run.
        global_batch: samples between two updates, split into every number of micro-batches that divides it; None where
            the number of micro-batches is given.
        micro_batches: M where there is no global batch.
        stages: every number of stages S in question; None is from 1 to as many as planners try.
        state_factor: σ, bytes of training state per byte of parameters; None is Adam's at the parameters' precision.
        granularity: points that the instructions are coarsened to.
        max_replicas: of a stage, where there is no global batch; None is no limit.
        constraints: that every plan satisfies.
        schedule: whose step counts; None for the length L.
        schedules: which compete, all of core.schedules.WARM_UPS; none for `schedule` alone.
        idle_replicas: whether a stage may have more replicas than a micro-batch has samples.
        divided: whether the devices of a stage among several may share its operators.
        device: see StagedProblem.

    Raises:
        BadInput: a number out of range, or a batch for a profile that does not say how many samples it describes.
    """

    model: ProfiledModel
    cluster: Cluster
    global_batch: int | None = None
    micro_batches: int = DEFAULT_MICRO_BATCHES
    stages: tuple[int, ...] | None = None
    state_factor: float | None = None
    granularity: int = DEFAULT_GRANULARITY
    max_replicas: int | None = None
    constraints: Constraints = UNCONSTRAINED
    schedule: str | None = None
    schedules: tuple[str, ...] = ()
    idle_replicas: bool = False
    divided: bool = False
    device: Device | None = None

    def __post_init__(self) -> None:
        if self.global_batch is not None:
            require_samples(self.global_batch, "`global_batch`")
            required_size(self.model.profile)
        object.__setattr__(self, "cluster", self.base.cluster)  # with the speeds that the profile tells

    @classmethod
    def from_problem(cls, problem: StagedProblem) -> PlanningSpace:
        """The space of one problem."""
        return cls(
            ProfiledModel(problem.profile, problem.shardings, problem.launch_s),
            problem.cluster,
            micro_batches=problem.micro_batches,
            stages=(problem.stages,),
            state_factor=problem.state_factor,
            granularity=problem.granularity,
            max_replicas=problem.max_replicas,
            constraints=problem.constraints,
            schedule=problem.schedule,
            device=problem.device,
        )

    @cached_property
    def base(self) -> StagedProblem:
        """One stage, the profiled micro-batch, every sharding that this cluster's devices divide into."""
        profile = self.model.profile
        return StagedProblem(
            profile,
            self.cluster,
            stages=1,
            micro_batches=self.micro_batches,
            state_factor=default_state_factor(profile) if self.state_factor is None else self.state_factor,
            granularity=self.granularity,
            shardings=tuple(p for p in self.model.shardings if self.cluster.devices % p.degree == 0),
            launch_s=self.model.launch_s,
            max_replicas=self.max_replicas,
            constraints=self.constraints,
            schedule=self.schedule,
            device=self.device,
        )

    @property
    def counts(self) -> list[int]:
        """Every number of micro-batches M in question."""
        return [self.micro_batches] if self.global_batch is None else divisors(self.global_batch)

    @cached_property
    def stage_numbers(self) -> tuple[int, ...]:
        """Every S in question, ascending."""
        if self.stages is not None:
            return tuple(sorted(set(self.stages)))
        most = self.constraints.max_stages or MAX_STAGES
        return tuple(stages for stages in stage_numbers(self.base) if stages <= most)

    @property
    def several(self) -> tuple[int, ...]:
        """The numbers of stages that are more than one."""
        return tuple(stages for stages in self.stage_numbers if stages > 1)

    @property
    def competing(self) -> tuple[str | None, ...]:
        """The schedules that compete; None for the length L."""
        return self.schedules or (self.schedule,)

    @property
    def data_parallel_counts(self) -> list[int]:
        """Numbers of micro-batches that the global batch can be split into, whatever number is asked for of pipelines.

        What data parallelism takes is no baseline in a number that suits pipelines. Without a global batch it is that
        of the micro-batches as profiled, where the profile says how many samples these have.
        """
        size = microbatch_size(self.model.profile)
        batch = self.global_batch if size is None or self.global_batch else self.micro_batches * size
        return self.counts if batch is None else divisors(batch)

    def problem(self, stages: int, micro_batches: int, schedule: str | None, *, sharded: bool = False) -> StagedProblem:
        """That of so many stages and micro-batches, with the shardings that such stages may run in, or without any.

        Where stages have to hold work, every replica needs a sample, if the profile says how many there are. By the
        length L a micro-batch is evenly split, and replicas are counted only where stages share out operators, too.
        """
        split, per_node = self._split(micro_batches), self.cluster.devices_per_node
        if schedule is None:
            batch = self.global_batch
            most = batch // micro_batches if sharded and batch is not None else self.max_replicas
        else:
            working = self.constraints.min_stage > 0.0 and not self.idle_replicas
            most = microbatch_size(split.profile) if working else self.max_replicas
        fitting = (p for p in split.shardings if stages == 1 or per_node % p.degree == 0)
        return replace(
            split,
            stages=stages,
            shardings=tuple(fitting) if sharded else (),
            launch_s=split.launch_s if sharded else 0.0,
            max_replicas=most,
            schedule=schedule,
        )

    def _split(self, micro_batches: int) -> StagedProblem:
        """One stage, so many micro-batches; one object for each number of them."""
        if micro_batches not in self._splits:
            batch = self.global_batch
            if batch is None and micro_batches != self.micro_batches:
                batch = self.micro_batches * required_size(self.model.profile)
            self._splits[micro_batches] = self.base.with_split(1, micro_batches, batch)
        return self._splits[micro_batches]

    @cached_property
    def _splits(self) -> dict[int, StagedProblem]:
        return {}

    def require_some(self) -> None:
        """Nothing, where plans of some number of stages can satisfy the constraints.

        Raises:
            BadInput: what contradicts them.
        """
        numbers = self.stage_numbers
        if numbers and not any(map(self.allows, numbers)):
            self.constraints.check_devices(self.cluster.devices, numbers[0])
            self.constraints.windows(self.model.profile, numbers[0])  # says what contradicts them

    def allows(self, stages: int) -> bool:
        """Whether plans of so many stages can satisfy the constraints, as far as cuts and equal stages go."""
        constraints = self.constraints
        return constraints.only_work or constraints.allow(self.model.profile, self.cluster.devices, stages)

    def for_target(self, problem: StagedProblem) -> bool:
        """Whether the framework that is planned for, if any, trains so many stages and micro-batches."""
        target, profile, stages = self.constraints.target, problem.profile, problem.stages
        if target is None:
            return True
        tied = bool(profile.shared_parameters)
        divides = target.divides(microbatch_size(profile), problem.cluster.devices // stages)
        return divides and target.allows(stages, problem.micro_batches, problem.schedule, tied)

    def one_stage(self) -> Iterator[tuple[StagedProblem, int]]:
        """Problems of one stage, each with the shardings that have no more replicas than the problem allows."""
        for micro_batches in self.counts:
            problem = self.problem(1, micro_batches, self.schedule, sharded=True)
            for index, sharding in enumerate(problem.all_shardings):
                if problem.max_replicas is None or self.cluster.devices // sharding.degree <= problem.max_replicas:
                    yield problem, index

    def pipelines(self) -> tuple[StagedProblem, ...]:
        """The problems without shardings, one for each number of stages and of micro-batches; few of either first.

        By the length L a micro-batch is taken for evenly split over the replicas of a stage, however many samples it
        has, but it needs at least D / S samples: some stage has at least so many replicas, and each needs a sample.

        Raises:
            BadInput: the batch is too small for the cluster, or the constraints contradict one another.
        """
        self.require_some()
        shapes = [(S, M) for S in self.stage_numbers if self.allows(S) for M in self.counts]
        batch = self.global_batch
        if batch is not None and self.schedule is None:
            shapes = [(S, M) for S, M in shapes if batch // M * S >= self.cluster.devices]
            if not shapes:
                raise _too_small(batch, self.cluster)
        problems = (self.problem(S, M, self.schedule) for S, M in shapes)
        return tuple(problem for problem in problems if self.for_target(problem))


def staged_problems(space: PlanningSpace) -> Iterator[StagedProblem]:
    """Every problem of several stages that has plans which satisfy the space's constraints."""
    for stages in space.several:
        if space.allows(stages):
            yield from (space.problem(stages, M, space.schedule, sharded=True) for M in space.counts)


def possible_stages(problem: StagedProblem) -> StageArrays | None:
    """What its stages hold; None where they cannot share out the devices."""
    try:
        return stage_arrays(problem)[0]
    except BadInput:  # without what is forbidden, or without a sample for every replica
        return None


def _too_small(global_batch: int, cluster: Cluster) -> BadInput:
    return BadInput(
        f"{global_batch} samples cannot give each of the {cluster.devices} devices of cluster {cluster.name} "
        "one at a time in any number of stages asked for",
        where="`global_batch`",
        do="give more samples, more stages or a smaller cluster",
    )


def planning_space(
    profile: Profile,
    cluster: Cluster,
    stages: int | str | None = None,
    micro_batches: int | str | None = None,
    global_batch: int | None = None,
    *,
    choose: bool = True,
    **fields: Any,
) -> tuple[PlanningSpace, StagedProblem]:
    """What is to be planned where numbers of stages and micro-batches are given, left open or to be chosen.

    Args:
        stages: S; "auto" is the best of all numbers. None is the same under a schedule; without one it is one stage a
            node, or one stage where that is shorter.
        micro_batches: M; "auto" is the best of all divisors of the global batch. None is the same under a schedule,
            where the profile says how many samples it has; without a schedule it is what the global batch makes of the
            profiled micro-batch. Without a global batch that is DEFAULT_MICRO_BATCHES of them.
        choose: whether the planner can choose among several numbers at all.
        fields: others of PlanningSpace.

    Returns:
        The space of the problems that compete; and the problem that a named planner plans, and whose uniform cuts a
        plan is held against: with the number of stages given, or one a node.

    Raises:
        BadInput: a number is out of range, or a batch cannot be split.
    """
    if global_batch is not None:
        require_samples(global_batch, "`global_batch`")
    by_step = choose and fields.get("schedule") is not None
    if by_step and micro_batches is None:
        global_batch = default_batch(profile, cluster.devices) if global_batch is None else global_batch
        micro_batches = None if global_batch is None else "auto"
    if isinstance(micro_batches, str):
        if global_batch is None:
            what = "needs to know how many samples a batch has"
            raise BadInput(what, where="`micro_batches='auto'`", do="give `global_batch`")
        required_size(profile)
    elif global_batch is not None:
        fields["micro_batches"], profile = _split(profile, global_batch, micro_batches)
        global_batch = None
    elif micro_batches is not None:
        fields["micro_batches"] = micro_batches
    space = PlanningSpace(ProfiledModel(profile), cluster, global_batch, **fields)
    default = default_stages(profile, cluster, space.granularity)
    # One stage a node is what people try first; equal replicas may leave fewer.
    while space.constraints.equal_replicas and cluster.devices % default:
        default -= 1
    number, numbers = default, tuple(sorted({1, default}))
    if isinstance(stages, int):
        number, numbers = stages, (stages,)
    elif by_step or stages is not None:
        numbers = tuple(stage_numbers(space.base))
    return replace(space, stages=numbers), replace(space.base, stages=number)


def _split(profile: Profile, global_batch: int, micro_batches: int | None) -> tuple[int, Profile]:
    """M and the profile of B / M samples; without M that of the profiled micro-batch."""
    if micro_batches is None:
        size = required_size(profile)
        if global_batch % size:
            what = f"{global_batch} samples are no multiple of the {size} of the profiled micro-batch"
            raise BadInput(what, where="`global_batch`", do="give a multiple, or choose `micro_batches`")
        return global_batch // size, profile
    if micro_batches < 1 or global_batch % micro_batches:
        what = f"{global_batch} samples do not make {micro_batches} equal micro-batches"
        raise BadInput(what, where="`micro_batches`", do="give a divisor of the global batch, or auto")
    return micro_batches, rescaled(profile, global_batch // micro_batches)
