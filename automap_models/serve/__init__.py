"""`automap serve`: a web page on this machine that prices a strategy while its fields are moved.

    page ── Question as JSON ─► web ─► questions ─► automap_models.requests ─► answers ─► page

Nothing here prices: a question becomes the request that `automap plan` makes. Nothing that a question holds is taken
for a path, and nothing is written but the folder of `--static`. Importing this module imports neither numpy nor a web
server: help is to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from automap_models.errors import BadInput

MODELS = ("llama3-8b", "llama3-70b", "qwen3-30b-a3b")
CLUSTERS = ("dgx-a100-4", "dgx-h100-4", "dgx-b200-4")
"""What a page that is written has answers for."""


@dataclass(frozen=True)
class ServeRequest:
    """`automap serve`.

    Attributes:
        host: name or address of the interface that is listened on.
        port: 0 is any that is free.
        allow_remote: whether other machines may connect.
        open: whether the page is shown in a browser.
        static: a folder that the page is written to, with its answers, in place of being served.
        models, clusters: each of the ones on each of the others is computed for that.

    Raises:
        BadInput: other machines could connect, and nobody allowed that; there is no such port; or models or clusters
            are given, and nothing is written.
    """

    host: str = "127.0.0.1"
    port: int = 8047
    allow_remote: bool = False
    open: bool = False
    static: Path | None = None
    models: tuple[str, ...] = MODELS
    clusters: tuple[str, ...] = CLUSTERS

    def __post_init__(self) -> None:
        if self.static is None and (self.models, self.clusters) != (MODELS, CLUSTERS):
            where = "`clusters`" if self.models == MODELS else "`models`"
            raise BadInput("is of a page that is written", where=where, do="give `static`, too")
        if not 0 <= self.port <= 65535:
            raise BadInput(f"is {self.port}", where="`port`", do="give a number up to 65535")
        if not self.allow_remote and not is_loopback(self.host):
            what = "lets every machine that reaches this one search on it, without a password and in the clear"
            raise BadInput(what, where=f"host {self.host}", do="leave it out, or give `allow_remote`, too")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the interface of that name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
