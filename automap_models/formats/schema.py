"""JSON and YAML documents, declared once as msgspec structures and decoded strictly.

A document of our own is a subclass of `Document`, which refuses unknown keys. A document of another tool is a subclass
of `Foreign`, which ignores what we do not read. Fields without a default are required:

    class Stage(Document):
        devices: tuple[Index, Index]
        forward_s: Seconds

    class Plan(Document):
        micro_batches: Count
        stages: Annotated[list[Stage], Meta(min_length=1)]
        note: Text | None = None

    plan = read_json("plan.json", Plan, do="write the plan again with automap infer")
    # BadInput: plan.json: $.stages[0].devices[1] is "eight", not a whole number; write the plan again with …

Where the kind of a file decides what it holds, read its bytes once and decode them twice, first as a
`dict[str, msgspec.Raw]`, whose keys tell the kinds apart, then as what it is (see formats.plan).
A check that a type cannot express raises `wrong("$.stages[3].replicas", value, "the number of devices")`.

A type means exactly what it says: `int` takes no 4.5 and no true, `float` takes whole numbers too, `str` takes no
numbers. NaN and infinity are refused. In YAML `130e9` and `1e3` are numbers, although YAML 1.1 reads them as text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import reprlib
import stat
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from automap_models.errors import BadInput
from automap_models.resources import conf_dir, exists

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")

LARGEST_JSON_BYTES = 64 << 20
"""Of a JSON document, unless its reader asks for more."""
LARGEST_YAML_BYTES = 64 << 10
"""Of a YAML description; PyYAML needs about a second for as much."""
LARGEST_YAML_VALUES = 200_000
"""Of a YAML description with every alias written out, so that a small file with aliases of aliases is refused."""

LARGEST_INTEGER = 2**53
"""Of a whole number, so that it is exact as a float too, and never overflows an array's entry."""
Integer = Annotated[int, Meta(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]
Count = Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)]
Index = Annotated[int, Meta(ge=0, le=LARGEST_INTEGER)]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(pattern=r"\S")]

_KEY_TWICE = "a key stands there twice"
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1  # YAML aliases make small files with values that would fill the screen
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
    "null": "null",
}


class Foreign(msgspec.Struct):
    """A document of another tool, or a part of one: keys that it does not declare are ignored.

    Attributes:
        remedy: what to do about a file that is none.
    """

    remedy: ClassVar[str] = "write the file again"


