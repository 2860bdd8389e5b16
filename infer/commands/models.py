"""`automap models`: the models that have a name."""

from __future__ import annotations

import argparse

from automap_models.requests import ModelsRequest

from ..runner import Command, reported_by

EPILOG = """The parameters are those of the model here; --json has the rounded number of its source, too. Active are
those that a token passes of a mixture of experts, as the card says.
A name is what automap plan, fit and profile take; - is as good as _.

examples:
  automap models                    all of them
  automap models qwen3              those with qwen3 in their name or family
  automap models --families         the values of model_type that a config.json may have
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which of them."""
    parser.add_argument("filter", metavar="FILTER", nargs="?", default="", help="a part of their name or family")
    parser.add_argument("--families", action="store_true", help="list what config.json files are read instead")


def request(namespace: argparse.Namespace) -> ModelsRequest:
    """What is asked for."""
    return ModelsRequest(namespace.filter, namespace.families)


COMMAND = Command(
    description="List the models that have a name, with their sizes and where these are published.",
    epilog=EPILOG,
    exits={2: "no name has the word, or the arguments are bad"},
    add_arguments=add_arguments,
    json="print the list as JSON and nothing else",
    request=request,
    report=reported_by("models"),
)
