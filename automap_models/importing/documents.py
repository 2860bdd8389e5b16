"""Configurations in TOML, JSON, YAML and Python: what they say and where, and their text with other values.

    model:                                 values  {"model": {"tp": 4}}
      tp: 4  # of a node                   places  ("model", "tp") → the span of `4`

In YAML and JSON other values are written where the former ones stand, and new ones behind those of the same mapping, so
that comments and all other lines stay. TOML and Python are shown as one value a line.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path as File
from typing import Any

import yaml

from automap_models.errors import BadInput
from automap_models.formats.schema import LARGEST_YAML_BYTES, decode_json, parse_yaml, read_bytes

Values = dict[str, Any]
Path = tuple[str, ...]
Span = tuple[int, int]
ABSENT = (None, "auto")
"""What counts as not said."""
FALSE: tuple[Any, ...] = (None, False, "", [], {}, "none", "no", "auto", "False", "false")
"""What a key that is not known may say without a question."""
YAML = (".yaml", ".yml")
_REFERENCE = re.compile(r"\$\{(oc\.select:|multiply:)?(\.*)([\w.]+)(?:, *([^{}]*))?\}")


@dataclass(frozen=True, eq=False)
class Document:
    """A configuration.

    Attributes:
        text: as people see it.
        values: what it says.
        places: spans of values in the text by their keys, of mappings too.
        edited: the text with other values; None takes one out.
    """

    text: str
    values: Values
    edited: Callable[[Mapping[Path, Any]], str]
    places: Mapping[Path, Span] = field(default_factory=dict)

    def line(self, path: Path) -> str:
        """Where a value stands, or the last of its keys."""
        if path in self.places:
            return f"line {self.text.count(chr(10), 0, self.places[path][0]) + 1}"
        return f"line {next((i for i, line in enumerate(self.text.splitlines(), 1) if path[-1] in line), 1)}"


@cache
def tables() -> Mapping[str, Any]:
    """What is known of the keys of each program: tables.yaml."""
    lists: Mapping[str, Any] = yaml.safe_load(File(__file__).with_name("tables.yaml").read_text("utf-8"))
    return lists


def text_of(path: File) -> str:
    """What a file says.

    Raises:
        BadInput: it cannot be read, is too large for a configuration, or no text.
    """
    try:
        return read_bytes(path, LARGEST_YAML_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("is no text", where=str(path), do="give a script, TOML, JSON or YAML") from None


def parse(text: str, ending: str, where: str) -> Document:
    """A document.

    Raises:
        BadInput: it is not valid, or no mapping.
    """
    do = "give a script, or a configuration of a program that the help of `automap doctor` lists"
    if ending == ".json":
        values: object = decode_json(text.encode(), dict[str, Any], where=where, do=do)
    elif ending in YAML:
        values = parse_yaml(text.encode(), where, do)
    else:
        try:
            values = tomllib.loads(text) if ending == ".toml" else _python(text)
        except (tomllib.TOMLDecodeError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadInput(f"is not valid {ending[1:].upper()} ({error})", where=where, do=do) from None
    if not isinstance(values, dict):
        raise BadInput("is no mapping", where=where, do=do)
    if ending in (".toml", ".py"):
        return listed(values)
    try:
        mappings, values = dict(_mappings(text)), resolved(values)
    except RecursionError:
        raise BadInput("is nested too deeply", where=where, do=do) from None
    except yaml.YAMLError:  # JSON with characters that YAML has not
        return listed(values)
    places: dict[Path, Span] = {
        (*path, key): span for path, group in mappings.items() for key, span in group.spans.items()
    }
    return Document(text, values, lambda new: _edited(text, mappings, new), places)


def listed(values: Values) -> Document:
    """A document that is shown as one value a line."""
    return Document(_lines(values), values, lambda new: _lines(changed(values, new)))


def _python(text: str) -> Values:
    """Names that a module assigns values, or calls with values, whose arguments are then the value; nothing is run."""
    values: Values = {}
    assigned = set[str]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function, keywords=words)):
                assigned.add(ast.unparse(function))
                values[name] = {"function": ast.unparse(function), **_literals(words)}
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values |= _literals([ast.keyword(name, value)])
            case ast.Call(func=function, keywords=words) if words and ast.unparse(function) not in assigned:
                values[ast.unparse(function)] = _literals(words)
    return values


def _literals(words: Sequence[ast.keyword]) -> Values:
    values = {}
    for word in words:
        try:
            values[word.arg or ""] = ast.literal_eval(word.value)
        except ValueError:
            continue
    return values


def _lines(values: Values) -> str:
    return "\n".join(f"{'.'.join(path)} = {json.dumps(value, default=str)}" for path, value in leaves(values))


def leaves(values: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Paths of keys to what is no mapping, in the order of the document."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*above, str(key)))
        else:
            yield (*above, str(key)), value


def value_at(values: Mapping[str, Any], *path: str) -> Any:
    """What stands at a path; None where nothing does, or what the program chooses itself."""
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value in ABSENT else value


def count_at(values: Mapping[str, Any], *path: str) -> int | None:
    """A whole number at a path; None where none is said.

    Raises:
        BadInput: it is something else.
    """
    value = value_at(values, *path)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    do = "give `set` NAME=VALUE" if "$" in str(value) else "give a whole number"
    raise BadInput(f"is {value!r}, which is no number", where=".".join(path), do=do)


def resolved(values: Values) -> Values:
    """The values with those that stand for others: `${model.tp}`, `${oc.select:a.b,default}` or `${multiply:4, 8}`."""
    references = {path: value for path, value in leaves(values) if isinstance(value, str) and "${" in value}

    def value_of(above: Path, match: re.Match[str]) -> str:
        kind, dots, name, other = match.groups()
        if kind == "multiply:" and name.isdigit() and (other or "").isdigit() and len(name + other) < 16:
            return str(int(name) * int(other))
        value = value_at(values, *(above[: len(above) + 1 - len(dots)] if dots else ()), *name.split("."))
        return match[0] if value is None and other is None else str(other if value is None else value)

    for _ in range(3):  # one inside another
        references = {path: _REFERENCE.sub(partial(value_of, path[:-1]), text) for path, text in references.items()}
    return changed(values, {path: meaning(text) for path, text in references.items()}) if references else values


def meaning(text: str) -> Any:
    """What a text is in YAML; itself where it is nothing of the kind."""
    try:
        return parse_yaml(text.encode(), "", "")
    except BadInput:
        return text


def changed(values: Values, new: Mapping[Path, Any]) -> Values:
    """The values with others; None takes one out."""
    after = deepcopy(values)
    for path, value in new.items():
        group = after
        for key in path[:-1]:
            if not isinstance(group.get(key), dict):
                group[key] = {}
            group = group[key]
        if value is None:
            group.pop(path[-1], None)
        else:
            group[path[-1]] = value
    return after


@dataclass(frozen=True)
class Mapped:
    """A mapping in a text.

    Attributes:
        begin: of it.
        column: of its keys.
        spans: of the values.
        braces: whether it is in braces.
    """

    begin: int
    column: int
    spans: Mapping[str, Span]
    braces: bool


def _mappings(text: str) -> Iterator[tuple[Path, Mapped]]:
    """The mappings of a YAML or JSON text, by path."""

    def inside(node: yaml.Node | None, path: Path) -> Iterator[tuple[Path, Mapped]]:
        if isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[1].start_mark.index >= pair[0].end_mark.index]  # no aliases
            spans = {str(key.value): (value.start_mark.index, value.end_mark.index) for key, value in pairs}
            column = pairs[-1][0].start_mark.column if pairs else 0
            yield path, Mapped(node.start_mark.index, column, spans, bool(node.flow_style))
            for key, value in pairs:
                yield from inside(value, (*path, str(key.value)))

    yield from inside(yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader), ())


_STARTS = re.compile(r"\b(torchrun|python3?)\b")


def script(text: str) -> Span | None:
    """Where the literal block of a YAML text lies that starts a program, by torchrun, or the longest; None without."""

    def scalars(node: Any) -> Iterator[yaml.ScalarNode]:
        if isinstance(node, yaml.ScalarNode):
            yield node
        for part in node.value if isinstance(node, yaml.CollectionNode) else ():
            for one in part if isinstance(part, tuple) else (part,):
                yield from scalars(one)

    nodes = scalars(yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader))
    blocks = [node for node in nodes if node.style == "|" and _STARTS.search(node.value)]
    if not blocks:
        return None
    block = max(blocks, key=lambda node: ("torchrun" in node.value, len(node.value)))
    return text.index("\n", block.start_mark.index) + 1, block.end_mark.index


def _edited(text: str, mappings: Mapping[Path, Mapped], new: Mapping[Path, Any]) -> str:
    """The text with other values in place, and new ones behind the last of their mapping."""
    written, added = dict[tuple[Span, bool], Any](), dict[Path, Values]()
    for path, value in new.items():
        above = max((path[:n] for n in range(len(path)) if path[:n] in mappings), key=len)
        group, rest = mappings[above], path[len(above) :]
        place = group.spans.get(rest[0], (0, 0)), group.braces
        if rest[0] in group.spans and len(rest) == 1:
            written[place] = value
        elif value is not None and rest[0] in group.spans:  # of what is no mapping yet
            written[place] = changed(written.get(place, {}), {rest[1:]: value})
        elif value is not None:
            added[above] = changed(added.get(above, {}), {rest: value})
    edits = [_addition(text, mappings[above], values) for above, values in added.items()]
    edits += [(span, " " * (span[0] == span[1]) + scalar(value, braces)) for (span, braces), value in written.items()]
    for (begin, stop), word in sorted(edits, reverse=True):
        text = text[:begin] + word + text[stop:]
    return text


def scalar(value: Any, braces: bool) -> str:
    """A value as YAML and JSON write it."""
    if braces or not isinstance(value, (str, list)):
        return json.dumps(value)
    return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).removesuffix("...\n").strip()


def _addition(text: str, group: Mapped, values: Values) -> tuple[Span, str]:
    """Where and how further values stand behind those of a mapping."""
    end = max((span[1] for span in group.spans.values()), default=group.begin + 1)
    indent = f"\n{' ' * group.column}"
    if group.braces:
        before = text[text.rfind("\n", group.begin, end) + 1 : end]
        between = f",{indent}" if "\n" in text[group.begin : end] and not before[: group.column].strip() else ", "
        words = between.join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        return (end, end), between * bool(group.spans) + words
    end = len(text[:end].rstrip())  # of a mapping YAML counts the blank lines behind it
    end = len(text) if (stop := text.find("\n", end)) < 0 else stop
    block = yaml.safe_dump(values, sort_keys=False, width=10_000).rstrip()
    return (end, end), "".join(f"{indent}{line}" for line in block.splitlines())


def unread(
    document: Document, target: str, read: Sequence[str] = (), precision: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Keys that may matter and are neither read nor known, with their lines; and what is noted of known ones.

    Args:
        target: of tables.yaml.
        read: patterns of keys that are read.
        precision: of the strategy; some keys matter beside one only.
    """
    lists, left_out, notes = tables()[target], dict[str, str](), list[str]()
    passed = (*read, *lists.get("read", ()), *lists["cannot matter"])
    noted = {**lists.get(f"noted beside {precision}", {}), **lists.get("noted", {})}
    for path, value in leaves(document.values):
        name = ".".join(path)
        note = note_of(noted, name, value)
        if note:
            notes.append(f"`{name}`: {note}")
        elif note is None and value not in FALSE and not any(fnmatchcase(name, pattern) for pattern in passed):
            left_out[name] = document.line(path)
    return left_out, notes


def note_of(noted: Mapping[str, Any], name: str, value: Any) -> str | None:
    """What is noted of a key with this value: of any value that says something, or of some words; empty: nothing.

    None of a key that `noted` has not.
    """
    note = next((note for pattern, note in noted.items() if fnmatchcase(name, pattern)), None)
    if isinstance(note, dict):
        return next((text for word, text in note.items() if str(word).lower() == str(value).lower()), "")
    return "" if note is not None and value in FALSE else note
