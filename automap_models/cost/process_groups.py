"""The groups of devices that a strategy makes, where their members lie, and how long their collectives take.

Devices are numbered as Megatron and torchtitan do: tensor parallelism innermost, then context, data, and the ranks of
the pipeline outermost. Experts divide the devices of a rank of the pipeline anew: those that share an expert innermost,
then ep, then those that hold the same experts. With tp 2, dp 2, pp 2 on nodes of four devices:

    node        0               1
    device      0   1   2   3   4   5   6   7
    tp          └─┬─┘   └─┬─┘   └─┬─┘   └─┬─┘
    dp          0–2, 1–3        4–6, 5–7
    pp          0–4, 1–5, 2–6, 3–7: four messages share each node's network at once

A collective takes the shortest of these, with n members in N nodes, g in the fullest, B bytes, k groups that leave a
node at once, links of w bytes/s a device inside and x a node across (after the shares that collectives reach):

    ring           2 (n-1)/n · B · max(1/w, k/x)                          half of it for all-gather, reduce-scatter
    tree           2 B · max(1/w, k/x)                                    few steps; all-reduce only
    hierarchical   2 (g-1)/g · B/w + 2 (N-1)/N · B · k/x                  all-reduce only

Each step of them takes a latency, too: a ring all-reduce has 2(n-1), a tree 2(g-1) + 2 log2 N. In one node of more than
RING_DEVICES a tree has 2 log2 n, and no more than these in several nodes are faster than their ring in one: nodes that
are put together into one are never slower.

In a node whose devices have links of their own to one another (`Cluster.links`) a group has those between its members:
rings enter and leave each member over them, so w is that of the member that has fewest. In the hybrid cube mesh of 8
V100, where a device has 6 links, two neighbours have 1 or 2, the devices 0 to 3 have 4, and 0, 2, 4, 6 have 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.device import StepConstants
from automap_models.core.schedules import SCHEDULES, ranks_of_stages
from automap_models.core.strategy import Strategy
from automap_models.cost.collectives import ACROSS_S, LATENCY_S, RING_DEVICES, group_spans

Sizes = tuple[int, int, int, int, int]
"""Of the axes of a mesh of devices."""
Axes = tuple[tuple[int, ...], ...]
"""Of the groups of devices in a mesh, for each kind of groups."""


@dataclass(frozen=True)
class ProcessGroup:
    """One kind of group, all of which communicate at the same time.

    Attributes:
        size: members, n.
        inside: members in the node that has most of them, g.
        nodes: that a group lies in, N.
        sharing: groups that leave a node at once, k; 0 where none does.
        intra, inter: bytes/s that collectives reach, of a device inside a node and of a node.
    """

    size: int
    inside: int
    nodes: int
    sharing: int
    intra: float
    inter: float

    @property
    def _s_per_byte(self) -> float:
        """Of the slowest hop of a ring or a tree."""
        return max(1.0 / self.intra if self.inside > 1 else 0.0, self.sharing / self.inter)

    @property
    def _ring_latency_s(self) -> float:
        """Of what goes once round a ring: a hop between nodes for each of them, the others inside."""
        if self.nodes == 1:
            return (self.size - 1) * LATENCY_S
        return (self.size - self.nodes) * LATENCY_S + (self.nodes - 1) * ACROSS_S

    def all_reduce_s(self, sent_bytes: float) -> float:
        """Seconds of summing so many bytes over the group."""
        if self.size == 1 or not sent_bytes:
            return 0.0
        n, g, nodes = self.size, self.inside, self.nodes
        ring = 2 * self._ring_latency_s + 2 * (n - 1) / n * sent_bytes * self._s_per_byte
        if nodes == 1 and n <= RING_DEVICES:
            return ring
        steps = math.ceil(math.log2(n)) if nodes == 1 else g - 1 + math.ceil(math.log2(nodes))
        tree = 2 * steps * (LATENCY_S if nodes == 1 else ACROSS_S) + 2 * sent_bytes * self._s_per_byte
        if nodes == 1:
            return min(ring, tree)
        across_s_per_byte = 2 * (nodes - 1) / nodes * self.sharing / self.inter
        hierarchical = 2 * ((g - 1) * LATENCY_S + (nodes - 1) * ACROSS_S)
        hierarchical += sent_bytes * (2 * (g - 1) / g / self.intra + across_s_per_byte)
        inside = 0.0
        if n <= RING_DEVICES:
            inside = 2 * (n - 1) * (LATENCY_S + sent_bytes / n * min(1.0 / self.intra, self._s_per_byte))
        return max(min(ring, tree, hierarchical), inside)

    def gather_s(self, whole_bytes: float, pieces: float = 1) -> float:
        """Seconds of an all-gather, or of a reduce-scatter, of so many bytes in all, in a ring; of so many of them."""
        if self.size == 1 or not whole_bytes:
            return 0.0
        return pieces * self._ring_latency_s + (self.size - 1) / self.size * whole_bytes * self._s_per_byte

    def all_to_all_s(self, sent_bytes: float) -> float:
        """Seconds in which each member sends so many bytes, evenly to all of them, itself included."""
        if self.size == 1 or not sent_bytes:
            return 0.0
        within = (self.inside - 1) / self.size / self.intra
        across = (self.size - self.inside) / self.size * self.inside * self.sharing / self.inter
        return (self.size - 1) * LATENCY_S + sent_bytes * max(within, across)

    def dispatch_s(self, sent_bytes: float, copies: float) -> float:
        """Seconds in which each member sends so many bytes of tokens, once to each node that has experts of a token,
        where NVLink hands it on once to each device that has.

        Args:
            sent_bytes: of all copies.
            copies: of a token, which go to as many experts.
        """
        if self.size == 1 or not sent_bytes:
            return 0.0
        nodes, devices = (
            (count - 1) * (1.0 - math.pow(1.0 - 1.0 / count, copies)) for count in (self.nodes, self.size)
        )
        within = devices / copies * sent_bytes / self.intra
        across = nodes / copies * sent_bytes * self.inside * self.sharing / self.inter
        return (self.inside + self.nodes) * LATENCY_S + max(within, across)

    def passed_on_s(self, own_bytes: float) -> float:
        """Seconds in which what each member has comes round to all others, from neighbour to neighbour."""
        return self.gather_s(self.size * own_bytes)


@dataclass(frozen=True)
class ProcessGroups:
    """All groups of a strategy.

    Attributes:
        tensor, context, experts: of tp, cp and ep.
        data: that hold the same weights: the ranks of data and context parallelism, or those of one of the groups that
            `dp_replicate` makes of them.
        expert_data: that hold the same experts, likewise.
        replicas: that hold the same part of what such a group divides.
        crossing: [pp·vp-1] devices of a node that send to another node at once between two virtual stages; 0 where the
            ends are in the same nodes, -1 where they are the same devices.
        ends_crossing: the same between the first and the last rank of the pipeline.
        intra, inter: as of a ProcessGroup; of messages between ranks of the pipeline.
    """

    tensor: ProcessGroup
    context: ProcessGroup
    experts: ProcessGroup
    data: ProcessGroup
    expert_data: ProcessGroup
    replicas: ProcessGroup
    crossing: tuple[int, ...]
    ends_crossing: int
    intra: float
    inter: float

    def gather_s(self, others_bytes: float, experts_bytes: float, pieces: float = 1) -> float:
        """Seconds of gathering, or of reducing and scattering, weights or gradients without experts', and theirs."""
        return self.data.gather_s(others_bytes, pieces) + self.expert_data.gather_s(experts_bytes, pieces)

    def replicas_s(self, others_bytes: float, experts_bytes: float) -> float:
        """Seconds of summing over replicas what groups have reduced and scattered of so many bytes, experts' apart."""
        parts = others_bytes / self.data.size, experts_bytes / self.expert_data.size
        return sum(map(self.replicas.all_reduce_s, parts))

    def ends_sum_s(self, summed_bytes: float) -> float:
        """Seconds in which each device of the first rank and its partner of the last rank sum so many bytes."""
        return self._sent_s(self.ends_crossing, summed_bytes)

    def transfer_s(self, boundary: int, sent_bytes: float) -> float:
        """Seconds in which every device sends so many bytes from a virtual stage to the next one."""
        return self._sent_s(self.crossing[boundary], sent_bytes)

    def _sent_s(self, crossing: int, sent_bytes: float) -> float:
        if crossing < 0 or not sent_bytes:
            return 0.0
        return LATENCY_S + (sent_bytes * crossing / self.inter if crossing else sent_bytes / self.intra)


