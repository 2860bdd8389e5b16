"""The portfolio: plans of every kind, in every number of stages and micro-batches, under every schedule in question.

    data parallelism ────────────────────────────────────────────┐
    for S × M × schedule:                                        ├──▶ refine the best few ──▶ the simplest of nearly
      equal stages: as frameworks cut ──▶ move the cuts          │                            equal plans (simplest)
      any stages:   a table ──▶ move both                        │
      the best few: under the other schedules ──▶ move           ┘

A space begins with what searches of narrower ones came to (`take`): more room never makes a plan longer. What is
compared is the step. Every plan that was come upon stays in the answer: a plan of a harder kind that is shorter
than the chosen one is reported with what it needs. Evaluations are counted, not timed, so that plans are the same on
every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from automap_models.core.constraints import BLOCKS
from automap_models.core.instruction_graph import IntArray
from automap_models.core.layers import block_ends
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.planners import effort
from automap_models.planners.base import NEVER, SILENT, Deadline, Progress, Watch
from automap_models.planners.portfolio.candidate import Candidate, Simplicity, simplicity
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.planners.staged.costs import LENGTH_ROUNDING, Costs
from automap_models.planners.staged.frameworks import PLANNER as AS_FRAMEWORKS
from automap_models.planners.staged.frameworks import balanced, framework_plans
from automap_models.planners.staged.improve import Moves, cut_places
from automap_models.planners.staged.search import LOOK_S, anytime_search, refine
from automap_models.planners.staged.stage_arrays import stage_arrays
from automap_models.planners.staged.stage_devices import MOST_DEVICES, require_few_devices
from automap_models.planners.staged.step_bounds import BIG

REACH, WIDE_REACH = 0.3, 1.0
"""How much longer than the best known step, relatively, a start may be to be moved on from: on equal devices, and on
unequal ones."""
PAIRS = 4
"""Numbers of micro-batches and schedules of which unequal stages are looked for, at most."""
FEW, ALL_S, BRIEF_S = 16, 1.2, 0.02
"""Problems, such as those of one number of stages, that are searched as the planner `tables` does, and counted seconds
for all of these together; where there are more, for the problem of the best plan alone."""
PATIENCE = 4
"""Numbers of stages in a row that bring nothing near the best before deeper pipelines are left out."""
FINALISTS = 4
"""Plans that are refined by single instructions, of each kind that has cuts to refine."""
IN_REACH = 0.05
"""How much longer than the best a plan may be to be refined."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """The shortest plan so far of one kind, number of stages and schedule, before it is costed as reports have it.

    Attributes:
        kind: how simple it is.
        problem, plan, step_s: it, of which problem, and its step to rounding.
    """

    kind: Simplicity
    problem: StagedProblem
    plan: StagedPlan
    step_s: float

    @property
    def key(self) -> tuple[Simplicity, int, str | None]:
        """Of plans that agree in this the shortest is kept."""
        return self.kind, self.plan.stages, self.problem.schedule


@dataclass(eq=False)
class Portfolio:
    """What competes for the best plan of one space.

    Attributes:
        space: where to look; with a schedule.
        deadline: when to stop in any case.
        watch: is told how far it is.
        refine: whether the best plans' cuts are moved by single instructions.
        incumbents: the shortest plan of each kind, number of stages and schedule.
        data_parallel: plain data parallelism in every number of micro-batches, whether it fits or not.
        steps: every problem in question, with the step of its best plan; inf without one.
        costs: of each problem's plans.
        equal: whether equal stages were planned in a narrower space.
    """

    space: PlanningSpace
    deadline: Deadline = NEVER
    watch: Watch = SILENT
    refine: bool = True
    incumbents: dict[tuple[Simplicity, int, str | None], Incumbent] = field(default_factory=dict)
    data_parallel: list[Candidate] = field(default_factory=list)
    steps: dict[StagedProblem, float] = field(default_factory=dict)
    costs: dict[StagedProblem, Costs] = field(default_factory=dict)
    equal: bool = False

    def begin(self) -> None:
        """Data parallelism, and which problems there are.

        Raises:
            BadInput: the space's constraints contradict one another, or there are too many devices.
        """
        self.space.require_some()
        if self.space.several:  # there is a stage for every pair of devices
            require_few_devices(self.space.cluster, 2 * MOST_DEVICES)
        if not self.data_parallel:
            self._replicate()
        self.steps |= dict.fromkeys(self.problems, np.inf)

    def narrowed(self, space: PlanningSpace) -> Portfolio:
        """A portfolio of plans of several stages in a narrower space, beside the same data parallelism."""
        costs = {problem: self.costs[problem] for problem in self.costs if problem.stages == 1}
        steps = {problem: step_s for problem, step_s in self.steps.items() if problem.stages == 1}
        ours = {key: incumbent for key, incumbent in self.incumbents.items() if incumbent.kind is Simplicity.DATA}
        return Portfolio(space, self.deadline, self.watch, self.refine, ours, self.data_parallel, steps, costs)

    def take(
        self, narrower: Portfolio, candidates: Sequence[tuple[Simplicity, Candidate]]
    ) -> list[tuple[Simplicity, Candidate]]:
        """Begin with what a narrower space has on the grid; its candidates, whose plans are plans of this space."""
        same = {_shape(problem): problem for problem in self.problems}
        self.equal = self.equal or narrower.space.constraints.equal_replicas
        for problem, step_s in narrower.steps.items():
            if (ours := same.get(_shape(problem))) is not None:
                self.steps[ours] = min(self.steps[ours], step_s)
        pairs = [(kind, one, same.get(_shape(one.problem))) for kind, one in candidates]
        taken = [(kind, replace(one, problem=ours)) for kind, one, ours in pairs if ours is not None]
        for kind, one in taken:
            self._costs_of(one.problem).learn(one.plan, one.cost)
            if one.plan.coarse_cuts is not None:
                self._offer(Incumbent(kind, one.problem, one.plan, one.step_s))
        for incumbent in narrower.incumbents.values():
            if (ours := same.get(_shape(incumbent.problem))) is not None:
                self._offer(replace(incumbent, problem=ours))
        return taken

    def search(self) -> list[tuple[Simplicity, Candidate]]:
        """The shortest plan of each kind, number of stages and schedule, refined and costed; none where none fits."""
        self._by_moves(self.problems)
        return [(incumbent.kind, candidate) for incumbent, candidate in self._refined()]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The last instruction of each block, where frameworks cut."""
        return _block_ends(self.space.model.profile)

    @property
    def best_s(self) -> float:
        """The shortest step so far."""
        return min((incumbent.step_s for incumbent in self.incumbents.values()), default=np.inf)

    @property
    def _near_s(self) -> float:
        """The step of the longest start that is moved on from; on unequal devices even work is no good start."""
        alike = self.space.cluster.is_uniform and self.space.base.slowdowns is None
        return min(self.best_s, BIG) * (1.0 + (REACH if alike else WIDE_REACH))

    def _replicate(self) -> None:
        """Data parallelism in every number of micro-batches; it competes in those that are asked for."""
        space = self.space
        competes = 1 in space.stage_numbers and space.allows(1)
        for micro_batches in space.data_parallel_counts:
            problem = space.problem(1, micro_batches, space.competing[0])
            plan = StagedPlan((), (), micro_batches, "data-parallel", coarse_cuts=())
            candidate = self._candidate(problem, plan)
            self.data_parallel.append(candidate)
            if not (competes and micro_batches in space.counts and space.for_target(problem)):
                continue
            if plan.check_valid(problem)[0]:
                self.steps[problem] = np.inf
                if candidate.fits:
                    self._offer(Incumbent(Simplicity.DATA, problem, plan, candidate.step_s))

    @cached_property
    def problems(self) -> list[StagedProblem]:
        """Every problem of several stages, few stages first."""
        space, problems = self.space, []
        for stages in space.several:
            if not space.allows(stages):
                continue
            for micro_batches in space.counts:
                problems += [space.problem(stages, micro_batches, s, sharded=space.divided) for s in space.competing]
        problems = [p for p in problems if space.for_target(p)]
        return [p for p in problems if _shares_out(p)]

    # ---- compiled moves

    def _by_moves(self, problems: Sequence[StagedProblem]) -> None:
        self.watch(Progress(f"planning {len(problems)} combinations of stages, micro-batches and schedules"))
        for problem in problems if not self.equal else ():
            self._equal(problem)
        if not self.space.constraints.equal_replicas:
            for pair in self._promising(problems):
                self._unequal(pair)
            few = len(problems) <= FEW
            for problem in problems if few else [one.problem for one in self._ranked()[:1] if one.kind]:
                self._thorough(problem, min(LOOK_S, ALL_S / len(problems)) if few else BRIEF_S)

    def _ranked(self) -> list[Incumbent]:
        return sorted(self.incumbents.values(), key=lambda incumbent: incumbent.step_s)

    def _places(self, kind: Simplicity, problem: StagedProblem) -> IntArray | None:
        """Where plans of a kind are cut."""
        return np.array(self.ends, dtype=np.int64) if kind is Simplicity.BLOCKS else cut_places(problem)

    def _thorough(self, problem: StagedProblem, look_s: float) -> None:
        """What the planner `tables` comes to: no plan of it is to be shorter than the default's."""
        search = anytime_search(problem, self.deadline.part(look_s, effort.counted_s), costs=self._costs_of(problem))
        if search.plan is not None:
            kind = simplicity(search.plan, problem.cluster.devices, self.ends)
            self._offer(Incumbent(kind, problem, search.plan, self._costs_of(problem)(search.plan).step_s))

    def _equal(self, problem: StagedProblem) -> None:
        """Equal stages: of whole blocks, as frameworks cut them and moved; then cut anywhere."""
        devices, stages = problem.cluster.devices, problem.stages
        if devices % stages or self.deadline.passed:
            return
        starts = [plan for _, plan in framework_plans(problem, self.ends)]
        self._move(Simplicity.BLOCKS, Moves(problem, self._places(Simplicity.BLOCKS, problem), AS_FRAMEWORKS), starts)
        if problem.constraints.cut_at != BLOCKS:
            moves = Moves(problem, cut_places(problem))
            device_cuts = tuple(range(devices // stages, devices, devices // stages))
            cuts = _balanced_cuts(problem.profile, moves.cuts, stages)
            plans = [] if cuts is None else [StagedPlan(cuts, device_cuts, problem.micro_batches, moves.planner)]
            self._move(Simplicity.EQUAL, moves, [*plans, *starts])

    def _move(self, kind: Simplicity, moves: Moves, starts: list[StagedPlan]) -> float:
        """The step that moves lead to from the shortest of some starts, where these are near the best so far."""
        problem, equal = moves.problem, kind is not Simplicity.UNEQUAL
        steps = self._rated(moves, starts, equal=equal) if moves.can_cut else {}
        late = min(steps.values(), default=np.inf) > self._near_s
        if not steps or (late and len(self.space.counts) > 1):
            return np.inf
        step_s, plan = moves.improved(steps, equal=equal)
        if plan is not None:
            self._offer(Incumbent(simplicity(plan, problem.cluster.devices, self.ends), problem, plan, step_s))
        return step_s

    def _rated(self, moves: Moves, starts: list[StagedPlan], *, equal: bool) -> dict[StagedPlan, float]:
        """The starts and their steps; of unequal stages with a table's plan, and a packed one where none fits."""
        steps = {start: moves.step_s(start) for start in (*starts, *(() if equal else moves.constructed()))}
        if min(steps.values(), default=np.inf) == np.inf:
            steps = {start: moves.step_s(start) for start in moves.packed(equal=equal)}
        return steps

    def _offer(self, incumbent: Incumbent) -> None:
        present = self.incumbents.get(incumbent.key)
        if present is None or incumbent.step_s < present.step_s * (1.0 - LENGTH_ROUNDING):
            self.incumbents[incumbent.key] = incumbent
        self.steps[incumbent.problem] = min(self.steps.get(incumbent.problem, np.inf), incumbent.step_s)

    def _promising(self, problems: Sequence[StagedProblem]) -> Iterator[list[StagedProblem]]:
        """The problems of each number of micro-batches and schedule, those first of which the best plans are known.

        Unequal stages may win where equal ones are poor, in other numbers of micro-batches: their fewest count, too.
        """
        pairs: dict[tuple[int, str | None], list[StagedProblem]] = {}
        for problem in problems:
            pairs.setdefault((problem.micro_batches, problem.schedule), []).append(problem)
        for fewest, *_ in pairs.values() if len(pairs) > PAIRS else ():
            if fewest.schedule == problems[0].schedule:
                self._move(Simplicity.UNEQUAL, Moves(fewest, cut_places(fewest)), [])
        steps = {pair: min(self.steps.get(p, np.inf) for p in of_pair) for pair, of_pair in pairs.items()}
        order = sorted(pairs, key=lambda pair: steps[pair])
        fits = bool(np.isfinite(self.best_s))  # where no equal stages do, nothing tells which numbers are promising
        for pair in order[:PAIRS] if fits else order:
            if not fits or not steps[pair] > self.best_s * (1.0 + REACH) or len(order) <= 2:
                yield pairs[pair]

    def _unequal(self, problems: Sequence[StagedProblem]) -> None:
        """Stages of any devices, in every number of stages until deeper pipelines bring nothing."""
        without = 0
        for problem in problems:
            if self.deadline.passed or without == PATIENCE:
                return
            starts = [one.plan for one in self.incumbents.values() if one.problem is problem]
            moved_s = self._move(Simplicity.UNEQUAL, Moves(problem, cut_places(problem)), starts)
            late = moved_s > self.best_s * (1.0 + REACH)
            without = without + 1 if late and np.isfinite(self.best_s) else 0  # where nothing fits yet, deeper ones may

    def under(self, schedule: str, best: Candidate) -> Candidate | None:
        """The shortest plan of the best one's kind, stages and micro-batches under another schedule, where it fits."""
        problem = replace(best.problem, schedule=schedule)
        kind = simplicity(best.plan, problem.cluster.devices, self.ends)
        if best.plan.stages == 1:
            return None
        moves = Moves(problem, self._places(kind, problem), best.plan.planner)
        starts = [best.plan, *(plan for _, plan in framework_plans(problem, self.ends))]
        _, plan = moves.improved(starts, equal=kind is not Simplicity.UNEQUAL)
        return None if plan is None else self._candidate(problem, plan)

    # ---- costs

    def _costs_of(self, problem: StagedProblem) -> Costs:
        if problem not in self.costs:
            self.costs[problem] = Costs(problem)
        return self.costs[problem]

    def _candidate(self, problem: StagedProblem, plan: StagedPlan) -> Candidate:
        """A plan with its cost."""
        return Candidate(problem, plan, self._costs_of(problem)(plan))

    def same_plan(self, candidate: Candidate) -> Candidate:
        """A plan of a space of less memory in this one, of its problem with as many stages and micro-batches."""
        (ours,) = (problem for problem in self.steps if _shape(problem) == _shape(candidate.problem))
        return self._candidate(ours, candidate.plan)

    def others(self, candidate: Candidate) -> list[Candidate]:
        """The same plan under the other schedules that compete, where it fits."""
        same = [problem for problem in self.problems if _shape(problem)[:2] == _shape(candidate.problem)[:2]]
        others = [self._candidate(problem, candidate.plan) for problem in same if problem is not candidate.problem]
        return [other for other in others if other.fits]

    # ---- the best few

    def _refined(self) -> Iterator[tuple[Incumbent, Candidate]]:
        """The incumbents, costed; the best few with their cuts moved by single instructions where they may lie so."""
        self.watch(Progress("refining the best plans"))
        ranked = self._ranked()
        best_s, slots = self.best_s, dict.fromkeys((Simplicity.EQUAL, Simplicity.UNEQUAL), FINALISTS)
        for on_grid in ranked:
            incumbent = on_grid
            if slots.get(on_grid.kind, 0) and on_grid.step_s <= best_s * (1.0 + IN_REACH):
                slots[on_grid.kind] -= 1
                incumbent = self._at_instructions(on_grid)
            candidate = self._candidate(incumbent.problem, incumbent.plan)
            if candidate.fits and incumbent.plan.check_valid(incumbent.problem)[0]:
                yield incumbent, candidate

    def _at_instructions(self, incumbent: Incumbent) -> Incumbent:
        """The same plan or a shorter one with its cuts off the grid."""
        problem, equal = incumbent.problem, incumbent.kind is not Simplicity.UNEQUAL
        costs = self._costs_of(problem)
        plan = refine(problem, incumbent.plan, costs, equal=equal) if self.refine else incumbent.plan
        if plan is incumbent.plan:
            return incumbent
        kind = simplicity(plan, problem.cluster.devices, self.ends)
        return Incumbent(kind, problem, plan, costs(plan).step_s)


_block_ends = lru_cache(maxsize=4)(block_ends)


def _shape(problem: StagedProblem) -> tuple[int, int, str | None]:
    """What tells problems of one space apart."""
    return problem.stages, problem.micro_batches, problem.schedule


def _shares_out(problem: StagedProblem) -> bool:
    """Whether the stages can share the devices out as asked, with a sample for each replica."""
    most = problem.max_replicas
    if most is not None and not problem.shardings and problem.stages * most < problem.cluster.devices:
        return False
    try:
        stage_arrays(problem)
    except BadInput:
        return False
    return True


@lru_cache(maxsize=64)
def _balanced_cuts(profile: Profile, places: tuple[int, ...], stages: int) -> tuple[int, ...] | None:
    """[S-1] cuts among some places that make the largest computation of a stage as small as possible."""
    return balanced(profile.C, places, stages)
