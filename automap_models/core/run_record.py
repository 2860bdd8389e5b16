"""What is known of a plan when it runs, and what its run measured.

A run has ranks as a schedule has: a rank holds one stage of the plan, or several virtual ones, on the devices of the
first of them. Each of these devices is a replica of the stage and works on its part of every micro-batch.

    plan         stage 0      stage 1             stage 2
    devices      0            1         2         3
    replica      0            0         1         0          of stage 1 each takes half of a micro-batch's samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import ActionKind, Schedule


@dataclass(frozen=True)
class RunStage:
    """A stage as plan.json tells it.

    Attributes:
        first, last: its instructions.
        end: name of its last instruction, which is the cut after it.
        devices: first and last device.
        replicas: d.
        tensor: t devices that share the operators of a replica; the stage has d·t devices.
        sharding: name of how these divide operators; None where each replica is one device.
        forward_s, backward_s: predicted seconds of one micro-batch on the fullest replica.
        transfer_s: predicted seconds of a message to the next stage; 0 of the last one.
        all_reduce_s: predicted seconds of its gradients' all-reduce.
    """

    first: int
    last: int
    end: str
    devices: tuple[int, int]
    replicas: int
    tensor: int
    sharding: str | None
    forward_s: float
    backward_s: float
    transfer_s: float
    all_reduce_s: float

    @property
    def device_count(self) -> int:
        """d·t."""
        return self.devices[1] - self.devices[0] + 1


@dataclass(frozen=True)
class RunPlan:
    """A plan.json as a run needs it, without the profile that it was made for.

    Attributes:
        where: the file.
        model: the model's name in it.
        stages: in the order of the model.
        micro_batches: M.
        microbatch_size: samples N of a micro-batch; None where the plan does not say.
        schedule: under which it was planned; None where it was planned by length.
        step_s: predicted seconds of a step under that schedule, or the length L.
        model_fingerprint: `Profile.model_fingerprint` of the profiled model; None in older files.
        shardings: of the operators, by name: degree, and which dimension of each variable is partitioned.
    """

    where: str
    model: str
    stages: tuple[RunStage, ...]
    micro_batches: int
    microbatch_size: int | None
    schedule: str | None
    step_s: float
    model_fingerprint: str | None
    shardings: Mapping[str, tuple[int, Mapping[str, int]]]

    @property
    def devices(self) -> int:
        """D."""
        return self.stages[-1].devices[1] + 1

    @property
    def instructions(self) -> int:
        """Number of instructions n of the model."""
        return self.stages[-1].last + 1

    @property
    def cut_names(self) -> tuple[str, ...]:
        """[S-1] what the cut after each stage but the last is called."""
        return tuple(stage.end for stage in self.stages[:-1])

    @property
    def has_equal_replicas(self) -> bool:
        """Whether all stages have equally many devices."""
        return len({stage.device_count for stage in self.stages}) == 1


@dataclass(frozen=True)
class Pass:
    """One pass of one replica, seconds from the start of its step.

    Attributes:
        kind: F, B, I or W; `U` is the update of the parameters, `G` the reduction of the gradients.
        stage: the plan's stage.
        replica: of it; None where only the stage as a whole was measured.
        micro_batch: 0 for updates and reductions.
        start_s, end_s: on a clock that all processes share.
        busy_s: what the pass took of its device: events of the stream on a GPU, the thread's processor time on a CPU,
            which does not count what other processes on the same core take.
    """

    kind: ActionKind | str
    stage: int
    replica: int | None
    micro_batch: int
    start_s: float
    end_s: float
    busy_s: float


@dataclass(frozen=True)
class StepRecord:
    """One step that ran: its loss, how long it took, its passes."""

    loss: float
    length_s: float
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Comparison:
    """A run held against the model on one process.

    Attributes:
        loss_error: the largest relative error of a step's loss.
        gradient_error: the largest relative error of a tensor's gradient in the first step: the norm of the difference
            over the norm of the gradient.
        tensors: gradients that were compared.
        tolerance: that the errors must not exceed.
        difference: the first tensor that differs by more, with both of its values; None where none does.
    """

    loss_error: float
    gradient_error: float
    tensors: int
    tolerance: float
    difference: str | None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return self.difference is None


@dataclass(frozen=True)
class RunRecord:
    """What a run did and measured.

    Attributes:
        plan: what ran.
        schedule: the order of passes of every rank.
        backend, executor: who ran it, such as "torch" and "automap".
        device: what it ran on, in words.
        clock: what `Pass.busy_s` is: "processor time", "wall time" or "events of the CUDA stream".
        processes: how many.
        steps: in order, those before the measurement included.
        warmup: steps that do not count.
        comparison: with one process; None where it was not asked for.
        notes: sentences for people.
    """

    plan: RunPlan
    schedule: Schedule
    backend: str
    executor: str
    device: str
    clock: str
    processes: int
    steps: tuple[StepRecord, ...]
    warmup: int = 0
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()

    @property
    def counted(self) -> tuple[StepRecord, ...]:
        """The steps that count; all of them where there are no more than the warm-up."""
        return self.steps[self.warmup :] or self.steps

    @cached_property
    def replicas(self) -> tuple[tuple[int | None, ...], ...]:
        """[S] the replicas of each stage that were measured."""
        ran: list[set[int | None]] = [set() for _ in self.plan.stages]
        for step in self.steps:
            for one in step.passes:
                ran[one.stage].add(one.replica)
        return tuple(tuple(sorted(replicas, key=lambda replica: replica or 0)) for replicas in ran)

    def samples(self, stage: int, replica: int | None, kinds: str) -> FloatArray:
        """[samples] busy seconds of a replica's passes of these kinds, one a micro-batch and step that counts.

        A backward pass in two parts, "IW", is the sum of both.
        """
        values: dict[tuple[int, int], float] = {}
        for i, step in enumerate(self.counted):
            for one in step.passes:
                if one.stage == stage and one.replica == replica and one.kind in kinds:
                    values[i, one.micro_batch] = values.get((i, one.micro_batch), 0.0) + one.busy_s
        return np.array(list(values.values()), dtype=np.float64)

    def per_step(self, stage: int, kinds: str) -> float:
        """Median over the steps of the busy seconds that a stage's slowest replica spends in these passes."""
        totals = []
        for step in self.counted:
            of_replica: dict[int | None, float] = {}
            for one in step.passes:
                if one.stage == stage and one.kind in kinds:
                    of_replica[one.replica] = of_replica.get(one.replica, 0.0) + one.busy_s
            totals.append(max(of_replica.values(), default=0.0))
        return float(np.median(totals))

    @property
    def step_s(self) -> float:
        """Median length of the steps that count."""
        return float(np.median([step.length_s for step in self.counted]))
