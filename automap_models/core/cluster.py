"""A cluster: equal nodes of equal devices with two interconnect speeds, or groups of nodes of different kinds."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import LARGEST_BYTES, FloatArray
from automap_models.errors import BadInput

_SHORT = reprlib.Repr()
_LEAST = 1e-6
"""Bytes, or bytes per second: far below every machine's, and no quotient of it overflows."""

RESERVE = 0.08
"""Share of a device's memory that commands leave free unless they are told otherwise: what an estimate falls short by,
such as pieces that the allocator cannot join. A runtime whose rows of memory tell another one has its own (Runtime)."""
MAX_DEVICES = 65_536
"""Devices of the largest cluster; more is a slip of the pen, and arrays as long as that must not be laid out."""

IntArray = NDArray[np.int64]
MemoryVerdict = Literal["fits", "at risk", "does not fit"]


def group_bytes(*sizes: int) -> float:
    """What a device holds for its program and the groups that it is in, of so many devices each; one is no group.

    A group takes 1.5 GB: its buffers, and the memory that they break into pieces. Chosen by trial on the published
    steps of benchmarks/results/measured_steps.md that state what a device held; no source was left out. A program
    alone takes 1.3 GB, its driver's context and kernels (Hugging Face, "Model training anatomy": of a V100).
    """
    return max(1.3e9, 1.5e9 * sum(size > 1 for size in sizes))


def upper_bytes(used_bytes: float, reserve: float = RESERVE) -> float:
    """What a device holds at most that is estimated to hold so much: one that it fills has the reserve left."""
    return used_bytes / (1.0 - reserve)


def memory_verdict(
    used_bytes: float, memory_bytes: float, groups_bytes: float = 0.0, reserve: float = RESERVE
) -> MemoryVerdict:
    """Whether a device has room for what it is to hold, and, where it `fits`, for what it and its groups hold at most.

    Args:
        used_bytes: as the search counts them: of a strategy with its groups, of a plan of stages without.
        groups_bytes: that the search does not count.
        reserve: share of the memory that estimates may fall short by.
    """
    if used_bytes > memory_bytes:
        return "does not fit"
    return "fits" if upper_bytes(used_bytes + groups_bytes, reserve) <= memory_bytes else "at risk"