class Document(Foreign, forbid_unknown_fields=True):
    """A document of ours, or a part of one: a key that it does not declare is refused."""

    def builtins(self) -> dict[str, Any]:
        """The document as plain Python numbers, texts, lists and dictionaries; numpy's become such."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=lambda array: array.tolist())
        return plain


def document_of(record: type, *without: str) -> Any:
    """The type of a document whose keys are the fields of a dataclass, with its types and defaults.

    Args:
        without: fields that are no keys.
    """
    kinds, declared = typing.get_type_hints(record), list[Any]()
    for field in dataclasses.fields(record):
        if field.name not in without:
            usual = () if field.default is dataclasses.MISSING else (field.default,)
            declared.append((field.name, kinds[field.name], *usual))
    name = f"{record.__name__}Document"
    return msgspec.defstruct(name, declared, bases=(Document,), kw_only=True, forbid_unknown_fields=True)


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST_JSON_BYTES) -> bytes:
    """The content of a file that a user named.

    Args:
        path: the file.
        largest: bytes that it may have.

    Raises:
        BadInput: the file cannot be read or is larger.
    """
    try:
        with open_file(path, once=True) as file:
            content = file.read(largest + 1)
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise unreadable(path, error) from None
    if len(content) > largest:
        raise BadInput(f"has more than {largest:,} bytes", where=str(path), do="give a smaller file")
    return content


def open_file(path: str | os.PathLike[str], *, once: bool = False) -> BinaryIO:
    """A file that a user named, open for reading.

    A named pipe is refused: opening it waits for somebody who writes, and what is read of it is gone.

    Args:
        path: the file.
        once: whether it is read only once, so that it can also be a shell's `<(…)`, which is /dev/fd/63.

    Raises:
        BadInput: it is a pipe.
        OSError, ValueError: it cannot be opened.
    """
    pipe = stat.S_ISFIFO(Path(path).stat().st_mode)
    if pipe and not (once and str(path).startswith("/dev/")):
        raise BadInput("is a pipe", where=str(path), do="save what comes through it in a file and give that")
    return Path(path).open("rb")


def unreadable(path: str | os.PathLike[str], error: Exception) -> BadInput:
    """The sentence for a file that the system does not let us read."""
    what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    return BadInput(what, where=str(path), do="check the path and its permissions")


def read_json(path: str | os.PathLike[str], kind: type[T], *, do: str = "write the file again") -> T:
    """The JSON document in a file; see `decode_json`."""
    return decode_json(read_bytes(path), kind, where=str(path), do=do)


def decode_json(content: bytes | bytearray, kind: type[T], *, where: str, do: str = "write the file again") -> T:
    """A JSON document as an object of the declared type.

    Args:
        content: UTF-8, with or without a byte order mark.
        kind: the declared type.
        where: where the document comes from, for messages.
        do: what the user should do about a mistake, for messages.

    Raises:
        BadInput: it is no JSON, or it does not fit the declaration; the message holds the path to the value at fault.
    """
    content = bytes(content).removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        document: object = msgspec.UNSET
        if len(content) <= 1 << 20:  # else a second decoding, to show the value at fault, takes long
            try:
                _require_keys_once(content, where, do)
                document = msgspec.json.decode(content)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                document = msgspec.UNSET
        raise _misfit(error, document, kind, where, do) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"is not valid JSON ({_reason(error)})", where=where, do=do) from None


def _require_keys_once(content: bytes, where: str, do: str) -> None:
    """No mapping in a JSON document that does not fit has a key twice: messages about one of them would mislead.

    Raises:
        BadInput: one has.
    """

    def mapping(pairs: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise BadInput(f"has the key {_SHORT.repr(twice)} twice in one mapping", where=where, do=do)

    json.loads(content, object_pairs_hook=mapping)


def convert(document: object, kind: type[T], *, where: str, do: str = "write the file again") -> T:
    """A parsed document, made of dictionaries, lists, texts and numbers, as an object of the declared type.

    Raises:
        BadInput: see `decode_json`.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _misfit(error, document, kind, where, do) from None
    except (ValueError, RecursionError) as error:  # half a surrogate pair is a ValueError
        raise BadInput(f"cannot be read ({_reason(error)})", where=where, do=do) from None


def wrong(path: str, value: object, expected: str, where: str | None = None, do: str | None = None) -> BadInput:
    """The sentence for a value of the right type that cannot be meant, as the decoder would say it."""
    return BadInput(f"{path} is {_SHORT.repr(value)}, not {expected}", where=where, do=do)


@contextlib.contextmanager
def located(where: str | None, do: str | None = None) -> Iterator[None]:
    """What is refused inside is refused of what `where` names, with its own advice unless another is given."""
    try:
        yield
    except BadInput as error:
        raise BadInput(error.what, where=where, do=do or error.do) from None


