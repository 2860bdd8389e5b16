"""What every other planner is compared with: even stages, and plain data parallelism."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import PipelinePlanner, refuse_unless_feasible


class UniformPlanner(PipelinePlanner):
    """Stages of equally many instructions on equally many devices, whatever they cost."""

    name: ClassVar[str] = "uniform"

    def plan(self, problem: StagedProblem) -> StagedPlan:
        """Stage s ends at the cut point nearest to its share (s+1)·n/S of the instructions; device cuts D·s // S.

        With S = N the device cuts are the node boundaries.

        Raises:
            Infeasible: a stage does not fit the memory.
        """
        coarse = _even_points(problem)
        stages, devices = problem.stages, problem.cluster.devices
        plan = StagedPlan(
            cuts=problem.grid.to_instructions(coarse),
            device_cuts=tuple(devices * s // stages for s in range(1, stages)),
            micro_batches=problem.micro_batches,
            planner=self.name,
            coarse_cuts=coarse,
        )
        return refuse_unless_feasible(problem, plan)


class DataParallelPlanner(PipelinePlanner):
    """All of the model on all devices: one stage, D replicas."""

    name: ClassVar[str] = "data-parallel"

    def plan(self, problem: StagedProblem) -> StagedPlan:
        """The plan of one stage, whatever S the problem asks for: check it against the problem with stages=1.

        Raises:
            Infeasible: the model does not fit one device.
        """
        plan = StagedPlan((), (), problem.micro_batches, self.name, coarse_cuts=())
        return refuse_unless_feasible(replace(problem, stages=1), plan)


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
