"""Hybrid plans: pipeline stages whose devices share the work by data parallelism and operator partitioning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from automap_models.core.microbatch import required_size, rescaled
from automap_models.core.partitioned import PartitionedProfile, require_alike, whole
from automap_models.core.plan import PipelinePlan
from automap_models.core.problem import PipelineProblem
from automap_models.errors import BadInput


@dataclass(frozen=True, eq=False)
class HybridProblem:
    """A pipeline problem whose stages may partition operators in one of several ways.

    Attributes:
        pipeline: profile, cluster, stages, micro-batches, state factor and grid.
        partitionings: of that profile, in which a stage may run beside as it is; each of degree 2 or more.
        launch_s: of a kernel; an all-reduce of activations costs 2·⌈log2 t⌉ of them beside moving bytes.
        max_replicas: of a stage, such as the samples of a micro-batch, of which each needs one; None is no limit.

    Raises:
        BadInput: a partitioning of another profile, or of degree 1.
    """

    pipeline: PipelineProblem
    partitionings: tuple[PartitionedProfile, ...] = ()
    launch_s: float = 0.0
    max_replicas: int | None = None

    def __post_init__(self) -> None:
        for each in self.partitionings:
            require_alike(self.pipeline.profile, each)
            if each.degree < 2:
                raise BadInput(f"degree {each.degree}", where=f"partitioning {each.name}", do="divide by 2 or more")

    @cached_property
    def choices(self) -> tuple[PartitionedProfile, ...]:
        """In what ways a stage may run: first as it is (t = 1), then partitioned."""
        return (whole(self.pipeline.profile), *self.partitionings)

    def with_split(self, stages: int, micro_batches: int, global_batch: int | None = None) -> HybridProblem:
        """The same problem in another number of stages and micro-batches, these of B / M samples if there is a batch.

        Raises:
            BadInput: the profile does not say how many samples it describes, or M does not divide B.
        """
        profile, partitionings = self.pipeline.profile, self.partitionings
        if global_batch is not None:
            own, (samples, rest) = required_size(profile), divmod(global_batch, micro_batches)
            if rest:
                what = f"{global_batch} samples do not make {micro_batches} equal micro-batches"
                raise BadInput(what, where="--micro-batches", do="give a divisor of the global batch")
            profile = rescaled(profile, samples)
            if samples != own:
                partitionings = tuple(each.rescaled(samples / own) for each in partitionings)
        pipeline = replace(self.pipeline, profile=profile, stages=stages, micro_batches=micro_batches)
        return replace(self, pipeline=pipeline, partitionings=partitionings)


@dataclass(frozen=True)
class HybridPlan:
    """A pipeline plan, and in which way each stage partitions operators.

    Attributes:
        pipeline: instruction and device cuts; its planner is who made the whole plan.
        chosen: [S] index of each stage's way among the problem's `choices`; 0 is plain data parallelism.
    """

    pipeline: PipelinePlan
    chosen: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return self.pipeline.stages

    def degrees(self, problem: HybridProblem) -> tuple[tuple[int, int], ...]:
        """[S] data-parallel replicas d and operator-partitioning degree t of each stage; it has d·t devices."""
        bounds = self.pipeline.stage_devices(problem.pipeline.cluster.devices)
        tensor = [problem.choices[way].degree for way in self.chosen]
        return tuple(((last - first + 1) // t, t) for (first, last), t in zip(bounds, tensor, strict=True))

    def check_valid(self, problem: HybridProblem) -> tuple[bool, str]:
        """Whether this plan solves that problem's structure, and if not, why not; memory is the cost model's business.

        Devices that share an operator are neighbours inside a node, in a plan of several stages.
        """
        valid, why = self.pipeline.check_valid(problem.pipeline)
        if not valid:
            return False, why
        if len(self.chosen) != self.stages or not all(0 <= way < len(problem.choices) for way in self.chosen):
            return (
                False,
                f"ways {list(self.chosen)} do not give each of {self.stages} stages one of {len(problem.choices)}",
            )
        cluster = problem.pipeline.cluster
        for s, (first, last) in enumerate(self.pipeline.stage_devices(cluster.devices)):
            t = problem.choices[self.chosen[s]].degree
            if (last - first + 1) % t or (self.stages > 1 and (first % t or cluster.devices_per_node % t)):
                return False, f"stage {s} on devices {first}…{last} has no groups of {t} inside nodes"
            if problem.max_replicas is not None and last - first + 1 > t * problem.max_replicas:
                return False, f"stage {s} has {(last - first + 1) // t} replicas, more than {problem.max_replicas}"
        return True, ""
