"""Which kind of document of ours a file says it is, what such a file holds, and which commands read it.

What a kind holds is declared by a structure whose `kind` is a Literal of its name, or of several names:

    document = read_document("plan.json", PlanDocument, StrategyDocument)      # the one that has the file's kind
    # BadInput: plan.json: $.kind is "operator", not pipeline or strategy; automap search opp reads it with `plan`
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, decode_json, read_bytes, wrong

DocumentT = TypeVar("DocumentT", bound=Foreign)

READERS = {
    "pipeline": "automap infer, or automap plan where its stages partition operators,",
    "hybrid-pipeline": "automap plan",
    "operator": "automap search opp",
    "data": "automap search adp",
    "hybrid": "automap search opp",
    "placement": "automap place",
}
"""Kind of a plan → the commands that read it with `plan`."""


RANKINGS = {
    "explored": "it is a ranking: automap plan writes the best plan into `out`",
    "sweep": "it is a table: automap infer writes the plan of one of its rows into `out`",
}
"""Kind of a document of several plans → which command writes one of them."""


class _KindDocument(Foreign):
    """What tells the kinds of files apart."""

    kind: msgspec.Raw | UnsetType = UNSET


def require_kind(content: bytes, kinds: Sequence[str], where: str, do: str) -> str | None:
    """The kind that a file says it is of, None where it says none; another kind than these is refused.

    The message tells which command reads a plan of that kind.

    Raises:
        BadInput: it does, or it is no JSON, or no mapping.
    """
    raw = decode_json(content, _KindDocument, where=where, do=do).kind
    kind = None
    if not isinstance(raw, UnsetType):
        with contextlib.suppress(UnicodeDecodeError):  # whoever decodes the whole file says so
            kind = msgspec.json.decode(bytes(raw))
    if isinstance(kind, str) and kind not in kinds:
        reader = READERS.get(kind)
        do = do if reader is None else f"{reader} reads it with `plan`"
        do = RANKINGS.get(kind, do)
        raise wrong(where, "$.kind", kind, " or ".join(kinds), do)
    return kind if isinstance(kind, str) else None


def read_document(path: str | os.PathLike[str], *declared: type[DocumentT], do: str | None = None) -> DocumentT:
    """The document in a file, of whichever of the declared types is of its kind.

    Args:
        path: the file.
        declared: types with a `kind`, a Literal; a later one takes the place of an earlier one for the same kind.
        do: what the user should do about a file of no kind that is read; None is the remedy of the first type.

    Raises:
        BadInput: the file cannot be read, is of another kind, or does not fit the declaration.
    """
    where, content = str(path), read_bytes(path)
    by_kind = {kind: kinds for kinds in declared for kind in kinds_of(kinds)}
    kind = require_kind(content, tuple(by_kind), where, do or declared[0].remedy)
    chosen = declared[0] if kind is None else by_kind[kind]
    return decode_json(content, chosen, where=where, do=chosen.remedy)


def kinds_of(declared: type[Foreign]) -> tuple[str, ...]:
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
