"""What the run of a plan measured.

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
from typing import Any

import numpy as np

from automap_models.core.passes import ActionKind, Schedule
from automap_models.core.plan import Plan
from automap_models.core.profile import FloatArray


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
        memory_bytes: the most that tensors took on a device; None of CPUs, whose memory nobody counts.
        row: the measured step for the clock to be fitted to (formats.measured_rows); None where it is no such row.
        no_row: why, in one sentence.
    """

    plan: Plan
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
    memory_bytes: float | None = None
    row: Mapping[str, Any] | None = None
    no_row: str | None = None

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
