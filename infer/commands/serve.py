"""`automap serve`: a web page on this machine that prices strategies (docs/how-to/serve.md)."""

from __future__ import annotations

import argparse
from pathlib import Path

from automap_models.serve import ServeRequest

from ..runner import VERBOSE, Command, Report
from .parsing import add_options, at_least, file_argument, filled, name_argument

EPILOG = """The page prices a strategy while its fields are moved, shows the memory of every rank and the schedule,
finds the best one, and writes it as a command or for a framework. It works without the internet, and writes no file.

--static writes the page into a new folder instead, with the answers for some models, clusters and strategies: any web
server can host it. That takes minutes.

examples:
  automap serve --open                        the page, in a browser
  automap serve --port 0 --json               any free port, and the address as JSON
  automap serve --host 0.0.0.0 --allow-remote for everybody who reaches this machine
  automap serve --static page --models llama3-8b,qwen3-32b --clusters 32xh100

It ends with Ctrl-C. Unless it writes the page, it needs pip install 'automap-models[serve]'.
"""
OPTIONS = """
    --port N        to listen on (default 8047); 0 is any that is free
    --host ADDRESS  interface to listen on (default 127.0.0.1: this machine alone)
    --allow-remote  let other machines connect: whoever reaches this one can search on it, without a password
    --open          show the page in a browser
    --static DIR    write the page and its answers into this folder, and serve nothing
    --models NAMES  with --static: what is computed, separated by commas (default {models})
    --clusters NAMES  with --static: on what, a shipped cluster or devices such as 32xh100 (default {clusters})
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, and for whom."""
    usual = ServeRequest()
    lists = {name: ",".join(getattr(usual, name)) for name in ("models", "clusters")}
    add_options(
        parser,
        OPTIONS.format(**lists),
        static={"type": file_argument},
        NAMES={"type": names_argument},
        models={"default": usual.models},
        clusters={"default": usual.clusters},
        port={"type": at_least(0), "default": usual.port},
        host={"default": usual.host, "type": name_argument},
    )


def names_argument(text: str) -> tuple[str, ...]:
    """An argument's type: names, separated by commas."""
    return tuple(dict.fromkeys(name.strip() for name in name_argument(text).split(",")))


def request(namespace: argparse.Namespace) -> ServeRequest:
    """What is asked for."""
    return filled(ServeRequest, namespace)


def report(request: ServeRequest) -> Report:
    """The address of the page, and then the page; or what was written."""
    if request.static is not None:
        return written(request, request.static)
    from automap_models.serve.server import address_of, listen, require_server, serve

    require_server()
    listener = listen(request)
    address = address_of(request, listener)
    document = {"schema": 1, "kind": "serve", "address": address}
    return Report(lambda: print(f"{address} until Ctrl-C"), lambda: document, then=lambda: serve(request, listener))


def written(request: ServeRequest, folder: Path) -> Report:
    """The page in a folder."""
    from automap_models.serve.static import write_static

    from ..reports.text import watching

    with watching(verbose=VERBOSE.get()) as watch:
        sizes = write_static(request, watch)
    size = f"{sizes['strategies']:,} strategies, {sizes['bytes'] / 1e6:.1f} MB"
    return Report(
        lambda: print(f"{folder}: {size}; to look at it: python -m http.server -d {folder}"),
        lambda: {"schema": 1, "kind": "page", "folder": str(folder), **sizes},
    )


COMMAND = Command(
    description="Serve a web page that prices strategies while their fields are moved.",
    epilog=EPILOG,
    exits={2: "the arguments are bad, the port is in use, or the server is not installed", 130: "interrupted"},
    add_arguments=add_arguments,
    json="print the address, or what was written, as JSON and nothing else",
    request=request,
    report=report,
)
