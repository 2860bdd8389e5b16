"""profile.npz: what is written is read back; everything else is refused with the array and the index."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from automap_models.core.profile import Profile, SharedParameter
from automap_models.errors import BadInput
from automap_models.formats.npz import read_npz, write_npz
from automap_models.version import __version__

ARRAYS = ("C", "A", "W", "C_fwd", "stash", "frozen")
SHARED = {"name": "tied", "bytes": 1.0, "instructions": [0, 2]}


def _good() -> dict[str, Any]:
    return {
        "C": np.array([3.0, 6.0, 0.0]),
        "A": np.array([10.0, 20.0, 0.0]),
        "W": np.array([1.0, 0.0, 4.0]),
        "C_fwd": np.array([1.0, 2.0, 0.0]),
        "stash": np.array([5.0, 5.0, 0.0]),
        "frozen": np.array([7.0, 0.0, 0.0]),
        "names": np.array(["a", "b", "c"]),
        "layers": np.array(["x/a", "x/b", "c"]),
        "meta": np.array('{"model": "tiny"}'),
    }


def _save(path: Path, **changes: Any) -> Path:
    arrays = {key: value for key, value in {**_good(), **changes}.items() if value is not None}
    np.savez_compressed(path, **arrays)
    return path


@st.composite
def _profiles(draw: st.DrawFn) -> Profile:
    n = draw(st.integers(2, 12))
    numbers = hnp.arrays(
        np.float64, n, elements=st.floats(0, 8e7, allow_subnormal=False)
    )  # 12 of them stay below the largest legal sum
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
    compute, weights, frozen = draw(numbers) + 1e-6, draw(numbers), draw(numbers | st.just(np.zeros(n)))

    def shared_of(held: Any) -> list[SharedParameter]:
        users = st.lists(st.integers(0, n - 1), min_size=2, unique=True).map(sorted)
        return [
            SharedParameter(draw(text), float(held[own[0]]) * draw(st.floats(0, 1)), tuple(own))
            for own in draw(st.lists(users, max_size=2))
        ]

    return Profile.create(
        C=compute,
        A=draw(numbers),
        W=weights,
        C_fwd=compute * draw(st.floats(0, 1)),
        stash=draw(numbers),
        frozen=frozen,
        names=draw(st.lists(text, min_size=n, max_size=n) | st.just([])),
        layers=draw(st.lists(text, min_size=n, max_size=n) | st.just([])),
        meta=draw(st.dictionaries(text, text | st.integers() | st.none(), max_size=3)),
        shared_parameters=shared_of(weights),
        shared_frozen=shared_of(frozen),
    )


@given(profile=_profiles())
def test_a_written_profile_is_read_back_equal(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("npz") / "p.npz"
    write_npz(path, profile)
    back = read_npz(path)
    for key in ARRAYS:
        np.testing.assert_array_equal(getattr(back, key), getattr(profile, key))
    assert (back.names, back.layers) == (profile.names, profile.layers)
    assert back.shared_parameters == profile.shared_parameters
    assert back.shared_frozen == profile.shared_frozen
    assert back.fingerprint == profile.fingerprint
    assert back.fingerprint == profile.fingerprint == back.meta["fingerprint"]
    assert back.meta["automap_version"] == __version__
    assert {key: back.meta[key] for key in profile.meta} == dict(profile.meta)


def test_equal_profiles_give_equal_bytes_also_after_a_round_trip(tmp_path: Path) -> None:
    first, second = tmp_path / "1.npz", tmp_path / "2.npz"
    write_npz(first, read_npz(_save(tmp_path / "p.npz")))
    write_npz(second, read_npz(first))
    assert first.read_bytes() == second.read_bytes()


def test_a_file_name_needs_no_suffix(tmp_path: Path) -> None:
    write_npz(tmp_path / "profile", read_npz(_save(tmp_path / "p.npz")))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.npz", "profile"]
    assert len(read_npz(tmp_path / "profile")) == 3


def test_what_is_missing_gets_the_defaults_of_the_cost_model(tmp_path: Path) -> None:
    missing = dict.fromkeys(("C_fwd", "stash", "names", "layers", "meta"))
    profile = read_npz(_save(tmp_path / "p.npz", **missing))
    np.testing.assert_array_equal(profile.C_fwd, profile.C / 3)
    np.testing.assert_array_equal(profile.stash, np.zeros(3))
    assert (profile.names, profile.layers, profile.meta) == ((), (), {})


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8"])
def test_other_floats_are_widened(tmp_path: Path, dtype: str) -> None:
    profile = read_npz(_save(tmp_path / "p.npz", C=np.array([3.0, 6.0, 0.0], dtype=dtype)))
    assert profile.C.dtype == np.float64
    assert profile.C.tolist() == [3.0, 6.0, 0.0]


def test_unknown_keys_are_left_alone(tmp_path: Path) -> None:
    assert len(read_npz(_save(tmp_path / "p.npz", extra=np.array([object()])))) == 3


def _with(key: str, index: int, value: float) -> dict[str, Any]:
    array = _good()[key].copy()
    array[index] = value
    return {key: array}


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({key: None}, f"array {key} is missing") for key in ("C", "A", "W")),
    *(({key: np.array([1, 2, 3])}, f"array {key} has dtype int64") for key in ARRAYS),
    ({"A": np.array(["1", "2", "3"])}, "array A has dtype <U1"),
    ({"A": np.array([True, False, True])}, "array A has dtype bool"),
    ({"A": np.array([1j, 2j, 3j])}, "array A has dtype complex128"),
    *(({key: np.array([1.0, None, "x"], dtype=object)}, f"array {key} holds Python objects") for key in ARRAYS),
    *(({key: np.ones(4)}, rf"array {key} has 4 entries but C has 3") for key in ARRAYS[1:]),
    ({"C": np.ones(2), "names": None, "layers": None}, r"array A has 3 entries but C has 2"),
    ({key: np.ones(1) for key in ARRAYS} | {"names": None, "layers": None}, r"array C has 1 instruction"),
    ({key: np.ones(0) for key in ARRAYS} | {"names": None, "layers": None}, r"array C has 0 instruction"),
    ({"A": np.ones((3, 1))}, r"array A has shape \(3, 1\)"),
    ({"A": np.float64(1.0)}, r"array A has shape \(\)"),
    *((_with(key, 1, np.nan), rf"{key}\[1\] = nan is NaN") for key in ARRAYS),
    *((_with(key, 2, np.inf), rf"{key}\[2\] = inf is infinite") for key in ARRAYS),
    *((_with(key, 0, -1.5), rf"{key}\[0\] = -1.5 is negative") for key in ARRAYS),
    (_with("C_fwd", 1, 7.0), r"C_fwd\[1\] = 7 s is more than C\[1\] = 6 s"),
    ({"C": np.zeros(3), "C_fwd": np.zeros(3)}, "times in C are all zero"),
    *(({key: np.array(["a", "b"])}, rf"array {key} has dtype <U1 and shape \(2,\)") for key in ("names", "layers")),
    *(({key: np.array([], dtype=str)}, rf"array {key} has .* shape \(0,\)") for key in ("names", "layers")),
    *(({key: np.ones(3)}, rf"array {key} has dtype float64") for key in ("names", "layers")),
    *(({key: np.array(["a", 1, None], dtype=object)}, f"array {key} holds") for key in ("names", "layers", "meta")),
    ({"shared_parameters": np.array("{}")}, "shared_parameters: .* is .*, not a list"),
    *(
        ({"shared_parameters": np.array(json.dumps([{**SHARED, **change}]))}, message)
        for change, message in (
            ({"bytes": -1}, r"\$\[0\].bytes is -1"),
            ({"instructions": [0, 1.5]}, r"\$\[0\].instructions\[1\] is 1.5"),
            ({"instructions": [0, 3]}, r"shared_parameters\[0\] \(tied\) is used by instructions 0 to 3, but C has 3"),
            ({"instructions": [2, 0]}, r"shared_parameters\[0\] \(tied\) is used by instructions \[2, 0\]"),
            ({"instructions": [2]}, r"shared_parameters\[0\] \(tied\) is used by instructions \[2\]"),
            ({"bytes": 2.0}, r"shared_parameters\[0\] \(tied\) takes 2 bytes, but W\[0\] is 1"),
            ({"shape": [1]}, "shape"),
        )
    ),
    ({"meta": np.array("{broken")}, "meta: is not valid JSON"),
    ({"meta": np.array("")}, "meta: is not valid JSON"),
    ({"meta": np.array('{"a": NaN}')}, "meta: is not valid JSON"),
    ({"meta": np.array("[" * 100_000)}, "meta: the document is not a mapping"),
    ({"meta": np.array("[1]")}, r"meta: the document is \[1\], not a mapping"),
    ({"meta": np.array(["{}"])}, r"meta has dtype <U2 and shape \(1,\)"),
    ({"meta": np.array(3.0)}, "meta has dtype float64"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wrong_array_is_refused_by_name_and_index(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = _save(tmp_path / "p.npz", **changes)
    with pytest.raises(BadInput, match=rf"p\.npz.*{message}"):
        read_npz(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.npz: cannot be read \(No such file"):
        read_npz(tmp_path / "nowhere.npz")


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot be read \(Is a directory"):
        read_npz(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"C A W", b"\x80\x04K\x01.", json.dumps([1]).encode()])
def test_something_else_is_no_npz_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"p\.npz: is truncated or no \.npz file"):
        read_npz(tmp_path / "p.npz")


def test_a_single_array_is_no_profile(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.ones(3))
    with pytest.raises(BadInput, match="is a single array"):
        read_npz(tmp_path / "p.npy")


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "p.npz", "w") as archive:
        archive.writestr("C", b"3.0 6.0")
    with pytest.raises(BadInput, match="array C is missing"):
        read_npz(tmp_path / "p.npz")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = _save(tmp_path / "p.npz").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "p.npz").write_bytes(whole[:length])
        with pytest.raises(BadInput):
            read_npz(tmp_path / "p.npz")


def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path: Path) -> None:
    whole = _save(tmp_path / "p.npz").read_bytes()
    draw = random.Random(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "p.npz").write_bytes(bytes(damaged))
        try:
            read_npz(tmp_path / "p.npz")
        except BadInput as error:
            assert "\n" not in str(error)


def test_nothing_is_written_over_an_old_file_when_writing_fails(tmp_path: Path) -> None:
    profile = read_npz(_save(tmp_path / "p.npz"))
    before = (tmp_path / "p.npz").read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_npz(tmp_path / "p.npz", Profile.create([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], meta={"bad": float("nan")}))
    assert (tmp_path / "p.npz").read_bytes() == before
    assert len(profile) == 3
