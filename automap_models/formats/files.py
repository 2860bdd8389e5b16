"""The way in and out: a profile in any known format, files written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.atomic import require_writable, write_atomically
from automap_models.formats.graph_txt import looks_like_graph_txt, read_graph_txt
from automap_models.formats.npz import read_npz

__all__ = ["read_profile", "require_writable", "write_atomically"]

_HEAD_BYTES = 1 << 16
_NUMPY = (b"PK", b"\x93NUMPY")
_KNOWN = "give an .npz file with the arrays C, A and W or a graph.txt of PipeDream or DAPPLE"


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file, whose format is recognised from its content.

    Raises:
        BadInput: the file cannot be read, its format is unknown or something in it is wrong.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", where=str(path), do="check the path and its permissions"
        ) from None
    if head.startswith(_NUMPY) or Path(path).suffix == ".npz":
        return read_npz(path)
    if looks_like_graph_txt(head.decode("utf-8", errors="replace")):
        return read_graph_txt(path)
    raise BadInput("is empty" if not head else "is no profile in a known format", where=str(path), do=_KNOWN)
