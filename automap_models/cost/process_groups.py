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

    ring           2 (n-1)/n · B · (1/w + k/x)                            half of it for all-gather, reduce-scatter
    tree           2 B · (1/w + k/x)                                      few steps; all-reduce only
    hierarchical   2 (g-1)/g · B/w + 2 (N-1)/N · B · k/x                  all-reduce only

1/w counts where g > 1, and k/x where N > 1. What goes over a link inside and one across takes both times, one after the
other, in a ring as in a hierarchical algorithm, which over nodes is never longer than a ring. With the longer of both,
steps would reach more of slow networks than of fast ones, and more where all devices of a node leave it at once than
where one ring does; with the sum all of them reach about one share (benchmarks/results/measured_steps.md).

Each step of them takes a latency, too: a ring all-reduce has 2(n-1), a tree 2(g-1) + 2 log2 N. In one node of more than
RING_DEVICES a tree has 2 log2 n, and no more than these in several nodes are faster than their ring in one: nodes that
are put together into one are never slower.

In a node whose devices have links of their own to one another (`Cluster.links`) a group has those between its members:
rings enter and leave each member over them, so w is that of the member that has fewest. In the hybrid cube mesh of 8
V100, where a device has 6 links, two neighbours have 1 or 2, the devices 0 to 3 have 4, and 0, 2, 4, 6 have 2.

In a mixed cluster w and x are of the slowest nodes that the groups of a device have members in. So devices of one kind
have other groups than those of another kind, and on ranks of the pipeline of one kind other ones than beside others:

    nodes      fast    fast    slow    slow         pp 2: groups of the fast devices lie in fast nodes, those of the
    ranks      └─ 0 ─────┘     └─ 1 ─────┘          slow in slow ones, and messages between them take the slow links

Where the nodes of a group lie in several zones, x is at most that of the zones' link (`Cluster.zone_links`), and what
goes once through all members takes the link's latency for each further zone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster, IntArray
from automap_models.core.device import StepConstants
from automap_models.core.schedules import SCHEDULES, ranks_of_stages
from automap_models.core.strategy import Strategy
from automap_models.cost.collectives import ACROSS_S, LATENCY_S, RING_DEVICES, group_spans

Sizes = tuple[int, int, int, int, int]
"""Of the axes of a mesh of devices."""
Axes = tuple[tuple[int, ...], ...]
"""Of the groups of devices in a mesh, for each kind of groups."""
Met = tuple[tuple[int, ...], ...]
"""Groups of nodes that groups of devices have members in, each such set once."""


class ProcessGroup(NamedTuple):
    """One kind of group, all of which communicate at the same time.

    Attributes:
        size: members, n.
        inside: members in the node that has most of them, g.
        nodes: that a group lies in, N.
        sharing: groups that leave a node at once, k; 0 where none does.
        intra, inter: bytes/s that collectives reach, of a device inside a node and of a node.
        zones_s: what going once from zone to zone takes; 0 where a group lies in one.
    """

    size: int
    inside: int
    nodes: int
    sharing: int
    intra: float
    inter: float
    zones_s: float = 0.0

    @property
    def _s_per_byte(self) -> float:
        """Of a hop of a ring or a tree, inside a node and on to the next one."""
        return (1.0 / self.intra if self.inside > 1 else 0.0) + self.sharing / self.inter

    @property
    def _ring_latency_s(self) -> float:
        """Of what goes once round a ring: a hop between nodes for each of them, the others inside."""
        if self.nodes == 1:
            return (self.size - 1) * LATENCY_S
        return (self.size - self.nodes) * LATENCY_S + (self.nodes - 1) * ACROSS_S + self.zones_s

    def all_reduce_s(self, sent_bytes: float) -> float:
        """Seconds of summing so many bytes over the group."""
        if self.size == 1 or not sent_bytes:
            return 0.0
        n, g, nodes = self.size, self.inside, self.nodes
        if nodes == 1 and n <= RING_DEVICES:
            return 2 * self.gather_s(sent_bytes)
        steps = math.ceil(math.log2(n)) if nodes == 1 else g - 1 + math.ceil(math.log2(nodes))
        tree = 2 * (steps * (LATENCY_S if nodes == 1 else ACROSS_S) + self.zones_s) + 2 * sent_bytes * self._s_per_byte
        if nodes == 1:
            return min(2 * self.gather_s(sent_bytes), tree)
        across_s_per_byte = 2 * (nodes - 1) / nodes * self.sharing / self.inter
        hierarchical = 2 * ((g - 1) * LATENCY_S + (nodes - 1) * ACROSS_S + self.zones_s)
        hierarchical += sent_bytes * (2 * (g - 1) / g / self.intra + across_s_per_byte)
        # Nodes that are put together into one are never slower: no shorter than the same ring inside one node.
        inside = 0.0
        if n <= RING_DEVICES:
            inside = 2 * (n - 1) * (LATENCY_S + sent_bytes / n * min(1.0 / self.intra, self._s_per_byte))
        return max(min(tree, hierarchical), inside)

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
        return (self.size - 1) * LATENCY_S + self.zones_s + sent_bytes * max(within, across)

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
        return (self.inside + self.nodes) * LATENCY_S + self.zones_s + max(within, across)

    def passed_on_s(self, own_bytes: float) -> float:
        """Seconds in which what each member has comes round to all others, from neighbour to neighbour."""
        return self.gather_s(self.size * own_bytes)


