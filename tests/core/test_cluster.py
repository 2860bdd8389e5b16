"""What a cluster is and which ones are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.errors import BadInput

GOOD: dict[str, Any] = {"nodes": 2, "devices_per_node": 3, "intra": 130e9, "inter": 3.125e9, "memory": 32e9}


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
