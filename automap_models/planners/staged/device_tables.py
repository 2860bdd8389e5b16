"""What transfers and all-reduces cost, as arrays over all places where the devices of a plan may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput
from automap_models.planners.staged.pareto import IntArray

MOST_DEVICES = 512
"""Of a cluster whose transfers are tabulated: there are D³ / 6 of them, 180 MB for 512 devices."""


def require_few_devices(cluster: Cluster, most: int = MOST_DEVICES) -> None:
    """Nothing, where a cluster has no more than so many devices.

    Raises:
        BadInput: it has.
    """
    if cluster.devices > most:
        raise BadInput(
            f"has {cluster.devices:,} devices, plans are searched and proven for at most {most:,}",
            where=f"cluster {cluster.name}",
            do="describe groups of devices that always work together as one device each",
        )


@dataclass(frozen=True, eq=False)
class DeviceTables:
    """Seconds per byte for every choice of device cuts (cost.collectives, tabulated).

    Attributes:
        cluster: of the devices.
        inside: for each speed inside nodes, how many of the devices a … q-1 are in one node of it at most, [D+1, D+1].
        across: [D+1, D+1] in how many nodes the devices a … q-1 are.
        link: [D+1, D+1] the slowest of the links of these nodes, bytes/s.
    """

    cluster: Cluster
    inside: tuple[tuple[float, IntArray], ...]
    across: IntArray
    link: FloatArray

    @cached_property
    def transfer(self) -> tuple[FloatArray, ...]:
        """For each boundary q an array [q, D-q]: from devices a … q-1 to q … e-1, at [a, e-q-1].

        Raises:
            BadInput: there are more than MOST_DEVICES devices.
        """
        cluster, devices = self.cluster, self.cluster.devices
        require_few_devices(cluster)
        cut, first, stop = np.arange(devices + 1), cluster.node_bounds[:-1], cluster.node_bounds[1:]
        held = np.minimum(cut[None, :, None], stop) - np.maximum(cut[:, None, None], first)
        share = np.maximum(held, 0) / np.maximum(cut[None, :] - cut[:, None], 1)[:, :, None]
        return (np.zeros((0, devices)), *(_transfers(cluster, share, q) for q in range(1, devices)))

    @cached_property
    def arrival(self) -> FloatArray:
        """[D+1, D+1] least over senders of the transfer into devices a … q-1."""
        arrival = np.zeros_like(self.link)
        for q in range(1, len(self.transfer)):
            arrival[q, q + 1 :] = self.transfer[q].min(0)
        return arrival

    @cached_property
    def boundary(self) -> FloatArray:
        """[D+1] least transfer over boundary q."""
        return np.array([0.0, *(of_boundary.min() for of_boundary in self.transfer[1:]), 0.0])

    @cached_property
    def from_first(self) -> FloatArray:
        """[D+1, D+1] from devices 0 … q-1 to q … e-1."""
        from_first = np.zeros_like(self.link)
        for q in range(1, len(self.transfer)):
            from_first[q, q + 1 :] = self.transfer[q][0]
        return from_first

    def replica_all_reduce(self, degree: int, *, shortest: bool) -> FloatArray:
        """[D+1, D+1] all-reduce over the replicas on devices a … q-1, of so many devices each (`stage_rates`).

        Devices that share a replica are neighbours in a node, so that all groups of replicas have equally many devices
        in each node, and all of them leave it at a time.

        Args:
            shortest: see cost.collectives.mesh_all_reduce_s_per_byte.
        """
        within, hop = np.zeros_like(self.link), degree / self.link
        for intra, inside in self.inside:
            most = np.maximum(inside // degree, 1)
            within = np.maximum(within, 2.0 * (most - 1) / most / intra)
            hop = np.maximum(hop, np.where(inside > 0, 1.0 / intra, 0.0))
        both: FloatArray = within + 2.0 * (self.across - 1) / self.across / self.link * degree
        if not shortest:
            return both
        cut = np.arange(len(both))
        replicas = np.maximum((cut - cut[:, None]) // degree, 1)
        return np.where(self.across > 1, np.minimum(both, 2.0 * (replicas - 1) / replicas * hop), both)


@lru_cache(maxsize=8)
def device_tables(cluster: Cluster) -> DeviceTables:
    """Tabulate a cluster's collectives."""
    cut = np.arange(cluster.devices + 1)
    shape = cut.size, cut.size
    inside = {float(intra): np.zeros(shape, dtype=np.int64) for intra in np.unique(cluster.node_intra)}
    across, link = np.zeros(shape, dtype=np.int64), np.full(shape, np.inf)
    for node, (first, stop) in enumerate(pairwise(cluster.node_bounds.tolist())):
        held = np.maximum(np.minimum(cut, stop) - np.maximum(cut[:, None], first), 0)
        of_speed = inside[float(cluster.node_intra[node])]
        np.maximum(of_speed, held, out=of_speed)
        across += held > 0
        link = np.where(held > 0, np.minimum(link, cluster.node_inter[node]), link)
    link[np.isinf(link)] = cluster.node_inter.max()
    return DeviceTables(cluster, tuple(inside.items()), np.maximum(across, 1), link)


def _transfers(cluster: Cluster, share: FloatArray, q: int) -> FloatArray:
    """[q, D-q] seconds per byte over boundary q for all senders and receivers (cost-model.md, "Transfer")."""
    out, into = share[:q, q] / cluster.node_inter, share[q, q + 1 :] / cluster.node_inter
    node = int(cluster.node_of[q])
    stays, crosses_s = np.zeros((out.shape[0], into.shape[0])), np.zeros((out.shape[0], into.shape[0]))
    if q != cluster.node_bounds[node]:
        out_here, in_here = share[:q, q, node][:, None], share[q, q + 1 :, node][None, :]
        stays = np.maximum(0.0, out_here + in_here - 1.0)
        crosses_s = np.maximum(out_here - stays, in_here - stays) / cluster.node_inter[node]
        out[:, node], into[:, node] = 0.0, 0.0
    crosses_s = np.maximum(crosses_s, np.maximum(out.max(1)[:, None], into.max(1)[None, :]))
    both: FloatArray = np.maximum(crosses_s, stays / cluster.node_intra[node])
    return both
