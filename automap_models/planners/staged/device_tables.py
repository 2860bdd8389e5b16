"""What transfers and all-reduces cost, as arrays over all places where the devices of a plan may be cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput
from automap_models.planners.staged.pareto import IntArray


@dataclass(frozen=True, eq=False)
class DeviceTables:
    """Seconds per byte for every choice of device cuts (cost.collectives, tabulated).

    Attributes:
        inside: for each speed inside nodes, how many of the devices a … q-1 are in one node of it at most, [D+1, D+1].
        across: [D+1, D+1] in how many nodes the devices a … q-1 are.
        link: [D+1, D+1] the slowest of the links of these nodes, bytes/s.
        transfer: for each boundary q an array [q, D-q]: from devices a … q-1 to q … e-1, at [a, e-q-1].
        arrival: [D+1, D+1] least over senders of the transfer into devices a … q-1.
        boundary: [D+1] least transfer over boundary q.
        from_first: [D+1, D+1] from devices 0 … q-1 to q … e-1.
    """

    inside: tuple[tuple[float, IntArray], ...]
    across: IntArray
    link: FloatArray
    transfer: tuple[FloatArray, ...]
    arrival: FloatArray
    boundary: FloatArray
    from_first: FloatArray

    def replica_all_reduce(self, degree: int, *, shortest: bool) -> FloatArray:
        """[D+1, D+1] all-reduce over the replicas on devices a … q-1, of so many devices each (`stage_rates`).

        Devices that share a replica are neighbours in a node, so that all groups of replicas have equally many devices
        in each node, and all of them leave it at a time.

        Args:
            shortest: see cost.collectives.all_reduce_s_per_byte.
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


MOST_DEVICES = 512
"""Of a cluster whose transfers are tabulated: there are D³ / 6 of them, 180 MB for 512 devices."""


@lru_cache(maxsize=8)
def device_tables(cluster: Cluster) -> DeviceTables:
    """Tabulate a cluster's collectives.

    Raises:
        BadInput: it has more than MOST_DEVICES devices.
    """
    if cluster.devices > MOST_DEVICES:
        raise BadInput(
            f"has {cluster.devices:,} devices, plans are searched and proven for at most {MOST_DEVICES}",
            where=f"cluster {cluster.name}",
            do="describe groups of devices that always work together as one device each",
        )
    devices = cluster.devices
    cut, first, stop = np.arange(devices + 1), cluster.node_bounds[:-1], cluster.node_bounds[1:]
    held = np.minimum(cut[None, :, None], stop) - np.maximum(cut[:, None, None], first)
    held = np.maximum(held, 0)
    across = np.maximum((held > 0).sum(2), 1)
    inside = tuple(
        (float(intra), held[:, :, cluster.node_intra == intra].max(2)) for intra in np.unique(cluster.node_intra)
    )
    link = np.full(across.shape, cluster.node_inter.max())
    for inter in np.unique(cluster.node_inter)[::-1]:
        link[(held[:, :, cluster.node_inter == inter] > 0).any(2)] = inter
    share = held / np.maximum(cut[None, :] - cut[:, None], 1)[:, :, None]
    transfer = [np.zeros((0, devices)), *(_transfers(cluster, share, q) for q in range(1, devices))]
    (arrival, from_first), boundary = np.zeros((2, devices + 1, devices + 1)), np.zeros(devices + 1)
    for q in range(1, devices):
        from_first[q, q + 1 :] = transfer[q][0]
        arrival[q, q + 1 :], boundary[q] = transfer[q].min(0), transfer[q].min()
    return DeviceTables(
        inside=inside,
        across=across,
        link=link,
        transfer=tuple(transfer),
        arrival=arrival,
        boundary=boundary,
        from_first=from_first,
    )


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
