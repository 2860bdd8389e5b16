"""The one program, `automap infer|profile|plan|…`, and its commands under names of their own.

`automap-infer …` is `automap infer …`, and so on. Only the command that is asked for is imported, so that help comes
at once. `eval "$(automap --print-completion bash)"` completes the arguments of all commands under both of their names;
the scripts are static, so that nothing of ours starts when a key is pressed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType

from automap_models.core.streams import printing

from .commands.parsing import file_argument
from .runner import Command, exit_codes, new_parser, program, run_command

NAME = "automap"
SUMMARIES: Mapping[str, str] = {
    "infer": "plan the pipeline stages of a profiled model on a cluster",
    "profile": "make profile.npz of a model, or of another tool's profile",
    "plan": "compare every kind of plan for a model on a cluster",
    "fit": "say whether a model fits a cluster, and how",
    "doctor": "read a command line or configuration of another program: price it, and say what is better",
    "place": "place the operators of a model on accelerators and CPUs",
    "search": "search the shardings of a model's operations, or train an agent on its pipeline",
    "run": "run a plan on this machine or under torchrun, and compare it with its prediction",
    "export": "write a plan for another framework",
    "models": "list the models that have a name",
    "serve": "price strategies on a web page, while their fields are moved",
    "mcp": "let agents ask: fit, plan, price, doctor and export as tools",
    "calibrate": "fit a runtime or a kind of device to measured training steps or profiles",
}
"""Command → what it is for; each is a module of `commands` with a COMMAND, or with COMMANDS of its own by name."""
COMMANDS_EPILOG = """commands:
{commands}

{prog} COMMAND --help tells more."""
PRINT_COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "fish")
ALIASES_EPILOG = """Each command has a name of its own, too: automap-infer is automap infer.

eval "$(automap --print-completion bash)" in ~/.bashrc completes their arguments (bash, zsh or fish)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `automap`; returns its exit code and never raises.

    Args:
        argv: the arguments; None stands for those of the process.
    """
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    if arguments and arguments[0] in SUMMARIES:
        prog, name = f"{NAME} {arguments[0]}", arguments[0]
        return run_command(prog, lambda: _run(prog, name, arguments[1:]))
    if arguments[:1] == [PRINT_COMPLETION]:
        return run_command(NAME, lambda: _print_completion(arguments))
    about = "Plan how to train a model on a cluster."
    return run_command(NAME, lambda: _refused(NAME, about, SUMMARIES, ALIASES_EPILOG, arguments))


def _print_completion(arguments: Sequence[str]) -> int:
    """Print a script for a shell to evaluate."""
    import shtab

    parser = new_parser(NAME, "", "")
    parser.add_argument(PRINT_COMPLETION, choices=SHELLS, required=True)
    shell = parser.parse_args(arguments).print_completion
    with printing():
        print("\n".join(shtab.complete(parser, shell) for parser in _parsers()))
    return 0


def _parsers() -> Iterator[argparse.ArgumentParser]:
    """Of each command as a program of its own, and of `automap` with all of them."""
    main_parser = new_parser(NAME, "", "")
    main_parser.add_argument(PRINT_COMPLETION, choices=SHELLS, help="print a script that completes arguments")
    commands = main_parser.add_subparsers()
    for name, summary in SUMMARIES.items():
        module = import_module(f".commands.{name}", __package__)
        alone = new_parser(f"{NAME}-{name}", "", "")
        for parser in (commands.add_parser(name, help=summary), alone):
            _fill(parser, module)
        yield alone
    yield main_parser


def _fill(parser: argparse.ArgumentParser, module: ModuleType) -> None:
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

    from automap_models.formats.hardware_yaml import known_clusters, known_devices, read_device
    from automap_models.workloads.catalogue import names

    given = {"topo": known_clusters, "what": names, **dict.fromkeys(("device", "accelerator", "host"), known_devices)}
    sized = [kind for kind in known_devices() if read_device(kind).cluster]
    for action in parser._actions:
        if action.type is file_argument or action.dest == "profile":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif "--gpus" in action.option_strings:
            action.choices = [f"{count}x{kind}" for kind in sized for count in (8, 16, 32, 64)]
        elif action.choices is None and action.dest in given:
            # A file is as good as a name: bash offers files where no name begins so (complete -o bashdefault).
            action.choices = given[action.dest]()


def _run(prog: str, name: str, arguments: Sequence[str]) -> int:
    """Run a command, or the one of its own commands that the first argument names."""
    module = import_module(f".commands.{name}", __package__)
    commands: Mapping[str, Command[object]] | None = getattr(module, "COMMANDS", None)
    if commands is None:
        return int(module.COMMAND.execute(prog, arguments))
    if arguments and arguments[0] in commands:
        return commands[arguments[0]].execute(f"{prog} {arguments[0]}", arguments[1:])
    epilog = f"{module.EPILOG}\n{exit_codes(module.EXITS)}"
    return _refused(prog, module.DESCRIPTION, module.SUMMARIES, epilog, arguments)


def _refused(prog: str, description: str, summaries: Mapping[str, str], epilog: str, arguments: Sequence[str]) -> int:
    """Help, the version, or what is wrong with arguments that begin with no command."""
    width = max(map(len, summaries))
    lines = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in summaries.items())
    parser = new_parser(prog, description, f"{COMMANDS_EPILOG.format(commands=lines, prog=prog)}\n\n{epilog}")
    parser.add_argument("command", metavar="COMMAND", choices=tuple(summaries), help="see below")
    parser.parse_args(arguments[:1])
    raise AssertionError("argparse accepts no first argument but a command")


def _script(command: str) -> Callable[..., int]:
    """The program `automap-COMMAND`: with arguments a function, without them a whole process."""

    def script(argv: Sequence[str] | None = None) -> int:
        return program(lambda: main([command, *sys.argv[1:]])) if argv is None else main([command, *argv])

    return script


def automap() -> int:
    """The program `automap`."""
    return program(main)


infer, profile, plan, fit, doctor, place, search, run, export, models, serve, mcp, calibrate = map(_script, SUMMARIES)
