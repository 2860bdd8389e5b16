"""Clusters and devices: what is shipped, what a YAML file may say, and every mistake in one sentence."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.device import USUAL, Device, StepConstants
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import (
    CLUSTER_KEYS,
    DEVICE_KEYS,
    GROUP_KEYS,
    ClusterDocument,
    DeviceDocument,
    device_of,
    known_clusters,
    known_devices,
    read_cluster,
    read_device,
    read_kinds,
)
from automap_models.formats.schema import convert
from automap_models.resources import conf_dir


def cluster(document: object) -> Cluster:
    return convert(document, ClusterDocument, where="here", do=CLUSTER_KEYS).cluster("here")


GOOD = {"nodes": 4, "devices_per_node": 8, "intra": 130e9, "inter": 3.125e9, "memory": 32e9, "name": "mine"}


@pytest.mark.parametrize(("name", "nodes"), [("A", 2), ("B", 3), ("C", 4)])
def test_the_paper_s_clusters_are_shipped(name: str, nodes: int) -> None:
    assert read_cluster(name) == Cluster(nodes, 8, 130e9, 3.125e9, 32e9, name, device="v100")


def test_every_shipped_cluster_is_readable_and_carries_its_file_s_name() -> None:
    names = known_clusters()
    assert {"A", "B", "C", "dgx-1", "dgx-a100-4", "dgx-h100-4", "p3-4"} <= set(names)
    assert names == sorted(path.stem for path in (conf_dir() / "topo").iterdir())
    assert [read_cluster(name).name for name in names] == names


def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path: Path) -> None:
    text = "{nodes: 4, devices_per_node: 8, intra: 130e9, inter: 3.125e9, memory: 32e9, name: C}"
    assert isinstance(yaml.safe_load(text)["intra"], str)
    (tmp_path / "c.yaml").write_text(text)
    assert read_cluster(tmp_path / "c.yaml") == replace(read_cluster("C"), device="")


def test_every_shipped_cluster_is_made_of_shipped_devices() -> None:
    for name in known_clusters():
        of = read_cluster(name)
        assert ({of.device} if of.device else set(read_kinds(of))) <= set(known_devices())
        assert device_of(of) == read_device(of.kind)


def test_times_are_of_the_device_that_is_named_else_of_the_cluster_s_else_of_a_v100() -> None:
    h100 = read_cluster("dgx-h100-4")
    assert [device_of(h100, name).name for name in ("a100", None)] == ["a100", "h100"]
    assert device_of(replace(h100, device="")).name == "v100"
    assert device_of(read_cluster("p4d-p3dn")).name == "a100-40"


def test_a_plan_that_does_not_say_what_its_cluster_is_made_of_is_for_that_cluster() -> None:
    """Plans of version 0.1.0 do not say it; one that does say it is for no other kind."""
    known = read_cluster("dgx-h100-4")
    silent = ClusterDocument.from_cluster(replace(known, device=""))
    assert "device" not in ClusterDocument.from_cluster(replace(known, device="")).builtins()
    silent.require_same(known, "$.cluster")
    with pytest.raises(BadInput, match=r"\$\.cluster\.device is h100, but cluster dgx-h100-4 has h200"):
        ClusterDocument.from_cluster(known).require_same(replace(known, device="h200"), "$.cluster")


def test_quantities_may_have_units(tmp_path: Path) -> None:
    text = "{nodes: 4, devices_per_node: 8, intra: 130 GB/s, inter: 25 Gbit/s, memory: 32 GB, name: C}"
    (tmp_path / "c.yaml").write_text(text)
    assert read_cluster(tmp_path / "c.yaml") == Cluster(4, 8, 130e9, 3.125e9, 32e9, "C")
    (tmp_path / "c.yaml").write_text(text.replace("32 GB", "32 GB/s"))
    with pytest.raises(
        BadInput, match=r"c\.yaml: \$\.memory is '32 GB/s', not a size such as 32 GB, 80 GiB or 32e9 \(by"
    ):
        read_cluster(tmp_path / "c.yaml")


STEP = StepConstants(0.6, 60.0, 0.3, 0.7, 0.9e-6, 0.5, 0.4, 0.3)


def test_a_device_s_quantities_may_have_units(tmp_path: Path) -> None:
    text = (
        "{matrix: {float32: 15.7 TFLOP/s, float16: 125e12}, vector: 15700 GFLOPS, bandwidth: 900 GB/s, "
        "winograd: true, step: {product_efficiency: 0.6, half_size: 60, attention_efficiency: 0.3, "
        "bandwidth_efficiency: 0.7, launch_s: 0.9 us, intra_efficiency: 0.5, inter_efficiency: 0.4, overlap: 0.3}}"
    )
    (tmp_path / "mine.yaml").write_text(text)
    matrix = {"float32": 15.7e12, "float16": 125e12}
    assert read_device(tmp_path / "mine.yaml") == Device("mine", matrix, 15.7e12, 900e9, True, step=STEP)
    (tmp_path / "mine.yaml").write_text(text.replace("15.7 TFLOP/s", "fast"))
    with pytest.raises(BadInput, match=r"\$\.matrix\.float32 is 'fast', not a rate such as 312 TFLOP/s"):
        read_device(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text(text.replace("winograd: true", "winograd: 3 GB"))
    with pytest.raises(BadInput, match=r"\$\.winograd is '3 GB', not true or false"):
        read_device(tmp_path / "mine.yaml")


def test_a_file_without_a_name_gives_the_cluster_its_own(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump({key: GOOD[key] for key in GOOD if key != "name"}))
    assert read_cluster(str(tmp_path / "lab.yaml")).name == "lab"


def test_a_shipped_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A").write_text(yaml.safe_dump(GOOD))
    monkeypatch.chdir(tmp_path)
    assert read_cluster("A").name == "A"
    assert read_cluster("./A").name == "mine"


@given(
    nodes=st.integers(1, 8_192), intra=st.floats(1e-6, 1e18), inter=st.floats(1e-6, 1e18), memory=st.integers(1, 10**15)
)
def test_what_yaml_writes_is_read_back(nodes: int, intra: float, inter: float, memory: int) -> None:
    given_values = {"nodes": nodes, "devices_per_node": 2, "intra": intra, "inter": inter, "memory": memory}
    with TemporaryDirectory() as folder:
        file = Path(folder, "cluster.yaml")
        file.write_text(yaml.safe_dump(given_values))
        assert read_cluster(file) == Cluster(nodes, 2, intra, inter, float(memory), "cluster")


@pytest.mark.parametrize("text", ["32xh100", "32xH100", "32 x h100", "h100x32", "4x8xh100", "32×h100"])
def test_devices_of_a_kind_are_nodes_as_its_data_sheet_has_them(text: str) -> None:
    """NVIDIA's data sheet of the DGX H100: 8 GPUs of 80 GB, NVLink 900 GB/s in both directions, 8 × 400 Gb/s."""
    sized = read_cluster(text)
    assert sized.name == ("4x8xh100" if text.startswith("4x8") else "32xh100")
    assert replace(sized, name="") == Cluster(4, 8, 450e9, 8 * 400e9 / 8, 80e9, "", device="h100")


