"""Shell completion of all commands under both of their names: `eval "$(automap --print-completion bash)"`.

The scripts are static, so that nothing of ours starts when a key is pressed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from automap_models.formats.hardware_yaml import known_clusters, known_devices
from automap_models.workloads.catalogue import names

from .commands.parsing import file_argument
from .runner import new_parser

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, program: str, summaries: Mapping[str, str]) -> str:
    """A script for a shell to evaluate.

    Args:
        shell: one of SHELLS.
        program: `automap`; its commands are programs of their own, too, such as `automap-infer`.
        summaries: command → what it is for.
    """
    import shtab

    scripts = [shtab.complete(parser, shell) for parser in _parsers(program, summaries)]
    return "\n".join(scripts)


def _parsers(program: str, summaries: Mapping[str, str]) -> Iterator[argparse.ArgumentParser]:
    whole = new_parser(program, "", "")
    whole.add_argument("--print-completion", choices=SHELLS, help="print a script that completes arguments")
    commands = whole.add_subparsers()
    for name, summary in summaries.items():
        module = import_module(f".commands.{name}", __package__)
        alone = new_parser(f"{program}-{name}", "", "")
        for parser in (commands.add_parser(name, help=summary), alone):
            _fill(parser, module)
        yield alone
    yield whole


def _fill(parser: argparse.ArgumentParser, module: Any) -> None:
    """Add what a command takes, or the commands that it has."""
    if not hasattr(module, "COMMANDS"):
        module.COMMAND.add_to(parser)
        _complete(parser)
        return
    commands = parser.add_subparsers()
    for name, command in module.COMMANDS.items():
        below = commands.add_parser(name, help=module.SUMMARIES[name])
        command.add_to(below)
        _complete(below)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Say which arguments are files, and which are names that are known."""
    import shtab

    known = {"topo": known_clusters, "device": known_devices, "accelerator": known_devices, "host": known_devices}
    for action in parser._actions:
        if action.type is file_argument or action.dest == "profile":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.choices is None and (action.dest in known or action.dest == "what"):
            # A file is as good as a name: bash offers files where no name begins so (complete -o bashdefault).
            action.choices = names() if action.dest == "what" else known[action.dest]()
