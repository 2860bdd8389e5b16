"""`automap serve`: a web page on this machine that prices strategies (docs/how-to/serve.md)."""

from __future__ import annotations

import argparse

from automap_models.serve import ServeRequest

from ..runner import Command, Report
from .parsing import add_options, at_least, filled, name_argument

EPILOG = """The page prices a strategy while its fields are moved, shows the memory of every rank and the schedule,
finds the best one, and writes it as a command or for a framework. It works without the internet, and writes no file.

examples:
  automap serve --open                        the page, in a browser
  automap serve --port 0 --json               any free port, and the address as JSON
  automap serve --host 0.0.0.0 --allow-remote for everybody who reaches this machine

It ends with Ctrl-C. It needs pip install 'automap-models[serve]'.

exit codes: 2 the arguments are bad, the port is in use, or the server is not installed, 1 a defect of ours,
130 interrupted
"""
OPTIONS = """
    --port N        to listen on (default 8047); 0 is any that is free
    --host ADDRESS  interface to listen on (default 127.0.0.1: this machine alone)
    --allow-remote  let other machines connect: whoever reaches this one can search on it, without a password
    --open          show the page in a browser
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where, and for whom."""
    usual = ServeRequest()
    add_options(
        parser,
        OPTIONS,
        port={"type": at_least(0), "default": usual.port},
        host={"default": usual.host, "type": name_argument},
    )


def request(namespace: argparse.Namespace) -> ServeRequest:
    """What is asked for."""
    return filled(ServeRequest, namespace)


def report(request: ServeRequest) -> Report:
    """The address of the page, and then the page."""
    from automap_models.serve.server import address_of, listen, require_server, serve

    require_server()
    listener = listen(request)
    address = address_of(request, listener)
    document = {"schema": 1, "kind": "serve", "address": address}
    return Report(lambda: print(f"{address} until Ctrl-C"), lambda: document, then=lambda: serve(request, listener))


COMMAND = Command(
    description="Serve a web page that prices strategies while their fields are moved.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(),
    json="print the address as JSON and nothing else",
    inputs=(),
    request=request,
    report=report,
)
