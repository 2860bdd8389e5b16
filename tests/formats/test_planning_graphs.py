"""Device-placement JSON: the published files, a training step worked out by hand, random graphs, mistakes."""

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

from automap_models.core.placement import PlacementGraph
from automap_models.core.profile import Profile, SharedParameter
from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.graph_txt import read_graph_txt
from automap_models.formats.planning_graphs import parse_placement, profile_from_placement, read_placement

Document = dict[str, Any]

# Value of everything on one accelerator, ms: Tarnawski et al. (NeurIPS 2020), their program's -oneFpga.
ONE_DEVICE_MS = {
    "throughput-inputs_LayerGraphs_bert24_inference": 92.41,
    "throughput-inputs_LayerGraphs_bert24_training": 217.81,
    "throughput-inputs_LayerGraphs_resnet50_inference": 201.45,
    "throughput-inputs_LayerGraphs_resnet50_training": 462.38,
    "throughput-inputs_OperatorGraphs_bert_l-3_inference": 49.35,
    "throughput-inputs_OperatorGraphs_bert_l-3_training": 122.99,
}


def _node(number: int, ms: float, **more: object) -> Document:
    plain = {"id": number, "supportedOnFpga": 1, "cpuLatency": 10 * ms, "fpgaLatency": ms, "isBackwardNode": 0}
    return {**plain, **more}


def _edge(source: int, dest: int, cost: float = 0.0, **more: object) -> Document:
    return {"sourceId": source, "destId": dest, "cost": cost, **more}


def _document(nodes: list[Document], edges: list[Document]) -> Document:
    return {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}


def _graph(document: Document) -> PlacementGraph:
    return parse_placement(json.dumps(document).encode(), where="g.json", model="g")


def _profile(document: Document) -> Profile:
    return profile_from_placement(_graph(document))


@pytest.mark.parametrize("name", ONE_DEVICE_MS)
def test_no_time_of_a_published_graph_is_lost(name: str, shared_data: Path) -> None:
    path = shared_data / "placement_graphs" / f"{name}.json"
    profile = read_profile(path)
    assert profile.C.sum() * 1e3 == pytest.approx(ONE_DEVICE_MS[name], abs=0.005)
    forward_ms = ONE_DEVICE_MS[name.replace("training", "inference")]
    assert profile.C_fwd.sum() * 1e3 == pytest.approx(forward_ms, abs=0.005)
    assert profile.meta["source"] == "dnn-partitioning JSON"


def test_a_layer_graph_is_the_profile_that_it_was_made_from(shared_data: Path) -> None:
    """dnn-partitioning took its ResNet-50 from PipeDream's graph.txt, which says everything a profile asks for."""
    name = "throughput-inputs_LayerGraphs_resnet50_training"
    ours = read_profile(shared_data / "placement_graphs" / f"{name}.json")
    theirs = read_graph_txt(shared_data / "v100_profiles" / "resnet50.txt")
    assert ours.layers == ("node1", *theirs.names)  # its first node is the input, which its JSON does not say
    np.testing.assert_allclose(ours.C[1:], theirs.C, rtol=1e-12)
    np.testing.assert_allclose(ours.C_fwd[1:], theirs.C_fwd, rtol=1e-12)
    np.testing.assert_array_equal(ours.A[1:], theirs.A)
    np.testing.assert_array_equal(ours.W[1:-1], theirs.W[:-1])
    np.testing.assert_array_equal(ours.stash[1:-1], theirs.stash[:-1])
    logits_bytes = 128 * 1000 * 4.0  # nobody reads the last layer's output, so the file does not tell its size
    assert ours.W[-1] - theirs.W[-1] == logits_bytes == theirs.stash[-1] - ours.stash[-1]


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_the_parameters_of_an_operator_graph_are_those_of_the_architecture(kind: str, shared_data: Path) -> None:
    """A BERT of 3 layers: hidden 128, intermediate 4096, 512 positions, 30528 tokens, tied output embedding."""
    profile = read_profile(shared_data / "placement_graphs" / f"throughput-inputs_OperatorGraphs_bert_l-3_{kind}.json")
    hidden, wide, tokens = 128, 4096, 30528
    embeddings = (tokens + 512 + 2 + 2) * hidden
    layer = 4 * (hidden + 1) * hidden + (hidden + 1) * wide + (wide + 1) * hidden + 4 * hidden
    heads = 2 * (hidden + 1) * hidden + 2 * hidden + tokens + 2 * hidden + 2
    assert profile.W.sum() == 4 * (embeddings + 3 * layer + heads)
    (tied,) = profile.shared_parameters
    users = [profile.layer(i) for i in tied.instructions]
    assert (tied.name, users) == ("bert.embeddings.word_embeddings.weight", ["Gather1", "Transpose13"])
    assert tied.nbytes == 4 * tokens * hidden
    assert all("weight" not in layer for layer in profile.layers)  # variables are no instructions


