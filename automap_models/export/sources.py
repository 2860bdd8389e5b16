"""What is exported: a staged plan, a strategy or a sharding plan, and what each says in the words of a schedule.

The file of a staged plan alone tells stages, micro-batches and schedule. Where its cuts lie in the model, and what
another plan would cost, only the profile tells that it was made for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from automap_models.core.passes import Schedule, build_schedule
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import Result
from automap_models.core.sharding import ShardingPlan
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.written_plan import WrittenPlan
from automap_models.errors import BadInput
from automap_models.formats.document_kind import read_document
from automap_models.formats.plan_json import PLAN_DOCUMENTS, PlanDocument
from automap_models.formats.plan_reader import read_plan, written_plan
from automap_models.formats.sharding_json import SHARDING_DOCUMENTS, ShardingPlanDocument, sharding_plan
from automap_models.formats.strategy_json import StrategyDocument, WrittenStrategy, written_strategy

_DO = "give what automap-infer, automap-plan or automap-search wrote"


@dataclass(frozen=True, eq=False)
class StagedSource:
    """A plan of stages.

    Attributes:
        written: its file.
        result: the plan costed again; None where the model was not given.
        model: with the shardings that its stages may use; None likewise.
    """

    written: WrittenPlan
    result: Result[StagedProblem, StagedPlan] | None = None
    model: ProfiledModel | None = None

    @property
    def name(self) -> str:
        """Of the model."""
        return self.written.model

    @property
    def schedule(self) -> Schedule:
        """The order of passes; 1F1B where the plan was made for none."""
        name = self.written.schedule if self.result is None else self.result.problem.schedule
        return build_schedule(name, len(self.written.stages), self.written.micro_batches)

    def require_result(self, target: str) -> Result[StagedProblem, StagedPlan]:
        """The plan with its problem.

        Raises:
            BadInput: the model was not given.
        """
        if self.result is None:
            what = f"only the model tells where the plan cuts it, and {target} asks for that"
            raise BadInput(what, where=f"plan of {self.name}", do="give the model or profile after the plan")
        return self.result


@dataclass(frozen=True)
class ShardingSource:
    """A plan along the axes of a mesh."""

    name: str
    plan: ShardingPlan


Source = StagedSource | WrittenStrategy | ShardingSource


def read_source(path: str | os.PathLike[str]) -> Source:
    """The plan in a file, of whatever kind; a staged one without its model.

    Raises:
        BadInput: the file is none of these, or contradicts itself.
    """
    where = str(path)
    document = read_document(path, *PLAN_DOCUMENTS, StrategyDocument, *SHARDING_DOCUMENTS, do=_DO)
    if isinstance(document, PlanDocument):
        return StagedSource(written_plan(document, where))
    if isinstance(document, ShardingPlanDocument):
        return ShardingSource(document.model, sharding_plan(document, where))
    assert isinstance(document, StrategyDocument)
    return written_strategy(document, where)


def with_model(source: StagedSource, path: str | os.PathLike[str], model: Profile | ProfiledModel) -> StagedSource:
    """The staged plan of a file, costed again with the model that it was made for.

    Raises:
        BadInput: it was made for another one (see `read_plan`).
        Infeasible: it does not fit the cluster of the file.
    """
    profiled = ProfiledModel(model) if isinstance(model, Profile) else model
    return StagedSource(source.written, read_plan(path, profiled), profiled)
