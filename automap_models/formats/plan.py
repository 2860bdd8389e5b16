"""The reader of plans and of other documents that have a kind: which one a file holds, and which commands read it.

What a kind holds is declared by a structure whose `kind` is a Literal of its name, or of several names:

    with read("plan.json", StagedDocument, StrategyDocument) as document:      # the one that has the file's kind
        plan = document.plan("plan.json")
    # BadInput: plan.json: $.kind is "operator", not pipeline or strategy; automap search opp reads it with `plan`

`plan` is the plan as it is written (core.plan). `read_plan`, `read_sharding_plan` and `read_placement_plan` in the
modules of these kinds cost a plan again with its model, and refuse figures that are not today's (`require_same`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET

from automap_models.errors import BadInput, Infeasible
from automap_models.formats.schema import Document, Foreign, decode_json, read_bytes, wrong

if TYPE_CHECKING:
    from automap_models.core.plan import Plan

DocumentT = TypeVar("DocumentT", bound=Foreign)

READERS = {
    "pipeline": "automap infer, or automap plan where its stages partition operators,",
    "operator": "automap search opp",
    "data": "automap search adp",
    "hybrid": "automap search opp",
    "placement": "automap place",
    "strategy": "automap export writes it for a framework, and automap plan",
}
"""Kind of a plan → the commands that read it with `plan`."""
RANKINGS = {
    "explored": "it is a ranking: automap plan writes the best plan into `out`",
    "sweep": "it is a table: automap infer writes the plan of one of its rows into `out`",
}
"""Kind of a document of several plans → which command writes one of them."""
TOLERANCE = 1e-6
"""Relative difference at which a file's figure and the cost model's disagree."""


class PlanDocument(Document, kw_only=True):
    """What plans of all kinds begin with."""

    schema: Literal[1]
    kind: str
    model: str

    def plan(self, where: str) -> Plan:
        """The plan as it is written in the file `where`.

        Raises:
            BadInput: it contradicts itself.
        """
        raise NotImplementedError


@contextlib.contextmanager
def read(path: str | os.PathLike[str], *declared: type[DocumentT], do: str | None = None) -> Iterator[DocumentT]:
    """The document in a file, of whichever of the declared types is of its kind.

    What is refused inside is refused of this file, with the type's remedy where it has no advice. A place that begins
    with `$` is a path in the file; one that does not is left as it is.

    Args:
        path: the file.
        declared: types with a `kind`, a Literal; a later one takes the place of an earlier one for the same kind. A
            file of a former kind is read as one of today's.
        do: what the user should do about a file of no kind that is read; None is the remedy of the first type.

    Raises:
        BadInput: the file cannot be read, is of another kind, or does not fit the declaration; the message tells which
            command reads a plan of another kind.
    """
    where, content = str(path), read_bytes(path)
    by_kind = {name: kinds for kinds in declared for name in _names(kinds)}
    do, kind = do or declared[0].remedy, None
    raw = decode_json(content, dict[str, msgspec.Raw], where=where, do=do).get("kind")
    if raw is not None:
        with contextlib.suppress(UnicodeDecodeError):  # decoding the whole file says so
            kind = msgspec.json.decode(bytes(raw))
    if kind == FORMER_HYBRID:
        former = decode_json(content, dict[str, Any], where=where, do=do)
        kind, content = "pipeline", json.dumps(_from_hybrid(former)).encode()
    if isinstance(kind, str) and kind not in by_kind:
        do = f"{READERS[kind]} reads it with `plan`" if kind in READERS else RANKINGS.get(kind, do)
        raise wrong("$.kind", kind, " or ".join(by_kind), where, do)
    chosen = by_kind[kind] if isinstance(kind, str) else declared[0]
    document = decode_json(content, chosen, where=where, do=chosen.remedy)
    try:
        yield document
    except (BadInput, Infeasible) as error:
        place = where if error.where is None else f"{where}, {error.where}" if error.where[0] == "$" else error.where
        raise type(error)(error.what, where=place, do=error.do or chosen.remedy) from None


def written_plan(path: str | os.PathLike[str], *declared: type[PlanDocument], do: str | None = None) -> Plan:
    """The plan in a file as it is written; see `read`.

    Raises:
        BadInput: the file is of none of these kinds, or contradicts itself.
    """
    with read(path, *declared, do=do) as document:
        return document.plan(str(path))


FORMER_HYBRID = "hybrid-pipeline"
"""What plans were once whose stages shard operators; today they are pipelines, and called their shardings so."""


def _from_hybrid(document: dict[str, Any]) -> dict[str, Any]:
    """A document of that kind in today's words."""

    def renamed(part: Any, former: str, name: str) -> Any:
        return {name if key == former else key: value for key, value in part.items()} if type(part) is dict else part

    document = renamed({**document, "kind": "pipeline"}, "partitionings", "shardings")
    if isinstance(document.get("stages"), list):
        document["stages"] = [renamed(stage, "partitioning", "sharding") for stage in document["stages"]]
    return document


def _names(declared: type[Foreign]) -> tuple[str, ...]:
    """The kinds of files that a type declares."""
    return next(get_args(field.type) for field in msgspec.structs.fields(declared) if field.name == "kind")


def plan_refused(kind: str, what: str, where: str) -> BadInput:
    """The sentence for a plan that stands where something else is read.

    Args:
        kind: of the plan, a key of READERS.
        what: is read there, such as "profile".
        where: the file.
    """
    do = f"give the {what} that it was made for; {READERS[kind]} reads it with `plan`"
    return BadInput(f"is a plan, not a {what}", where=where, do=do)


def require_same(written: Document, costed: Mapping[str, object], path: str, reason: str) -> None:
    """What a document says is what the cost model says today; a key that the file lacks says nothing.

    Args:
        written: a document, or a part of one.
        costed: key → what the cost model makes it, in plain Python.
        path: to the document in the file, for messages.
        reason: why it costs that, such as "as its cuts make it".

    Raises:
        BadInput: a figure differs by more than TOLERANCE, or anything else at all.
    """
    for key, value in costed.items():
        if getattr(written, key) is not UNSET and not _same(getattr(written, key), value):
            raise wrong(f"{path}.{key}", getattr(written, key), f"{value!r} {reason}")


def _same(written: object, value: object) -> bool:
    if isinstance(value, list) and isinstance(written, list):
        return len(written) == len(value) and all(map(_same, written, value))
    if isinstance(value, float) and isinstance(written, float):
        return math.isclose(written, value, rel_tol=TOLERANCE, abs_tol=1e-15)  # seconds that are none
    return type(written) is type(value) and written == value
