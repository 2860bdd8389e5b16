"""All-reduces of gradients by the formula of cost-model.md, one stage at a time."""

from __future__ import annotations

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.cost.collectives import devices_per_node


def all_reduce_s_per_byte(cluster: Cluster, first: int, stop: int) -> float:
    """Time per gradient byte on devices first … stop-1: a ring inside the node, then a ring between nodes."""
    held = devices_per_node(cluster, first, stop)
    own = np.flatnonzero(held)
    within_s = 2.0 * (held[own] - 1) / held[own] / cluster.node_intra[own]
    return float(within_s.max() + 2.0 * (own.size - 1) / own.size / cluster.node_inter[own].min())
