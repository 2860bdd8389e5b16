"""Errors made for people: one sentence of what, where and what to do, and an exit code."""

from __future__ import annotations

import pytest

from automap_models.errors import AutomapError, BadInput, Infeasible


@pytest.mark.parametrize(
    ("where", "do", "sentence"),
    [
        (None, None, "it broke"),
        ("a.npz", None, "a.npz: it broke"),
        (None, "mend it", "it broke; mend it"),
        ("a.npz", "mend it", "a.npz: it broke; mend it"),
    ],
)
def test_an_error_is_one_sentence(where: str | None, do: str | None, sentence: str) -> None:
    error = BadInput("it broke", where=where, do=do)
    assert str(error) == sentence
    assert (error.what, error.where, error.do) == ("it broke", where, do)


@pytest.mark.parametrize(("kind", "code"), [(AutomapError, 1), (BadInput, 2), (Infeasible, 3)])
def test_each_kind_has_its_exit_code(kind: type[AutomapError], code: int) -> None:
    assert kind("x").exit_code == code
    assert issubclass(kind, AutomapError)
