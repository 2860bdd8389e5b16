"""What every other planner is compared with: even stages, and plain data parallelism."""

from __future__ import annotations

import time
from typing import ClassVar

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.base import NEVER, SILENT, Deadline, NoConfig, Planner, Progress, Watch
from automap_models.planners.staged.costs import StagedResult, result_of


class UniformPlanner(Planner[StagedProblem, StagedPlan, NoConfig]):
    """Stages of equally many instructions on equally many devices, whatever they cost."""

    name: ClassVar[str] = "uniform"

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """Stage s ends at the cut point nearest to its share (s+1)·n/S of the instructions; device cuts D·s // S.

        With S = N the device cuts are the node boundaries.
        """
        begun_s = time.perf_counter()
        watch(Progress("cutting into even stages"))
        coarse = _even_points(problem)
        stages, devices = problem.stages, problem.cluster.devices
        plan = StagedPlan(
            cuts=problem.grid.to_instructions(coarse),
            device_cuts=tuple(devices * s // stages for s in range(1, stages)),
            micro_batches=problem.micro_batches,
            planner=self.name,
            coarse_cuts=coarse,
        )
        return result_of(problem, plan, begun_s=begun_s)


class DataParallelPlanner(Planner[StagedProblem, StagedPlan, NoConfig]):
    """All of the model on all devices: one stage, D replicas. It plans problems of one stage only."""

    name: ClassVar[str] = "data-parallel"

    def solve(self, problem: StagedProblem, *, deadline: Deadline = NEVER, watch: Watch = SILENT) -> StagedResult:
        """The one plan without shardings that there is.

        Raises:
            BadInput: the problem has more stages than one.
        """
        begun_s = time.perf_counter()
        watch(Progress("replicating the model on all devices"))
        if problem.stages != 1:
            raise BadInput(
                f"{problem.stages} stages, but data parallelism has one", where="`stages`", do="give 1, or leave it out"
            )
        plan = StagedPlan((), (), problem.micro_batches, self.name, coarse_cuts=())
        return result_of(problem, plan, begun_s=begun_s)


def _even_points(problem: StagedProblem) -> tuple[int, ...]:
    """[S-1] distinct cut points, each as near to its even share of the instructions as the others let it."""
    grid, stages = problem.grid, problem.stages
    points = grid.cut_points
    done = grid.instruction_of_point[points] + 1
    chosen: list[int] = []
    for s in range(1, stages):
        nearest = int(np.argmin(np.abs(done * stages - grid.n * s)))
        first = chosen[-1] + 1 if chosen else 0
        last = points.size - (stages - s)
        chosen.append(min(max(nearest, first), last))
    return tuple(int(points[j]) for j in chosen)
