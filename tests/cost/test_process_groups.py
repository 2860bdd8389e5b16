"""Where the groups of a strategy lie, and what their collectives take, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink
from automap_models.core.device import StepConstants
from automap_models.core.strategy import Strategy
from automap_models.cost.collectives import ACROSS_S, LATENCY_S
from automap_models.cost.process_groups import ProcessGroup, ProcessGroups, process_groups, sites_of
from automap_models.formats.hardware_yaml import read_cluster

HALF = StepConstants(
    product_efficiency=1.0,
    half_size=0.0,
    attention_efficiency=1.0,
    bandwidth_efficiency=1.0,
    launch_s=0.0,
    intra_efficiency=0.5,
    inter_efficiency=0.25,
    overlap=0.0,
)
FOUR = Cluster(4, 8, 200e9, 100e9, 80e9)
"""Four nodes of eight devices."""


def _groups(**fields: int | str) -> ProcessGroups:
    strategy = Strategy(micro_batch=1, global_batch=64, **fields)  # type: ignore[arg-type]
    return process_groups(strategy, FOUR, HALF)


def _crossing(**fields: int | str) -> list[int]:
    return [message.crossing for message in _groups(**fields).messages]


def _lies(group: ProcessGroup) -> tuple[int, int, int, int]:
    return group.size, group.inside, group.nodes, group.sharing


def test_tensor_parallelism_is_innermost_and_the_pipeline_outermost() -> None:
    """tp 4, cp 2 fill a node; dp 2 spans two, eight groups at once; pp 2 the two halves of the cluster."""
    groups = _groups(tp=4, cp=2, dp=2, pp=2)
    assert _lies(groups.tensor) == (4, 4, 1, 0)
    assert _lies(groups.context) == (2, 2, 1, 0)
    assert _lies(groups.data) == (4, 2, 2, 4)  # with the two of context parallelism, which hold the same weights
    assert groups.messages == ((8, 100e9, 25e9, 0.0),)


def test_ranks_of_expert_parallelism_are_neighbours_in_data_parallelism() -> None:
    groups = _groups(tp=2, dp=16, ep=4)
    assert _lies(groups.experts) == (4, 4, 1, 0)
    assert _lies(groups.expert_data) == (4, 1, 4, 8)
    assert _lies(groups.data) == (16, 4, 4, 2)


def test_groups_within_which_zero_divides_are_of_neighbours() -> None:
    """Of 32 ranks those of each of four nodes; eight of a node sum with those of the other nodes at once."""
    groups = _groups(dp=32, zero=3, dp_replicate=4)
    assert _lies(groups.data) == (8, 8, 1, 0)
    assert _lies(groups.replicas) == (4, 1, 4, 8)
    shared = _groups(tp=2, cp=2, dp=8, zero=1, dp_replicate=2, ep=4)
    assert _lies(shared.data) == (8, 4, 2, 2)
    assert _lies(shared.replicas) == (2, 1, 2, 8)
    assert _lies(shared.expert_data) == (2, 1, 2, 8)


def test_whole_experts_lie_on_neighbours_whatever_shares_the_attention() -> None:
    """Eight ranks in the eight devices of a node, which are tp 4 by dp 2; on tp 4 by dp 4 two such groups."""
    one, two = _groups(tp=4, dp=2, pp=4, ep=8), _groups(tp=4, dp=4, pp=2, ep=8)
    assert _lies(one.experts) == _lies(two.experts) == (8, 8, 1, 0)
    assert one.expert_data.size == 1 and _lies(two.expert_data) == (2, 1, 2, 8)
    assert _lies(one.tensor) == (4, 4, 1, 0) and one.data.size == 2


def test_tensor_parallelism_may_span_nodes() -> None:
    assert _lies(_groups(tp=16, dp=2).tensor) == (16, 8, 2, 1)


def test_stages_inside_a_node_send_inside_it() -> None:
    """Ranks of two devices: three boundaries inside each node, one between; in a V the middle is on one rank."""
    assert _crossing(tp=2, pp=16) == [0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0]
    v = _crossing(tp=8, pp=4, vp=2, schedule="zb-v")
    assert v == [8, 8, 8, -1, 8, 8, 8]
    looping = _crossing(tp=2, pp=16, vp=2, schedule="interleaved")
    assert looping[15] == 2  # from the last rank to the first one


def test_an_all_reduce_in_a_node_is_a_ring() -> None:
    """2 (n - 1) steps of a latency and of an n-th of the bytes: 2 · 3/4 · 1 GB over 100 GB/s."""
    group = ProcessGroup(4, 4, 1, 0, 100e9, 25e9)
    assert group.all_reduce_s(1e9) == pytest.approx(0.015 + 6 * LATENCY_S)
    assert group.gather_s(1e9) == pytest.approx(0.0075 + 3 * LATENCY_S)


def test_groups_that_leave_a_node_at_once_share_its_network() -> None:
    """Eight groups of one device in each of four nodes: 2 · 3/4 · 1 GB · 8 over 25 GB/s."""
    group = ProcessGroup(4, 1, 4, 8, 100e9, 25e9)
    assert group.all_reduce_s(1e9) == pytest.approx(0.48 + 6 * ACROSS_S)
    assert group.gather_s(1e9) == pytest.approx(0.24 + 3 * ACROSS_S)


def test_a_large_all_reduce_over_two_nodes_is_hierarchical() -> None:
    """Inside 2 · 7/8 · 1 GB / 100 GB/s, across 2 · 1/2 · 1 GB / 25 GB/s; a ring would take 2 · 15/16 · 1/20."""
    group = ProcessGroup(16, 8, 2, 1, 100e9, 25e9)
    assert group.all_reduce_s(1e9) == pytest.approx(0.0175 + 0.04 + 14 * LATENCY_S + 2 * ACROSS_S)


@pytest.mark.parametrize(("sharing", "s_per_byte"), [(1, 1 / 100 + 1 / 25), (2, 1 / 100 + 2 / 25)])
def test_a_ring_over_nodes_takes_a_hop_inside_and_one_across(sharing: int, s_per_byte: float) -> None:
    """15/16 of 1 GB go over both links, one after the other; two rings that leave a node share its network."""
    group = ProcessGroup(16, 8, 2, sharing, 100e9, 25e9)
    assert group.gather_s(1e9) == pytest.approx(15 / 16 * s_per_byte + 14 * LATENCY_S + ACROSS_S)


def test_a_small_all_reduce_over_many_nodes_is_a_tree() -> None:
    group = ProcessGroup(64, 1, 64, 1, 100e9, 25e9)
    assert group.all_reduce_s(1.0) == pytest.approx(2 * 6 * ACROSS_S, rel=1e-3)


def test_tokens_for_experts_of_other_nodes_share_the_network() -> None:
    """Two nodes of four members: half of what each of eight devices sends leaves, 8 · 1 GB / 2 in all a node."""
    group = ProcessGroup(8, 4, 2, 2, 100e9, 25e9)
    assert group.all_to_all_s(1e9) == pytest.approx(0.16 + 7 * LATENCY_S)


def test_tokens_that_go_once_to_a_node_are_fewer_than_their_copies() -> None:
    """Each of 16 devices in two nodes sends 8 GB of 8 copies: 1 - 1/2^8 of a token goes to the other node, where 8 do.

    Across, 8 devices of a node send 255/256 GB each over 25 GB/s; inside, 15 others have experts of 1 - (15/16)^8 of
    the tokens each, and get 1 GB of all of them over 100 GB/s.
    """
    group = ProcessGroup(16, 8, 2, 1, 100e9, 25e9)
    assert group.dispatch_s(8e9, 8.0) == pytest.approx(8 * 255 / 256 / 25 + 10 * LATENCY_S)
    assert group._replace(inter=1e15).dispatch_s(8e9, 8.0) == pytest.approx(0.15 * (1 - 0.9375**8) + 10 * LATENCY_S)
    assert group.all_to_all_s(8e9) == pytest.approx(8 * 4 / 25 + 15 * LATENCY_S)


def test_keys_and_values_come_round_to_all() -> None:
    assert ProcessGroup(4, 4, 1, 0, 100e9, 25e9).passed_on_s(1e9) == pytest.approx(0.03 + 3 * LATENCY_S)


def test_a_message_between_nodes_shares_the_network_with_its_neighbours() -> None:
    groups = _groups(tp=4, dp=2, pp=4)
    assert groups.messages[0].sent_s(1e9) == pytest.approx(8 / 25 + LATENCY_S)
    assert _groups(tp=2, pp=16).messages[0].sent_s(1e9) == pytest.approx(1 / 100 + LATENCY_S)


@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.floats(1.0, 1e10), st.floats(1.0, 1e10))
def test_more_bytes_never_take_less_and_one_device_nothing(size: int, one: float, other: float) -> None:
    group = _groups(tp=size, dp=32 // size).tensor
    for collective in (group.all_reduce_s, group.gather_s, group.all_to_all_s, group.passed_on_s):
        assert collective(min(one, other)) <= collective(max(one, other))
        assert size > 1 or collective(one) == 0.0


@given(
    st.sampled_from([(2, 4), (4, 2), (4, 4), (4, 8), (8, 4), (16, 1), (16, 8)]),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 2), (8, 1), (1, 4)]),
    st.sampled_from([1.0, 3.0, 20.0]),
    st.floats(1.0, 1e10),
)
def test_nodes_that_are_put_together_into_one_are_never_slower(
    nodes: tuple[int, int], parts: tuple[int, int], faster: float, sent_bytes: float
) -> None:
    """One node of 32 was slower than four of eight: in a node an all-reduce of 32 had only a ring, of 62 latencies."""
    (count, own), (tp, pp) = nodes, parts
    devices = count * own
    strategy = Strategy(micro_batch=1, global_batch=64 * devices, tp=tp, pp=pp, dp=devices // (tp * pp))
    apart, together = (
        process_groups(strategy, Cluster(n, devices // n, faster * 25e9, 25e9, 32e9), HALF) for n in (count, 1)
    )
    for name in ("tensor", "data"):
        for collective in ("all_reduce_s", "gather_s", "all_to_all_s"):
            one, other = (getattr(getattr(groups, name), collective)(sent_bytes) for groups in (together, apart))
            assert one <= other * (1 + 1e-12)


CUBE_MESH = read_cluster("dgx-1").links


def _mesh_share(**fields: int) -> tuple[float, float]:
    """Share of `intra` that tensor and data parallelism have in two nodes of a hybrid cube mesh."""
    cluster = Cluster(2, 8, 150e9, 50e9, 32e9, links=CUBE_MESH)
    strategy = Strategy(micro_batch=1, global_batch=64, **fields)  # type: ignore[arg-type]
    groups = process_groups(strategy, cluster, replace(HALF, intra_efficiency=1.0))
    return groups.tensor.intra / 150e9, groups.data.intra / 150e9


def test_the_cube_mesh_is_three_rings_through_all_devices() -> None:
    """No link is left over ("NVIDIA DGX-1 With Tesla V100 System Architecture", white paper)."""
    counts = np.array(CUBE_MESH)
    rings = [ring for ring in permutations(range(1, 8)) if ring[0] < ring[-1]]
    edges = [np.zeros_like(counts) for _ in rings]
    for of, ring in zip(edges, rings, strict=True):
        for one, other in pairwise((0, *ring, 0)):
            of[one, other] += 1
            of[other, one] += 1
    possible = [of for of in edges if (of <= counts).all()]
    assert any((a + b + c == counts).all() for a, b, c in combinations_with_replacement(possible, 3))


@pytest.mark.parametrize(
    ("fields", "tensor", "data"),
    [
        ({"tp": 8, "dp": 2}, 6 / 6, 1.0),  # data: one member in each node
        ({"tp": 4, "dp": 4}, 4 / 6, 1 / 6),  # 0 to 3 have 4, 4, 5, 5; 0–4 and 1–5 two links, 2–6 and 3–7 one
        ({"tp": 2, "dp": 8}, 1 / 6, 2 / 6),  # 0–1 have one link, of 0, 2, 4, 6 the second has two
        ({"dp": 16}, 1.0, 6 / 6),
    ],
)
def test_groups_in_a_cube_mesh_have_the_links_between_their_members(
    fields: dict[str, int], tensor: float, data: float
) -> None:
    assert _mesh_share(**fields) == pytest.approx((tensor, data))


def test_devices_without_a_link_send_over_pcie() -> None:
    """Ranks 0 and 1 of a pipeline have a link, 3 and 4 none: half a link of six."""
    cluster = Cluster(1, 8, 150e9, 50e9, 32e9, links=CUBE_MESH)
    groups = process_groups(Strategy(pp=8, micro_batch=1, global_batch=64), cluster, HALF)
    assert groups.messages[0].sent_s(1e9) == pytest.approx(LATENCY_S + 1e9 / (0.5 * 150e9 * 0.5 / 6))


MIXED = Cluster.of_groups([NodeGroup(2, 4, 400e9, 40e9, 32e9), NodeGroup(1, 4, 300e9, 8e9, 32e9)])


def _of_ranks(cluster: Cluster = MIXED, **fields: int) -> list[list[ProcessGroups]]:
    """[pp] of each kind of devices of a rank."""
    s = Strategy(micro_batch=1, global_batch=48, **fields)  # type: ignore[arg-type]
    return [[process_groups(s, cluster, HALF, site=site) for site in rank] for rank in sites_of(s, cluster)]


def test_ranks_have_the_links_of_their_nodes_and_messages_those_of_both_ends() -> None:
    """Ranks 0 and 1 in the two fast nodes, rank 2 in the slow one; HALF attains half inside and a quarter between."""
    of_ranks = _of_ranks(tp=4, pp=3)
    assert [[groups.tensor.intra for groups in rank] for rank in of_ranks] == [[200e9], [200e9], [150e9]]
    assert of_ranks[0][0].messages == of_ranks[2][0].messages == ((4, 200e9, 10e9, 0.0), (4, 150e9, 2e9, 0.0))
    assert of_ranks[0][0].ends == (4, 150e9, 2e9, 0.0)


def test_groups_of_a_rank_of_two_kinds_have_slow_links_where_they_meet() -> None:
    """Of data parallelism over three nodes; those of tensor parallelism lie in one node each."""
    ((fast, slow),) = _of_ranks(tp=4, dp=3)
    assert (fast.tensor.intra, slow.tensor.intra) == (200e9, 150e9)
    assert fast.data.inter == slow.data.inter == 2e9 and _lies(fast.data) == (3, 1, 3, 4)
    ((fast, slow),) = _of_ranks(tp=1, dp=12, ep=4)
    assert (fast.experts.intra, slow.experts.intra) == (200e9, 150e9)
    assert _lies(fast.experts) == _lies(slow.experts) == (4, 4, 1, 0)


def test_what_goes_from_zone_to_zone_takes_their_link_and_its_latency() -> None:
    """Three zones of a node each; of their links that of 1 GB/s and 10 ms is slowest, and HALF attains a quarter."""
    near, far = ZoneLink(("a", "b"), 6e9, 1e-3), [ZoneLink((zone, "c"), 1e9, 10e-3) for zone in "ab"]
    groups = [NodeGroup(1, 4, 400e9, 40e9, 32e9, zone=zone) for zone in "abc"]
    cluster = Cluster.of_groups(groups, zone_links=[near, *far])
    first, *_, last = _of_ranks(cluster, tp=4, pp=3)
    assert first[0].messages == ((4, 200e9, 1.5e9, 1e-3), (4, 200e9, 0.25e9, 10e-3))
    assert first[0].messages[1].sent_s(1e9) == pytest.approx(LATENCY_S + 10e-3 + 4 / 0.25)
    assert first[0].tensor == last[0].tensor and first[0].tensor.zones_s == 0.0
    ((data, *_),) = [[groups.data for groups in rank] for rank in _of_ranks(cluster, tp=4, dp=3)]
    assert (data.inter, data.zones_s) == (0.25e9, 20e-3)
    assert data.gather_s(3e9) == pytest.approx(2 * ACROSS_S + 20e-3 + 2 / 3 * 3 * 4 / 0.25)
    small = data.all_reduce_s(3.0), data._replace(zones_s=0.0).all_reduce_s(3.0)  # up and down a tree, or round twice
    assert small[0] - small[1] == pytest.approx(40e-3)