def test_fewer_devices_than_a_node_has_are_one_and_nodes_that_are_not_full_have_their_part_of_the_network() -> None:
    """DGX A100: NVLink 600 GB/s in both directions, 8 × 200 Gb/s; g4dn.12xlarge has 4 T4 at 50 Gb/s."""
    assert (read_cluster("4xa100").shape, read_cluster("4xa100").intra) == ("1 × 4", 300e9)
    assert (read_cluster("3x4xa100").shape, read_cluster("3x4xa100").inter) == ("3 × 4", 4 * 200e9 / 8)
    assert (read_cluster("8xt4").shape, read_cluster("8xt4").inter) == ("2 × 4", 50e9 / 8)


def test_a_part_of_a_node_without_a_switch_has_the_links_of_its_devices() -> None:
    """Device 0 of a DGX-1 has 6 NVLinks of 25 GB/s, 1 + 1 + 2 of them to devices 1 to 3; no other has fewer there."""
    four = read_cluster("4xv100")
    assert (four.links[0], min(map(sum, four.links))) == ((0, 1, 1, 2), 4)
    assert four.intra == 4 * 25e9
    assert (read_cluster("64xv100").intra, read_cluster("1xv100").shape) == (6 * 25e9, "1 × 1")
    assert (read_cluster("72xgb200").nodes, read_cluster("256xtpu7x").nodes) == (18, 64)  # a rack; a torus has no end


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12xh100", "cluster 12xh100: nodes of h100 have up to 8 devices, each equally many; give 8xh100, 16xh100, …"),
        ("0xh100", "cluster 0xh100: nodes of h100 have up to 8"),
        ("2x16xh100", "cluster 2x16xh100: nodes of h100 have up to 8"),
        ("128xgb200", "links as between the devices of a node end with the 18 nodes of gb200-nvl72; give fewer, or"),
        ("8xcpu", "device cpu: has no usual nodes; give a YAML file or a shipped cluster of it"),
        ("8xh1000", "device: 'h1000' is neither a known device nor a file; choose from a100"),
        ("h1000x8", "'h1000x8' is neither a known cluster nor a file; .* or devices × kind, such as 32xh100"),
        ("999999999xh100", "give at most 65536 devices in all|nodes of h100 have up to 8"),
        ("2x0xh100", "nodes of h100 have up to 8"),
        ("0x8xh100", "nodes is 0"),
    ],
)
def test_devices_that_make_no_nodes_are_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_cluster(text)


