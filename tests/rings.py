"""All-reduces of gradients by the formula of cost-model.md, one stage at a time."""

from __future__ import annotations

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.cost.collectives import devices_per_node


def all_reduce_s_per_byte(cluster: Cluster, first: int, stop: int, *, shortest: bool = False) -> float:
    """Time per gradient byte on devices first … stop-1: a ring inside the node, then a ring between nodes.

    Args:
        shortest: whether one ring through all devices is taken where that is shorter.
    """
    held = devices_per_node(cluster, first, stop)
    own = np.flatnonzero(held)
    within_s = 2.0 * (held[own] - 1) / held[own] / cluster.node_intra[own]
    both_s = float(within_s.max() + 2.0 * (own.size - 1) / own.size / cluster.node_inter[own].min())
    if not shortest or own.size == 1:
        return both_s
    n, slowest_hop_s = stop - first, max(1.0 / cluster.node_intra[own].min(), 1.0 / cluster.node_inter[own].min())
    return min(both_s, float(2.0 * (n - 1) / n * slowest_hop_s))
