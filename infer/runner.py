"""The skeleton of every command, and what is the same for all of them.

    arguments ─► outputs checked ─► frozen request ─► report ─► files written ─► printed ─► exit code
      argparse     `Output`s          `request`        `report`   `Report.writers`  `Report.show` or JSON

A command says what its arguments are, what they mean, and how what it does is printed and written; `run_command` does
the rest, so that every command has the same `--json`, `--out`, `--plot` and `--trace`, the same errors and exit codes
(formats.md, "Commands"): 0 done, 2 bad input, 3 infeasible, 1 a defect of ours, 130 interrupted, 141 when the reader of
standard output went away.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import re
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from automap_models.core.streams import BROKEN_PIPE, flush_stdout, give_up_streams, printing, say
from automap_models.errors import AutomapError, BadInput
from automap_models.requests import solve
from automap_models.version import __version__

from .commands.parsing import file_argument, in_options
from .reports.text import TYPED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from automap_models.planners.base import Watch

RequestT = TypeVar("RequestT")
EXITS = {
    0: "done",
    2: "the input or the arguments are bad",
    1: "a defect of ours",
    141: "the output's reader went away",
}
VERBOSE = ContextVar("VERBOSE", default=False)
"""Whether the command that runs says what it does."""
WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
"""Is told how far the work is, in place of the terminal."""


@dataclass(frozen=True)
class Output:
    """A file that a command can write.

    Attributes:
        what: its name in reports and messages, "plan".
        flags: by which it is asked for; the last one, without its dashes, is the argument's name.
        help: what the option does.
        picture: whether it is drawn, which needs matplotlib.
        over_input: whether it may be written over a file that the command reads.
    """

    what: str
    flags: tuple[str, ...]
    help: str
    picture: bool = False
    over_input: bool = False


@dataclass(frozen=True)
class Report:
    """How the outcome of a command is printed and written.

    Attributes:
        show: prints it for people on standard output.
        document: the same as plain JSON types.
        writers: an output's name → writes it, whole or not at all. An output without one is the document.
        draw: makes the picture; None where no output is one.
        warnings, remarks: lines for standard error, with JSON, too; the command's name stands before warnings.
        names: an output's name → how the report calls it, where that differs.
        exit_code: 0, unless the outcome is bad news.
        then: what goes on once all this is told, until it is interrupted; None: nothing.
    """

    show: Callable[[], None]
    document: Callable[[], Mapping[str, Any]]
    writers: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    draw: Callable[[], Figure] | None = None
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    exit_code: int = 0
    then: Callable[[], None] | None = None


@dataclass(frozen=True)
class Command(Generic[RequestT]):
    """One command, in the order in which its parts are used.

    Attributes:
        description, epilog: above and below the arguments in its help.
        add_arguments: adds all arguments but those of the outputs.
        json: what `--json` prints, as its help says.
        request: the arguments, checked as far as they can be without long work; raises AutomapError.
        report: does the work and says how the outcome is printed and written; raises AutomapError.
        outputs: files that it can write.
        inputs: names of the arguments that are files to read.
        exits: what exit codes mean, where that is more than `EXITS` say.
        names_files: whether the report ends with what was written where.
        verbose: what `--verbose` prints beside what is being done.
    """

    description: str
    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    json: str
    request: Callable[[argparse.Namespace], RequestT]
    report: Callable[[RequestT], Report]
    outputs: tuple[Output, ...] = ()
    inputs: tuple[str, ...] = ()
    exits: Mapping[int, str] = field(default_factory=dict)
    names_files: bool = True
    verbose: str = ""

    def parser(self, prog: str) -> argparse.ArgumentParser:
        """The parser of its arguments."""
        parser = new_parser(prog, self.description, f"{self.epilog}\n{exit_codes(self.exits)}")
        self.add_to(parser)
        return parser

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add all its arguments."""
        self.add_arguments(parser)
        group = parser.add_argument_group("what to write")
        for output in self.outputs:
            group.add_argument(*output.flags, metavar="FILE", type=file_argument, help=output.help)
        group.add_argument("--json", action="store_true", help=self.json)
        doing = f"say what is being done, a line each on standard error{self.verbose}"
        group.add_argument("--verbose", action="store_true", help=doing)

    def execute(self, prog: str, argv: Sequence[str]) -> int:
        """Parse, check, run, write and print.

        Raises:
            AutomapError: in any of these steps; after a mistake nothing is written.
        """
        namespace = self.parser(prog).parse_args(argv)
        files = self._files(namespace)
        VERBOSE.set(namespace.verbose)
        TYPED.set((f"{prog} {shlex.join(argv)}", files.get("plan")))
        report = self.report(self.request(namespace))
        for output in self.outputs:
            if output.what in files:
                _write(report, output, files[output.what])
        with printing():
            if namespace.json:
                print_json(report.document())
            else:
                report.show()
                if self.names_files and files:
                    print_files({report.names.get(what, what): path for what, path in files.items()})
            flush_stdout()
        for warning in report.warnings:
            say(f"{prog}: warning: {in_options(warning)}")
        for line in report.remarks:
            say(line)
        if report.then is not None:
            report.then()
        return report.exit_code

    def _files(self, namespace: argparse.Namespace) -> dict[str, Path]:
        """An output's name → where it goes.

        Raises:
            BadInput: it cannot be written, or is an input or another output, too.
        """
        from automap_models.formats.atomic import require_writable

        values = [getattr(namespace, name) for name in self.inputs]
        read = [path for value in values for path in (value if isinstance(value, list) else [value])]
        # Path.resolve raises where links lead in a circle
        inputs = {os.path.realpath(path) for path in read if path is not None}
        files: dict[str, Path] = {}
        taken: dict[str, str] = {}
        for output in self.outputs:
            path: Path | None = getattr(namespace, output.flags[-1].lstrip("-").replace("-", "_"))
            if path is None:
                continue
            real = os.path.realpath(path)
            other = taken.get(real) or ("an input" if real in inputs and not output.over_input else None)
            if other:
                where = f"{path} for the {output.what}"
                raise BadInput(f"is {other}, too", where=where, do="give another name")
            taken[real] = f"where the {output.what} goes"
            files[output.what] = path
            if output.picture:
                from automap_models.plots.figures import require_plotting

                require_plotting(path)
            require_writable(path)
        return files


