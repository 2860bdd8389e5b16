"""A profile in any known format, told by its content."""

from __future__ import annotations

import os
import re
from pathlib import Path

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.graph_nodes import PIPER, PLACEMENT, json_kind
from automap_models.formats.graph_txt import looks_like_graph_txt, read_graph_txt
from automap_models.formats.npz import read_npz
from automap_models.formats.schema import open_file, read_bytes, unreadable

_NUMPY = (b"PK", b"\x93NUMPY")
_BYTECODE = b"ML\xefR"  # every MLIR dialect's, StableHLO's among them
_MODULE_TEXT = re.compile(
    r"(?:\s|//.*)*"  # comments may come before
    r"(?:HloModule\s|\"?(?:builtin\.)?module\"?\s*[@{(]|module\s+attributes\b|func\.func\s|#[\w.]+ = )"
)
_FORMATS = (
    "a profile is an .npz file with the arrays C, A and W, a graph.txt of PipeDream or DAPPLE, or JSON of "
    "dnn-partitioning or Piper; automap profile makes one of HLO text, StableHLO or a model"
)


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file, whose format is recognised from its content.

    Raises:
        BadInput: the file cannot be read, its format is unknown or something in it is wrong.
    """
    head = _head(path)
    if head.startswith(_NUMPY) or Path(path).suffix == ".npz":
        return read_npz(path)
    text = head.decode("utf-8", errors="replace")
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return _read_json_profile(path)
    if _starts_module(head, text):
        what = "is an HLO or StableHLO module, which has no times yet"
        raise BadInput(what, where=str(path), do="make a profile of it with automap profile first")
    if looks_like_graph_txt(text):
        return read_graph_txt(path)
    raise BadInput("is empty" if not head else "is no profile in a known format", where=str(path), do=_FORMATS)


def holds_module(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like HLO text, StableHLO text or MLIR bytecode, rather than like a profile.

    Raises:
        BadInput: the file cannot be read.
    """
    head = _head(path)
    return _starts_module(head, head.decode("utf-8", errors="replace"))


def require_no_plan(path: str | os.PathLike[str]) -> None:
    """Refuse a plan where a model is asked for.

    Raises:
        BadInput: the file is one, or cannot be read.
    """
    if _head(path).decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n").startswith("{"):
        json_kind(read_bytes(path), "model", str(path), _FORMATS)


def _head(path: str | os.PathLike[str]) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(1 << 16)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def _starts_module(head: bytes, text: str) -> bool:
    return head.startswith(_BYTECODE) or _MODULE_TEXT.match(text.lstrip("\ufeff")) is not None


def _read_json_profile(path: str | os.PathLike[str]) -> Profile:
    from automap_models.formats.planning_graphs import parse_piper, parse_placement, profile_from_placement

    content, where, model = read_bytes(path), str(path), Path(path).stem
    kind = json_kind(content, "profile", where, _FORMATS)
    if kind == PLACEMENT:
        return profile_from_placement(parse_placement(content, where=where, model=model))
    if kind == PIPER:
        return parse_piper(content, where=where, model=model)
    raise BadInput("is no profile in a known format", where=where, do=_FORMATS)
