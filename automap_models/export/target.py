"""What is exported, and what a target is to us: what it can express, how its file is written, who reads it back.

The file of a staged plan alone tells stages, micro-batches and schedule. Where its cuts lie in the model, and what
another plan would cost, only the profile tells that it was made for.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from automap_models.core.framework import Limits
from automap_models.core.plan import Plan, PlanForm
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import Result
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.plan import written_plan
from automap_models.formats.sharding_plan import SHARDING_DOCUMENTS
from automap_models.formats.staged_plan import StagedDocument, read_plan
from automap_models.formats.strategy_plan import StrategyDocument


@dataclass(frozen=True, eq=False)
class Source:
    """What is exported.

    Attributes:
        plan: as its file tells it.
        result: of a plan of stages, costed again; None where the model was not given.
        model: with the shardings that its stages may use; None likewise.
    """

    plan: Plan
    result: Result[StagedProblem, StagedPlan] | None = None
    model: ProfiledModel | None = None

    @property
    def name(self) -> str:
        """Of the model."""
        return self.plan.model

    def require_result(self, target: str) -> Result[StagedProblem, StagedPlan]:
        """The plan with its problem.

        Raises:
            BadInput: the model was not given.
        """
        if self.result is None:
            what = f"only the model tells where the plan cuts it, and {target} asks for that"
            raise BadInput(what, where=self.plan.where, do="give the model or profile after the plan")
        return self.result


def read_source(path: str | os.PathLike[str], model: Profile | ProfiledModel | None = None) -> Source:
    """The plan in a file, of whatever kind; one of stages costed again where the model is given that it was made for.

    Raises:
        BadInput: the file is none of these, contradicts itself, or was made for another model (see `read_plan`).
        Infeasible: the plan does not fit the cluster of the file.
    """
    do = "give what automap infer, automap plan or automap search wrote"
    plan = written_plan(path, StagedDocument, StrategyDocument, *SHARDING_DOCUMENTS, do=do)
    if model is None:
        return Source(plan)
    profiled = ProfiledModel(model) if isinstance(model, Profile) else model
    return Source(plan, read_plan(path, profiled), profiled)


@dataclass(frozen=True)
class Written:
    """The text of an exported file.

    Attributes:
        text: of the file itself.
        beside: ending → text of a file of the same name with that ending, which the first one names.
        notes: sentences for people.
        program: a script of the target with its arguments, for torchrun; empty where the target reads the file.
    """

    text: str
    beside: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    program: str = ""

    def files(self, path: Path) -> dict[Path, str]:
        """All files with their text, those beside the first one last."""
        return {path: self.text, **{path.with_suffix(ending): text for ending, text in self.beside.items()}}


class Mismatch(Exception):
    """The target's own parser reads something else in a file of ours than the plan: a defect of ours."""


@dataclass(frozen=True)
class Target:
    """A framework that a plan can be written for.

    Attributes:
        name: by which it is asked for.
        distribution: that pip installs.
        ending: that files of it usually have.
        sources: plans that it takes.
        write: the text for a source, to be written at that path. It raises Inexpressible where the target has no words
            for the plan, and BadInput where the model was not given or says too little.
        read_back: has the target's own parser read the file. It raises BadInput where the target is not installed, and
            Mismatch where it reads something else than the source.
        limits: what it can express of plans of stages and of strategies; None where it takes none.
    """

    name: str
    distribution: str
    ending: str
    sources: tuple[PlanForm, ...]
    write: Callable[[Source, Path], Written]
    read_back: Callable[[Source, Path], None]
    limits: Limits | None = None

    def check(self, source: Source, path: Path) -> str:
        """Have the target's own parser read a source's file; returns who did, as in `megatron-core 0.16.1`.

        Raises:
            BadInput, Mismatch: see `read_back`.
        """
        self.read_back(source, path)
        try:
            return f"{self.distribution} {version(self.distribution)}"
        except PackageNotFoundError:
            return self.distribution

    @property
    def takes_strategies(self) -> bool:
        """Whether strategies are among its sources."""
        return "strategy" in self.sources

    def require_source(self, source: Source) -> None:
        """Refuse a plan of a kind that the target has no words for.

        Raises:
            BadInput: it is.
        """
        kind = source.plan.kind
        if kind not in self.sources:
            do = f"give {' or '.join(_GIVE[form] for form in self.sources)}"
            raise BadInput(f"{_KINDS[kind]} has no words in {self.name}", where=source.plan.where, do=do)


_KINDS = {"stages": "a plan of stages", "strategy": "a strategy", "sharding": "a sharding plan"}
_GIVE = {
    "stages": "a plan of automap infer or automap plan",
    "strategy": "a strategy of automap plan",
    "sharding": "a plan of automap search",
}


def require_same(what: str, read: object, expected: object) -> None:
    """Compare what a parser read with the plan.

    Raises:
        Mismatch: they differ.
    """
    if read != expected:
        raise Mismatch(f"{what}: the file says {read!r}, the plan {expected!r}")


def parser_module(name: str, distribution: str) -> ModuleType:
    """A module of the target that parses its files.

    Raises:
        BadInput: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # frameworks raise what they like where a GPU or a library is missing
        what = f"{name} of {distribution} cannot be imported ({type(error).__name__}: {error})"
        raise BadInput(what, where="`check`", do=f"pip install {distribution}, or leave it out") from None
