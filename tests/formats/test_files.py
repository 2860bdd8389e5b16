"""A profile's format is recognised from its content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.files import holds_module, read_profile
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
        ("p.txt", b"", "is empty; a profile is an .npz file"),
        ("p.npz", b"", "is truncated or no .npz file"),
        ("p.npz", GRAPH.encode(), "is truncated or no .npz file"),
        ("p.dat", b"PK\x03\x04", "is truncated or no .npz file"),
        ("p.txt", b"hello", "is no profile in a known format"),
        ("p.pkl", b"\x80\x04\x95", "is no profile in a known format"),
        ("p.json", b'{"nodes": [" -- "]}', "is no profile in a known format"),
        ("p.txt", b"hello\n" + GRAPH.encode(), "line 1: is neither a node nor an edge"),
        ("p.txt", GRAPH.encode() + b"\xff", "is not UTF-8 text"),
        ("p.json", b'{"maxFPGAs": ', "is not valid JSON"),
        ("p.json", b"[1]", "is no profile in a known format"),
        ("p.json", b'{"schema": 1, "planner": "exact", "cuts": []}', "is a plan, not a profile"),
        ("p.json", b'{"kind": "operator", "planner": "milp"}', "is a plan.* automap search opp reads it"),
        ("p.json", b'{"kind": "data", "planner": "milp"}', "is a plan.* automap search adp reads it"),
        ("p.json", b'{"kind": "placement", "planner": "milp"}', "is a plan.* automap place reads it"),
    ],
)
def test_anything_else_is_one_sentence_with_the_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"{name}.*{message}") as refusal:
        read_profile(tmp_path / name)
    assert "\n" not in str(refusal.value)


def test_a_single_array_says_what_is_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.ones(3))
    with pytest.raises(BadInput, match=r"is a single array, not an \.npz file"):
        read_profile(tmp_path / "c.npy")


@pytest.mark.parametrize(("name", "message"), [("nowhere", "No such file"), (".", "Is a directory")])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(BadInput, match=rf"cannot be read \({message}"):
        read_profile(tmp_path / name)


MODULES = [
    b"HloModule jit_step, entry_computation_layout={(f32[2])->f32[2]}\n\nENTRY main {",
    b"\n// dumped by somebody\nHloModule a\n",
    b"module @jit_step attributes {mhlo.num_partitions = 1 : i32} {",
    b"module {\n",
    b"module attributes {} {\n",
    b'"builtin.module"() ({\n',
    b'#loc1 = loc("x")\nmodule @jit_step {',
    b"func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {",
    b"ML\xefR\rStableHLO_v1.0.0\x00",
]


@pytest.mark.parametrize("content", MODULES)
def test_a_module_is_no_profile_yet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "step").write_bytes(content)
    assert holds_module(tmp_path / "step")
    with pytest.raises(BadInput, match=r"is an HLO or StableHLO module.*make a profile of it with automap profile"):
        read_profile(tmp_path / "step")


@pytest.mark.parametrize("content", [b"", b"{}", b"module -- f -- forward_compute_time=1", b"modules", b"PK", b"# a"])
def test_what_begins_differently_is_no_module(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)
    assert not holds_module(tmp_path / "p")
