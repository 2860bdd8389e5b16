"""A plan, written for a target as it is, or as the nearest plan that the target can express."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from automap_models.errors import AutomapError, BadInput
from automap_models.export.model_blocks import Inexpressible
from automap_models.export.snap import Price, Snapped, again, snapped_source
from automap_models.export.target import Source, Target, Written
from automap_models.formats.atomic import write_text


@dataclass(frozen=True)
class Exported:
    """What was written, and of which plan.

    Attributes:
        target: its name.
        source: the plan, as it is in the files.
        written: the files' text.
        snapped: how the plan was changed; None where it was not.
        checked_by: who read the files back; None where nobody was asked to.
    """

    target: str
    source: Source
    written: Written
    snapped: Snapped | None = None
    checked_by: str | None = None


def export_plan(
    source: Source,
    target: Target,
    path: Path,
    *,
    snap: bool = False,
    check: bool = False,
    price: Price | None = None,
) -> Exported:
    """The text of a plan's files for a target; nothing is written.

    Args:
        source: the plan.
        target: the framework.
        path: where the file will go, which files beside it are named after.
        snap: whether a plan that the target cannot express is moved to the nearest that it can.
        check: whether the target's own parser shall read the files back.
        price: seconds of a step of a strategy, to say what one that is snapped loses.

    Raises:
        Inexpressible: the target has no words for the plan; says which is the nearest that it has words for.
        BadInput: the plan is of a kind that the target does not take, the model is missing, nothing is to be snapped,
            or the target is not installed and cannot check.
        Infeasible: the snapped plan does not fit the memory.
        Mismatch: the target's parser reads something else.
    """
    target.require_source(source)
    if snap and source.plan.kind == "sharding":
        raise BadInput("moves plans of stages and strategies", where="`snap`", do="leave it out")
    moved = None
    try:
        written = target.write(source, path)
    except Inexpressible as error:
        if source.plan.kind == "sharding" or target.limits is None:
            raise
        if snap:
            moved = snapped_source(source, target.name, target.limits, price)
            source, written = moved.source, target.write(moved.source, path)
        else:
            raise _with_nearest(error, source, target, path, price) from None
    written = replace(written, notes=(*written.notes, *_unchecked(source, target)))
    return Exported(target.name, source, written, moved, _checked(source, target, path) if check else None)


def _unchecked(source: Source, target: Target) -> tuple[str, ...]:
    """What the target asks of a model that the file of a strategy does not tell."""
    facts = source.plan.facts
    if source.plan.kind != "strategy" or facts.shape is not None or facts.own_code:
        return ()
    what = f"the file does not tell the model's sizes, which {target.name} may want divided otherwise"
    return (f"{what}: price the strategy again to have them checked",)


def write_files(path: Path, written: Written) -> None:
    """Write the file, and those beside it first, so that it never names one that is not there.

    Raises:
        BadInput: one cannot be written.
    """
    for file, text in reversed(written.files(path).items()):
        write_text(file, text)


def _with_nearest(
    error: Inexpressible, source: Source, target: Target, path: Path, price: Price | None
) -> Inexpressible:
    """The same refusal with the nearest plan that the target can express, where there is one."""
    assert target.limits is not None
    try:
        moved = snapped_source(source, target.name, target.limits, price)
        target.write(moved.source, path)
    except AutomapError:
        return Inexpressible(error.what, where=error.where, do=error.do or again(target.name))
    priced = f", with {moved.loss}" if moved.after_s is not None else ""
    first = f"{error.do}, or " if error.do and source.plan.kind == "strategy" else ""
    do = f"{first}`snap` writes the nearest plan: {', '.join(moved.changes)}{priced}"
    return Inexpressible(error.what, where=error.where, do=do)


def _checked(source: Source, target: Target, path: Path) -> str:
    """Who read the plan's files back, from a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        write_files(copy, target.write(source, copy))
        return target.check(source, copy)
