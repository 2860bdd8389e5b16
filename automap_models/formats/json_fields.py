"""JSON files read with every field's type checked, so that a wrong one is named instead of failing later."""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeGuard

from automap_models.errors import BadInput

_DO = "write the file again"


def finite(value: object) -> float | None:
    """The value as a float, or None when it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class Fields:
    """The fields of one JSON object; `where` says in messages where it stands."""

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, Mapping):
            raise BadInput(f"is {reprlib.repr(document)}, not a JSON object", where=where, do=_DO)
        self.document = document
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self.document

    def any(self, key: str) -> object:
        """The field, whatever it is.

        Raises:
            BadInput: it is missing; the same holds below, where a wrong type is refused, too.
        """
        if key not in self.document:
            raise BadInput(f"{key} is missing", where=self.where, do=_DO)
        value: object = self.document[key]
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self.any(key)
        return value if isinstance(value, str) else self.refuse(key, "a text")

    def whole(self, key: str) -> int:
        """An integer."""
        value = self.any(key)
        return value if _is_whole(value) else self.refuse(key, "a whole number")

    def number(self, key: str) -> float:
        """A finite number."""
        value = finite(self.any(key))
        return self.refuse(key, "a finite number") if value is None else value

    def flag(self, key: str) -> bool:
        """True or false, or 1 or 0."""
        value = self.any(key)
        if isinstance(value, bool) or (_is_whole(value) and value in (0, 1)):
            return bool(value)
        return self.refuse(key, "true or false")

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of integers."""
        value = self.any(key)
        if not isinstance(value, list) or not all(map(_is_whole, value)):
            return self.refuse(key, "a list of whole numbers")
        return tuple(value)

    def object(self, key: str) -> Fields:
        """An object in the object."""
        return Fields(self.any(key), f"{self.where}, {key}")

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        value = self.any(key)
        if not isinstance(value, list):
            return self.refuse(key, "a list")
        return [Fields(item, f"{self.where}, {key}[{i}]") for i, item in enumerate(value)]

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Say that a field is not what it should be.

        Raises:
            BadInput: always.
        """
        raise BadInput(f"{key} is {reprlib.repr(self.document[key])}, not {expected}", where=self.where, do=_DO)


def read_json(path: str | os.PathLike[str]) -> Fields:
    """The JSON object in a file.

    Raises:
        BadInput: the file cannot be read, is no JSON, no object, or holds NaN or infinity.
    """
    try:
        document = json.loads(Path(path).read_bytes().decode("utf-8-sig"), parse_constant=_no_constant)
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", where=str(path), do="check the path and its permissions"
        ) from None
    except (ValueError, RecursionError) as error:  # undecodable text is a ValueError, too
        raise BadInput(f"is not valid JSON ({error})", where=str(path), do=_DO) from None
    return Fields(document, str(path))


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
