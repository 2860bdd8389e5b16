"""Transfers and all-reduces, worked out by hand."""

from __future__ import annotations

import pytest

from automap_models.core.cluster import Cluster
from automap_models.cost.collectives import all_reduce_start_s, mesh_all_reduce_s_per_byte, transfer_s_per_byte

CLUSTER = Cluster(3, 4, intra=100e9, inter=10e9, memory=1e9, name="three")


@pytest.mark.parametrize(("devices", "rounds"), [(1, 0), (2, 2), (3, 4), (4, 4), (6, 6), (8, 6), (9, 8)])
def test_an_all_reduce_starts_as_often_as_a_tree_has_levels_up_and_down(devices: int, rounds: int) -> None:
    assert all_reduce_start_s(devices, 0.5) == 0.5 * rounds


def test_replicas_with_room_for_more_samples_than_there_are_receive_no_more_than_all() -> None:
    """Of the two senders and the two receivers in one node nothing leaves it; a padding of 3 is the whole at most."""
    assert transfer_s_per_byte(CLUSTER, 0, 2, 4) == pytest.approx(1 / 100e9)
    assert transfer_s_per_byte(CLUSTER, 0, 2, 4, padding=3.0) == pytest.approx(1 / 100e9)
    assert transfer_s_per_byte(CLUSTER, 0, 4, 8, padding=3.0) == pytest.approx(1 / 10e9)


def test_what_stays_in_a_node_is_padded_too() -> None:
    """Two devices send to 2 beside them and 4 in the next node: a third stays, on slower links."""
    slow = Cluster(3, 4, intra=1e9, inter=10e9, memory=1e9, name="slow inside")
    assert transfer_s_per_byte(slow, 0, 2, 8) == pytest.approx(1 / 3 / 1e9)
    assert transfer_s_per_byte(slow, 0, 2, 8, padding=1.5) == pytest.approx(1.5 / 3 / 1e9)


def test_groups_that_leave_a_node_share_its_link() -> None:
    """Four groups of an outer axis, one of each device, over two nodes; the inner axis stays in its node."""
    over_groups, inside = mesh_all_reduce_s_per_byte(CLUSTER, (2, 4))
    assert over_groups == pytest.approx(4 * 2 * 0.5 / 10e9)
    assert inside == pytest.approx(2 * 0.75 / 100e9)


def test_a_group_over_two_nodes_is_as_slow_inside_as_where_it_has_most_devices() -> None:
    """Devices 2 … 7 in two nodes: two and four of them."""
    (of_all,) = mesh_all_reduce_s_per_byte(CLUSTER, (6,), first=2)
    assert of_all == pytest.approx(2 * 0.75 / 100e9 + 2 * 0.5 / 10e9)
