"""A profile's format is recognised from its content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.npz import write_npz

GRAPH = (
    "n1 -- a -- forward_compute_time=1, backward_compute_time=2, activation_size=3, parameter_size=4\n"
    "n2 -- b -- forward_compute_time=1, backward_compute_time=2, activation_size=3, parameter_size=4\n"
    "\tn1 -- n2\n"
)


@pytest.mark.parametrize("name", ["p.npz", "p.txt", "profile"])
def test_an_npz_file_is_recognised_under_any_name(tmp_path: Path, name: str) -> None:
    profile = Profile.create([1.0, 2.0], [3.0, 0.0], [4.0, 5.0])
    write_npz(tmp_path / name, profile)
    assert read_profile(tmp_path / name).fingerprint == profile.fingerprint


@pytest.mark.parametrize("name", ["graph.txt", "graph", "graph.json"])
def test_a_graph_txt_is_recognised_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(GRAPH)
    assert read_profile(str(tmp_path / name)).names == ("n1", "n2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"", "is empty; give an .npz file"),
        ("p.npz", b"", "is truncated or no .npz file"),
        ("p.npz", GRAPH.encode(), "is truncated or no .npz file"),
        ("p.dat", b"PK\x03\x04", "is truncated or no .npz file"),
        ("p.txt", b"hello", "is no profile in a known format"),
        ("p.pkl", b"\x80\x04\x95", "is no profile in a known format"),
        ("p.json", b'{"nodes": [" -- "]}', "is no profile in a known format"),
        ("p.txt", b"hello\n" + GRAPH.encode(), "line 1: is neither a node nor an edge"),
        ("p.txt", GRAPH.encode() + b"\xff", "is not UTF-8 text"),
    ],
)
def test_anything_else_is_one_sentence_with_the_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"{name}.*{message}") as refusal:
        read_profile(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_a_single_array_says_what_is_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.ones(3))
    with pytest.raises(BadInput, match=r"is a single array, not an \.npz file with C, A and W"):
        read_profile(tmp_path / "c.npy")


@pytest.mark.parametrize(("name", "message"), [("nowhere", "No such file"), (".", "Is a directory")])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(BadInput, match=rf"cannot be read \({message}"):
        read_profile(tmp_path / name)
