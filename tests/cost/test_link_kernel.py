"""The compiled factors of links against cost.collectives, on every contiguous group of clusters of many shapes."""

from __future__ import annotations

from itertools import combinations

import pytest
from rings import all_reduce_s_per_byte

from automap_models.core.cluster import Cluster
from automap_models.cost.collectives import transfer_s_per_byte
from automap_models.cost.link_kernel import all_reduce, transfer

SIZES = [(1, 1), (1, 2), (1, 7), (2, 1), (5, 1), (2, 3), (3, 2), (3, 4), (2, 7), (4, 4)]
RATIOS = [0.024, 1.0, 1.7]


def cluster(size: tuple[int, int], ratio: float) -> Cluster:
    return Cluster(*size, intra=1 / ratio, inter=1.0, memory=1.0)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("size", SIZES)
def test_the_factor_of_an_all_reduce_is_that_of_the_collectives(size: tuple[int, int], ratio: float) -> None:
    like = cluster(size, ratio)
    for first, stop in combinations(range(like.devices + 1), 2):
        ours = all_reduce(float(first), float(stop), float(size[1]), ratio)
        assert ours == pytest.approx(all_reduce_s_per_byte(like, first, stop), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("size", SIZES)
def test_the_factor_of_a_transfer_is_that_of_the_collectives(size: tuple[int, int], ratio: float) -> None:
    like = cluster(size, ratio)
    for first, boundary, stop in combinations(range(like.devices + 1), 3):
        ours = transfer(float(first), float(boundary), float(stop), float(size[1]), ratio)
        assert ours == pytest.approx(transfer_s_per_byte(like, first, boundary, stop), rel=1e-12, abs=1e-15)