class Links(NamedTuple):
    """What groups of devices communicate over.

    Attributes:
        intra: bandwidth inside a node, bytes/s per device.
        inter: bandwidth between nodes, bytes/s per node.
        latency_s: of what goes from zone to zone, until it was in all of them.
    """

    intra: float
    inter: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class ZoneLink:
    """What nodes in two zones communicate over.

    Attributes:
        zones: both names.
        inter: bandwidth, bytes/s of a node.
        latency_s: of a message, one way.

    Raises:
        BadInput: one zone, or a number that is none or out of range.
    """

    zones: tuple[str, str]
    inter: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        where = f"link between {' and '.join(self.zones)}"
        if len(set(self.zones)) != 2 or not all(self.zones):
            raise BadInput(f"zones are {', '.join(self.zones) or 'none'}", where=where, do="name two zones")
        if not (_is_number(self.inter) and _LEAST <= self.inter <= LARGEST_BYTES):
            do = f"give a positive number of bytes per second, {_LEAST:g} to {LARGEST_BYTES:g}"
            raise BadInput(f"inter is {_SHORT.repr(self.inter)}", where=where, do=do)
        if not (_is_number(self.latency_s) and 0 <= self.latency_s <= 60):
            raise BadInput(f"latency_s is {_SHORT.repr(self.latency_s)}", where=where, do="give 0 to 60 seconds")


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes of a mixed cluster.

    Attributes:
        nodes, devices_per_node, intra, inter, memory: as of `Cluster`.
        device: name of the kind of device; empty where nobody says.
        speed: of a device, relative to the one whose times the profile has: 2 takes half the time. None is that of the
            kind by `rates`, or 1 where there are none.
        rates: element types with the FLOP/s that the kind attains in matrix products of them (`Device.matrix_rates`).
        zone: where they are; `inter` is between nodes of one zone.

    Raises:
        BadInput: a number that is not positive or cannot be meant.
    """

    nodes: int
    devices_per_node: int
    intra: float
    inter: float
    memory: float
    device: str = ""
    speed: float | None = None
    rates: tuple[tuple[str, float], ...] = ()
    zone: str = ""

    def __post_init__(self) -> None:
        _check_numbers(self, "group of nodes")
        low, high = 1e-6, 1e6  # the least and the most that can be meant of a device over another
        if self.speed is not None and not (_is_number(self.speed) and low <= self.speed <= high):
            do = f"give a positive number, {low:g} to {high:g}; 2 takes half the time of the profile's device"
            raise BadInput(f"speed is {_SHORT.repr(self.speed)}", where="group of nodes", do=do)


@dataclass(frozen=True)
class Cluster:
    """Nodes of devices that are numbered through: the first node has devices 0 … G-1.

    Most clusters are uniform, `nodes` nodes of `devices_per_node` devices each. A mixed one has groups of nodes that
    differ in their devices or links; `of_groups` makes it:

        groups       2 nodes of 2            1 node of 4
        nodes        0        1        2
        devices      0 1      2 3      4 5 6 7

    Its fields are then what all groups have at least, so that whoever reads only these is on the safe side.

    Attributes:
        nodes: number of nodes, N.
        devices_per_node: devices in each node, G; of unequal nodes the largest number that divides each of theirs.
        intra: bandwidth inside a node, bytes/s per device.
        inter: bandwidth between nodes, bytes/s per node.
        memory: bytes per device.
        name: what people call it.
        groups: of a mixed cluster, in the order of its devices.
        device: name of the kind of device that all nodes have; empty where nobody says, and of a mixed cluster.
        links: [G][G] how many links lead from each device of a node to each other one, where not all devices reach one
            another alike; `intra` is then of all links of a device. Empty is a switch, and so it is of mixed clusters.
        gpu_hour: what a device costs an hour, in any currency; None where nobody says.
        zone_links: between all zones that groups are in.

    Raises:
        BadInput: a size or a speed that is not positive or cannot be meant (core.profile), more than MAX_DEVICES
            devices, fields that are not those of the groups, links that are not between the devices of a node, or zones
            without a link, with several, or with one to where no group is.
    """

    nodes: int
    devices_per_node: int
    intra: float
    inter: float
    memory: float
    name: str = "cluster"
    groups: tuple[NodeGroup, ...] = ()
    device: str = ""
    links: tuple[tuple[int, ...], ...] = ()
    gpu_hour: float | None = None
    zone_links: tuple[ZoneLink, ...] = ()

    def __post_init__(self) -> None:
        where = f"cluster {self.name}"
        _check_numbers(self, where)
        if self.gpu_hour is not None and not (_is_number(self.gpu_hour) and 0 < self.gpu_hour < math.inf):
            raise BadInput(f"gpu_hour is {_SHORT.repr(self.gpu_hour)}", where=where, do="give a positive number")
        if self.devices > MAX_DEVICES:
            sizes = self.groups or (self,)
            nodes = " and ".join(
                f"{_SHORT.repr(part.nodes)} nodes of {_SHORT.repr(part.devices_per_node)} device(s)"
                for part in sizes[:2]
            )
            what = nodes if len(sizes) < 3 else f"{nodes} and {len(sizes) - 2} more group(s)"
            raise BadInput(what, where=where, do=f"give at most {MAX_DEVICES} devices in all")
        if self.groups and _least(self.groups) != {key: getattr(self, key) for key in _SUMMARY}:
            raise BadInput("has numbers that its groups have not", where=where, do="make it with Cluster.of_groups")
        if self.links:
            self._check_links(where)
        self._check_zones(where)

    def _check_zones(self, where: str) -> None:
        zones = dict.fromkeys(group.zone for group in self.groups)
        if "" in zones and (len(zones) > 1 or self.zone_links):
            do = "give all groups of nodes a `zone`, or none"
            raise BadInput("a group of nodes says no zone beside zones or their links", where=where, do=do)
        pairs = [frozenset(link.zones) for link in self.zone_links]
        for a, b in (link.zones for link in self.zone_links if not zones.keys() >= {*link.zones}):
            lacking = a if a not in zones else b
            raise BadInput(f"no group of nodes is in zone {lacking}", where=where, do="leave its links out")
        for a, b in combinations(zones, 2):
            if pairs.count(frozenset((a, b))) != 1:
                many = "no link" if frozenset((a, b)) not in pairs else "more than one link"
                do = f"give `zone_links` one of [{a}, {b}]"
                raise BadInput(f"there is {many} between zone {a} and zone {b}", where=where, do=do)

    def _check_links(self, where: str) -> None:
        wrong = ""
        if self.groups:
            wrong = "of a mixed cluster"
        elif {len(self.links), *map(len, self.links)} != {self.devices_per_node}:
            wrong = f"not {self.devices_per_node} × {self.devices_per_node}, as a node has devices"
        elif any(
            isinstance(count, bool) or not isinstance(count, int) or count < 0 for row in self.links for count in row
        ):
            wrong = "not whole numbers ≥ 0"
        elif any(self.links[i][i] for i in range(len(self.links))) or self.links != tuple(
            zip(*self.links, strict=True)
        ):
            wrong = "not the same both ways, or of a device to itself"
        elif len(self.links) > 1 and not all(map(sum, self.links)):
            wrong = "none of some device"
        if wrong:
            do = "give the numbers of links that nvidia-smi topo -m prints (NV2 is 2), or leave them out"
            raise BadInput(f"links are {wrong}", where=where, do=do)

    @classmethod
    def of_groups(
        cls,
        groups: Sequence[NodeGroup],
        name: str = "cluster",
        gpu_hour: float | None = None,
        zone_links: Sequence[ZoneLink] = (),
    ) -> Cluster:
        """The mixed cluster of these groups.

        Raises:
            BadInput: there is none, or they have more than MAX_DEVICES devices.
        """
        if not groups:
            raise BadInput("has no group of nodes", where=f"cluster {name}", do="give at least one")
        links = tuple(zone_links)
        return cls(**_least(groups), name=name, groups=tuple(groups), gpu_hour=gpu_hour, zone_links=links)

    @property
    def devices(self) -> int:
        """Number of devices, D."""
        if not self.groups:
            return self.nodes * self.devices_per_node
        return sum(group.nodes * group.devices_per_node for group in self.groups)

    @cached_property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """Groups of equal nodes; a uniform cluster is one."""
        alone = NodeGroup(self.nodes, self.devices_per_node, self.intra, self.inter, self.memory, self.device, 1.0)
        return self.groups or (alone,)

    def slowest_links(self, met: Iterable[tuple[int, ...]]) -> Links:
        """The slowest links that there are inside and between the groups of nodes of any of these sets."""
        slowest = []
        for groups in met:
            parts = [self.node_groups[group] for group in groups]
            zones = {part.zone for part in parts}
            between = [link for link in self.zone_links if zones.issuperset(link.zones)]
            latency_s = (len(zones) - 1) * max((link.latency_s for link in between), default=0.0)
            inter = min(part.inter for part in (*parts, *between))
            slowest.append((min(part.intra for part in parts), inter, latency_s))
        intra, inters, latencies_s = zip(*slowest, strict=True)
        return Links(min(intra), min(inters), max(latencies_s))

    @property
    def kind(self) -> str:
        """Name of the kind of device, of a mixed cluster that of its first nodes; empty where nobody says."""
        return self.groups[0].device if self.groups else self.device

    @property
    def shape(self) -> str:
        """Nodes × devices of each: `4 × 8`, of a mixed cluster `2 × 8 + 4 × 4`."""
        return " + ".join(f"{group.nodes} × {group.devices_per_node}" for group in self.node_groups)

    @property
    def is_known(self) -> bool:
        """Whether all groups have a speed, or none that depends on a profile's device (`relative_to`)."""
        return all(group.speed is not None or not group.rates for group in self.groups)

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are alike and all devices as fast as the one whose times the profile has."""
        return not self.groups or (not self.group_of.any() and self.slowdown is None)

    def require_one_zone(self, who: str) -> None:
        """Refuse a cluster of several zones.

        Args:
            who: knows no links between them.

        Raises:
            BadInput: it is one.
        """
        if self.zone_links:
            what = f"has several zones, and {who} knows no links between them"
            do = "plan a strategy for a transformer, or take the groups of nodes of one zone"
            raise BadInput(what, where=f"cluster {self.name}", do=do)

    def require_uniform(self, who: str, do: str = "plan with `planner='auto'` or `planner='exact'`") -> None:
        """Refuse a mixed cluster.

        Args:
            who: needs equal nodes.
            do: what a person should do about it.

        Raises:
            BadInput: it is one.
        """
        if not self.is_uniform:
            what = f"is mixed, and {who} knows only clusters of equal nodes"
            raise BadInput(what, where=f"cluster {self.name}", do=do)

    def _of_nodes(self, key: str) -> NDArray[Any]:
        """[N] an attribute of each node's group."""
        groups = self.node_groups
        return np.repeat([getattr(group, key) for group in groups], [group.nodes for group in groups])

    @cached_property
    def node_bounds(self) -> IntArray:
        """[N+1] the first device of each node, and the number of devices."""
        return np.asarray(np.concatenate(([0], np.cumsum(self._of_nodes("devices_per_node"), dtype=np.int64))))

    @cached_property
    def node_of(self) -> IntArray:
        """[D] the node of each device."""
        return np.repeat(np.arange(self.nodes), np.diff(self.node_bounds))

    @cached_property
    def group_of(self) -> IntArray:
        """[D] the group of each device: devices of one group are alike, and so are their nodes."""
        kinds = list(dict.fromkeys(replace(group, nodes=1) for group in self.node_groups))
        of_group = [kinds.index(replace(group, nodes=1)) for group in self.node_groups]
        return np.repeat(of_group, [group.nodes * group.devices_per_node for group in self.node_groups])

    @property
    def group_bounds(self) -> tuple[int, ...]:
        """The first device after each group of nodes."""
        return tuple(np.cumsum([group.nodes * group.devices_per_node for group in self.node_groups]).tolist())

    @cached_property
    def node_intra(self) -> FloatArray:
        """[N] bandwidth inside each node, bytes/s per device."""
        return self._of_nodes("intra").astype(np.float64)

    @cached_property
    def node_inter(self) -> FloatArray:
        """[N] bandwidth of each node's link to the others, bytes/s."""
        return self._of_nodes("inter").astype(np.float64)

    @cached_property
    def device_memory(self) -> FloatArray:
        """[D] bytes of each device."""
        return self._of_nodes("memory").astype(np.float64)[self.node_of]

    @cached_property
    def slowdown(self) -> FloatArray | None:
        """[D] time of each device over that of the profile's; None where all are equal to it.

        Raises:
            BadInput: kinds of devices are named, and the profile's is not known (`relative_to`).
        """
        if not self.is_known:
            do = "give each group its `speed`, relative to the device whose times the profile has"
            raise BadInput("does not say how fast its kinds of devices are", where=f"cluster {self.name}", do=do)
        speed = np.array([1.0 if group.speed is None else group.speed for group in self.node_groups])
        if (speed == 1.0).all():
            return None
        return np.asarray(np.repeat(1.0 / speed, [g.nodes * g.devices_per_node for g in self.node_groups]))

    def relative_to(self, device: str, roofline_s: Mapping[str, float], dtype: str) -> Cluster:
        """The cluster with the speed of every group, relative to the device whose times a profile has.

        A group that gives its speed keeps it. Else it is by how long both kinds take for a micro-batch by the
        clock. Where that is not known, it is the ratio of the FLOP/s that they attain in matrix products of the
        profile's element type; then the profile's device has to be one of the cluster's kinds.

        Args:
            device: name of the profile's device.
            roofline_s: kinds of devices with their time of a micro-batch by the clock.
            dtype: of the profile.

        Raises:
            BadInput: the profile's device is none of the kinds, or a kind has no rate for the type.
        """
        if self.is_known:
            return self
        unknown = [group.device for group in self.groups if group.speed is None and group.rates]
        kind_s = roofline_s
        if not {device, *unknown} <= set(kind_s):
            rates = {group.device: group.rates for group in self.groups if group.rates}
            if device not in rates:
                what = f"has {', '.join(rates)}, but the profile's times are of {device or 'an unnamed device'}"
                do = "give each group its `speed`, relative to that device, or profile the model on one of these"
                raise BadInput(what, where=f"cluster {self.name}", do=do)
            kind_s = {kind: 1.0 / _matrix_rate(kind, dict(row), dtype, self.name) for kind, row in rates.items()}
        groups = tuple(
            replace(group, speed=kind_s[device] / kind_s[group.device])
            if group.speed is None and group.rates
            else group
            for group in self.groups
        )
        return replace(self, groups=groups)

    def attained(self, intra_share: float, inter_share: float) -> Cluster:
        """The cluster whose links have these shares of their bandwidth, inside nodes and between them."""
        if intra_share == inter_share == 1.0:
            return self
        shares = {"intra": intra_share, "inter": inter_share}
        return self._changed(lambda nodes: {key: share * getattr(nodes, key) for key, share in shares.items()})

    def with_memory(self, memory: float) -> Cluster:
        """The cluster whose devices have so much memory, or in the same proportion more where they differ."""
        return self._changed(lambda nodes: {"memory": memory * (nodes.memory / self.memory)})

    def with_memory_at_most(self, memory: float) -> Cluster:
        """The cluster of whose devices no more than so much memory is used."""
        return self._changed(lambda nodes: {"memory": min(memory, nodes.memory)})

    def _changed(self, change: Callable[[Cluster | NodeGroup], dict[str, float]]) -> Cluster:
        """The cluster with other numbers of its nodes, or of those of each group."""
        groups = tuple(replace(group, **change(group)) for group in self.groups)  # type: ignore[arg-type]
        return replace(self, groups=groups, **(_least(groups) if groups else change(self)))


