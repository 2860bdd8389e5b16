"""Piper's JSON: a graph worked out by hand, random graphs against PipeDream's format, and everything that is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_changes import with_value, without

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.graph_txt import parse_graph_txt
from automap_models.formats.planning_graphs import parse_piper

Document = dict[str, Any]


def _option(time_s: float, parameter: float = 0.0, per_micro_batch: float = 0.0, name: str = "vanilla") -> Document:
    return {
        "id": name,
        "timePerSample": time_s,
        "parameterSize": parameter,
        "memoryUsageA": per_micro_batch,
        "memoryUsageB": 2 * parameter,
        "syncTimeFw": {},
        "syncTimeBw": {},
    }


def _node(number: int, *runs: Document, **more: object) -> Document:
    return {"id": number, "TMPCs": {"1": list(runs)}, **more}


def _edge(source: int, dest: int, size: float) -> Document:
    return {"sourceId": source, "destId": dest, "communicationCost": size}


def _document(nodes: list[Document], edges: list[Document]) -> Document:
    top = {"maxDevices": 10, "maxMemoryPerDevice": 8e10, "bandwidth": 2.5e10, "mbsInBatch": 1920}
    return {**top, "nodes": nodes, "edges": edges}


def _profile(document: Document) -> Profile:
    return parse_piper(json.dumps(document).encode(), where="p.json", model="p")


GOOD = _document(
    [
        _node(5, _option(0.004, 10.0, 7.0, "activation recomp"), _option(0.003, 10.0, 50.0), name="Embedding"),
        _node(2, _option(0.0, 0.0, 8.0), name="tensor"),
        _node(9, _option(0.006, 20.0, 60.0), name="Layer"),
    ],
    [_edge(2, 5, 8.0), _edge(5, 9, 40.0), _edge(2, 9, 16.0)],
)
GOOD["nodes"][2]["TMPCs"]["2"] = [_option(0.001, 10.0, 30.0)]


def test_a_graph_worked_out_by_hand() -> None:
    profile = _profile(GOOD)
    assert profile.names == ("2", "5", "9")
    assert profile.layers == ("tensor", "Embedding", "Layer")
    np.testing.assert_array_equal(profile.C, [0, 0.003, 0.006])
    np.testing.assert_allclose(profile.C_fwd, [0, 0.001, 0.002])
    np.testing.assert_array_equal(profile.A, [16, 16 + 40, 0])  # node 2's output is its largest edge
    np.testing.assert_array_equal(profile.W, [0, 10, 20])
    np.testing.assert_array_equal(profile.stash, [8, 50, 60])
    assert profile.meta == {"model": "p", "source": "Piper JSON"}


def test_the_file_is_recognised_under_any_name_and_either_generation_of_it(tmp_path: Path) -> None:
    older = {**{key: value for key, value in GOOD.items() if key != "mbsInBatch"}, "maxBatchSize": 128}
    for i, document in enumerate((GOOD, older)):
        (tmp_path / f"{i}.dat").write_text(json.dumps(document))
        assert read_profile(tmp_path / f"{i}.dat").fingerprint == _profile(GOOD).fingerprint


def test_layers_without_names_make_a_profile_without_layers() -> None:
    document = _document([_node(1, _option(1.0)), _node(2, _option(1.0))], [_edge(1, 2, 3.0)])
    assert _profile(document).layers == ()


@st.composite
def _chains(draw: st.DrawFn) -> tuple[Document, str]:
    """The same graph as Piper JSON and as graph.txt."""
    n = draw(st.integers(2, 8))
    numbers = st.integers(0, 10**6)
    nodes, lines = [], []
    sizes = [draw(numbers) for _ in range(n)]
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n) if draw(st.booleans())]
    for i in range(n):
        ms, parameter = draw(numbers) + 1, draw(numbers)
        nodes.append(_node(i, _option(ms / 1e3, parameter, sizes[i]), name=f"layer {i}"))
        lines.append(
            f"{i} -- layer {i} -- forward_compute_time=0, backward_compute_time={ms}, "
            f"activation_size={sizes[i]}, parameter_size={parameter}"
        )
    lines += [f"\t{a} -- {b}" for a, b in pairs]
    edges = [_edge(a, b, sizes[a]) for a, b in pairs]
    return _document(draw(st.permutations(nodes)), draw(st.permutations(edges))), "\n".join(lines)


@given(_chains())
def test_the_same_graph_gives_the_same_profile_as_graph_txt(both: tuple[Document, str]) -> None:
    ours, theirs = _profile(both[0]), parse_graph_txt(both[1], source="g", model="g")
    assert (ours.names, ours.layers) == (theirs.names, theirs.layers)
    for key in ("C", "A", "W", "stash"):
        np.testing.assert_allclose(getattr(ours, key), getattr(theirs, key), rtol=1e-12)


REFUSED = [
    (without("nodes"), r"p\.json: \$\.nodes is missing"),
    (without("edges"), r"p\.json: \$\.edges is missing"),
    (with_value("nodes", value="many"), r"nodes is 'many', not a list"),
    (with_value("nodes", 1, "id", value=5), r"\$\.nodes\[1\]: node 5 was already given in \$\.nodes\[0\]"),
    (with_value("nodes", 1, "name", value=None), r"\$\.nodes\[1\]\.name is None, not a text"),
    (without("nodes", 0, "TMPCs"), r"\$\.nodes\[0\]\.TMPCs is missing"),
    (with_value("nodes", 0, "TMPCs", value=[]), r"\$\.nodes\[0\]\.TMPCs is \[\], not a mapping of keys to values"),
    (without("nodes", 0, "TMPCs", "1"), r"\$\.nodes\[0\]\.TMPCs has no way of running on one device"),
    (with_value("nodes", 0, "TMPCs", "1", value=[]), r"\$\.nodes\[0\]\.TMPCs has no way of running on one device"),
    (with_value("nodes", 0, "TMPCs", "1", value=3), r"\$\.nodes\[0\]\.TMPCs\.1 is 3, not a list"),
    (without("nodes", 0, "TMPCs", "1", 0, "timePerSample"), r"TMPCs\.1\[0\]\.timePerSample is missing"),
    (with_value("nodes", 0, "TMPCs", "1", 0, "timePerSample", value=-1), r"timePerSample is -1, not a number ≥ 0"),
    (with_value("nodes", 0, "TMPCs", "1", 1, "parameterSize", value="x"), r"parameterSize is 'x', not a number"),
    (without("nodes", 0, "TMPCs", "1", 1, "memoryUsageA"), r"memoryUsageA is missing"),
    (with_value("edges", 0, "sourceId", value=77), r"\$\.edges\[0\]: there is no node with id 77"),
    (with_value("edges", 0, "communicationCost", value=-8), r"\$\.edges\[0\]\.communicationCost is -8"),
    (with_value("edges", 0, "communicationCost", value=10**999), r"communicationCost is 10+\.\.\.0+, not a number of"),
    (with_value("edges", 0, value=_edge(9, 2, 8.0)), r"p\.json, \$\.edges\[\d+\]: the edges form a cycle, 2 → 9 → 2"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_mistake_in_the_file_is_named_in_one_sentence(spoil: Callable[[Document], None], message: str) -> None:
    document = copy.deepcopy(GOOD)
    spoil(document)
    with pytest.raises(BadInput, match=message) as refusal:
        parse_piper(json.dumps(document).encode(), where="p.json", model="p")
    assert "\n" not in str(refusal.value)


def test_every_truncation_of_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    text = json.dumps(GOOD)
    for length in range(1, len(text), 7):
        (tmp_path / "p.json").write_text(text[:length])
        with pytest.raises(BadInput, match=r"p\.json: is not valid JSON"):
            read_profile(tmp_path / "p.json")
