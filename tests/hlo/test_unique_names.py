"""Names of operations that functions bring again with every call: a file of 4 kB once took two minutes to read."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax")

from automap_models.hlo.mlir_walk import UniqueNames

NAMES = st.sampled_from(["add", "add.0", "add.1", "add.2", "add.3", "add.03", "add.x", "add.x.1", "mul", ".1"])


def next_free(name: str, taken: set[str]) -> str:
    """The same rule, number by number."""
    stem, _, number = name.rpartition(".")
    if not number.isdigit():
        stem, number = name, "0"
    return name if name not in taken else next(n for i in count(int(number) + 1) if (n := f"{stem}.{i}") not in taken)


@given(st.lists(NAMES, max_size=60))
def test_a_name_that_is_taken_gets_the_next_free_number(given_names: list[str]) -> None:
    names, taken = UniqueNames(), set[str]()
    for name in given_names:
        expected = next_free(name, taken)
        assert names.unique(name) == expected
        taken.add(expected)


def test_a_hundred_thousand_equal_names_are_numbered_in_one_go() -> None:
    names = UniqueNames()
    assert [names.unique("add") for _ in range(100_000)][-1] == "add.99999"
