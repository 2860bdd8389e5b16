"""What a target framework is to us: what it can express, how its file is written, and who reads it back."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from automap_models.core.framework import Limits
from automap_models.errors import BadInput
from automap_models.export.sources import ShardingSource, Source, StagedSource
from automap_models.formats.strategy_json import WrittenStrategy


@dataclass(frozen=True)
class Written:
    """The text of an exported file.

    Attributes:
        text: of the file itself.
        beside: ending → text of a file of the same name with that ending, which the first one names.
        notes: sentences for people.
    """

    text: str
    beside: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
        sources: kinds of plans that it takes.
        write: the text for a source, to be written at that path. It raises Inexpressible where the target has no words
            for the plan, and BadInput where the model was not given or says too little.
        read_back: has the target's own parser read the file. It raises BadInput where the target is not installed, and
            Mismatch where it reads something else than the source.
        limits: what it can express of plans of stages and of strategies; None where it takes none.
    """

    name: str
    distribution: str
    ending: str
    sources: tuple[type, ...]
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
        return WrittenStrategy in self.sources

    def require_source(self, source: Source) -> None:
        """Refuse a plan of a kind that the target has no words for.

        Raises:
            BadInput: it is.
        """
        if not isinstance(source, self.sources):
            do = f"give {' or '.join(_GIVE[kind] for kind in self.sources)}"
            raise BadInput(f"{_KINDS[type(source)]} has no words in {self.name}", where=f"plan of {source.name}", do=do)


_KINDS = {StagedSource: "a plan of stages", WrittenStrategy: "a strategy", ShardingSource: "a sharding plan"}
_GIVE = {
    StagedSource: "a plan of automap-infer or automap-plan",
    WrittenStrategy: "a strategy of automap-plan",
    ShardingSource: "a plan of automap-search",
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
