"""The tools of `automap mcp`: commands whose arguments come as JSON, and whose answers are those of `--json`.

    {"what": "llama3-8b", "gpus": "8xh100"} ─► llama3-8b --gpus=8xh100 ─► request ─► report ─► document

What a tool takes is read off the command's parser, and what it answers is what the command prints: nothing here knows
an option or a key. Nothing is written, and no code of the user's is run.
"""

from __future__ import annotations

import argparse
import json
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from automap_models.core.streams import say
from automap_models.errors import AutomapError, BadInput
from automap_models.workloads.source import Source, SourceKind

from .commands.parsing import Show, at_least
from .runner import WATCH, Command, sentence_of

if TYPE_CHECKING:
    from automap_models.planners.base import Watch

INTEGER = at_least(1).__qualname__
"""Of the types of arguments, those of whole numbers."""


@dataclass(frozen=True)
class Tool:
    """A command as a tool.

    Attributes:
        name: of the tool.
        command: of the program.
        typed: arguments that it always has.
        about: what it does; empty where the command's help says it.
        like: another command, whose arguments it has of its own; empty for all.
    """

    name: str
    command: str
    typed: tuple[str, ...] = ()
    about: str = ""
    like: str = ""

    @cached_property
    def program(self) -> Command[Any]:
        """The command."""
        program: Command[Any] = import_module(f".commands.{self.command}", __package__).COMMAND
        return program

    @cached_property
    def parser(self) -> argparse.ArgumentParser:
        """Of its arguments as they are typed."""
        return self.program.parser(f"automap {self.command}")

    @cached_property
    def arguments(self) -> Mapping[str, argparse.Action]:
        """Key → argument, of those that it has."""
        names = {_key(action): action for action in self.parser._actions if not isinstance(action, Show)}
        others = TOOLS[self.like].arguments if self.like else names
        return {name: action for name, action in names.items() if name in others and name not in WITHOUT}

    @property
    def description(self) -> str:
        """What it does, and what its arguments stand for."""
        return self.about or f"{self.program.description}\n\n{self.program.epilog.partition('examples:')[0].strip()}"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        required = [name for name, action in self.arguments.items() if action.required]
        properties = {name: _schema_of(action) for name, action in self.arguments.items()}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def answer(self, arguments: Mapping[str, Any], watch: Watch, stopped: threading.Event) -> dict[str, Any]:
        """What the command prints with `--json`.

        Args:
            arguments: by key.
            watch: is told how far it is.
            stopped: is set when nobody waits any more.

        Raises:
            AutomapError: as of the command; or an argument is unknown or too large, or the search takes too long.
        """
        from automap_models.formats.atomic import json_text
        from automap_models.serve.limits import limited, require_small

        require_small(len(json.dumps(arguments)), f"what is asked of {self.name}")
        with TemporaryDirectory() as folder:
            words = [*self.typed, *self._words(arguments, Path(folder))]
            request = self.program.request(self.parser.parse_args(words))
            _require_no_code(request)

            def document(news: Watch) -> dict[str, Any]:
                WATCH.set(news)
                return dict(json.loads(json_text(self.program.report(request).document())))

            return limited(lambda news: copy_context().run(document, news), watch, stopped)

    def _words(self, arguments: Mapping[str, Any], folder: Path) -> Iterator[str]:
        """The arguments as they are typed; a plan that is given as JSON is a file of the folder."""
        positional = list[str]()
        for name, value in arguments.items():
            action = self.arguments.get(name)
            if action is None:
                raise BadInput(f"has no argument {name!r}", where=self.name, do=f"it has {', '.join(self.arguments)}")
            given = _saved(value, folder) if name == "plan" and isinstance(value, dict) else value
            if not action.option_strings:
                positional.append(_text(name, given))
            elif given is not None and given is not False:
                yield from _option(name, action, given)
        yield from ("--", *positional)


