"""What a cluster is and which ones are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink, group_bytes, memory_verdict, upper_bytes
from automap_models.errors import BadInput

GOOD: dict[str, Any] = {"nodes": 2, "devices_per_node": 3, "intra": 130e9, "inter": 3.125e9, "memory": 32e9}


@pytest.mark.parametrize(
    ("used", "groups", "verdict"),
    [(29.4e9, 0.0, "fits"), (28.3e9, 1.5e9, "at risk"), (31.9e9, 3e9, "at risk"), (32.1e9, 0.0, "does not fit")],
)
def test_memory_fits_where_8_per_cent_are_free_beside_what_groups_hold(
    used: float, groups: float, verdict: str
) -> None:
    """A plan of stages of 28.3 GB was said to fit 32 GB where its strategy, which counts its groups, was at risk."""
    assert memory_verdict(used, 32e9, groups) == verdict
    assert (upper_bytes(used + groups) <= 32e9) == (verdict == "fits")
    assert group_bytes(1, 32, 1, 2) == 3e9


def test_a_cluster_has_as_many_devices_as_all_its_nodes_together() -> None:
    assert Cluster(**GOOD).devices == 6


@pytest.mark.parametrize("key", ["nodes", "devices_per_node"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None, math.nan])
def test_sizes_that_are_no_positive_whole_numbers_are_refused(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"cluster toy: {key} is .*whole number"):
        Cluster(**{**GOOD, key: value}, name="toy")


@pytest.mark.parametrize("key", ["intra", "inter", "memory"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1e9", None])
def test_speeds_and_memories_that_are_not_positive_and_finite_are_refused(key: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"cluster toy: {key} is .*positive number of bytes") as refusal:
        Cluster(**{**GOOD, key: value}, name="toy")
    assert ("per second" in str(refusal.value)) == (key != "memory")


@pytest.mark.parametrize(
    "change", [{"nodes": 10**12}, {"devices_per_node": 10**30}, {"nodes": 300, "devices_per_node": 300}]
)
def test_a_cluster_whose_arrays_would_fill_the_memory_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=r"cluster toy: .* give at most 65536 devices"):
        Cluster(**{**GOOD, **change}, name="toy")
    assert Cluster(**{**GOOD, "nodes": 8192, "devices_per_node": 8}).devices == 65536


def test_whole_numbers_are_good_speeds() -> None:
    assert Cluster(2, 1, 130, 3, 32) == Cluster(2, 1, 130.0, 3.0, 32.0)


GROUPS = (
    NodeGroup(2, 4, 300e9, 50e9, 40e9, "a100", rates=(("float32", 18e12), ("tf32", 90e12), ("bfloat16", 180e12))),
    NodeGroup(1, 2, 100e9, 12e9, 16e9, "v100", rates=(("float32", 9e12),)),
)


def test_a_mixed_cluster_numbers_its_devices_node_by_node() -> None:
    cluster = Cluster.of_groups(GROUPS, "mixed")
    assert (cluster.devices, cluster.nodes, cluster.shape) == (10, 3, "2 × 4 + 1 × 2")
    assert cluster.node_bounds.tolist() == [0, 4, 8, 10]
    assert cluster.node_of.tolist() == [0] * 4 + [1] * 4 + [2] * 2
    assert cluster.group_of.tolist() == [0] * 8 + [1] * 2
    assert cluster.node_inter.tolist() == [50e9, 50e9, 12e9]
    assert cluster.device_memory.tolist() == [40e9] * 8 + [16e9] * 2


def test_its_fields_are_what_all_its_groups_have_at_least() -> None:
    cluster = Cluster.of_groups(GROUPS, "mixed")
    assert (cluster.devices_per_node, cluster.intra, cluster.inter, cluster.memory) == (2, 100e9, 12e9, 16e9)
    with pytest.raises(BadInput, match="cluster mixed: has numbers that its groups have not"):
        dataclasses.replace(cluster, memory=1e9)
    assert cluster.with_memory(8e9).device_memory.tolist() == [20e9] * 8 + [8e9] * 2
    assert cluster.with_memory_at_most(20e9).device_memory.tolist() == [20e9] * 8 + [16e9] * 2


def test_kinds_are_as_fast_as_the_profile_says_and_else_as_their_matrix_products_are() -> None:
    cluster = Cluster.of_groups(GROUPS, "mixed")
    relative = cluster.relative_to("t4", {"t4": 6.0, "a100": 1.0, "v100": 3.0}, "float32")
    assert [group.speed for group in relative.groups] == [6.0, 2.0]
    assert relative.slowdown is not None
    assert relative.slowdown.tolist() == [1 / 6] * 8 + [1 / 2] * 2
    assert [group.speed for group in cluster.relative_to("v100", {}, "float32").groups] == [2.0, 1.0]
    own = Cluster.of_groups([dataclasses.replace(group, speed=3.0) for group in GROUPS])
    assert own.relative_to("unheard of", {}, "float32") is own


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [
        ("h100", "float32", "mixed: has a100, v100, but the profile's times are of h100; give each group its `speed`"),
        ("", "float32", "times are of an unnamed device; give"),
        ("a100", "bfloat16", "mixed: v100 has no rate for matrix products in bfloat16; give each group its `speed`"),
    ],
)
def test_kinds_that_the_profile_tells_nothing_of_are_refused(device: str, dtype: str, message: str) -> None:
    cluster = Cluster.of_groups(GROUPS, "mixed")
    with pytest.raises(BadInput, match=message):
        cluster.relative_to(device, {}, dtype)
    with pytest.raises(BadInput, match="mixed: does not say how fast its kinds of devices are; give each group"):
        _ = cluster.slowdown


def test_a_cluster_of_groups_that_are_alike_is_uniform() -> None:
    alike = NodeGroup(1, 2, 1e9, 1e9, 1e9)
    assert Cluster(**GOOD).is_uniform
    assert Cluster.of_groups([alike, alike]).is_uniform
    for other in (dataclasses.replace(alike, **change) for change in ({"intra": 2e9}, {"speed": 2.0}, {"memory": 2e9})):
        assert not Cluster.of_groups([alike, other]).is_uniform
    with pytest.raises(BadInput, match="is mixed, and the policy knows only clusters of equal nodes"):
        Cluster.of_groups([alike, other]).require_uniform("the policy")


@pytest.mark.parametrize("speed", [0, -1.0, math.nan, math.inf, True, "2"])
def test_a_speed_that_cannot_be_meant_is_refused(speed: Any) -> None:
    with pytest.raises(BadInput, match=r"speed is .*; give a positive number"):
        NodeGroup(1, 1, 1.0, 1.0, 1.0, speed=speed)


def test_groups_that_make_no_cluster_are_refused() -> None:
    with pytest.raises(BadInput, match="cluster none: has no group"):
        Cluster.of_groups([], "none")
    many = NodeGroup(10**30, 2, 1.0, 1.0, 1.0)
    with pytest.raises(BadInput, match=r"and 1 more group.* give at most 65536 devices"):
        Cluster.of_groups([many, many, many])


def zoned(**links: Any) -> Cluster:
    """Three groups of nodes in zones a, b and c."""
    groups = [NodeGroup(1, 2, 1e11, 1e10, 1e9, zone=zone) for zone in "abc"]
    between = [ZoneLink(("a", "b"), 5e9, 1e-3), ZoneLink(("c", "b"), 2e9, 2e-3), ZoneLink(("a", "c"), 1e9, 3e-3)]
    return Cluster.of_groups(**{"groups": groups, "name": "far", "zone_links": between} | links)


def test_who_is_in_several_zones_waits_for_the_slowest_link_between_them() -> None:
    cluster = zoned()
    assert cluster.slowest_links([(0,)]) == (1e11, 1e10, 0.0)
    assert cluster.slowest_links([(1, 2)]) == (1e11, 2e9, 2e-3)
    assert cluster.slowest_links([(0, 1), (1, 2)]) == (1e11, 2e9, 2e-3)
    assert cluster.slowest_links([(0, 1, 2)]) == (1e11, 1e9, 6e-3)
    assert not cluster.is_uniform
    with pytest.raises(BadInput, match="cluster far: has several zones, and a mesh knows no links between them"):
        cluster.require_one_zone("a mesh")


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([], "cluster far: there is no link between zone a and zone b; give `zone_links` one of"),
        ([("a", "b"), ("b", "c")], "there is no link between zone a and zone c"),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("b", "a")], "there is more than one link between zone a and zone b"),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("b", "d")], "no group of nodes is in zone d; leave its links out"),
    ],
)
def test_zones_without_a_link_and_links_without_a_zone_are_refused(links: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        zoned(zone_links=[ZoneLink(zones, 1e9) for zones in links])


def test_groups_without_a_zone_beside_others_are_refused() -> None:
    with pytest.raises(BadInput, match="says no zone beside zones or their links; give all groups of nodes a `zone`"):
        zoned(groups=[*zoned().groups, NodeGroup(1, 2, 1e11, 1e10, 1e9)])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((("a", "a"), 1e9), "zones are a, a; name two zones"),
        ((("a", "b"), 0.0), "link between a and b: inter is 0.0; give a positive number of bytes per second"),
        ((("a", "b"), 1e9, -1.0), "latency_s is -1.0; give 0 to 60 seconds"),
        ((("a", "b"), 1e9, math.nan), "latency_s is nan"),
    ],
)
def test_a_link_of_zones_that_cannot_be_meant_is_refused(numbers: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ZoneLink(*numbers)