def shipped_names(group: str) -> list[str]:
    """Names of the files in a folder of the shipped configs, sorted."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def find_yaml(name_or_path: str | Path, group: str, kind: str, or_else: str = "") -> Path:
    """The shipped file of that name, or else that file (`./A` is a file, `A` is the shipped one).

    Args:
        name_or_path: what the user gave.
        group: folder of the shipped configs.
        kind: what such a file describes, for messages.
        or_else: what else can be given, for messages.

    Raises:
        BadInput: neither a shipped name nor an existing path.
    """
    names = shipped_names(group)
    if str(name_or_path) in names:
        return conf_dir() / group / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if not exists(path):
        what = f"{_SHORT.repr(str(name_or_path))} is neither a known {kind} nor a file"
        raise BadInput(what, where=kind, do=f"choose from {', '.join(names)} or give a YAML file{or_else}")
    return path


def read_yaml(path: str | os.PathLike[str], kind: type[T], *, do: str) -> T:
    """The YAML document in a file as an object of the declared type.

    Args:
        path: the file.
        kind: the declared type.
        do: what belongs into such a file, for messages.

    Raises:
        BadInput: the file cannot be read, is no YAML, or does not fit the declaration.
    """
    return convert(load_yaml(path, do), kind, where=str(path), do=do)


def load_yaml(path: str | os.PathLike[str], do: str) -> object:
    """The document in a YAML file, made of dictionaries, lists, texts, finite numbers, booleans and None.

    Raises:
        BadInput: the file cannot be read, is no YAML, or is too large; `do` says in messages what belongs there.
    """
    return parse_yaml(read_bytes(path, LARGEST_YAML_BYTES), str(path), do)


def parse_yaml(content: bytes, where: str, do: str) -> object:
    """The document of a YAML file's content; see `load_yaml`."""
    import yaml

    try:
        document = _parsed_yaml(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        reason = f" ({_KEY_TWICE})" if getattr(error, "problem", None) == _KEY_TWICE else ""
        raise BadInput(f"is not valid YAML{place}{reason}", where=where, do=do) from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError):
        # PyYAML's constructors raise whatever Python raises for `!!int ""`, `!!bool maybe` and `!!timestamp foo`
        raise BadInput("is not valid YAML", where=where, do=do) from None
    if _values(document, {}) > LARGEST_YAML_VALUES:
        raise BadInput("is not valid YAML: its aliases repeat too much", where=where, do=do)
    return document


@functools.lru_cache(64)
def _parsed_yaml(content: bytes) -> object:
    """The document in a YAML file, whose readers leave it as it is: a shipped device is read for every cluster of it.

    Raises:
        yaml.YAMLError, ValueError and others: see `load_yaml`.
    """
    import yaml

    return yaml.load(content, _loader())  # a SafeLoader, which makes nothing but plain values


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader with YAML 1.2's numbers, without dates and merge keys, and without NaN and infinity."""
    import yaml

    deepest = 32  # of lists and mappings in each other

    class Loader(yaml.SafeLoader):
        """A whole number may be written as `1e3`: it is one wherever a whole number belongs."""

        depth = 0

        def fetch_flow_collection_start(self, TokenClass: Any) -> None:
            """The token of a bracket; PyYAML looks a thousand of them ahead, which takes seconds if none closes."""
            if self.flow_level >= deepest:
                raise yaml.scanner.ScannerError(None, None, "it is nested too deeply")
            super().fetch_flow_collection_start(TokenClass)

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            """The next node, if it is not in too many others."""
            self.depth += 1
            if self.depth > deepest:
                raise yaml.composer.ComposerError(None, None, "it is nested too deeply")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """The mapping; of a key that stands there twice YAML 1.2 allows none, and one of them would be ignored."""
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) < len(keys):
                raise yaml.constructor.ConstructorError(None, None, _KEY_TWICE, node.start_mark)
            return super().construct_mapping(node, deep)

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Merge nothing: `<<` is a key like any other, as thirty lines of merged merges would fill the memory."""

        def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
            """The text of a scalar; half a surrogate pair, which no file and no terminal takes, is a ValueError."""
            text = super().construct_scalar(node)
            text.encode()
            return text

    def number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float | int:
        value = float(loader.construct_yaml_float(node))
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, "the number is not finite", node.start_mark)
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("timestamp", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_constructor("tag:yaml.org,2002:float", number)
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
    return Loader


def _values(document: object, counts: dict[int, int]) -> int:
    """How many values a parsed document has with every alias written out; one inside itself counts as infinite."""
    if not isinstance(document, (dict, list, tuple, set)):
        return 1
    if id(document) not in counts:
        counts[id(document)] = LARGEST_YAML_VALUES + 1  # until it is counted: who meets it inside itself has too many
        parts = [*document, *document.values()] if isinstance(document, dict) else document
        counts[id(document)] = min(1 + sum(_values(part, counts) for part in parts), LARGEST_YAML_VALUES + 1)
    return counts[id(document)]


def _misfit(error: msgspec.ValidationError, document: object, kind: object, where: str, do: str) -> BadInput:
    """msgspec's message as our sentence, with the value at fault where the document is at hand."""
    what, path = _split(str(error))
    if path.startswith("key in "):
        owner = path.removeprefix("key in ")
        return BadInput(f"a key of {owner} is not {_expected(what)}", where=where, do=do)
    path, value, declared = _node_at(document, path, what, kind)
    if match := re.fullmatch(r"Object missing required field `(.*)`", what, re.DOTALL):
        return BadInput(f"{path}.{match[1]} is missing", where=where, do=do)
    path = "the document" if path == "$" else path
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        return BadInput(f"{path} has the unknown key {_SHORT.repr(match[1])}", where=where, do=do)
    choices = sorted(str(value) for part in declared if get_origin(part) is Literal for value in get_args(part))
    expected = (" or ".join(choices) if what.startswith("Invalid enum") else "") or _expected(what)
    if value is msgspec.UNSET:
        return BadInput(f"{path} is not {expected}", where=where, do=do)
    return BadInput(f"{path} is {_SHORT.repr(value)}, not {expected}", where=where, do=do)


