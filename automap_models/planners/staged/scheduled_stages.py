"""What stages cost under a schedule beyond PlainStages, as a few arrays: what the compiled moves work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.profile import FloatArray
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.pareto import IntArray
from automap_models.simulate.play import Layout
from automap_models.simulate.rounds import layouts_of


class TiedUses(NamedTuple):
    """Parameters that several stages may hold, P of them, and the samples of a micro-batch.

    Attributes:
        until: [P, m+1] a stage that begins at a boundary holds the parameter if it ends at this one or later; m+1 is
            never.
        nbytes: [P] of each.
        samples: N, or 0 where a micro-batch splits evenly.
    """

    until: IntArray
    nbytes: FloatArray
    samples: float


class ScheduledStages(NamedTuple):
    """Stages under a schedule.

    Attributes:
        tied: parameters that several of them may hold.
        few, whole: the schedule as the player takes it (simulate.rounds.layouts_of).
    """

    tied: TiedUses
    few: Layout
    whole: Layout


def scheduled_stages(problem: StagedProblem, boundary: IntArray) -> ScheduledStages:
    """The stages of a problem with a schedule and without shardings between these boundaries, [m+1] instructions."""
    few, whole = layouts_of(problem.schedule or DEFAULT_SCHEDULE, problem.stages, problem.micro_batches)
    return ScheduledStages(tied_uses(problem, boundary), few, whole)


def tied_uses(problem: StagedProblem, boundary: IntArray) -> TiedUses:
    """The parameters that several of the stages between these boundaries may hold."""
    shared = problem.profile.shared_parameters
    until = np.empty((len(shared), boundary.size), dtype=np.int64)
    for of, parameter in zip(until, shared, strict=True):
        uses = np.array([*parameter.instructions, boundary[-1]])
        of[:] = np.searchsorted(boundary, uses[np.searchsorted(uses, boundary)], side="right")
    nbytes = np.array([parameter.nbytes for parameter in shared], dtype=np.float64)
    return TiedUses(until, nbytes, float(problem.samples or 0))
