"""Plans of one problem made shorter by moving their cuts: compiled moves where devices are alike, else labels.

    starts ──▶ the shortest that fits ──▶ moves (move_kernel) ──▶ a plan that no move makes shorter

A problem on equal nodes without shardings has compiled moves: cuts of instructions among given places, and where stages
may have unequally many devices their device cuts, too. Every other problem (mixed nodes, slow devices, shardings, pins)
is searched by labels (search.anytime_search) for a counted time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.staged.bottleneck import constructed
from automap_models.planners.staged.move_kernel import moved_on, step_of
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages, plain_stages
from automap_models.planners.staged.scheduled_stages import ScheduledStages, scheduled_stages
from automap_models.planners.staged.step_plans import near, parts_of

FAR, DEVICES = 32, 8
"""How far a stage is shifted at most at once, in places and in devices."""
PASSES = 4e5
"""Of the simulator that the moves of one problem may take, about: some ten milliseconds."""


def has_moves(problem: StagedProblem) -> bool:
    """Whether the compiled moves know everything about a problem: its devices are alike, and its stages undivided.

    They know where to cut and whether stages are equal, but neither pins nor forbidden techniques.
    """
    constraints = problem.constraints
    known = replace(constraints, equal_replicas=False, cut_at=None, max_stages=None, target=None).only_work
    alike = problem.cluster.is_uniform and problem.slowdowns is None
    return known and alike and not problem.shardings


def cut_places(problem: StagedProblem) -> IntArray | None:
    """[n] the instructions after which stages may end where the constraints say so; None for those of the grid."""
    constraints = problem.constraints
    if constraints.cut_at is None:
        return None
    return constraints.windows(problem.profile, problem.stages).cuts(np.empty(0, dtype=np.int64))


@dataclass(eq=False)
class Moves:
    """The moves of one problem between places to cut.

    Attributes:
        problem: of several stages, with a schedule; see `has_moves`.
        places: instructions after which it may be cut, ascending; None for those of its grid.
        planner: who makes the plans.
        passes: of the simulator, taken so far.
    """

    problem: StagedProblem
    places: IntArray | None = None
    planner: str = "auto"
    passes: float = 0.0

    @cached_property
    def _stages(self) -> tuple[PlainStages, IntArray]:
        return plain_stages(self.problem, self.places)

    @cached_property
    def _own(self) -> ScheduledStages:
        return scheduled_stages(self.problem, self._stages[1])

    @property
    def cuts(self) -> tuple[int, ...]:
        """The places, ascending."""
        return tuple((self._stages[1][1:-1] - 1).tolist())

    @property
    def can_cut(self) -> bool:
        """Whether there are places enough for so many stages."""
        return self._stages[1].size > self.problem.stages

    def step_s(self, plan: StagedPlan) -> float:
        """The step of a plan that cuts at these places, to rounding; inf where it does not fit or a stage is empty."""
        self.passes += self.problem.stages * self.problem.micro_batches
        return float(step_of(self._stages[0], self._own, self._route(plan)))

    def constructed(self) -> list[StagedPlan]:
        """The plans of least bottleneck by tables (bottleneck), whatever the devices of stages."""
        return [self._plan(route) for route in constructed(self.problem, self._stages[0], self._own)]

    def improved(self, starts: Iterable[StagedPlan], *, equal: bool) -> tuple[float, StagedPlan | None]:
        """The plan that moves lead to from the shortest of some, and its step; inf and None where none fits.

        Args:
            starts: plans whose cuts are among the places.
            equal: whether device cuts stay as they are.
        """
        plain, routes = self._stages[0], [self._route(start) for start in starts]
        if not routes:
            return np.inf, None
        steps = [float(step_of(plain, self._own, route)) for route in routes]
        route = routes[int(np.argmin(steps))]
        by_device, parts = (np.zeros(1, dtype=np.int64), 0) if equal else (near(DEVICES), parts_of(plain))
        step_s, route, taken = moved_on(plain, self._own, route, np.inf, near(FAR), by_device, parts, PASSES)
        self.passes += taken
        effort.count(effort.MOVES, taken)
        return (float(step_s), self._plan(route)) if np.isfinite(step_s) else (np.inf, None)

    def _plan(self, route: IntArray) -> StagedPlan:
        problem, boundary = self.problem, self._stages[1]
        cuts, devices = tuple((boundary[route[0, 1:-1]] - 1).tolist()), tuple(route[1, 1:-1].tolist())
        return StagedPlan(cuts, devices, problem.micro_batches, self.planner, problem.grid.to_points(cuts))

    def _route(self, plan: StagedPlan) -> IntArray:
        """[2, S+1] where the stages of a plan begin, and the end; a cut elsewhere is taken to the place behind it."""
        boundary, stages = self._stages[1], plan.stages
        at = np.searchsorted(boundary, np.array(plan.cuts, dtype=np.int64) + 1)
        for s in range(stages - 1):  # no stage may be left without any
            at[s] = max(min(at[s], boundary.size - (stages - s)), at[s - 1] + 1 if s else 1)
        devices = self.problem.cluster.devices
        return np.array([[0, *at.tolist(), boundary.size - 1], [0, *plan.device_cuts, devices]], dtype=np.int64)