def _split(message: str) -> tuple[str, str]:
    """What is wrong, and the path: `$.stages[0]`, or `key in $.stages[0]`."""
    what, _, path = message.rpartition(" - at ")
    return (what, path.replace("`", "")) if what else (message, "$")


def _expected(what: str) -> str:
    """ "a whole number ≥ 1" of "Expected `int` >= 1"."""
    match = re.fullmatch(r"Expected `([^`]*)`(?:, got `[^`]*`)?(.*)", what, re.DOTALL)
    if not match:
        if "out of range" in what:
            return "a number of a size that can be meant"
        return "one of the values that it may have"
    kinds = " or ".join(_KINDS.get(name.strip(), name.strip()) for name in match[1].split("|"))
    limit = match[2].strip().replace(">=", "≥").replace("<=", "≤")
    if "regex" in limit:
        return "a text that is not blank"
    return f"{kinds} {limit}".removesuffix(".0").strip()


def _node_at(document: object, path: str, what: str, kind: object) -> tuple[str, object, list[object]]:
    """Where msgspec's path leads: to which value (UNSET if unknown), of which declared types.

    msgspec writes `[...]` for a key of a mapping. The path that is returned has that key as far as the document is at
    hand.
    """
    value, path_text, declared = document, "$", list(_alternatives(kind))
    steps = re.findall(r"\.([^.\[]+)|\[([^\]]*)\]", path.removeprefix("$"))
    for number, (key, index) in enumerate(steps):
        step = f".{key}" if key else f"[{index}]"
        parts = [part for owner in declared for part in _parts(owner, key)]
        if key:
            value = value.get(key, msgspec.UNSET) if isinstance(value, Mapping) else msgspec.UNSET
        elif index == "..." and isinstance(value, Mapping):
            rest = "".join(f".{name}" if name else f"[{place}]" for name, place in steps[number + 1 :])
            name = _key_at_fault(value, parts, f"${rest}", what)
            step = step if name is None else f".{name}"
            value = msgspec.UNSET if name is None else value[name]
        else:
            items = value if isinstance(value, list) else []
            value = items[int(index)] if index.isdigit() and int(index) < len(items) else msgspec.UNSET
        path_text, declared = path_text + step, [alternative for part in parts for alternative in _alternatives(part)]
    return path_text, value, declared


def _key_at_fault(values: Mapping[Any, object], declared: list[object], path: str, what: str) -> object:
    """The first key whose value, decoded alone, leads to the same message at the rest of the path; None if none."""
    for kind in declared:
        for name, value in values.items():
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                if _split(str(error)) == (what, path):
                    return name
            except (ValueError, RecursionError):
                continue
    return None


def _alternatives(kind: object) -> Iterator[object]:
    """The types that a declared type is made of: those of a union, without what `Annotated` adds."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        yield from (part for alternative in get_args(kind) for part in _alternatives(alternative))
    else:
        yield kind


def _parts(kind: object, key: str) -> list[Any]:
    """The declared types of what stands under a key, or at any index or key, of a type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.type for field in msgspec.structs.fields(kind) if field.encode_name == key]
    arguments = get_args(kind)
    if get_origin(kind) in (dict, Mapping):
        return list(arguments[1:])
    return [] if get_origin(kind) is Literal else [part for part in arguments if part is not ...]


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