def test_a_file_s_device_has_the_nodes_that_the_file_names_and_never_those_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    peaks = "{matrix: {float32: 1e12}, vector: 1e12, bandwidth: 1e12, cluster: "
    Path("mine.yaml").write_text(f"{peaks}p4d-4}}")
    assert replace(read_cluster("16xmine.yaml"), name="") == Cluster(2, 8, 300e9, 50e9, 40e9, "", device="mine.yaml")
    for other, message in (("8xmine.yaml", "neither a known cluster nor a file"), ("p3-g4dn", "is mixed")):
        Path("mine.yaml").write_text(f"{peaks}{other}}}")
        with pytest.raises(BadInput, match=message):
            read_cluster("16xmine.yaml")
    Path("8xa100").write_text(yaml.safe_dump(GOOD))
    assert read_cluster("8xa100").name == "mine"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'Z' is neither a known cluster nor a file; choose from A, B, C, a100-pcie-4"):
        read_cluster("Z")


@pytest.mark.parametrize("path", ["../A", "", "."])
def test_a_path_is_not_looked_up_among_the_shipped_ones(path: str) -> None:
    with pytest.raises(BadInput):
        read_cluster(path)


@pytest.mark.parametrize("key", ["nodes", "devices_per_node", "intra", "inter", "memory"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(BadInput, match=f"here: [$][.]{key} is missing; it needs nodes"):
        cluster({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize("key", ["nodes", "devices_per_node", "intra", "inter", "memory", "gpu_hour"])
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


GROUP = {"nodes": 2, "devices_per_node": 8, "intra": 300e9, "inter": 50e9, "memory": 40e9}


def test_groups_of_nodes_make_a_mixed_cluster(tmp_path: Path) -> None:
    text = """
    groups:
      - {nodes: 2, devices_per_node: 8, device: a100, intra: 300 GB/s, inter: 400 Gbit/s, memory: 40 GB}
      - {nodes: 1, devices_per_node: 4, device: attic, speed: 0.5, intra: 16 GB/s, inter: 10 Gbit/s, memory: 16 GiB}
      - {nodes: 1, devices_per_node: 4, intra: 16e9, inter: 10e9, memory: 16e9}
    """
    (tmp_path / "lab.yaml").write_text(text)
    first = NodeGroup(2, 8, 300e9, 50e9, 40e9, "a100", rates=read_device("a100").matrix_rates)
    second = NodeGroup(1, 4, 16e9, 1.25e9, 16 * 2.0**30, "attic", speed=0.5)
    assert read_cluster(tmp_path / "lab.yaml") == Cluster.of_groups(
        [first, second, NodeGroup(1, 4, 16e9, 10e9, 16e9)], "lab"
    )


def test_a_cluster_of_zones_has_the_links_of_its_file_and_is_read_back() -> None:
    """Sailor's measured bandwidths between zones and between regions; see the file."""
    zones = read_cluster("gcp-a2-zones")
    assert [group.zone for group in zones.groups] == ["us-central1-a", "us-central1-b", "us-west1-b"]
    assert [(link.inter, link.latency_s) for link in zones.zone_links] == [
        (6.65e9, 5e-4),
        (1.09e9, 0.017),
        (1.09e9, 0.017),
    ]
    assert cluster(ClusterDocument.from_cluster(zones).builtins()) == zones


def test_the_document_of_a_mixed_cluster_is_read_back_as_that_cluster() -> None:
    groups = [NodeGroup(**GROUP, speed=2.0), NodeGroup(**GROUP, device="mine", speed=1.0)]
    known = Cluster.of_groups(groups, "two", gpu_hour=1.5)
    document = ClusterDocument.from_cluster(known).builtins()
    described = [{**GROUP, "speed": 2.0}, {**GROUP, "device": "mine", "speed": 1.0}]
    assert document == {"name": "two", "groups": described, "gpu_hour": 1.5}
    assert cluster(document) == known
    ClusterDocument.from_cluster(known).require_same(known, "$.cluster")
    other = Cluster.of_groups([NodeGroup(**GROUP, speed=2.0), NodeGroup(**{**GROUP, "inter": 1e9}, speed=1.0)], "other")
    with pytest.raises(BadInput, match=r"cluster\.groups\[1\]\.inter is 5.*0.0, but cluster other has 1.*0.0"):
        ClusterDocument.from_cluster(known).require_same(other, "$.cluster")
    with pytest.raises(BadInput, match=r"\$\.cluster has 2 group\(s\) of nodes, but cluster C has 1"):
        ClusterDocument.from_cluster(known).require_same(read_cluster("C"), "$.cluster")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": []}, r"\$\.groups is \[\], not a list of"),
        ({"groups": {}}, r"\$\.groups is \{\}, not a list"),
        ({"groups": None}, r"\$\.groups is None, not a list"),
        ({"groups": [GROUP], "nodes": 2}, "has groups and nodes; leave out nodes, which each group gives"),
        (
            {"groups": [{**GROUP, "zone": "a"}, {**GROUP, "zone": "b"}]},
            "no link between zone a and zone b; give `zone_l",
        ),
        (
            {"groups": [GROUP], "zone_links": [{"zones": ["a"], "inter": 1}]},
            r"\$\.zone_links\[0\]\.zones is \['a'\], not",
        ),
        ({"groups": [GROUP], "zone_links": [{"zones": ["a", "b"]}]}, r"\$\.zone_links\[0\]\.inter is missing"),
        ({"groups": [GROUP], "zone_links": [{"zones": ["a", "b"], "inter": "far"}]}, r"inter is 'far', not a number"),
        ({"groups": [{**GROUP, "nodes": 0}]}, r"here, \$\.groups\[0\]: nodes is 0; give a whole number"),
        ({"groups": [GROUP, {**GROUP, "memory": -1}]}, r"here, \$\.groups\[1\]: memory is -1.0; give a positive"),
        ({"groups": [{**GROUP, "speed": 0}]}, r"here, \$\.groups\[0\]: speed is 0.0; give a positive number"),
        ({"groups": [{**GROUP, "speed": "fast"}]}, r"\$\.groups\[0\]\.speed is 'fast', not a number"),
        ({"groups": [{**GROUP, "device": ""}]}, r"\$\.groups\[0\]\.device is '', not a text"),
        ({"groups": [{**GROUP, "device": "k80"}]}, "device: 'k80' is neither a known device nor a file"),
        ({"groups": [{**GROUP, "name": "x"}]}, r"\$\.groups\[0\] has the unknown key 'name'"),
        ({"groups": [{"nodes": 1}]}, r"\$\.groups\[0\]\.devices_per_node is missing; .*groups needs"),
        ({"groups": [{**GROUP, "nodes": 10**6}]}, "here: 1000000 nodes of 8 device.*; give at most 65536"),
    ],
)
def test_a_mistake_in_a_group_is_one_sentence_that_names_it(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        convert(change, ClusterDocument, where="here", do=GROUP_KEYS).cluster("here")
    assert "\n" not in str(refusal.value)


DEVICE: dict[str, object] = {
    "name": "mine",
    "matrix": {"float32": 15.7e12, "float16": 125e12},
    "vector": 15.7e12,
    "bandwidth": 900e9,
    "winograd": True,
    "step": asdict(STEP),
}
OLDER = {"compute_efficiency": 0.6, "bandwidth_efficiency": 0.75, "launch_s": "1 us"}
"""What files had before one clock priced all kernels."""


def device(document: object) -> Device:
    return convert(document, DeviceDocument, where="here", do=DEVICE_KEYS).device("here")


def without(*keys: str) -> dict[str, object]:
    return {key: value for key, value in DEVICE.items() if key not in keys}


def test_the_promised_devices_are_shipped() -> None:
    assert {"v100", "a100", "a100-40", "h100", "h100-96", "h200", "b200", "gb200", "t4", "cpu"} <= set(known_devices())
    assert known_devices() == sorted(path.stem for path in (conf_dir() / "device").iterdir())


def test_every_key_is_read() -> None:
    assert device(DEVICE) == Device("mine", {"float32": 15.7e12, "float16": 125e12}, 15.7e12, 900e9, True, step=STEP)


def test_efficiencies_of_older_files_stand_for_constants_that_a_file_has_not(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({**without("step"), **OLDER}))
    expected = replace(USUAL, product_efficiency=0.6, bandwidth_efficiency=0.75, launch_s=1e-6)
    assert read_device(tmp_path / "old.yaml").step == expected
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({**DEVICE, **OLDER}))  # as automap calibrate wrote it
    assert read_device(tmp_path / "old.yaml").step == STEP


def test_multiprocessors_are_those_of_the_architectures_white_papers() -> None:
    """Volta, Turing (T4), Ampere, Hopper (SXM), Blackwell: 80, 40, 108, 132, 148."""
    counts = {"v100": 80, "t4": 40, "a100": 108, "a100-40": 108, "h100": 132, "h200": 132, "b200": 148}
    assert {name: read_device(name).multiprocessors for name in counts} == counts


def test_links_of_a_node_are_read_and_written() -> None:
    links = [[0, 2, 1], [2, 0, 0], [1, 0, 0]]
    uniform = {"nodes": 2, "devices_per_node": 3, "intra": 1e9, "inter": 1e9, "memory": 1e9, "links": links}
    assert cluster(uniform).links == ((0, 2, 1), (2, 0, 0), (1, 0, 0))
    assert ClusterDocument.from_cluster(cluster(uniform)).builtins()["links"] == links
    assert "links" not in ClusterDocument.from_cluster(replace(cluster(uniform), links=())).builtins()


@pytest.mark.parametrize(
    ("links", "wrong"),
    [
        ([[0, 1], [1, 0]], "not 3 × 3, as a node has devices"),
        ([[0, 1, 1], [1, 0, 2], [1, 1, 0]], "not the same both ways, or of a device to itself"),
        ([[1, 1, 1], [1, 0, 1], [1, 1, 0]], "not the same both ways, or of a device to itself"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], "none of some device"),
    ],
)
def test_links_that_are_not_between_the_devices_of_a_node_are_refused(links: object, wrong: str) -> None:
    uniform = {"nodes": 2, "devices_per_node": 3, "intra": 1e9, "inter": 1e9, "memory": 1e9, "links": links}
    with pytest.raises(BadInput, match=f"here: links are {wrong}; give the numbers of links"):
        cluster(uniform)


def test_what_is_left_out_is_off_and_the_name_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(without("name", "winograd", "step")))
    read = read_device(tmp_path / "lab.yaml")
    assert (read.name, read.winograd, read.step, read.constants) == ("lab", False, None, USUAL)


