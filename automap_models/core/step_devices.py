"""The devices that one training step is spread over, and the channels between them: what the objective `step` needs.

device 0 ──channel 0──→ device 1        A transfer from a to b takes channel[a, b]. Pairs may share a channel
         ←─channel 1───                 (the network card of a node), and a channel carries one transfer at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from automap_models.core.cluster import Cluster, IntArray
from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput

ACCELERATOR = "accelerator"
"""The kind of device whose times every placement graph has."""
CPU = "cpu"
"""Likewise; CPUs have as much memory as is needed."""
MOST = 256
"""Devices of a step: channels are kept for every pair."""
Order = Literal["path", "arrival"]


@dataclass(frozen=True, eq=False)
class StepDevices:
    """D devices and C channels.

    Attributes:
        names: [D] what people call them.
        kinds: [D] `accelerator`, `cpu`, or a kind of which the graph has times.
        slowdown: [D] time of an operation on the device over that on its kind.
        memory_bytes: [D] memory; infinite for CPUs.
        channel: [D, D] number of the channel from one device to another; -1 on the diagonal.
        bytes_per_s: [C] bandwidth of each channel.
        latency_s: [C] what a transfer takes beside its bytes.
        order: in which a device runs what is ready: by the longest "path" to the end, or by "arrival".
        turns: whether a channel carries one transfer at a time, not as many as there are.

    Raises:
        BadInput: a number out of range, or two devices without a channel.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    slowdown: FloatArray
    memory_bytes: FloatArray
    channel: IntArray
    bytes_per_s: FloatArray
    latency_s: FloatArray
    order: Order = "path"
    turns: bool = True

    def __post_init__(self) -> None:
        if not 1 <= len(self.names) <= MOST:
            raise BadInput(f"{len(self.names)} devices", where="devices", do=f"give 1 to {MOST}")
        for what, values in (("speed", self.slowdown), ("bandwidth", self.bytes_per_s)):
            if not (values > 0).all() or np.isnan(values).any():
                raise BadInput(f"a {what} is not positive", where="devices", do="give positive numbers")
        if not ((self.memory_bytes >= 0).all() and (self.latency_s >= 0).all() and np.isfinite(self.latency_s).all()):
            raise BadInput("a memory or a latency is below 0", where="devices", do="give numbers of 0 or more")
        lacking = np.argwhere((self.channel < 0) & ~np.eye(len(self), dtype=bool))
        if lacking.size:
            a, b = lacking[0].tolist()
            do = "add it to `links`; a placement may have to move values between any two devices"
            raise BadInput(f"there is no link from {self.names[a]} to {self.names[b]}", where="devices", do=do)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_cpu(self) -> NDArray[np.bool_]:
        """[D] whether each is a CPU."""
        return np.array([kind == CPU for kind in self.kinds])

    @classmethod
    def equal(
        cls, accelerators: int, cpus: int, memory_bytes: float, bytes_per_s: float, latency_s: float = 0.0
    ) -> StepDevices:
        """Accelerators, then CPUs; any two accelerators, and any one and the CPUs, have a link of their own.

        CPUs share their memory: between them nothing has to be moved.
        """
        total = accelerators + cpus
        channel = np.full((total, total), -1, dtype=np.int64)
        off = ~np.eye(total, dtype=bool)
        channel[off] = np.arange(int(off.sum()))
        ends = np.argwhere(off)
        free = (ends >= accelerators).all(axis=1)
        return cls(
            names=(*(str(i) for i in range(accelerators)), *(f"CPU {accelerators + i}" for i in range(cpus))),
            kinds=(ACCELERATOR,) * accelerators + (CPU,) * cpus,
            slowdown=np.ones(total),
            memory_bytes=np.concatenate([np.full(accelerators, memory_bytes), np.full(cpus, math.inf)]),
            channel=channel,
            bytes_per_s=np.where(free, math.inf, bytes_per_s),
            latency_s=np.where(free, 0.0, latency_s),
        )

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> StepDevices:
        """The devices of a cluster: a channel for each two of a node, and one from each node to each other.

        Where the cluster says which devices of a node have links, two without one pass their values on over others.

        Raises:
            BadInput: more devices than a step is spread over, or two of a node that no links join.
        """
        if cluster.devices > MOST:
            raise BadInput(f"{cluster.devices} devices", where=f"cluster {cluster.name}", do=f"give at most {MOST}")
        node, within = cluster.node_of, _rates_within(cluster)
        groups = np.searchsorted(cluster.group_bounds, np.arange(cluster.devices), side="right").tolist()
        kinds, slowdown = [], []
        for group in cluster.node_groups:
            named = group.speed is None and bool(group.device)
            count = group.nodes * group.devices_per_node
            kinds += [group.device if named else ACCELERATOR] * count
            slowdown += [1.0 / (1.0 if group.speed is None else group.speed)] * count
        keys: dict[tuple[int, ...], int] = {}
        rate, latency = [], []
        channel = np.full((cluster.devices, cluster.devices), -1, dtype=np.int64)
        for a in range(cluster.devices):
            for b in range(cluster.devices):
                if a == b:
                    continue
                inside = node[a] == node[b]
                key = (a, b) if inside else (-1, int(node[a]), int(node[b]))
                linked = within[a % len(within), b % len(within)] if inside and within.size else math.inf
                if linked == 0:
                    continue  # which is refused, see above
                if key not in keys:
                    keys[key] = len(keys)
                    links = cluster.slowest_links([(groups[a], groups[b])])
                    rate.append(min(links.intra, float(linked)) if inside else links.inter)
                    # a launch of a copy; a message with copies at both ends
                    latency.append(5e-6 if inside else 20e-6 + links.latency_s)
                channel[a, b] = keys[key]
        return cls(
            names=tuple(str(i) for i in range(cluster.devices)),
            kinds=tuple(kinds),
            slowdown=np.array(slowdown),
            memory_bytes=cluster.device_memory,
            channel=channel,
            bytes_per_s=np.array(rate, dtype=np.float64),
            latency_s=np.array(latency, dtype=np.float64),
        )


def _rates_within(cluster: Cluster) -> FloatArray:
    """[G, G] bytes/s from each device of a node to each other, 0 for none; empty where all reach one another alike.

    A device's bandwidth is that of all its links together. Where two have none, values go over other devices, on the
    way that takes least, and are passed on when they are there as a whole.
    """
    from scipy.sparse.csgraph import shortest_path

    links = np.array(cluster.links, dtype=np.float64)
    if links.size == 0:
        return links
    one_link = cluster.intra / links.sum(axis=1).max()
    path = shortest_path(np.divide(1.0, links, out=np.zeros_like(links), where=links > 0))
    reached = np.isfinite(path) & (path > 0)
    return np.asarray(np.divide(one_link, path, out=np.zeros_like(path), where=reached))