ALONE = ProcessGroup(1, 1, 1, 0, 1.0, 1.0)
"""A device without others."""


class Message(NamedTuple):
    """What all devices of a rank of the pipeline send to those of another one at once.

    Attributes:
        crossing: devices of a node that send to another node; 0 where the ends are in the same nodes, -1 where they are
            the same devices.
        intra, inter, zones_s: as of a ProcessGroup.
    """

    crossing: int
    intra: float
    inter: float
    zones_s: float

    def sent_s(self, sent_bytes: float) -> float:
        """Seconds in which every device sends so many bytes."""
        if self.crossing < 0 or not sent_bytes:
            return 0.0
        if not self.crossing:
            return LATENCY_S + sent_bytes / self.intra
        return LATENCY_S + self.zones_s + sent_bytes * self.crossing / self.inter


class ProcessGroups(NamedTuple):
    """All groups of a strategy that devices of one kind are in.

    Attributes:
        tensor, context, experts: of tp, cp and ep.
        data: that hold the same weights: the ranks of data and context parallelism, or those of one of the groups that
            `dp_replicate` makes of them.
        expert_data: that hold the same experts, likewise.
        replicas: that hold the same part of what such a group divides.
        messages: [pp·vp-1] between two virtual stages.
        ends: between the first and the last rank of the pipeline, where each device has its partner's weights.
        tower, embeddings: that share the operators of a tower of images with a division of its own, and that gather
            what all of them make of a micro-batch; a device alone where it has none.
    """

    tensor: ProcessGroup
    context: ProcessGroup
    experts: ProcessGroup
    data: ProcessGroup
    expert_data: ProcessGroup
    replicas: ProcessGroup
    messages: tuple[Message, ...]
    ends: Message
    tower: ProcessGroup = ALONE
    embeddings: ProcessGroup = ALONE

    def gather_s(self, others_bytes: float, experts_bytes: float, pieces: float = 1) -> float:
        """Seconds of gathering, or of reducing and scattering, weights or gradients without experts', and theirs."""
        return self.data.gather_s(others_bytes, pieces) + self.expert_data.gather_s(experts_bytes, pieces)

    def replicas_s(self, others_bytes: float, experts_bytes: float) -> float:
        """Seconds of summing over replicas what groups have reduced and scattered of so many bytes, experts' apart."""
        parts = others_bytes / self.data.size, experts_bytes / self.expert_data.size
        return sum(map(self.replicas.all_reduce_s, parts))