def _saved(document: Mapping[str, Any], folder: Path) -> str:
    (folder / "plan.json").write_text(json.dumps(document))
    return str(folder / "plan.json")


def _option(name: str, action: argparse.Action, value: object) -> Iterator[str]:
    """One option as it is typed."""
    option = action.option_strings[-1]
    if action.nargs == 0:
        if value is not True:
            raise BadInput(f"is {value!r}", where=name, do="give true or false")
        yield option
        return
    repeated = isinstance(action, argparse._AppendAction)
    values = value if isinstance(value, list) else [value]
    for text in values if repeated else [",".join(_text(name, part) for part in values)]:
        yield f"{option}={_text(name, text)}"


def _text(name: str, value: object) -> str:
    """A value as it is typed."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadInput(f"is {json.dumps(value)[:40]}", where=name, do="give a text or a number")
    return str(value)


def _key(action: argparse.Action) -> str:
    """What an argument is called in JSON: its option without dashes."""
    return action.option_strings[-1].strip("-").replace("-", "_") if action.option_strings else action.dest


def _schema_of(action: argparse.Action) -> dict[str, Any]:
    """The JSON schema of an argument."""
    kind: dict[str, Any] = {"type": "string"}
    if action.nargs == 0:
        kind = {"type": "boolean"}
    elif action.choices:
        kind = {"enum": list(action.choices)}
    elif getattr(action.type, "__qualname__", "") == INTEGER:
        kind = {"type": "integer"}
    elif action.type is float:
        kind = {"type": "number"}
    elif action.dest == "plan":
        kind = {"type": ["string", "object"]}
    if isinstance(action, argparse._AppendAction):
        kind = {"type": "array", "items": kind}
    return {**kind, "description": (action.help or "").replace("%%", "%")}


def _require_no_code(request: object) -> None:
    """Refuse a model that is code of the user's, which building it would run.

    Raises:
        BadInput: it is.
    """
    for source in vars(request).values():
        if isinstance(source, Source) and source.kind is SourceKind.FACTORY:
            do = f"give its profile: automap profile {source.what} -o profile.npz"
            raise BadInput("is code, which no tool runs", where=source.what, do=do)


WITHOUT = ("help", "version", "json", "verbose", "plot", "price")
"""Arguments of commands that no tool has."""
PRICE = "Price a strategy of a transformer, searching nothing: the step, its parts, and the memory of every rank."
TOOLS = {
    tool.name: tool
    for tool in (
        Tool("fit", "fit"),
        Tool("plan", "plan"),
        Tool("price", "plan", ("--price",), PRICE, like="fit"),
        Tool("doctor", "doctor"),
        Tool("export", "export"),
    )
}
"""Name → tool."""


def tools_document() -> dict[str, Any]:
    """All tools as plain JSON types."""
    tools = [{"name": one.name, "description": one.description, "input": one.schema} for one in TOOLS.values()]
    return {"schema": 1, "kind": "mcp", "tools": tools}


def outcome(
    name: str, arguments: Mapping[str, Any], watch: Watch, stopped: threading.Event
) -> tuple[dict[str, Any], bool]:
    """What a tool answers, and whether that is an error: its sentence, and the exit code that the command would have.

    Args:
        name: of the tool.
        arguments, watch, stopped: see `Tool.answer`.
    """
    try:
        if name not in TOOLS:
            raise BadInput(f"unknown tool {name!r}", do=f"choose from {', '.join(TOOLS)}")
        return TOOLS[name].answer(arguments, watch, stopped), False
    except AutomapError as error:
        return refusal(error), True
    except Exception:
        say(traceback.format_exc().rstrip("\n"))
        return {"error": "ended by a defect of ours", "exit_code": 1}, True


def refusal(error: AutomapError) -> dict[str, Any]:
    """What is wrong as JSON."""
    return {"error": sentence_of(error), "exit_code": error.exit_code}
