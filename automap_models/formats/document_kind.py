"""Which kind of document of ours a file says it is, and which commands read a plan of that kind."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, decode_json, wrong

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


def plan_refused(kind: str, what: str, where: str) -> BadInput:
    """The sentence for a plan that stands where something else is read.

    Args:
        kind: of the plan, a key of READERS.
        what: is read there, such as "profile".
        where: the file.
    """
    do = f"give the {what} that it was made for; {READERS[kind]} reads it with `plan`"
    return BadInput(f"is a plan, not a {what}", where=where, do=do)
