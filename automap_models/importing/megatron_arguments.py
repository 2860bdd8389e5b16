"""Megatron's arguments by name, each with its words and their places in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from automap_models.errors import BadInput
from automap_models.importing.setting import contradiction
from automap_models.importing.shell import Script, Span, Word

NODES, DEVICES = ("--nnodes", "--nodes", "--num-nodes"), ("--nproc-per-node", "--gpus-per-node", "--num-gpus")


@dataclass(frozen=True)
class Arguments:
    """Arguments by name, underscores as dashes.

    Attributes:
        text: of the script or the command.
        words: the argument's own and those of its value.
        keys: argument → what a configuration calls it; None for a command.
    """

    text: str
    words: Mapping[str, Sequence[Word]]
    keys: Mapping[str, str] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.words

    def name(self, argument: str) -> str:
        """What the text calls an argument."""
        if self.keys is None:
            return argument
        return self.keys.get(argument, argument.removeprefix("--").replace("-", "_"))

    def line(self, name: str) -> str:
        """Where an argument stands."""
        return f"line {self.text.count(chr(10), 0, self.words[name][0].site[0]) + 1}"

    def value(self, name: str) -> str | None:
        """What an argument is; None where it is not given.

        Raises:
            BadInput: it has no value, or that of a variable that nothing sets.
        """
        if name not in self.words:
            return None
        text = self.words[name][1].text if len(self.words[name]) > 1 else ""
        if not text or "$" in text:
            what = f"`{self.name(name)}` is {text or 'nothing'}, which the text does not say"
            variable = re.sub(r"\W.*", "", text.lstrip("${")) or "NAME"
            raise BadInput(what, where=self.line(name), do=f"give `set` {variable}=VALUE")
        return text

    def count(self, name: str, most: int = 1 << 31) -> int | None:
        """A whole number, not more than `most`; None where it is not given.

        Raises:
            BadInput: it is something else.
        """
        text = self.value(name)
        if text is None or (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most):
            return None if text is None else int(text)
        do = f"give a whole number, {most:,} at most"
        raise BadInput(f"`{self.name(name)}` is {text[:40]!r}", where=self.line(name), do=do)


@cache
def listed() -> Mapping[str, Any]:
    """The lists of megatron.yaml."""
    lists: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("megatron.yaml").read_text("utf-8"))
    return lists


def parsed(text: str, variables: Mapping[str, str]) -> tuple[Arguments, Script]:
    """The arguments of the command that trains, with what Slurm is told.

    Raises:
        BadInput: one is given twice, with two values.
    """
    script = Script(text, variables)
    slurm = [Script(line[1], {}).statements for line in re.finditer(r"(?m)^#SBATCH +(--.*)$", text)]
    launching = [word for statements in slurm for words in statements for word in words]
    begin = next((i for i, word in enumerate(script.command) if word.text.endswith(".py")), 0)
    launching += script.command[:begin]
    words = {name: entry for name, entry in _arguments(launching) if name in (*NODES, *DEVICES)}
    read = Arguments(text, words)
    for name, entry in _arguments(script.command[begin:]):
        before = words.get(name)
        if before is not None and before[0].site != entry[0].site and _texts(before) != _texts(entry):
            first = read.line(name)
            one, other = (" ".join((name, *_texts(words))) for words in (before, entry))
            raise contradiction(one, other, first, Arguments(text, {name: entry}).line(name))
        words[name] = entry
    return read, script


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words[1:]]


def _arguments(words: Sequence[Word]) -> Iterator[tuple[str, list[Word]]]:
    """Each argument with its words; `--name=value` as two of one site."""
    entry: list[Word] = []
    for word in words:
        if not word.text.startswith("--") or word.text == "--":
            entry += [word] if entry else []
            continue
        if entry:
            yield entry[0].text, entry
        name, equals, value = word.text.partition("=")
        begin = word.site[0] + len(name) + 1
        span: Span = (begin, word.site[1])
        entry = [word._replace(text=name.replace("_", "-"), site=(word.site[0], begin - 1) if equals else word.site)]
        entry += [Word(value, span, span)] if equals else []
    if entry:
        yield entry[0].text, entry
