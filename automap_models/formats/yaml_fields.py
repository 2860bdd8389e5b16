"""YAML descriptions, shipped by name or the user's own file, with every field's type checked."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path

from automap_models.errors import BadInput
from automap_models.resources import conf_dir

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1  # YAML aliases make small files with values that would fill the screen


def shipped_names(group: str) -> list[str]:
    """Names of the files in a folder of the shipped configs, sorted."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def find_yaml(name_or_path: str | Path, group: str, kind: str) -> Path:
    """The shipped file of that name, or else that file (`./A` is a file, `A` is the shipped one).

    Args:
        group: folder of the shipped configs.
        kind: what such a file describes, for messages.

    Raises:
        BadInput: neither a shipped name nor an existing path.
    """
    known = shipped_names(group)
    if str(name_or_path) in known:
        return conf_dir() / group / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if not path.exists():
        raise BadInput(
            f"{str(name_or_path)!r} is neither a known {kind} nor a file",
            where=kind,
            do=f"choose from {', '.join(known)} or give a YAML file",
        )
    return path


def load_yaml(path: Path, do: str) -> object:
    """The document in a file; `do` says in messages what belongs there.

    Raises:
        BadInput: the file cannot be read or is no YAML.
    """
    import yaml

    try:
        return yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", where=str(path), do="check the path and its permissions"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        raise BadInput(f"is not valid YAML{place}", where=str(path), do=do) from error


class YamlFields:
    """The fields of one mapping; numbers may be written as text, since YAML reads `130e9` as one.

    Args:
        document: a parsed YAML document.
        source: where it comes from, for messages.
        required, optional: the keys it may have; None where any key is welcome.
        do: what belongs there, for messages.

    Raises:
        BadInput: it is no mapping, or a key is missing or unknown; its methods raise when a value has a wrong type.
    """

    def __init__(
        self, document: object, source: str, *, required: Collection[str], optional: Collection[str] | None, do: str
    ) -> None:
        if not isinstance(document, Mapping):
            raise BadInput(f"holds {_SHORT.repr(document)}, not `key: value` lines", where=source, do=do)
        for key in document:
            if optional is not None and key not in (*required, *optional):
                raise BadInput(f"unknown key {_SHORT.repr(key)}", where=source, do=do)
        for key in required:
            if key not in document:
                raise BadInput(f"key {key} is missing", where=source, do=do)
        self.document: Mapping[object, object] = document
        self.source = source

    def text(self, key: str, default: str) -> str:
        """A text that is not blank."""
        value = self.document.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(key, "give a text, in quotes if it looks like a number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number, of any size and sign."""
        value = self.document.get(key, default)
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)
            except (ValueError, OverflowError):
                pass
        raise self._wrong(key, "give a number such as 130e9")

    def whole(self, key: str) -> int:
        """A number without a fraction."""
        number = self.number(key)
        if not number.is_integer():
            raise self._wrong(key, "give a whole number ≥ 1")
        return int(number)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.document.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "give true or false")
        return value

    def numbers(self, key: str, do: str) -> dict[str, float]:
        """A mapping from texts to numbers."""
        inner = YamlFields(self.document[key], f"{self.source}, {key}", required=(), optional=None, do=do)
        for name in inner.document:
            if not isinstance(name, str):
                raise BadInput(f"unknown key {_SHORT.repr(name)}", where=inner.source, do=do)
        return {str(name): inner.number(str(name)) for name in inner.document}

    def _wrong(self, key: str, do: str) -> BadInput:
        return BadInput(f"{key} is {_SHORT.repr(self.document.get(key))}", where=self.source, do=do)
