"""graph.txt: the files that PipeDream and DAPPLE published, random graphs, and everything that is wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.formats.graph_txt import looks_like_graph_txt, parse_graph_txt, read_graph_txt

FILES = {  # nodes, counted by hand with grep -c activation_size, without those with `-- Input`
    "alexnet": 22,
    "bert-24_b6": 29,
    "bert-48_b2": 53,
    "gnmt": 45,
    "resnet50": 176,
    "vgg16": 40,
    "vgg16_dapple": 40,
}


def _plain(text: str) -> tuple[dict[str, list[str]], list[list[str]]]:
    """The file taken apart the way PipeDream's own graph.py does it: fields by node id, and edges."""
    nodes, edges = {}, []
    for line in text.splitlines():
        tokens = line.strip().split(" -- ")
        if len(tokens) == 2:
            edges.append(tokens)
        elif len(tokens) > 2:
            values = [field.split("=")[1] for field in tokens[2].split(", ")]
            nodes[tokens[0]] = [tokens[1], *values]
    for name in [name for name, (what, *_) in nodes.items() if what.startswith("Input")]:
        if all(reader != name for _, reader in edges):  # as PipeDream's optimizer does first
            del nodes[name]
            edges = [edge for edge in edges if edge[0] != name]
    return nodes, edges


def _size(text: str) -> float:
    return sum(float(part) for part in text.strip("[]").split("; "))


def _check_against_plain(profile: Profile, text: str) -> None:
    nodes, edges = _plain(text)
    position = {name: i for i, name in enumerate(profile.names)}
    assert sorted(position) == sorted(nodes)
    assert all(position[a] < position[b] for a, b in edges)
    assert list(profile.layers) == [nodes[name][0] for name in profile.names]
    forward = np.array([float(nodes[name][1]) for name in profile.names]) / 1e3
    backward = np.array([float(nodes[name][2]) for name in profile.names]) / 1e3
    np.testing.assert_allclose(profile.C_fwd, forward, rtol=1e-12)
    np.testing.assert_allclose(profile.C, forward + backward, rtol=1e-12)
    np.testing.assert_array_equal(profile.W, [float(nodes[name][4]) for name in profile.names])
    np.testing.assert_allclose(profile.stash, [_size(nodes[name][3]) for name in profile.names], rtol=1e-12)
    np.testing.assert_allclose(profile.A, _crossing(profile.names, nodes, edges), rtol=1e-12)


def _crossing(order: Sequence[str], nodes: dict[str, list[str]], edges: list[list[str]]) -> list[float]:
    crossing = []
    for i in range(len(order)):
        before = set(order[: i + 1])
        alive = {a for a, b in edges if a in before and b not in before}
        crossing.append(sum(_size(nodes[a][3]) for a in alive))
    return crossing


@pytest.mark.parametrize("name", FILES)
def test_a_published_profile_is_read_as_it_stands_in_the_file(name: str, shared_data: Path) -> None:
    path = shared_data / "v100_profiles" / f"{name}.txt"
    profile = read_graph_txt(path)
    assert len(profile) == FILES[name]
    assert profile.meta == {"model": name, "source": "graph.txt"}
    _check_against_plain(profile, path.read_text())


@pytest.mark.parametrize("name", FILES)
def test_the_order_of_lines_in_the_file_does_not_matter(name: str, shared_data: Path) -> None:
    text = (shared_data / "v100_profiles" / f"{name}.txt").read_text()
    lines = text.splitlines()
    random.Random(0).shuffle(lines)
    first = parse_graph_txt(text, source="a", model="m")
    second = parse_graph_txt("\n".join(lines), source="b", model="m")
    assert first.names == second.names
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("name", ["gnmt", "resnet50", "bert-48_b2"])
def test_branchy_models_cross_less_than_in_breadth_first_order_of_the_file(name: str, shared_data: Path) -> None:
    text = (shared_data / "v100_profiles" / f"{name}.txt").read_text()
    nodes, edges = _plain(text)
    missing = {node: sum(b == node for _, b in edges) for node in nodes}
    queue = [node for node in nodes if not missing[node]]
    for node in queue:
        for after in [b for a, b in edges if a == node]:
            missing[after] -= 1
            if not missing[after]:
                queue.append(after)
    profile = parse_graph_txt(text, source="a", model="m")
    assert profile.A.sum() < sum(_crossing(queue, nodes, edges))


_NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6).filter(lambda s: "--" not in s)
_NUMBERS = st.integers(0, 10**9).map(lambda k: f"{k / 1000:.3f}")


@st.composite
def _texts(draw: st.DrawFn) -> str:
    ids = draw(st.lists(_NAMES, min_size=2, max_size=9, unique=True))
    lines = []
    for name in ids:
        description = draw(st.text(st.sampled_from("ab(),=; []1"), min_size=1, max_size=12)).strip() or "x"
        sizes = draw(st.lists(_NUMBERS, min_size=1, max_size=3))
        activation = f"[{'; '.join(sizes)}]" if len(sizes) > 1 else sizes[0]
        lines.append(
            f"{name} -- {description} -- forward_compute_time={draw(_NUMBERS)}, backward_compute_time=0.5, "
            f"activation_size={activation}, parameter_size={draw(_NUMBERS)}"
            + draw(st.sampled_from(["", " ", " -- stage_id=3", " -- stage_id=-1"]))
        )
    for a in range(len(ids)):
        for b in range(a + 1, len(ids)):
            indent = draw(st.sampled_from(["\t", "    "]))
            lines += [f"{indent}{ids[a]} -- {ids[b]}"] * draw(st.integers(0, 2))
    return draw(st.sampled_from(["\n", "\r\n", "\n\n"])).join(draw(st.permutations(lines)))