def process_groups(
    strategy: Strategy,
    cluster: Cluster,
    constants: StepConstants,
    expert_shares: tuple[float, float] | None = None,
) -> ProcessGroups:
    """The groups of a strategy on a cluster whose collectives reach these shares of its links.

    Args:
        strategy, cluster: as above.
        constants: with the shares.
        expert_shares: those of the groups of experts, inside a node and across; None: the others'.
    """
    s = strategy
    copies = s.pp, s.dp_replicate
    dense_mesh = (*copies, s.dp // s.dp_replicate, s.cp, s.tp), _DENSE
    meshes = dense_mesh, ((*copies, s.expert_shards, s.ep, s.expert_tensor), _OF_EXPERTS)
    bounds = (cluster.devices_per_node,) if not cluster.groups else tuple(cluster.node_bounds[1:].tolist())
    (dense, ranks), (of_experts, _) = (_spans(*mesh, bounds) for mesh in meshes)
    intra, inter = cluster.intra * constants.intra_efficiency, cluster.inter * constants.inter_efficiency
    lies = ranks_of_stages(strategy.stages, strategy.pp, SCHEDULES[strategy.schedule].placement)
    crossing = tuple([-1 if a == b else ranks[(a, b) if a < b else (b, a)] for a, b in pairwise(lies)])
    shares: tuple[float, ...] = (1.0,) * 6
    of_messages = 1.0
    if cluster.links:
        (of_dense, of_messages), (beside, _) = (_link_shares(*mesh, cluster.links) for mesh in meshes)
        shares = (*of_dense, *beside)
    tensor, context, data, replicas, experts, expert_data = (
        ProcessGroup(size, inside, across, sharing, intra * share, inter)
        for (size, inside, across, sharing), share in zip((*dense, *of_experts), shares, strict=True)
    )
    if expert_shares is not None:
        of_links = cluster.intra * expert_shares[0] * shares[4], cluster.inter * expert_shares[1]
        experts = replace(experts, intra=of_links[0], inter=of_links[1])
    ends = ranks[0, strategy.pp - 1]
    groups = tensor, context, experts, data, expert_data, replicas
    return ProcessGroups(*groups, crossing, ends, intra * of_messages, inter)


_DENSE: Axes = ((4,), (3,), (2, 3), (1,))
"""Of the mesh of pp, replicas, dp in one of these, cp and tp: those of tp, cp, the same weights, and replicas."""
_OF_EXPERTS: Axes = ((3,), (2,))
"""Of the mesh of pp, replicas, expert data parallelism in one of these, ep and expert tensor parallelism: those of ep,
and the same experts."""


@lru_cache(maxsize=8192)
def _link_shares(sizes: Sizes, kinds: Axes, links: tuple[tuple[int, ...], ...]) -> tuple[tuple[float, ...], float]:
    """Least share of a device's links that lead to members of its group, of each kind of groups; and of those that lead
    to its partner in the next rank of the pipeline.

    Args:
        sizes, kinds: of the axes of a mesh, and axes of the groups in it.
        links: of a node, see `Cluster`.
    """
    counts, per_node = np.array(links, np.float64), len(links)
    totals = counts.sum(axis=1)
    devices = np.arange(math.prod(sizes)).reshape(sizes)

    def least(groups: NDArray[np.int64]) -> float:
        shares = [1.0]
        for group in groups:
            for node in np.unique(group // per_node):
                members = group[group // per_node == node] % per_node
                if members.size > 1:
                    linked = counts[np.ix_(members, members)].sum(axis=1)
                    # what is not linked has half a link: PCIe 3.0 × 16 has 12 to 13 GB/s, an NVLink of V100 25
                    shares.append(float((np.maximum(linked, 0.5) / totals[members]).min()))
        return min(shares)

    groups = [_last(devices, axes).reshape(-1, math.prod(sizes[axis] for axis in axes)) for axes in kinds]
    ranks = devices.reshape(sizes[0], -1)
    partners = np.stack([ranks[:-1].ravel(), ranks[1:].ravel()], axis=1)
    return tuple(map(least, groups)), least(partners)


@lru_cache(maxsize=8192)
def _spans(
    sizes: Sizes, kinds: Axes, bounds: tuple[int, ...]
) -> tuple[list[tuple[int, int, int, int]], dict[tuple[int, int], int]]:
    """Size, inside, nodes, sharing of the kinds of groups; and (rank, rank) → devices of a node that send across.

    Args:
        sizes, kinds: of the axes of a mesh, and axes of the groups in it.
        bounds: the first device after each node; one number is that of the devices in every node.
    """
    devices = np.arange(math.prod(sizes))
    nodes = devices // bounds[0] if len(bounds) == 1 else np.searchsorted(bounds, devices, side="right")
    nodes = nodes.reshape(sizes)
    spans = [_span(_last(nodes, axes), [sizes[axis] for axis in axes]) for axes in kinds]
    ranks = nodes.reshape(sizes[0], -1)
    pairs = [(rank, rank + 1) for rank in range(sizes[0] - 1)] + [(0, sizes[0] - 1)]
    return spans, {pair: _crossing(ranks[pair[0]], ranks[pair[1]]) for pair in pairs}


def _last(mesh: NDArray[np.int64], axes: Sequence[int]) -> NDArray[np.int64]:
    """The mesh with these axes behind the others."""
    return np.moveaxis(mesh, axes, range(mesh.ndim - len(axes), mesh.ndim))


def _span(nodes: NDArray[np.int64], sizes: Sequence[int]) -> tuple[int, int, int, int]:
    size = math.prod(sizes)
    inside, across, sharing = group_spans(nodes.reshape(-1, size), int(nodes.max()) + 1)
    return size, int(inside.max()), int(across.max()), sharing


def _crossing(senders: NDArray[np.int64], receivers: NDArray[np.int64]) -> int:
    leaving = senders != receivers
    return int(max(np.bincount(ends[leaving], minlength=1).max() for ends in (senders, receivers)))
