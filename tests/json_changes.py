"""Changes to a JSON document, for tests of what its reader refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
Change = Callable[[Document], None]


def with_value(*path: str | int, value: object) -> Change:
    """Puts a value where the path leads."""

    def change(document: Document) -> None:
        _inner(document, path)[path[-1]] = value

    return change


def without(*path: str | int) -> Change:
    """Takes out what the path leads to."""

    def change(document: Document) -> None:
        del _inner(document, path)[path[-1]]

    return change


def _inner(document: Document, path: tuple[str | int, ...]) -> Any:
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    return inner