@given(_texts())
def test_random_graphs_are_read_as_they_stand_in_the_text(text: str) -> None:
    _check_against_plain(parse_graph_txt(text, source="a", model="m"), text)


def test_equal_alternatives_are_taken_in_the_natural_order_of_ids() -> None:
    times = "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=0"
    text = "\n".join(f"node{i} -- x -- {times}" for i in (10, 9, 100, 2))
    assert parse_graph_txt(text, source="a", model="m").names == ("node2", "node9", "node10", "node100")


GOOD = [
    "node1 -- Input -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=0.0",
    "node2 -- Conv2d(1, 2) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8, parameter_size=4",
    "node3 -- ReLU -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=[8; 4], parameter_size=0",
    "\tnode1 -- node2",
    "\tnode2 -- node3",
]

REFUSED = [
    ([], "holds no nodes"),
    (["", "   ", "\t"], "holds no nodes"),
    (GOOD[:1], "holds nothing but inputs"),
    (GOOD[:2], r"array C has 1 instruction"),
    ([*GOOD, "node4 -- ReLU(inplace)"], "line 6: node node4 has no times; profile the model first"),
    ([*GOOD, "node4 -- ReLU -- stage_id=1"], "line 6: node node4 has no times"),
    ([*GOOD, "hello"], "line 6: is neither a node nor an edge"),
    ([*GOOD, "\tnode1 -- node2 -- node3"], "line 6: is neither"),
    ([*GOOD, "\tnode1 node2"], "line 6: is neither"),
    ([*GOOD, GOOD[0].replace("node1", "n").replace(", parameter_size=0.0", "")], "line 6: is neither"),
    ([*GOOD, GOOD[0].replace("node1", "n").replace("backward_compute", "b_compute")], "line 6: is neither"),
    ([*GOOD, GOOD[0].replace("node1", "n") + " -- stage_id=x"], "line 6: is neither"),
    ([*GOOD, "\tnode1 -- node9"], "line 6: there is no node with id node9"),
    (["\tnode7 -- node1", *GOOD], "line 1: there is no node with id node7"),
    ([*GOOD, "", GOOD[1]], "line 7: node node2 was already given in line 2"),
    ([*GOOD, "\tnode3 -- node1"], "line 6: the edges form a cycle, node1 → node2 → node3 → node1"),
    ([*GOOD, "\tnode2 -- node2"], "line 6: the edges form a cycle, node2 → node2"),
    ([GOOD[0].replace("_time=1.0", "_time=-1.0"), *GOOD[1:]], "line 1: forward_compute_time is '-1.0'"),
    ([GOOD[0], GOOD[1].replace("_time=2.0", "_time=nan"), *GOOD[2:]], "line 2: backward_compute_time is 'nan'"),
    ([*GOOD[:2], GOOD[2].replace("; 4", "; x"), *GOOD[3:]], "line 3: activation_size is 'x'"),
    ([*GOOD[:2], GOOD[2].replace("; 4", "; -4"), *GOOD[3:]], "line 3: activation_size is '-4'"),
    ([*GOOD[:2], GOOD[2].replace("[8; 4]", "[]"), *GOOD[3:]], "line 3: activation_size is ''"),
    ([GOOD[0].replace("size=8.0", "size="), *GOOD[1:]], "line 1: activation_size is ''"),
    (
        [*GOOD[:2], GOOD[2].replace("parameter_size=0", "parameter_size=inf"), *GOOD[3:]],
        "line 3: parameter_size is 'inf'",
    ),
    (
        [line.replace("_time=1.0", "_time=0").replace("_time=2.0", "_time=0") for line in GOOD],
        "times in C are all zero",
    ),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wrong_line_is_refused_by_number_in_one_sentence(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "graph.txt").write_text("\n".join(lines))
    with pytest.raises(BadInput, match=rf"graph\.txt.*{message}") as refusal:
        read_graph_txt(tmp_path / "graph.txt")
    assert "\n" not in str(refusal.value)


def test_a_long_cycle_is_shortened() -> None:
    times = "forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=0"
    lines = [f"node{i} -- x -- {times}" for i in range(50)] + [f"\tnode{i} -- node{(i + 1) % 50}" for i in range(50)]
    with pytest.raises(BadInput, match=r"node0 → node1 → .* → node6 → … → node0;"):
        parse_graph_txt("\n".join(lines), source="a", model="m")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"graph\.txt: cannot be read \(No such file"):
        read_graph_txt(tmp_path / "graph.txt")
    (tmp_path / "graph.txt").write_bytes(b"node1 -- \xff")
    with pytest.raises(BadInput, match=r"graph\.txt: is not UTF-8 text"):
        read_graph_txt(tmp_path / "graph.txt")


def test_a_byte_order_mark_is_no_part_of_the_first_id(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text("\n".join(GOOD), encoding="utf-8-sig")
    assert read_graph_txt(tmp_path / "graph.txt").names == ("node2", "node3")


def test_every_truncation_of_a_file_is_read_or_refused() -> None:
    text = "\n".join(GOOD)
    for length in range(len(text)):
        try:
            parse_graph_txt(text[:length], source="a", model="m")
        except BadInput as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\n".join(GOOD), True),
        ("\n\n" + GOOD[3], True),
        ("hello\n" + GOOD[0], True),
        ("", False),
        ('{"a -- b": 1}', False),
        ("a,b", False),
    ],
)
def test_the_format_is_recognised_from_the_text(text: str, answer: bool) -> None:
    assert looks_like_graph_txt(text) is answer
