"""Configurations in TOML, JSON, YAML and Python: their values, which of them are known, and the text of others."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path as File
from typing import Any

import yaml

from automap_models.errors import BadInput
from automap_models.formats.schema import decode_json, parse_yaml

Values = dict[str, Any]
Path = tuple[str, ...]
ADAM = ("adam", "adamw", "fusedadam")
ABSENT = (None, "auto")
"""What counts as not said."""


@cache
def lists_of(target: str) -> Mapping[str, Any]:
    """Patterns of keys that cannot matter, and keys that do with what is noted of each."""
    lists = yaml.safe_load(File(__file__).with_name("documents.yaml").read_text("utf-8"))
    return dict(lists[target])


def parse(text: str, ending: str, where: str) -> Values:
    """The values of a document.

    Raises:
        BadInput: it is not valid, or no mapping.
    """
    do = "give a configuration of torchtitan (TOML), DeepSpeed (JSON) or Accelerate (YAML), or a script"
    if ending == ".json":
        return decode_json(text.encode(), dict[str, Any], where=where, do=do)
    if ending in (".yaml", ".yml"):
        values = parse_yaml(text.encode(), where, do)
    else:
        try:
            values = tomllib.loads(text) if ending == ".toml" else _python(text)
        except (tomllib.TOMLDecodeError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadInput(f"is not valid {ending[1:].upper()} ({error})", where=where, do=do) from None
    if not isinstance(values, dict):
        raise BadInput("is no mapping", where=where, do=do)
    return values


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


def dump(values: Values, ending: str) -> str:
    """A document's text, one value a line."""
    if ending == ".json":
        return json.dumps(values, indent=2, default=str)
    if ending in (".yaml", ".yml"):
        return str(yaml.safe_dump(values, sort_keys=False))
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
    raise BadInput(f"is {value!r}, which is no number", where=".".join(path), do="give a whole number")


def changed(values: Values, new: Mapping[Path, Any]) -> Values:
    """The document with other values; None takes one out."""
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


def unread(values: Values, target: str, text: str) -> tuple[dict[str, str], list[str]]:
    """Keys that may matter and are neither read nor known, with their lines; and what is noted of known ones."""
    lists, left_out, notes = lists_of(target), dict[str, str](), list[str]()
    for path, value in leaves(values):
        name = ".".join(path)
        if value in (None, False, [], {}, "none", "no", "auto"):
            continue
        if note := next((note for pattern, note in lists["noted"].items() if fnmatchcase(name, pattern)), None):
            notes.append(f"`{name}`: {note}")
        elif not any(fnmatchcase(name, pattern) for pattern in (*lists["read"], *lists["cannot matter"])):
            line = next((i for i, line in enumerate(text.splitlines(), 1) if path[-1] in line), 1)
            left_out[name] = f"line {line}"
    if str(optimizer := value_at(values, "optimizer", lists["optimizer"]) or "AdamW").lower() not in ADAM:
        left_out[f"optimizer.{lists['optimizer']}"] = f"is {optimizer}"
    return left_out, notes
