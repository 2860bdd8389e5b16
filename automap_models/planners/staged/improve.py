"""Plans of one problem made shorter by moving their cuts and their devices, by compiled moves.

    starts ──▶ the shortest that fits ──▶ moves (move_kernel) ──▶ a plan that no move makes shorter

Cuts are among given places; where stages may have unequally many devices, device cuts move, too. Each stage has the
sharding in which it takes least.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap_models.core.instruction_graph import IntArray
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners import effort
from automap_models.planners.staged.bottleneck import constructed
from automap_models.planners.staged.feasibility import packed
from automap_models.planners.staged.move_kernel import moved_on, step_of
from automap_models.planners.staged.stage_arrays import StageArrays, of_equal_stages, stage_arrays
from automap_models.planners.staged.stage_kernel import BOUNDARY, DEVICE, SHARDING
from automap_models.simulate.play import ScheduleGraph
from automap_models.simulate.rounds import graphs_of

SHIFT, DEVICES = 32, 8
"""How far a stage is shifted at most at once, in places and in devices."""
_NOTHING = np.zeros(0, np.int64)
NO_SCHEDULE = ScheduleGraph(np.zeros((4, 0), np.int64), _NOTHING, _NOTHING, _NOTHING, 0)
"""By the length L."""
PASSES = 4e5
"""Of the simulator that the moves of one problem may take, about: some ten milliseconds."""


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
        problem: of several stages.
        places: instructions after which it may be cut, ascending; None for those of its grid.

    Raises:
        BadInput: when it is first used: constraints contradict one another, or the stages cannot share the devices out.
    """

    problem: StagedProblem
    places: IntArray | None = None
    planner: str = "auto"

    @cached_property
    def _arrays(self) -> tuple[StageArrays, IntArray]:
        return stage_arrays(self.problem, self.places)

    @cached_property
    def _graphs(self) -> tuple[ScheduleGraph, ScheduleGraph]:
        return graphs(self.problem)

    @property
    def stages(self) -> StageArrays:
        """What stages cost."""
        return self._arrays[0]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The places, ascending."""
        return tuple((self._arrays[1][1:-1] - 1).tolist())

    @property
    def can_cut(self) -> bool:
        """Whether there are places enough for so many stages."""
        return self._arrays[1].size > self.problem.stages

    def step_s(self, plan: StagedPlan) -> float:
        """The step of a plan that cuts at these places, to rounding; inf where it does not fit or a stage is empty."""
        return float(step_of(self.stages, self._graphs, self._route(plan)))

    def constructed(self) -> list[StagedPlan]:
        """The plan of the least bottleneck by a table (bottleneck), whatever the devices of stages; none, or one."""
        route = constructed(self.stages) if self.can_cut else None
        return [] if route is None else [self.plan(route)]

    def packed(self, *, equal: bool = False) -> list[StagedPlan]:
        """A plan that fits the memory wherever there is one (feasibility), whatever its step; none, or one."""
        stages = self.stages
        if equal:
            stages = stages._replace(kind=of_equal_stages(stages.kind, stages.stages))
        plan = packed(stages) if self.can_cut else None
        return [] if plan is None else [self.plan(plan[0])]

    def improved(
        self, starts: Iterable[StagedPlan], *, equal: bool, count: int = 1, passes: float = PASSES
    ) -> tuple[float, StagedPlan | None]:
        """The plan that moves lead to from the shortest of some, and its step; inf and None where none fits.

        Args:
            starts: plans whose cuts are among the places.
            count: of the shortest starts from which moves set out.
            passes: of the simulator, about, in all.
        """
        stages, best_s, best, rest = self.stages, np.inf, None, passes
        rated = [(float(step_of(stages, self._graphs, route)), route) for route in map(self._route, starts)]
        by_device = np.zeros(1, dtype=np.int64) if equal else near(DEVICES)
        for _, start in sorted(rated, key=lambda pair: pair[0])[:count]:
            if rest <= 0.0:
                break
            step_s, route, taken = moved_on(stages, self._graphs, start, best_s, near(SHIFT), by_device, rest)
            rest -= taken
            if step_s < best_s:
                best_s, best = float(step_s), self.plan(route)
        effort.count(effort.MOVES, passes - rest)
        return best_s, best

    def plan(self, route: IntArray) -> StagedPlan:
        """The plan of a route."""
        return plan_of(self.problem, route, self._arrays[1], self.planner)

    def _route(self, plan: StagedPlan) -> IntArray:
        """[3, S+1] a plan in the loops; a cut that is not among the places is taken to the one behind it."""
        boundary, stages = self._arrays[1], plan.stages
        cuts = np.searchsorted(boundary, np.array(plan.cuts, dtype=np.int64) + 1)
        for s in range(stages - 1):  # no stage may be left without any
            cuts[s] = max(min(cuts[s], boundary.size - (stages - s)), cuts[s - 1] + 1 if s else 1)
        route = np.zeros((3, stages + 1), dtype=np.int64)
        route[BOUNDARY, 1:], route[DEVICE, 1:] = (*cuts, boundary.size - 1), (*plan.device_cuts, self.stages.devices)
        route[SHARDING, :-1] = plan.shardings
        return route


def graphs(problem: StagedProblem) -> tuple[ScheduleGraph, ScheduleGraph]:
    """The schedule of a problem as the player takes it; without nodes where it has none."""
    if problem.schedule is None:
        return NO_SCHEDULE, NO_SCHEDULE
    return graphs_of(problem.schedule, problem.stages, problem.micro_batches)


def plan_of(problem: StagedProblem, route: IntArray, boundary: IntArray, planner: str) -> StagedPlan:
    """The plan of a route between boundaries, [m+1] the instructions right behind them."""
    cuts, devices = tuple((boundary[route[BOUNDARY, 1:-1]] - 1).tolist()), tuple(route[DEVICE, 1:-1].tolist())
    points, shardings = problem.grid.to_points(cuts), tuple(route[SHARDING, :-1].tolist())
    return StagedPlan(cuts, devices, problem.micro_batches, planner, points, shardings)


def near(most: int) -> IntArray:
    """0 and the powers of two up to so many, in both directions, the smallest first."""
    powers = 2 ** np.arange(max(most, 1).bit_length())
    return np.append(0, np.stack((-powers, powers), axis=1))