def test_backward_nodes_without_forward_classmates_are_counted(shared_data: Path) -> None:
    path = shared_data / "placement_graphs" / "throughput-inputs_OperatorGraphs_bert_l-3_training.json"
    document = json.loads(path.read_text())
    forward = {node["colorClass"] for node in document["nodes"] if "colorClass" in node and not node["isBackwardNode"]}
    alone = [n for n in document["nodes"] if n["isBackwardNode"] and n.get("colorClass") not in forward]
    reported = read_profile(path).meta["backward_without_forward"]
    assert isinstance(reported, dict)
    assert reported["nodes"] == len(alone)
    assert reported["time_s"] == pytest.approx(sum(n["fpgaLatency"] for n in alone) / 1e3)


def test_a_training_step_worked_out_by_hand() -> None:
    """x → f1 → f2 → f3 with a variable read by f1 and f3; f1's class has two forward and one backward node."""
    nodes = [
        _node(10, 0.0, cpuLatency=0.0, size=400.0, name="weight"),
        _node(11, 2.0, colorClass=5),
        _node(12, 6.0, colorClass=5),
        _node(13, 1.0, colorClass=7),
        _node(21, 4.0, colorClass=5, isBackwardNode=True),
        _node(22, 3.0, colorClass=7, isBackwardNode=True),
        _node(23, 0.5, isBackwardNode=True),  # no class: it feeds 21, so it counts with 21's operators
    ]
    edges = [
        *(_edge(10, reader, 7.0, size=400.0) for reader in (11, 13, 21)),
        _edge(11, 12, 1.0, size=100.0),
        _edge(12, 13, 2.0, size=60.0),
        _edge(11, 21, 1.0, size=100.0),
        _edge(13, 22, 0.0, size=8.0),
        _edge(22, 23, 3.0, size=60.0),
        _edge(23, 21, 3.0, size=60.0),
    ]
    profile = _profile(_document(nodes, edges))
    assert profile.names == ("11", "12", "13")
    np.testing.assert_allclose(profile.C_fwd * 1e3, [2, 6, 1])
    np.testing.assert_allclose(profile.C * 1e3, [2 + 4.5 / 4, 6 + 4.5 * 3 / 4, 1 + 3])
    np.testing.assert_array_equal(profile.A, [100, 60, 0])
    np.testing.assert_array_equal(profile.W, [400, 0, 0])
    np.testing.assert_array_equal(profile.stash, [100, 0, 8])
    assert profile.shared_parameters == (SharedParameter("weight", 400.0, (0, 2)),)
    assert profile.meta["backward_without_forward"] == {"nodes": 1, "time_s": 0.5e-3}


def test_a_backward_node_that_no_edge_leads_to_counts_with_the_last_operator() -> None:
    nodes = [_node(1, 1.0), _node(2, 1.0), _node(3, 5.0, isBackwardNode=1)]
    profile = _profile(_document(nodes, [_edge(1, 2)]))
    np.testing.assert_allclose(profile.C * 1e3, [1, 6])


def test_a_class_without_forward_time_shares_its_backward_time_evenly() -> None:
    nodes = [_node(1, 0.0, colorClass=1), _node(2, 0.0, colorClass=1), _node(3, 5.0, colorClass=1, isBackwardNode=1)]
    profile = _profile(_document(nodes, [_edge(1, 2)]))
    np.testing.assert_allclose(profile.C * 1e3, [2.5, 2.5])