def _write(report: Report, output: Output, path: Path) -> None:
    """Write one file, whole or not at all."""
    if output.picture and report.draw is not None:
        from automap_models.plots.figures import save_figure

        save_figure(path, report.draw())
    elif output.what in report.writers:
        report.writers[output.what](path)
    else:
        from automap_models.formats.atomic import write_json

        write_json(path, report.document())


def reported_by(module: str | Mapping[type, str]) -> Callable[[Any], Report]:
    """Has a request met, and the answer told by the function `report` of a module of reports, perhaps by its type."""

    def report(request: object) -> Report:
        from .reports.text import watching

        with watching(verbose=VERBOSE.get()) as watch:
            answer = solve(request, WATCH.get() or watch)
        name = module if isinstance(module, str) else module[type(request)]
        return cast("Report", import_module(f".reports.{name}", __package__).report(request, answer))

    return report


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are BadInput, so that a wrong argument costs one line like any other mistake."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed below its usage text.

        Raises:
            BadInput: always.
        """
        unknown = re.match("unrecognized arguments: (--[^ =]+)", message)
        near = get_close_matches(unknown[1], self._option_string_actions, n=1, cutoff=0.75) if unknown else []
        meant = f"did you mean {near[0]}? or " if near else ""
        raise BadInput(message, do=f"{meant}see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version; argparse's own way swallows what then goes wrong with the stream."""
        if message and file is not None:
            with printing():
                file.write(message)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose first line says what has to be given: the options have their lines below."""

    def add_usage(self, usage: Any, actions: Iterable[argparse.Action], groups: Any, prefix: Any = None) -> None:
        """The arguments and options that are required, and that there are others."""
        several = {id(action) for group in groups if group.required for action in group._group_actions}
        needed = [action for action in actions if action.required or not action.option_strings or id(action) in several]
        others = argparse.Action([], "others", metavar="[option …]")
        super().add_usage(usage, [*needed, others], groups, prefix)


def exit_codes(exits: Mapping[int, str]) -> str:
    """What the exit codes of a command mean, as its help says."""
    meanings = {**EXITS, **exits}
    listed = ", ".join(f"{code} {meanings[code]}" for code in (0, 2, 3, 1, 130, 141) if code in meanings)
    return textwrap.fill(f"exit codes: {listed}", 119)


def new_parser(prog: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser without arguments but `--help` and `--version`."""
    parser = CommandParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    return parser


def run_command(name: str, body: Callable[[], int]) -> int:
    """Run a command's body and turn the end that it comes to into an exit code.

    Standard output and error are as before when it returns.

    Args:
        name: the command, as its one-line errors begin.
        body: does the work and returns an exit code; parsing the arguments belongs into it.

    Returns:
        The body's own code; an AutomapError's code after one line on stderr, below the traceback of the user's
        own code if that is where it comes from; 1 after the traceback of a defect of ours; 130 after Ctrl-C; 141 when
        the reader of stdout went away (`… | head`).
    """
    with _lenient_streams():
        try:
            return _flushed(body)
        except AutomapError as error:
            if error.details:
                say(error.details)
            say(f"{name}: error: {sentence_of(error)}")
            return error.exit_code
        except KeyboardInterrupt:
            say(f"{name}: interrupted")
            return 130
        except BrokenPipeError:
            return BROKEN_PIPE
        except Exception:
            say(traceback.format_exc().rstrip("\n"))
            return 1


def sentence_of(error: AutomapError) -> str:
    """What is wrong in one line, with the commands' options for the library's arguments."""
    return in_options(" ".join(str(error).split()))


def _flushed(body: Callable[[], int]) -> int:
    """The body's exit code, once everything that it printed has left this process."""
    try:
        code = body()
    except SystemExit as leaving:  # --help and --version
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    flush_stdout()
    return code


@contextmanager
def _lenient_streams() -> Iterator[None]:
    """A strange file name must not break its own report: what the terminal cannot show is escaped."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [(stream, stream.encoding, stream.errors) for stream in streams]
    for stream in streams:
        with suppress(OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, encoding, errors in before:
            with suppress(OSError, ValueError):  # closed by its reader
                stream.reconfigure(encoding=encoding, errors=errors)


def program(main: Callable[[], int]) -> int:
    """Run a command as a whole process.

    Cycles of objects are searched for every 200,000 new ones: with Python's own number, in the hundreds, that takes a
    tenth and more of the time of a command that traces a model.
    """
    gc.set_threshold(200_000)
    code = main()
    give_up_streams()
    return code


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document as JSON, in UTF-8 whatever the terminal's encoding is: JSON has only this one.

    Raises:
        BadInput: a figure in it is not finite.
    """
    from automap_models.formats.atomic import json_text

    text = json_text(document)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    print(text)


def print_files(files: Mapping[str, Path]) -> None:
    """Print what was written where."""
    from .reports.text import console, plain

    screen = console()
    for what, path in files.items():
        screen.print(f"[bold]{'wrote':>9}[/bold]  {plain(f'{what}: {path}')}", soft_wrap=True)