_SUMMARY = ("nodes", "devices_per_node", "intra", "inter", "memory")


def _least(groups: Sequence[NodeGroup]) -> dict[str, Any]:
    """The fields of the cluster of these groups: what all of them have at least."""
    slowest: dict[str, Any] = {
        key: min(getattr(group, key) for group in groups) for key in ("intra", "inter", "memory")
    }
    per_node = math.gcd(*(group.devices_per_node for group in groups))
    return {"nodes": sum(group.nodes for group in groups), "devices_per_node": per_node, **slowest}


def _matrix_rate(device: str, rates: Mapping[str, float], dtype: str, cluster: str) -> float:
    """FLOP/s that a kind attains in matrix products of that type."""
    if dtype not in rates:
        do = f"give each group its `speed`, or profile the model in {', '.join(rates)}"
        raise BadInput(f"{device} has no rate for matrix products in {dtype}", where=f"cluster {cluster}", do=do)
    return rates[dtype]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_numbers(record: Cluster | NodeGroup, where: str) -> None:
    """Refuse sizes, speeds and memories that cannot be meant.

    Raises:
        BadInput: naming the first.
    """
    for key in ("nodes", "devices_per_node"):
        value = getattr(record, key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{key} is {_SHORT.repr(value)}", where=where, do="give a whole number ≥ 1")
    for key in ("intra", "inter", "memory"):
        value = getattr(record, key)
        if not _is_number(value) or not _LEAST <= value <= LARGEST_BYTES:
            raise BadInput(
                f"{key} is {_SHORT.repr(value)}",
                where=where,
                do=f"give a positive number of bytes{'' if key == 'memory' else ' per second'}, "
                f"{_LEAST:g} to {LARGEST_BYTES:g}",
            )