def test_in_a_layer_graph_parameters_are_what_memory_is_not_output() -> None:
    nodes = [_node(1, 1.0, size=150.0), _node(2, 1.0, size=30.0), _node(3, 0.0, size=80.0), _node(4, 2.0, size=9.0)]
    profile = _profile(_document(nodes, [_edge(1, 2, size=100.0), _edge(2, 3, size=30.0), _edge(2, 4, size=30.0)]))
    assert dict(zip(profile.names, profile.W, strict=True)) == {"1": 50.0, "2": 0.0, "3": 0.0, "4": 9.0}


def test_a_file_without_sizes_gets_them_from_the_costs_of_a_2_gib_link() -> None:
    profile = _profile(_document([_node(1, 1.0), _node(2, 1.0)], [_edge(1, 2, cost=500.0)]))
    np.testing.assert_array_equal(profile.A, [2.0**30, 0.0])


def test_the_graph_keeps_what_a_placement_needs() -> None:
    nodes = [
        _node(3, 4.0, colorClass=9, size=7.0, name="b", supportedOnFpga=False, isBackwardNode=True),
        _node(1, 1.0, colorClass=9, name="a"),
        _node(2, 2.0),
        _node(0, 3.0),
    ]
    graph = _graph(_document(nodes, [_edge(1, 3, 5.0), _edge(1, 2, 5.0), _edge(1, 3, 5.0), _edge(2, 3, 6.0)]))
    assert graph.ids == (0, 1, 2, 3)
    assert graph.names == ("", "a", "", "b")
    np.testing.assert_allclose(graph.accelerator_s, [3e-3, 1e-3, 2e-3, 4e-3])
    np.testing.assert_allclose(graph.cpu_s, [30e-3, 10e-3, 20e-3, 40e-3])
    np.testing.assert_array_equal(graph.memory_bytes, [0, 0, 0, 7])
    np.testing.assert_allclose(graph.transfer_s, [0, 5e-3, 6e-3, 0])
    assert graph.supported.tolist() == [True, True, True, False]
    assert graph.backward.tolist() == [False, False, False, True]
    assert graph.classes.tolist() == [0, 1, 2, 1]
    assert graph.edges.tolist() == [[1, 2], [1, 3], [2, 3]]
    assert graph.successors() == [[], [2, 3], [3], []]
    assert (graph.accelerators, graph.cpus, graph.accelerator_bytes) == (2, 1, 1e9)
    assert graph.is_training


def test_a_published_graph_has_its_counts(shared_data: Path) -> None:
    graph = read_placement(shared_data / "placement_graphs/throughput-inputs_OperatorGraphs_bert_l-3_training.json")
    assert (len(graph), len(graph.edges), int(graph.backward.sum())) == (600, 817, 365)
    assert (graph.accelerators, graph.cpus, graph.accelerator_bytes) == (3, 1, 17185374208.0)
    assert len(set(graph.classes.tolist())) == 121 + 21  # colour classes, and nodes without one


@st.composite
def _documents(draw: st.DrawFn) -> Document:
    ids = draw(st.lists(st.integers(-50, 50), min_size=2, max_size=8, unique=True))
    forward = draw(st.integers(2, len(ids)))
    ms = st.integers(1, 1000).map(lambda k: k / 8)
    nodes = []
    for i, number in enumerate(ids):
        colour = draw(st.one_of(st.just({}), st.builds(lambda c: {"colorClass": c}, st.integers(0, 2))))
        size = draw(st.integers(0, 99))
        nodes.append(_node(number, draw(ms), isBackwardNode=int(i >= forward), size=float(size), **colour))
    costs = [draw(st.integers(0, 9)) for _ in ids]
    edges = [
        _edge(ids[a], ids[b], costs[a], size=float(10 * costs[a]))
        for a in range(len(ids))
        for b in range(a + 1, len(ids))
        if draw(st.booleans())
    ]
    return _document(draw(st.permutations(nodes)), draw(st.permutations(edges)))


