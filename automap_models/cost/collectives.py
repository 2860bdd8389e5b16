"""Seconds per byte of transfers between stages and of gradient all-reduces (cost-model.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster


def devices_per_node(cluster: Cluster, first: int, stop: int) -> NDArray[np.int64]:
    """[N] how many of the devices first … stop-1 live in each node, c_s[v]."""
    start = np.arange(cluster.nodes) * cluster.devices_per_node
    held = np.minimum(stop, start + cluster.devices_per_node) - np.maximum(first, start)
    counts: NDArray[np.int64] = np.maximum(held, 0)
    return counts


def transfer_s_per_byte(cluster: Cluster, first: int, boundary: int, stop: int, padding: float = 1.0) -> float:
    """Transfer time per activation byte from devices first … boundary-1 to boundary … stop-1.

    Split on the sender, concatenate on the receiver, slices in device order: only the slice that
    both ends hold in the boundary's own node can stay inside it.

    Args:
        cluster: of the devices.
        first, boundary, stop: as above.
        padding: samples that the replicas of the two ends hold over those that there are, the larger of the two:
            slices are as large as the fullest replica's, all of them together no larger than the whole.
    """
    crosses, stays = _crossing_and_staying(cluster, first, boundary, stop)
    return max(min(1.0, padding * crosses) / cluster.inter, min(1.0, padding * stays) / cluster.intra)


def transfer_crosses_nodes(cluster: Cluster, first: int, boundary: int, stop: int) -> bool:
    """Whether any of what is sent from devices first … boundary-1 to boundary … stop-1 leaves a node."""
    return _crossing_and_staying(cluster, first, boundary, stop)[0] > 0.0


def _crossing_and_staying(cluster: Cluster, first: int, boundary: int, stop: int) -> tuple[float, float]:
    """The largest share of the data that leaves or enters a node, and the share that stays inside the boundary's."""
    out_share = devices_per_node(cluster, first, boundary) / (boundary - first)
    in_share = devices_per_node(cluster, boundary, stop) / (stop - boundary)
    stays = 0.0
    if boundary % cluster.devices_per_node:
        node = boundary // cluster.devices_per_node
        stays = max(0.0, float(out_share[node] + in_share[node]) - 1.0)
        out_share[node] -= stays
        in_share[node] -= stays
    return float(max(out_share.max(), in_share.max())), stays


def all_reduce_s_per_byte(cluster: Cluster, first: int, stop: int) -> float:
    """All-reduce time per gradient byte on devices first … stop-1: a ring inside the node, a ring between nodes."""
    held = devices_per_node(cluster, first, stop)
    inside, across = int(held.max()), int(np.count_nonzero(held))
    return 2.0 * (inside - 1) / inside / cluster.intra + 2.0 * (across - 1) / across / cluster.inter


def all_reduce_start_s(devices: int, launch_s: float) -> float:
    """What an all-reduce that further layers wait for costs whatever its size: the launches of a tree, up and down.

    Args:
        devices: that take part.
        launch_s: of a kernel.
    """
    return 2 * math.ceil(math.log2(devices)) * launch_s


def mesh_all_reduce_s_per_byte(cluster: Cluster, sizes: Sequence[int], first: int = 0) -> tuple[float, ...]:
    """All-reduce time per byte along each axis of a mesh on consecutive devices of a cluster.

    All groups of an axis reduce at the same time: those that leave a node share its link. On one axis it is
    `all_reduce_s_per_byte`.

    Args:
        sizes: devices along each axis; neighbours along the last one have consecutive numbers.
        first: number of the mesh's first device.
    """
    nodes = ((first + np.arange(math.prod(sizes))) // cluster.devices_per_node).reshape(sizes)
    return tuple(_axis_s_per_byte(cluster, np.moveaxis(nodes, axis, -1).reshape(-1, n)) for axis, n in enumerate(sizes))


def group_spans(nodes: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """How groups of devices lie in nodes: members in the node that has most, nodes, and groups that share a link.

    Args:
        nodes: [groups, size] of each group's devices.
        count: nodes of the cluster.

    Returns:
        Two int64 [groups], and the largest number of groups that leave the same node.
    """
    keys = np.arange(len(nodes))[:, None] * count + nodes
    met, held = np.unique(keys, return_counts=True)
    group, node = np.divmod(met, count)
    inside = np.zeros(len(nodes), dtype=np.int64)
    np.maximum.at(inside, group, held)
    across = np.bincount(group)
    return inside, across, int(np.bincount(node[across[group] > 1]).max(initial=0))


def _axis_s_per_byte(cluster: Cluster, nodes: NDArray[np.int64]) -> float:
    """The same of one axis; `nodes`, [groups, size], are those of each group's devices."""
    inside, across, sharing = group_spans(nodes, cluster.nodes)
    within_s = 2.0 * (inside - 1) / inside / cluster.intra
    between_s = 2.0 * (across - 1) / across / cluster.inter * sharing
    return float((within_s + between_s).max())