class Site(NamedTuple):
    """The devices that a rank of the pipeline has of one kind.

    Attributes:
        group: of nodes, that they are in.
        ranks: of the pipeline, that have devices of the same groups of nodes as this one.
    """

    group: int
    ranks: tuple[int, ...]


def sites_of(strategy: Strategy, cluster: Cluster) -> list[list[Site]]:
    """[pp] of each rank, one for each group of nodes that it has devices of."""
    if not cluster.groups:
        return [[Site(0, tuple(range(strategy.pp)))]] * strategy.pp
    of_ranks = np.searchsorted(cluster.group_bounds, np.arange(cluster.devices), side="right").reshape(strategy.pp, -1)
    groups = [tuple(np.unique(row).tolist()) for row in of_ranks]
    alike = {key: tuple(rank for rank, other in enumerate(groups) if other == key) for key in groups}
    return [[Site(group, alike[key]) for group in key] for key in groups]


def process_groups(
    strategy: Strategy,
    cluster: Cluster,
    constants: StepConstants,
    expert_shares: tuple[float, float] | None = None,
    site: Site | None = None,
) -> ProcessGroups:
    """The groups of a strategy on a cluster whose collectives reach these shares of its links.

    Args:
        strategy, cluster: as above.
        constants: with the shares.
        expert_shares: those of the groups of experts, inside a node and across; None: the others'.
        site: whose groups they are; None: of all devices of a uniform cluster.
    """
    s = strategy
    copies = s.pp, s.dp_replicate
    dense_mesh = (*copies, s.dp // s.dp_replicate, s.cp, s.tp), _DENSE
    meshes = dense_mesh, ((*copies, s.expert_shards, s.ep, s.expert_tensor), _OF_EXPERTS)
    bounds = (cluster.devices_per_node,) if not cluster.groups else tuple(cluster.node_bounds[1:].tolist())
    site, group_bounds = site or Site(0, tuple(range(s.pp))), cluster.group_bounds
    spans = [span for mesh in meshes for span in _spans(*mesh, bounds, group_bounds, site)]
    shares: tuple[float, ...] = (1.0,) * 6
    of_messages = 1.0
    if cluster.links:
        (of_dense, of_messages), (beside, _) = (_link_shares(*mesh, cluster.links) for mesh in meshes)
        shares = (*of_dense, *beside)
    efficiencies = constants.intra_efficiency, constants.inter_efficiency

    pairs = _pairs(s.pp, bounds, group_bounds)
    links = {met: cluster.slowest_links(met) for met in {lies[-1] for lies in (*spans, *pairs.values())}}

    def group(span: Span, share: float, of_links: tuple[float, float]) -> ProcessGroup:
        intra, inter, latency_s = links[span.met]
        lies = span.size, span.inside, span.nodes, span.sharing
        return ProcessGroup(*lies, intra * of_links[0] * share, inter * of_links[1], latency_s)

    def message(crossing: int, met: Met) -> Message:
        intra, inter, latency_s = links[met]
        return Message(crossing, intra * efficiencies[0] * of_messages, inter * efficiencies[1], latency_s)

    of_kinds = (*(efficiencies,) * 4, expert_shares or efficiencies, efficiencies)
    tensor, context, data, replicas, experts, expert_data = map(group, spans, shares, of_kinds)
    sent = {lies: message(*lies) for lies in set(pairs.values())}
    stages = ranks_of_stages(s.stages, s.pp, SCHEDULES[s.schedule].placement)
    messages = tuple(sent[pairs[min(pair), max(pair)]] for pair in pairwise(stages))
    groups = tensor, context, experts, data, expert_data, replicas
    return ProcessGroups(*groups, messages, sent[pairs[0, s.pp - 1]])


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
        members = groups // per_node + np.arange(len(groups))[:, None] * math.prod(sizes)  # of a group in a node
        rows, row_of = np.unique(members, return_inverse=True)
        here = np.zeros((rows.size, per_node))
        here[row_of.ravel(), groups.ravel() % per_node] = 1.0
        # what is not linked has half a link: PCIe 3.0 × 16 has 12 to 13 GB/s, an NVLink of V100 25
        shares = np.maximum(here @ counts.T, 0.5) / np.maximum(totals, 0.5)
        return float(shares.min(where=(here > 0.0) & (here.sum(axis=1) > 1.0)[:, None], initial=1.0))

    groups = [_last(devices, axes).reshape(-1, math.prod(sizes[axis] for axis in axes)) for axes in kinds]
    ranks = devices.reshape(sizes[0], -1)
    partners = np.stack([ranks[:-1].ravel(), ranks[1:].ravel()], axis=1)
    return tuple(map(least, groups)), least(partners)


class Span(NamedTuple):
    """How groups of one kind lie.

    Attributes:
        size, inside, nodes, sharing: as of a ProcessGroup.
        met: by what groups of nodes.
    """

    size: int
    inside: int
    nodes: int
    sharing: int
    met: Met


@lru_cache(maxsize=8192)
def _spans(sizes: Sizes, kinds: Axes, bounds: tuple[int, ...], group_bounds: tuple[int, ...], site: Site) -> list[Span]:
    """Of the kinds of groups those that devices of a site are in.

    Args:
        sizes, kinds: of the axes of a mesh, and axes of the groups in it.
        bounds, group_bounds: see `_places`.
        site: as above.
    """
    nodes, groups = (mesh.reshape(sizes)[list(site.ranks)] for mesh in _places(math.prod(sizes), bounds, group_bounds))
    return [_span(_last(nodes, axes), _last(groups, axes), math.prod(sizes[a] for a in axes), site) for axes in kinds]


def _places(count: int, bounds: tuple[int, ...], group_bounds: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """[D] the node of each device, and the group of nodes.

    Args:
        count: of devices.
        bounds: the first device after each node; one number is that of the devices in every node.
        group_bounds: the first device after each group of nodes.
    """
    devices = np.arange(count)
    nodes = devices // bounds[0] if len(bounds) == 1 else np.searchsorted(bounds, devices, side="right")
    return nodes, np.searchsorted(group_bounds, devices, side="right")


def _last(mesh: IntArray, axes: Sequence[int]) -> IntArray:
    """The mesh with these axes behind the others."""
    return np.moveaxis(mesh, axes, range(mesh.ndim - len(axes), mesh.ndim))


def _span(nodes: IntArray, groups: IntArray, size: int, site: Site) -> Span:
    nodes, groups = nodes.reshape(-1, size), groups.reshape(-1, size)
    of_site = (groups == site.group).any(axis=1)
    inside, across, sharing = group_spans(nodes, int(nodes.max()) + 1)
    most = int(across[of_site].max())
    return Span(size, int(inside[of_site].max()), most, sharing if most > 1 else 0, _met(groups[of_site]))


def _met(groups: IntArray) -> Met:
    """The sets of numbers in rows."""
    if (groups == groups[0, 0]).all():
        return ((int(groups[0, 0]),),)
    return tuple(dict.fromkeys(tuple(np.unique(row).tolist()) for row in np.unique(groups, axis=0)))


@lru_cache(maxsize=8192)
def _pairs(pp: int, bounds: tuple[int, ...], group_bounds: tuple[int, ...]) -> dict[tuple[int, int], tuple[int, Met]]:
    """Two ranks of the pipeline → devices of a node that send to another one, and where two partners are."""
    nodes, groups = (mesh.reshape(pp, -1) for mesh in _places(group_bounds[-1], bounds, group_bounds))
    neighbours = [(rank, rank + 1) for rank in range(pp - 1)]
    pairs = {pair: (_crossing(*nodes[list(pair)]), _met(groups[list(pair)].T)) for pair in {*neighbours, (0, pp - 1)}}
    return pairs | {(rank, rank): (-1, _met(groups[[rank]].T)) for rank in range(pp)}


def _crossing(senders: IntArray, receivers: IntArray) -> int:
    leaving = senders != receivers
    return int(max(np.bincount(ends[leaving], minlength=1).max() for ends in (senders, receivers)))