@given(_documents())
def test_a_random_graph_keeps_its_time_and_its_order(document: Document) -> None:
    profile = _profile(document)
    forward = {str(n["id"]): n for n in document["nodes"] if not n["isBackwardNode"]}
    edges = [(str(e["sourceId"]), str(e["destId"]), e["size"]) for e in document["edges"]]
    position = {name: i for i, name in enumerate(profile.names)}
    assert position.keys() == forward.keys()
    assert all(position[a] < position[b] for a, b, _ in edges if a in position and b in position)
    assert profile.C.sum() * 1e3 == pytest.approx(sum(n["fpgaLatency"] for n in document["nodes"]))
    np.testing.assert_allclose(profile.C_fwd * 1e3, [forward[name]["fpgaLatency"] for name in profile.names])
    for i in range(len(profile)):
        crossing = {a: size for a, b, size in edges if b in position and position.get(a, i + 1) <= i < position[b]}
        assert profile.A[i] == sum(crossing.values())


GOOD = _document(
    [
        _node(1, 1.0, size=5.0),
        _node(2, 1.0, colorClass=3),
        _node(3, 1.0, name="c"),
        _node(4, 1.0, isBackwardNode=True, colorClass=3),
    ],
    [_edge(1, 2, 4.0, size=3.0), _edge(2, 3, 1.0), _edge(3, 4)],
)


def _appended(key: str, item: object) -> Callable[[Document], None]:
    return lambda document: document[key].append(item)


