"""An exploration as the cache keeps it: plans and what is proven about them; figures are computed again."""

from __future__ import annotations

from dataclasses import dataclass

from automap_models.core.result import Bound
from automap_models.core.staged import SearchLogEntry, StagedPlan
from automap_models.errors import BadInput
from automap_models.planners.portfolio.candidate import Candidate, Missing
from automap_models.planners.portfolio.explore import Exploration
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.simulate.step import step_cost


@dataclass(frozen=True)
class StoredPlan:
    """A candidate: its plan, the schedule of its step, and what is proven about plans of its sort."""

    plan: StagedPlan
    schedule: str | None
    proven: Bound | None


@dataclass(frozen=True)
class StoredExploration:
    """An exploration without its space."""

    candidates: tuple[StoredPlan, ...]
    missing: tuple[Missing, ...]
    proven: Bound
    notes: tuple[str, ...]
    exploring_s: float
    search_log: tuple[SearchLogEntry, ...]

    @classmethod
    def of(cls, exploration: Exploration) -> StoredExploration:
        """What is kept of an exploration."""
        candidates = tuple(StoredPlan(c.plan, c.problem.schedule, c.proven) for c in exploration.candidates)
        proven, notes, taken_s = exploration.proven, exploration.notes, exploration.exploring_s
        return cls(candidates, exploration.missing, proven, notes, taken_s, exploration.search_log)

    def of_space(self, space: PlanningSpace) -> Exploration:
        """The exploration, of the space that it was made of.

        Raises:
            BadInput: it is of another space.
        """
        candidates = tuple(_candidate(stored, space) for stored in self.candidates)
        if not candidates or not candidates[0].fits:
            raise _foreign()
        return Exploration(space, candidates, self.missing, self.proven, self.notes, self.exploring_s, self.search_log)


def _candidate(stored: StoredPlan, space: PlanningSpace) -> Candidate:
    plan = stored.plan
    problem = space.problem(plan.stages, plan.micro_batches, stored.schedule, sharded=True)
    if not plan.check_valid(problem)[0]:
        raise _foreign()
    return Candidate(problem, plan, step_cost(problem, plan), stored.proven)


def _foreign() -> BadInput:
    return BadInput("is no exploration of this model, cluster and version", where="cache")
