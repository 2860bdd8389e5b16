"""What a run measured, as JSON: a times.json that `automap infer --observed` reads, with all the rest under `run`.

A stage has its own times where each of its replicas is measured as one; a plan whose stages have several replicas gives
those of its devices.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.run_record import RunRecord
from automap_models.core.written_plan import WrittenStage
from automap_models.simulate.engine import Timeline

FORWARD, BACKWARD, UPDATE, REDUCTION = "F", "BIW", "U", "G"
"""Kinds of passes that a part of the step consists of."""


def run_document(record: RunRecord, predicted: Timeline) -> dict[str, Any]:
    """The JSON document of a run.

    Args:
        predicted: one step of the plan under the schedule that ran.
    """
    check = record.comparison
    return {
        "schema": 1,
        "kind": "observed",
        **_times(record),
        "run": {
            "model": record.plan.model,
            "backend": record.backend,
            "executor": record.executor,
            "device": record.device,
            "clock": record.clock,
            "schedule": record.schedule.name,
            "processes": record.processes,
            "micro_batches": record.plan.micro_batches,
            "losses": [float(step.loss) for step in record.steps],
            "warmup": record.warmup,
            "step_s": {"predicted": predicted.length_s, "measured": record.step_s},
            "stages": [_stage(record, predicted, s, stage) for s, stage in enumerate(record.plan.stages)],
            "check": None if check is None else {"agrees": check.agrees, **asdict(check)},
            "notes": list(record.notes),
        },
    }


def _times(record: RunRecord) -> dict[str, Any]:
    """`stages`, or `devices` where a stage has several that were measured."""

    def samples(stage: int, replica: int | None) -> dict[str, Any]:
        def listed(kinds: str) -> list[float]:
            return [float(value) for value in record.samples(stage, replica, kinds)]

        return {"forward_s": listed(FORWARD), "backward_s": listed(BACKWARD)}

    if all(len(replicas) == 1 for replicas in record.replicas):
        return {"stages": [{"index": s, **samples(s, replicas[0])} for s, replicas in enumerate(record.replicas)]}
    return {
        "devices": [
            {"device": record.plan.stages[s].devices[0] + (replica or 0), **samples(s, replica)}
            for s, replicas in enumerate(record.replicas)
            for replica in replicas
        ]
    }


def _stage(record: RunRecord, predicted: Timeline, s: int, stage: WrittenStage) -> dict[str, Any]:
    idle = idle_shares(record), predicted_idle_shares(record, predicted)
    rank = record.schedule.rank_of[s]
    passes = record.plan.micro_batches
    return {
        "index": s,
        "replicas": stage.replicas,
        "forward_s": {"predicted": passes * stage.forward_s, "measured": record.per_step(s, FORWARD)},
        "backward_s": {"predicted": passes * stage.backward_s, "measured": record.per_step(s, BACKWARD)},
        "reduction_s": {"predicted": stage.all_reduce_s, "measured": record.per_step(s, REDUCTION)},
        "update_s": {"predicted": None, "measured": record.per_step(s, UPDATE)},
        "share": {"predicted": float(predicted_shares(record)[s]), "measured": float(measured_shares(record)[s])},
        "idle_share": {"predicted": float(idle[1][rank]), "measured": float(idle[0][rank])},
    }


def predicted_shares(record: RunRecord) -> FloatArray:
    """[S] a stage's forward and backward passes over those of all stages, as the plan says."""
    passes = np.array([stage.forward_s + stage.backward_s for stage in record.plan.stages])
    return np.asarray(passes / (passes.sum() or np.inf))


def measured_shares(record: RunRecord) -> FloatArray:
    """[S] the same of the busy times that were measured, on a stage's slowest replica."""
    passes = np.array([record.per_step(s, FORWARD + BACKWARD) for s in range(len(record.plan.stages))])
    return np.asarray(passes / passes.sum())


def idle_shares(record: RunRecord) -> FloatArray:
    """[ranks] share of a step on the wall in which a rank's first replica runs no pass, reduction or update; median."""
    shares = []
    for step in record.counted:
        working = np.zeros(record.schedule.ranks)
        for one in step.passes:
            if not one.replica:
                working[record.schedule.rank_of[one.stage]] += one.end_s - one.start_s
        shares.append(1.0 - working / step.length_s)
    return np.asarray(np.median(shares, axis=0))


def predicted_idle_shares(record: RunRecord, predicted: Timeline) -> FloatArray:
    """[ranks] the same of the predicted step."""
    working = np.zeros(record.schedule.ranks)
    for interval in predicted.intervals:
        if not interval.kind.startswith("send"):
            working[interval.resource] += interval.end_s - interval.start_s
    return np.asarray(1.0 - working / (predicted.length_s or np.inf))
