"""What a profile accepts, fills in and refuses."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.errors import BadInput

GOOD: dict[str, object] = {"C": [1.0, 2.0, 3.0], "A": [4.0, 5.0, 0.0], "W": [0.0, 6.0, 7.0]}


def test_missing_arrays_are_filled_in() -> None:
    profile = Profile.create(**GOOD)
    np.testing.assert_allclose(profile.C_fwd, [1 / 3, 2 / 3, 1.0], rtol=1e-15)
    assert profile.stash.tolist() == [0, 0, 0]
    assert (profile.names, profile.layers, profile.meta) == ((), (), {})


def test_whole_numbers_become_float64() -> None:
    profile = Profile.create(C=np.array([1, 2], dtype=np.int32), A=[3, 4], W=np.array([5, 6], dtype=np.float32))
    assert all(a.dtype == np.float64 for a in (profile.C, profile.A, profile.W, profile.C_fwd, profile.stash))


def test_zeros_are_legal_but_not_everywhere() -> None:
    assert len(Profile.create(C=[0.0, 1.0], A=[0.0, 0.0], W=[0.0, 0.0], C_fwd=[0.0, 0.0], stash=[0.0, 0.0])) == 2
    assert len(Profile.create(C=[1.0, 1.0], A=[0.0, 0.0], W=[0.0, 0.0], C_fwd=[1.0, 1.0])) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": [1.0, np.nan, 3.0]}, "C[1] = nan is NaN"),
        ({"A": [1.0, 1.0, np.inf]}, "A[2] = inf is infinite"),
        ({"W": [-1.0, 1.0, 1.0]}, "W[0] = -1 is negative"),
        ({"A": [1.0, -np.inf, 1.0]}, "A[1] = -inf is infinite"),
        ({"stash": [0.0, -2.0, 0.0]}, "stash[1] = -2 is negative"),
        ({"C_fwd": [0.1, 0.1, np.nan]}, "C_fwd[2] = nan is NaN"),
        ({"C_fwd": [0.5, 2.5, 1.0]}, "C_fwd[1] = 2.5 s is more than C[1] = 2 s"),
        ({"A": [1.0, 2.0]}, "array A has 2 entries but C has 3"),
        ({"W": [1.0] * 4}, "array W has 4 entries but C has 3"),
        ({"stash": [1.0]}, "array stash has 1 entries but C has 3"),
        ({"C_fwd": [0.1, 0.1]}, "array C_fwd has 2 entries but C has 3"),
        ({"names": ["a", "b"]}, "array names has 2 entries but C has 3"),
        ({"layers": ["a", "b", "c", "d"]}, "array layers has 4 entries but C has 3"),
        ({"C": [1.0]}, "array C has 1 instruction(s), a pipeline needs at least 2"),
        ({"C": []}, "array C has 0 instruction(s), a pipeline needs at least 2"),
        ({"C": [0.0, 0.0, 0.0]}, "the times in C are all zero"),
        ({"C": [[1.0, 2.0, 3.0]]}, "array C has shape (1, 3)"),
        ({"A": 7.0}, "array A has shape ()"),
        ({"W": ["a", "b", "c"]}, "array W has dtype <U1"),
        ({"W": np.array([1.0, 2.0, 3.0], dtype=object)}, "array W has dtype object"),
        ({"A": [1j, 1j, 1j]}, "array A has dtype complex128"),
        ({"A": [True, False, True]}, "array A has dtype bool"),
    ],
)
def test_a_wrong_array_is_refused_by_name_and_index(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as refusal:
        Profile.create(**{**GOOD, **change}, source="some.npz")  # type: ignore[arg-type]
    assert refusal.value.exit_code == 2
    assert str(refusal.value).startswith("some.npz: ")
    assert refusal.value.do


def test_a_profile_cannot_be_changed_and_keeps_no_hold_on_what_it_was_made_of() -> None:
    compute = np.array([1.0, 2.0])
    profile = Profile.create(C=compute, A=[1.0, 1.0], W=[1.0, 1.0])
    compute[0] = 9.0
    assert profile.C[0] == 1.0
    assert compute.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        profile.C[0] = 5.0
    with pytest.raises(FrozenInstanceError):
        profile.C = compute  # type: ignore[misc]


@pytest.mark.parametrize("name", ["C", "A", "W", "C_fwd", "stash"])
def test_the_fingerprint_changes_with_the_last_bit_of_any_array(name: str) -> None:
    arrays = {**GOOD, "C_fwd": [0.5, 0.5, 0.5], "stash": [1.0, 1.0, 1.0]}
    changed = np.array(arrays[name], dtype=np.float64)
    changed[1] = np.nextafter(changed[1], np.inf)
    original = Profile.create(**arrays)  # type: ignore[arg-type]
    assert Profile.create(**{**arrays, name: changed}).fingerprint != original.fingerprint  # type: ignore[arg-type]
    assert Profile.create(**arrays, names="abc").fingerprint == original.fingerprint  # type: ignore[arg-type]


def test_labels_are_told_where_there_are_any() -> None:
    bare = Profile.create(**GOOD)
    named = Profile.create(**GOOD, names=["x", "y", "z"], layers=["a", "a/b", "c"], meta={"model": "toy"})
    assert (bare.name(1), bare.layer(1), bare.model) == ("instruction 1", "", "unnamed model")
    assert (named.name(1), named.layer(1), named.model) == ("y", "a/b", "toy")
