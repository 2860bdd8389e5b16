"""Seconds per byte of transfers between stages and of gradient all-reduces (cost-model.md)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray

LATENCY_S = 3.4e-6
"""Of a step of a collective inside a node, and of a message: NCCL 2.28's of a hop over NVLink (src/graph/tuning.cc)."""

ACROSS_S = 14e-6
"""Of a step that leaves a node: NCCL's of a hop over the network, in the same table."""

RING_DEVICES = 8
"""Of a node up to which an all-reduce inside it is a ring, as in all steps that constants of devices are fitted to."""


def devices_per_node(cluster: Cluster, first: int, stop: int) -> NDArray[np.int64]:
    """[N] how many of the devices first … stop-1 live in each node, c_s[v]."""
    bounds = cluster.node_bounds
    overlap = np.minimum(stop, bounds[1:]) - np.maximum(first, bounds[:-1])
    return np.asarray(np.maximum(overlap, 0))


def transfer_s_per_byte(cluster: Cluster, first: int, boundary: int, stop: int, padding: float = 1.0) -> float:
    """Transfer time per activation byte from devices first … boundary-1 to boundary … stop-1.

    Split on the sender, concatenate on the receiver, slices in device order: only the slice that
    both ends hold in the boundary's own node can stay inside it. What leaves or enters a node goes over its own link,
    so that what goes from one node to another takes as long as the slower of their two links takes.

    Args:
        cluster: of the devices.
        first, boundary, stop: as above.
        padding: samples that the replicas of the two ends hold over those that there are, the larger of the two:
            slices are as large as the fullest replica's, all of them together no larger than the whole.
    """
    crosses, stays = _crossing_and_staying(cluster, first, boundary, stop)
    crosses_s = np.minimum(1.0, padding * crosses) / cluster.node_inter
    stays_s = min(1.0, padding * stays) / cluster.node_intra[cluster.node_of[boundary]]
    return max(float(crosses_s.max()), float(stays_s))


def _crossing_and_staying(cluster: Cluster, first: int, boundary: int, stop: int) -> tuple[FloatArray, float]:
    """[N] the share of the data that leaves or enters each node, and the share that stays inside the boundary's."""
    out_share = devices_per_node(cluster, first, boundary) / (boundary - first)
    in_share = devices_per_node(cluster, boundary, stop) / (stop - boundary)
    stays, node = 0.0, int(cluster.node_of[boundary])
    if boundary != cluster.node_bounds[node]:
        stays = max(0.0, float(out_share[node] + in_share[node]) - 1.0)
        out_share[node] -= stays
        in_share[node] -= stays
    return np.maximum(out_share, in_share), stays


def all_reduce_start_s(devices: int, launch_s: float) -> float:
    """What an all-reduce that further layers wait for costs whatever its size: the launches of a tree, up and down.

    Args:
        devices: that take part.
        launch_s: of a kernel.
    """
    return 2 * math.ceil(math.log2(devices)) * launch_s


@lru_cache(maxsize=1 << 14)
def mesh_all_reduce_s_per_byte(cluster: Cluster, sizes: tuple[int, ...], first: int = 0) -> tuple[float, ...]:
    """All-reduce time per byte along each axis of a mesh on consecutive devices: a ring inside nodes, one between them.

    The rings of the nodes go on at once; the one between them is as fast as the slowest of their links. All groups of
    an axis reduce at the same time: those that leave a node share its link.

    Args:
        sizes: devices along each axis; neighbours along the last one have consecutive numbers.
        first: number of the mesh's first device.
    """
    nodes = cluster.node_of[first + np.arange(math.prod(sizes))].reshape(sizes)
    axes = (np.moveaxis(nodes, axis, -1).reshape(-1, n) for axis, n in enumerate(sizes))
    return tuple(_axis_s_per_byte(cluster, of_groups) for of_groups in axes)


def group_spans(nodes: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """How groups of devices lie in nodes: members in the node that has most, nodes, and groups that share a link.

    Args:
        nodes: [groups, size] of each group's devices.
        count: nodes of the cluster.

    Returns:
        Two int64 [groups], and the largest number of groups that leave the same node.
    """
    group, node, counts = _meetings(nodes, count)
    inside = np.zeros(len(nodes), dtype=np.int64)
    np.maximum.at(inside, group, counts)
    return inside, np.bincount(group), int(_leaving(group, node, count).max())


def _meetings(nodes: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Group, node and number of devices for each group and node that have devices in common; arguments as above."""
    keys = np.arange(len(nodes))[:, None] * count + nodes
    met, counts = np.unique(keys, return_counts=True)
    group, node = np.divmod(met, count)
    return group, node, counts


def _leaving(group: NDArray[np.int64], node: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """[count] how many groups share the link of each node, as they have devices in others, too; see `_meetings`."""
    return np.bincount(node[np.bincount(group)[group] > 1], minlength=count)


def _axis_s_per_byte(cluster: Cluster, nodes: NDArray[np.int64]) -> float:
    """The same of one axis; `nodes`, [groups, size], are those of each group's devices."""
    group, node, counts = _meetings(nodes, cluster.nodes)
    within_s, across = np.zeros(len(nodes)), np.bincount(group)
    np.maximum.at(within_s, group, 2.0 * (counts - 1) / counts / cluster.node_intra[node])
    rings, between_s, leaving = 2.0 * (across - 1) / across, np.zeros(len(nodes)), _leaving(group, node, cluster.nodes)
    for inter in np.unique(cluster.node_inter):  # the groups wait for the node whose link takes longest
        between_s = np.maximum(between_s, rings / inter * leaving[cluster.node_inter == inter].max())
    return float((within_s + between_s).max())
