"""Clusters by name and from files."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster
from automap_models.errors import BadInput
from automap_models.formats.cluster_yaml import CLUSTER_KEYS, ClusterDocument, known_clusters, read_cluster
from automap_models.formats.schema import convert
from automap_models.resources import conf_dir


def cluster(document: object) -> Cluster:
    return convert(document, ClusterDocument, where="here", do=CLUSTER_KEYS).cluster("here")


GOOD = {"nodes": 4, "devices_per_node": 8, "intra": 130e9, "inter": 3.125e9, "memory": 32e9, "name": "mine"}


@pytest.mark.parametrize(("name", "nodes"), [("A", 2), ("B", 3), ("C", 4)])
def test_the_paper_s_clusters_are_shipped(name: str, nodes: int) -> None:
    assert read_cluster(name) == Cluster(nodes, 8, 130e9, 3.125e9, 32e9, name)


def test_every_shipped_cluster_is_readable_and_carries_its_file_s_name() -> None:
    names = known_clusters()
    assert {"A", "B", "C", "dgx-1", "dgx-a100-4", "dgx-h100-4", "p3-4"} <= set(names)
    assert names == sorted(path.stem for path in (conf_dir() / "topo").iterdir())
    assert [read_cluster(name).name for name in names] == names


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path: Path) -> None:
    text = "{nodes: 4, devices_per_node: 8, intra: 130e9, inter: 3.125e9, memory: 32e9, name: C}"
    assert isinstance(yaml.safe_load(text)["intra"], str)
    (tmp_path / "c.yaml").write_text(text)
    assert read_cluster(tmp_path / "c.yaml") == read_cluster("C")


def test_a_file_without_a_name_gives_the_cluster_its_own(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump({key: GOOD[key] for key in GOOD if key != "name"}))
    assert read_cluster(str(tmp_path / "lab.yaml")).name == "lab"


def test_a_shipped_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A").write_text(yaml.safe_dump(GOOD))
    monkeypatch.chdir(tmp_path)
    assert read_cluster("A").name == "A"
    assert read_cluster("./A").name == "mine"


@given(
    nodes=st.integers(1, 8_192),
    intra=st.floats(1e-6, 1e18),
    inter=st.floats(1e-6, 1e18),
    memory=st.integers(1, 10**15),
)
def test_what_yaml_writes_is_read_back(nodes: int, intra: float, inter: float, memory: int) -> None:
    given_values = {"nodes": nodes, "devices_per_node": 2, "intra": intra, "inter": inter, "memory": memory}
    with TemporaryDirectory() as folder:
        file = Path(folder, "cluster.yaml")
        file.write_text(yaml.safe_dump(given_values))
        assert read_cluster(file) == Cluster(nodes, 2, intra, inter, float(memory), "cluster")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'Z' is neither a known cluster nor a file; choose from A, B, C, dgx-1"):
        read_cluster("Z")


@pytest.mark.parametrize("path", ["../A", "", "."])
def test_a_path_is_not_looked_up_among_the_shipped_ones(path: str) -> None:
    with pytest.raises(BadInput):
        read_cluster(path)


@pytest.mark.parametrize("key", ["nodes", "devices_per_node", "intra", "inter", "memory"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(BadInput, match=f"here: [$][.]{key} is missing; it needs nodes"):
        cluster({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize("key", ["nodes", "devices_per_node", "intra", "inter", "memory"])
@pytest.mark.parametrize("value", [0, -1, None, True, "many", "nan", float("inf"), [8], {}, 10**400])
def test_a_wrong_value_is_named_with_its_key(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=rf"here: ([$][.])?{key} is .*; (give a|it needs)"):
        cluster({**GOOD, key: value})


@pytest.mark.parametrize("key", ["nodes", "devices_per_node"])
def test_half_a_node_is_refused(key: str) -> None:
    with pytest.raises(BadInput, match=f"{key} is 2.5, not a whole number"):
        cluster({**GOOD, key: 2.5})


@pytest.mark.parametrize(("key", "words"), [("bandwidth", "key 'bandwidth'"), ("Nodes", "'Nodes'"), (3, "not a text")])
def test_an_unknown_key_is_named(key: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        cluster({**GOOD, key: 1})


@pytest.mark.parametrize("name", [4, "", None, False])
def test_a_name_is_a_text(name: object) -> None:
    with pytest.raises(BadInput, match=r"name is .*, not a text"):
        cluster({**GOOD, "name": name})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "document is None"),
        (b"- 1\n- 2\n", r"document is \[1, 2\]"),
        (b"hello", "document is 'hello'"),
        (b"nodes: 4\ninter: [1, 2\n", "is not valid YAML in line 3"),
        (b"!!python/object/apply:os.system [ls]", "is not valid YAML in line 1"),
        (b"a: 1\n---\nb: 2\n", "is not valid YAML"),
        (b"nodes: 2001-99-99", "nodes is '2001-99-99', not a whole number"),
        (b"\xff\xfe\xff", "is not valid YAML"),
        (b"[" * 5000, "is not valid YAML"),
    ],
)
def test_a_file_that_describes_no_cluster_is_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(BadInput, match=message) as refusal:
        read_cluster(tmp_path / "c.yaml")
    assert "\n" not in str(refusal.value)


def test_a_value_that_explodes_when_printed_is_still_one_short_sentence(tmp_path: Path) -> None:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    (tmp_path / "c.yaml").write_text(f"nodes: 4\n{laughs}")
    with pytest.raises(BadInput, match="aliases repeat too much"):
        read_cluster(tmp_path / "c.yaml")
    document = yaml.safe_load(laughs)
    with pytest.raises(BadInput, match="nodes is") as refusal:
        cluster({**GOOD, "nodes": document["a29"]})
    assert len(str(refusal.value)) < 200