REFUSED = [
    (without("nodes"), r"g\.json: \$\.nodes is missing"),
    (without("edges"), r"g\.json: \$\.edges is missing"),
    (without("maxFPGAs"), r"g\.json: \$\.maxFPGAs is missing"),
    (without("maxSizePerFPGA"), r"g\.json: \$\.maxSizePerFPGA is missing"),
    (without("maxCPUs"), r"g\.json: \$\.maxCPUs is missing"),
    (with_value("maxFPGAs", value=-1), r"maxFPGAs is -1, not a whole number ≥ 0"),
    (with_value("maxFPGAs", value=2.5), r"maxFPGAs is 2\.5, not a whole number"),
    (with_value("maxSizePerFPGA", value=-1), r"maxSizePerFPGA is -1, not a number ≥ 0"),
    (with_value("nodes", value=[]), r"nodes is empty"),
    (with_value("nodes", value={}), r"nodes is \{\}, not a list"),
    (with_value("nodes", 0, value=7), r"\$\.nodes\[0\] is 7, not a mapping of keys to values"),
    (without("nodes", 1, "id"), r"\$\.nodes\[1\]\.id is missing"),
    (with_value("nodes", 1, "id", value="2"), r"\$\.nodes\[1\]\.id is '2', not a whole number"),
    (with_value("nodes", 1, "id", value=True), r"\$\.nodes\[1\]\.id is True, not a whole number"),
    (with_value("nodes", 1, "id", value=1), r"\$\.nodes\[1\]: node 1 was already given in \$\.nodes\[0\]"),
    (without("nodes", 1, "fpgaLatency"), r"\$\.nodes\[1\]\.fpgaLatency is missing"),
    (with_value("nodes", 1, "fpgaLatency", value=-1), r"\$\.nodes\[1\]\.fpgaLatency is -1, not a number ≥ 0"),
    (with_value("nodes", 1, "fpgaLatency", value="1"), r"\$\.nodes\[1\]\.fpgaLatency is '1', not a number"),
    (with_value("nodes", 1, "fpgaLatency", value=None), r"\$\.nodes\[1\]\.fpgaLatency is None, not a number"),
    (
        with_value("nodes", 1, "fpgaLatency", value=10**400),
        r"\$\.nodes\[1\]\.fpgaLatency is 10+\.\.\.0+, not a number of",
    ),
    (with_value("nodes", 1, "cpuLatency", value=[1]), r"\$\.nodes\[1\]\.cpuLatency is \[1\], not a number"),
    (with_value("nodes", 0, "size", value=-5), r"\$\.nodes\[0\]\.size is -5, not a number ≥ 0"),
    (with_value("nodes", 1, "colorClass", value=1.5), r"\$\.nodes\[1\]\.colorClass is 1\.5, not a whole number"),
    (with_value("nodes", 2, "name", value=3), r"\$\.nodes\[2\]\.name is 3, not a text"),
    (with_value("nodes", 2, "isBackwardNode", value=2), r"\$\.nodes\[2\]\.isBackwardNode is 2, not a whole number ≤ 1"),
    (
        with_value("nodes", 2, "supportedOnFpga", value="yes"),
        r"\$\.nodes\[2\]\.supportedOnFpga is 'yes', not true or false",
    ),
    (with_value("edges", value=None), r"edges is None, not a list"),
    (with_value("edges", 0, value=[1, 2]), r"\$\.edges\[0\] is \[1, 2\], not a mapping of keys to values"),
    (without("edges", 0, "destId"), r"\$\.edges\[0\]\.destId is missing"),
    (with_value("edges", 0, "destId", value=9), r"\$\.edges\[0\]: there is no node with id 9"),
    (without("edges", 0, "cost"), r"\$\.edges\[0\]\.cost is missing"),
    (with_value("edges", 0, "cost", value=-1), r"\$\.edges\[0\]\.cost is -1, not a number ≥ 0"),
    (with_value("edges", 0, "size", value="big"), r"\$\.edges\[0\]\.size is 'big', not a number"),
    (_appended("edges", _edge(3, 1)), r"g\.json, \$\.edges\[\d+\]: the edges form a cycle, 1 → 2 → 3 → 1"),
    (_appended("edges", _edge(2, 2, 1.0)), r"g\.json, \$\.edges\[\d+\]: the edges form a cycle, 2 → 2"),
    (_appended("edges", _edge(1, 3, 4.1)), r"\$\.edges\[3\]\.cost is 4\.1, but another edge from node 1 costs 4"),
    (with_value("nodes", 0, "isBackwardNode", value=1), r"edges\[0\]: backward node 1 feeds forward node 2"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_mistake_in_the_file_is_named_in_one_sentence(
    spoil: Callable[[Document], None], message: str, tmp_path: Path
) -> None:
    document = copy.deepcopy(GOOD)
    assert len(_profile(document)) == 3
    spoil(document)
    (tmp_path / "g.json").write_text(json.dumps(document))
    with pytest.raises(BadInput, match=message) as refusal:
        profile_from_placement(read_placement(tmp_path / "g.json"))
    assert "\n" not in str(refusal.value)


def test_a_cost_may_differ_by_rounding() -> None:
    document = copy.deepcopy(GOOD)
    document["edges"].append(_edge(1, 3, 4.0 + 1e-9))
    assert len(_profile(document)) == 3


def test_a_graph_that_is_all_backward_is_refused() -> None:
    with pytest.raises(BadInput, match="no node belongs to the forward pass"):
        _profile(_document([_node(1, 1.0, isBackwardNode=1)], []))


def test_a_graph_without_time_is_refused() -> None:
    with pytest.raises(BadInput, match="times in C are all zero"):
        _profile(_document([_node(1, 0.0), _node(2, 0.0)], [_edge(1, 2)]))


def test_every_truncation_of_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    text = json.dumps(GOOD)
    for length in range(1, len(text), 7):
        (tmp_path / "g.json").write_text(text[:length])
        with pytest.raises(BadInput, match=r"g\.json: is not valid JSON") as refusal:
            read_profile(tmp_path / "g.json")
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(GOOD).replace("4.0", "NaN"), "is not valid JSON .*invalid character"),
        (json.dumps(GOOD).replace("4.0", "1e999"), r"\$\.edges\[0\]\.cost is not a number of a size that can be meant"),
        ('{"maxFPGAs": ' + "[" * 100_000, "is not valid JSON"),
        ('{"maxFPGAs": 1} {', "is not valid JSON"),
    ],
)
def test_what_json_does_not_allow_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_profile(tmp_path / "g.json")


def test_a_plan_is_no_graph_and_the_command_that_reads_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"schema": 1, "planner": "exact", "cuts": []}')
    with pytest.raises(BadInput, match=r"is a plan, not a model.*automap infer.* reads it"):
        read_placement(path)