def test_numbers_that_yaml_takes_for_text_are_numbers_of_a_device(tmp_path: Path) -> None:
    text = "{matrix: {float32: 15e12}, vector: 15e12, bandwidth: 9e11}"
    assert isinstance(yaml.safe_load(text)["matrix"]["float32"], str)
    (tmp_path / "d.yaml").write_text(text)
    assert read_device(tmp_path / "d.yaml") == Device("d", {"float32": 15e12}, 15e12, 9e11)


def test_chips_that_exchange_over_links_of_their_own_share_no_job_with_others() -> None:
    with pytest.raises(BadInput, match=r"tpu-v5p exchange over links of their own.*plan for each kind by itself"):
        read_kinds(read_cluster("8xh100+8xtpu-v5p"))
    assert set(read_kinds(read_cluster("8xh100+8xa100"))) == {"h100", "a100"}


def test_an_unknown_name_lists_the_known_devices() -> None:
    with pytest.raises(BadInput, match="'k80' is neither a known device nor a file; choose from a100, a100-40, a100-"):
        read_device("k80")


@pytest.mark.parametrize("key", ["matrix", "vector", "bandwidth"])
def test_a_missing_key_is_named_of_a_device(key: str) -> None:
    with pytest.raises(BadInput, match=f"here: [$][.]{key} is missing; it needs matrix"):
        device(without(key))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "matrix",
            15.7e12,
            r"here: \$\.matrix is 157\d+\.0, not a mapping of keys to values; it needs matrix \(the peak",
        ),
        ("matrix", {"float32": "fast"}, r"here: \$\.matrix\.float32 is 'fast', not a number"),
        ("matrix", {"float32": 1e12, 16: 1e12}, r"here: a key of \$\.matrix is not a text"),
        ("matrix", {}, "here: matrix has no float32"),
        ("matrix", {"float32": 0}, "here: matrix float32 is 0.0; give a positive number"),
        ("bandwidth", None, r"here: \$\.bandwidth is None, not a number"),
        ("bandwidth", -1, "here: bandwidth is -1.0; give a positive number"),
        ("step", {**asdict(STEP), "overlap": 3}, "here, step: overlap is 3.0; give a number of 0 or more; of overlap"),
        ("sustained", 60, r"here: sustained is 60.0; give a share in \(0, 1\]"),
        ("winograd", "maybe", r"here: \$\.winograd is 'maybe', not true or false"),
        ("name", "", r"here: \$\.name is '', not a text"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_of_a_device(key: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        device({**DEVICE, key: value})


def test_an_unknown_key_is_named_of_a_device() -> None:
    with pytest.raises(BadInput, match="here: the document has the unknown key 'memory'; it needs matrix"):
        device({**DEVICE, "memory": 1})
