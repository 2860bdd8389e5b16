"""Auto-MAP's workflow (Figure 5): every kind of plan on one model, priced by one model, the best one first.

1. One stage: data parallelism, and operator partitioning of every degree, over all micro-batch sizes: all plans.
2. Pipelines: the policy's plan over all stages and micro-batches, corrected and refined; then the exact search.
3. Hybrids: the exact search over stages that partition operators, for plans shorter than the best so far.

The searches share a time budget. The policy knows no constraints: where there are any, the exact search stands alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from automap_models.core.constraints import Constraints, Technique
from automap_models.core.result import Bound
from automap_models.errors import BadInput
from automap_models.planners.base import PlannerOptions
from automap_models.planners.deadline import Deadline
from automap_models.planners.portfolio.absent import why_absent
from automap_models.planners.portfolio.candidate import KINDS, Absent, Candidate, Kind, rank
from automap_models.planners.portfolio.model import Watch
from automap_models.planners.portfolio.needs import nothing_fits
from automap_models.planners.portfolio.one_stage import one_stage_plans
from automap_models.planners.portfolio.online_training import MISSING, can_train, trained_pipeline
from automap_models.planners.portfolio.pipelines import chosen_pipeline
from automap_models.planners.portfolio.space import Space
from automap_models.planners.portfolio.staged_search import Searched, search_staged
from automap_models.planners.portfolio.why import why_it_loses

DEFAULT_BUDGET_S = 20.0
PIPELINE_SHARE = 0.3
"""Of the budget for pipelines without partitioned operators; hybrids get the rest."""
UNCONSTRAINED = Constraints()


@dataclass(frozen=True)
class ExploreOptions:
    """How to explore.

    Attributes:
        constraints: that every plan satisfies.
        budget_s: processor time of the exact searches over pipelines and hybrids, so that plans do not depend on what
            else the machine does.
        thorough: whether these come to their ends instead, and an agent is trained on the model, too.
        seed: of every random draw.
        watch: is told what is being done.
    """

    constraints: Constraints = UNCONSTRAINED
    budget_s: float = DEFAULT_BUDGET_S
    thorough: bool = False
    seed: int = 0
    watch: Watch = lambda what: None


@dataclass(frozen=True, eq=False)
class Exploration:
    """What the explorer came to.

    Attributes:
        space: where it looked.
        candidates: the best plan of each sort, ranked; the first one fits.
        absent: sorts without a plan to show.
        proven: no plan in the space that cuts on the grid and satisfies the constraints is shorter.
        notes: sentences for people.
        exploring_s: how long it took.
    """

    space: Space
    candidates: tuple[Candidate, ...]
    absent: tuple[Absent, ...]
    proven: Bound
    notes: tuple[str, ...]
    exploring_s: float

    @property
    def best(self) -> Candidate:
        """The shortest plan that fits."""
        return self.candidates[0]

    def why(self, candidate: Candidate) -> str:
        """Why a candidate is not the best; empty for the best."""
        return "" if candidate is self.best else why_it_loses(candidate, self.best)


def explore(space: Space, options: ExploreOptions | None = None) -> Exploration:
    """The best plan of every sort.

    Raises:
        BadInput: constraints contradict one another, or match nothing.
        Infeasible: no plan fits the memory, saying what would fit.
    """
    options = options or ExploreOptions()
    options.constraints.check(space.model.profile)
    _require_a_technique(space, options.constraints)
    begun = time.perf_counter()
    field = _Field(space, options)
    budget_s = math.inf if options.thorough else options.budget_s
    field.add_plans_of_one_stage()
    field.add_pipelines(PIPELINE_SHARE * budget_s)
    proven = field.add_hybrids((1.0 - PIPELINE_SHARE) * budget_s)
    if not math.isfinite(field.best_s()):
        options.watch("nothing fits: looking for what would")
        raise nothing_fits(space, options.constraints)
    candidates = rank(list(field.best.values()))
    taken_s = time.perf_counter() - begun
    return Exploration(space, tuple(candidates), tuple(field.absent()), proven, tuple(field.notes), taken_s)


def _require_a_technique(space: Space, constraints: Constraints) -> None:
    """Refuse that several devices shall share the work in no way.

    Raises:
        BadInput: every technique is forbidden.
    """
    techniques = get_args(Technique)
    if space.cluster.devices > 1 and constraints.forbidden.issuperset(techniques):
        raise BadInput(
            f"nothing is left by which the {space.cluster.devices} devices of cluster {space.cluster.name} could share "
            "the work",
            where=" and ".join(f"--forbid {each}" for each in techniques),
            do="drop one of them",
        )


class _Field:
    """The best plan of each sort so far.

    Attributes:
        best: name → candidate.
        notes: sentences for people.
    """

    def __init__(self, space: Space, options: ExploreOptions) -> None:
        self.space, self.options, self.constraints = space, options, options.constraints
        self.best: dict[str, Candidate] = {}
        self.notes: list[str] = list(space.model.notes)
        self._searched: dict[Kind, Searched] = {}

    def best_s(self, *kinds: Kind) -> float:
        """Length of the shortest plan that fits, of these kinds or of all; inf without one."""
        fitting = [each for each in self.best.values() if each.fits and (not kinds or each.kind in kinds)]
        return min((each.length_s for each in fitting), default=math.inf)

    def _offer(self, plan: Candidate | None) -> None:
        held = None if plan is None else self.best.get(plan.name)
        if plan is not None and (held is None or rank([plan, held])[0] is plan):
            self.best[plan.name] = plan

    def add_plans_of_one_stage(self) -> None:
        """Data parallelism and operator partitioning."""
        self.options.watch("pricing plans of one stage")
        if self.constraints.allow(self.space.model.profile, 1):
            for each in one_stage_plans(self.space, self._allowed):
                self._offer(each)

    def _allowed(self, plan: Candidate) -> bool:
        return self.constraints.satisfied(plan.problem, plan.plan)[0]

    def add_pipelines(self, search_s: float) -> None:
        """Pipelines without partitioned operators; the exact search gets so many seconds."""
        if len(self.space.stages) < 2 or "pipeline" in self.constraints.forbidden:
            return
        if not (self.constraints.restrict_cuts or self.constraints.forbidden):
            self._add_learned_pipelines()
        plain = replace(self.constraints, forbidden=self.constraints.forbidden | {"operator"})
        self._search("pipeline", plain, self.best_s("pipeline"), search_s)

    def _add_learned_pipelines(self) -> None:
        """Those of the policy, and of online training where it is thorough."""
        self.options.watch("planning pipelines by the policy")
        plan, notes = chosen_pipeline(self.space, PlannerOptions(seed=self.options.seed))
        self.notes += notes
        self._offer(plan)
        if self.options.thorough and plan is not None and can_train():
            self.options.watch("planning a pipeline by online training")
            self._offer(trained_pipeline(self.space, plan, self.options.seed))
        elif self.options.thorough and plan is not None:
            self.notes.append(MISSING)

    def add_hybrids(self, search_s: float) -> Bound:
        """Plans whose stages partition operators, searched for so many seconds; what is proven about all plans."""
        if len(self.space.stages) < 2 or "pipeline" in self.constraints.forbidden:
            return Bound(self.best_s(), "exact")
        if not self.space.inside_nodes.shardings or "operator" in self.constraints.forbidden:
            searched = self._searched["pipeline"].proven
        else:
            searched = self._search("hybrid", self.constraints, self.best_s(), search_s)
        return Bound(min(searched.value, self.best_s()), searched.proof)

    def _search(self, kind: Kind, constraints: Constraints, below_s: float, search_s: float) -> Bound:
        """The exact search over all stages and micro-batches; its plan has its own proof."""
        watch = self.options.watch
        found = search_staged(
            self.space,
            constraints,
            below_s,
            Deadline(search_s, time.process_time),
            lambda what: watch(f"{KINDS[kind]}: {what}"),
        )
        self._searched[kind] = found
        if found.best is not None:
            self._offer(found.best)
        held = self.best.get(KINDS[kind])
        if held is not None:
            self.best[held.name] = replace(held, proven=found.proven)
        return found.proven

    def absent(self) -> Iterator[Absent]:
        """The kinds without a plan, each with the reason."""
        for kind, name in KINDS.items():
            if not any(each.kind == kind for each in self.best.values()):
                yield Absent(kind, name, why_absent(kind, self.space, self.constraints, self._searched.get(kind)))
