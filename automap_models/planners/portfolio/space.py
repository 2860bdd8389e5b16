"""Where the explorer looks: numbers of stages and micro-batches, and ways of partitioning operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from automap_models.core.cluster import Cluster
from automap_models.core.microbatch import microbatch_size, require_samples, required_size
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.staged import DEFAULT_MICRO_BATCHES, DEFAULT_STATE_FACTOR, StagedProblem
from automap_models.planners.portfolio.candidates import Candidates, OutOfRange, candidates, divisors, stage_numbers
from automap_models.planners.staged.stage_tables import device_tables


@dataclass(frozen=True, eq=False)
class Space:
    """All problems whose plans compete.

    Attributes:
        model: profiled once.
        cluster: where it shall run.
        batch: samples between two updates; None is 16 micro-batches of the profiled size.
        state_factor: σ, bytes of training state per byte of parameters.
        max_stages: of the deepest pipeline; None is as many as the planners try.

    Raises:
        BadInput: a number out of range, a batch for a profile that does not say how many samples it describes, or more
            devices than the exact search has tables for.
    """

    model: ProfiledModel
    cluster: Cluster
    batch: int | None = None
    state_factor: float = DEFAULT_STATE_FACTOR
    max_stages: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None:
            require_samples(self.batch, "--global-batch")
            required_size(self.model.profile)
        device_tables(self.cluster)
        _ = self.whole

    @cached_property
    def global_batch(self) -> int | None:
        """Samples between two updates; None where the profile says nothing about samples."""
        own = microbatch_size(self.model.profile)
        return self.batch if self.batch is not None or own is None else DEFAULT_MICRO_BATCHES * own

    @cached_property
    def whole(self) -> StagedProblem:
        """One stage, the profiled micro-batch, every way of partitioning that this cluster's devices divide into."""
        fitting = tuple(p for p in self.model.shardings if self.cluster.devices % p.degree == 0)
        return StagedProblem(
            self.model.profile,
            self.cluster,
            stages=1,
            state_factor=self.state_factor,
            shardings=fitting,
            launch_s=self.model.launch_s,
        )

    @cached_property
    def inside_nodes(self) -> StagedProblem:
        """The same with the ways that a stage among several may run in."""
        fitting = tuple(p for p in self.whole.shardings if self.cluster.devices_per_node % p.degree == 0)
        return replace(self.whole, shardings=fitting)

    @property
    def counts(self) -> list[int]:
        """Every number of micro-batches M in question."""
        return [DEFAULT_MICRO_BATCHES] if self.global_batch is None else divisors(self.global_batch)

    @property
    def stages(self) -> range:
        """Every S in question, from 1."""
        possible = stage_numbers(self.whole)
        return possible if self.max_stages is None else range(1, min(possible.stop, self.max_stages + 1))

    def split(self, stages: int, micro_batches: int) -> StagedProblem:
        """The problem of that many stages and micro-batches; each replica of a stage needs a sample."""
        problem = self.whole if stages == 1 else self.inside_nodes
        samples = None if self.global_batch is None else self.global_batch // micro_batches
        return replace(problem.with_split(stages, micro_batches, self.global_batch), max_replicas=samples)

    def one_stage(self) -> Iterator[tuple[StagedProblem, int]]:
        """Problems of one stage, each with the ways of which every replica of the model gets a sample at a time."""
        for micro_batches in self.counts:
            problem = self.split(1, micro_batches)
            for way, each in enumerate(problem.all_shardings):
                if problem.max_replicas is None or self.cluster.devices // each.degree <= problem.max_replicas:
                    yield problem, way

    def pipelines(self, out_of_range: OutOfRange | None = None) -> Candidates:
        """The problems of several stages, without partitioning of operators; see planners.portfolio.candidates.

        Raises:
            BadInput: the batch is too small for the cluster in any number of stages.
        """
        several = [stages for stages in self.stages if stages > 1]
        return candidates(self.whole, several, self.global_batch, out_of_range)
