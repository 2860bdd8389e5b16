"""What stages cost under a schedule beyond PlainStages, as a few arrays: what the compiled moves work on.

A stage's gradients are reduced in buckets (cost.overlap). A bucket begins where the one after it in the model ends, so
that one number for each instruction leads from bucket to bucket, whatever the stage:

    instructions   | 0 · 1 · 2 · 3 · 4 · 5 · 6 · 7 |        closes[8] = 6, closes[6] = 3, closes[3] = -1
                     └─ rest ─┘└─ bucket ─┘└ bucket┘        a stage from 2 on has buckets 7 … 6, 5 … 3 and 2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedProblem
from automap_models.cost.overlap import BUCKET_BYTES
from automap_models.planners.staged.pareto import IntArray
from automap_models.simulate.play import Layout
from automap_models.simulate.rounds import layouts_of

BYTES, BACKWARD = range(2)
"""Rows of `Buckets.sums`."""
HOLDER, CLOSES, USES = range(3)
"""Rows of `Buckets.following`; from USES on those of the parameters."""


class Buckets(NamedTuple):
    """Of a problem with n instructions, m + 1 boundaries as in PlainStages and P parameters that several of them use.

    Attributes:
        boundary: [m+1] the instruction each boundary lies right before.
        sums: [2, n+1] prefix sums of parameters and backward time on one device; bytes and s.
        following: [2 + P, n+1] the first instruction from there on that has parameters, n where none has; the earliest
            instruction of the bucket whose latest one lies right before, -1 where no bucket gets full; and the first
            instruction from there on that uses each of the parameters, n where none does.
        tied_bytes: [P] of each parameter.
        samples: N, or 0 where a micro-batch splits evenly.
    """

    boundary: IntArray
    sums: FloatArray
    following: IntArray
    tied_bytes: FloatArray
    samples: float


class ScheduledStages(NamedTuple):
    """Stages under a schedule.

    Attributes:
        buckets: of their gradients.
        few, whole: the schedule as the player takes it (simulate.rounds.layouts_of).
    """

    buckets: Buckets
    few: Layout
    whole: Layout


def scheduled_stages(problem: StagedProblem, boundary: IntArray) -> ScheduledStages:
    """The stages of a problem with a schedule and without shardings between these boundaries, [m+1] instructions."""
    profile, count = problem.profile, len(problem.profile)
    few, whole = layouts_of(problem.schedule or DEFAULT_SCHEDULE, problem.stages, problem.micro_batches)
    sums = np.array([np.append(0.0, np.cumsum(of)) for of in (profile.W, profile.C - profile.C_fwd)])
    holder = _next(np.flatnonzero(profile.W), count)
    closes = np.searchsorted(sums[BYTES], sums[BYTES] - BUCKET_BYTES, side="right") - 1
    shared = profile.shared_parameters
    buckets = Buckets(
        boundary=np.ascontiguousarray(boundary, dtype=np.int64),
        sums=sums,
        following=np.array([holder, closes, *(_next(np.array(of.instructions), count) for of in shared)]),
        tied_bytes=np.array([of.nbytes for of in shared], dtype=np.float64),
        samples=float(problem.samples or 0),
    )
    return ScheduledStages(buckets, few, whole)


def _next(some: IntArray, count: int) -> IntArray:
    """[n+1] the first of some ascending instructions that is not before each; n where there is none."""
    following: IntArray = np.append(some, count)[np.searchsorted(some, np.arange(count + 1))].astype(np.int64)
    return following
