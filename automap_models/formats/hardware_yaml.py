"""Clusters and devices by the names of shipped configs or from YAML files (formats.md, "cluster")."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink
from automap_models.core.device import USUAL, Device, HostMemory, StepConstants
from automap_models.core.profile import Profile
from automap_models.core.units import BYTES, BYTES_PER_S, FLOP_PER_S, SECONDS, Unit
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_text
from automap_models.formats.schema import (
    Document,
    Index,
    Integer,
    Text,
    convert,
    document_of,
    find_yaml,
    load_yaml,
    located,
    shipped_names,
    wrong,
)
from automap_models.resources import is_file

DocumentT = TypeVar("DocumentT", bound=Document)
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(("intra", "inter", "bandwidth", "link"), BYTES_PER_S),
    "memory": BYTES,
    **dict.fromkeys(("matrix", "vector"), FLOP_PER_S),
    **dict.fromkeys(("launch_s", "latency_s"), SECONDS),
}
"""Key of a cluster or a device → what its numbers measure, which may be written with units."""


def read_hardware(path: str | os.PathLike[str], kind: type[DocumentT], *, do: str) -> DocumentT:
    """The YAML document in a file, whose quantities may have units: `intra: 130 GB/s`.

    Args:
        path: the file.
        kind: the declared type; a text under a key of UNITS is a quantity.
        do: what belongs into such a file, for messages.

    Raises:
        BadInput: the file cannot be read, is no YAML, or does not fit the declaration.
    """
    return hardware(load_yaml(path, do), kind, where=str(path), do=do)


def hardware(document: object, kind: type[DocumentT], *, where: str, do: str) -> DocumentT:
    """A parsed YAML document; see `read_hardware`."""
    return convert(_without_units(document, None, "$", where, do), kind, where=where, do=do)


def _without_units(value: object, unit: Unit | None, path: str, where: str, do: str) -> object:
    """The value with every text under a key of UNITS as the number that it stands for, in base units."""
    if isinstance(value, dict):
        return {
            key: _without_units(one, UNITS.get(key, unit) if isinstance(key, str) else None, f"{path}.{key}", where, do)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_without_units(part, unit, f"{path}[{i}]", where, do) for i, part in enumerate(value)]
    if unit is None or not isinstance(value, str):
        return value
    try:
        return unit.parse(value)
    except ValueError:
        raise wrong(path, value, f"a {unit.what} such as {unit.examples} ({unit.base})", where, do) from None


SIZES = ("nodes", "devices_per_node")
RATES = ("intra", "inter", "memory")
CLUSTER_KEYS = (
    "it needs nodes, devices_per_node, intra, inter (1 GB/s) and memory (9 GB), or groups; also: name, device, links"
)
GROUP_KEYS = (
    "each of its groups needs nodes, devices_per_node, intra, inter (130 GB/s) and memory (32 GB), and may have device "
    "(a100), speed (2 takes half the time that the profile's device takes) and zone; with zones also: zone_links, a "
    "list of zones (two names), inter and latency_s (0.5 ms)"
)


def _numbers(nodes: Cluster | NodeGroup) -> dict[str, Any]:
    """Sizes and rates as a document has them."""
    numbers = {key: getattr(nodes, key) for key in (*SIZES, *RATES)}
    return {key: int(number) if key in SIZES else float(number) for key, number in numbers.items()}


class GroupDocument(Document, kw_only=True, omit_defaults=True):
    """Equal nodes of a mixed cluster; the keys are the attributes of `core.cluster.NodeGroup`."""

    nodes: Integer
    devices_per_node: Integer
    intra: float
    inter: float
    memory: float
    device: Text = ""
    speed: float | None = None
    zone: Text = ""

    def group(self, where: str) -> NodeGroup:
        """The group; the kind of device is looked up where its speed is not given.

        Raises:
            BadInput: a number out of range, naming its key, or a device that is neither shipped nor a file.
        """
        device = read_device(self.device) if self.device and self.speed is None else None
        values = msgspec.structs.asdict(self)
        with located(where):
            return NodeGroup(**values, rates=() if device is None else device.matrix_rates)


class ZoneLinkDocument(Document, kw_only=True):
    """The link between two zones; the keys are the attributes of `core.cluster.ZoneLink`."""

    zones: Annotated[list[Text], Meta(min_length=2, max_length=2)]
    inter: float
    latency_s: float = 0.0

    @classmethod
    def from_link(cls, link: ZoneLink) -> ZoneLinkDocument:
        """The document that describes a link."""
        return cls(zones=list(link.zones), inter=float(link.inter), latency_s=float(link.latency_s))


class ClusterDocument(Document, kw_only=True):
    """A cluster as YAML files and plans write it: the attributes of `core.cluster.Cluster`, or groups of nodes."""

    name: Text = ""
    nodes: Integer | UnsetType = UNSET
    devices_per_node: Integer | UnsetType = UNSET
    intra: float | UnsetType = UNSET
    inter: float | UnsetType = UNSET
    memory: float | UnsetType = UNSET
    device: Text | UnsetType = UNSET
    groups: Annotated[list[GroupDocument], Meta(min_length=1)] | UnsetType = UNSET
    links: list[list[Index]] | UnsetType = UNSET
    gpu_hour: float | UnsetType = UNSET
    zone_links: list[ZoneLinkDocument] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.groups is UNSET and self.nodes == 1 and self.inter is UNSET:
            self.inter = self.intra  # no byte leaves the only node
        missing = next((key for key in (*SIZES, *RATES) if getattr(self, key) is UNSET), None)
        if self.groups is UNSET and missing:
            raise ValueError(f"Object missing required field `{missing}`")  # as msgspec says it, with the path

    @classmethod
    def from_cluster(cls, cluster: Cluster) -> ClusterDocument:
        """The document that describes a cluster."""
        gpu_hour = UNSET if cluster.gpu_hour is None else float(cluster.gpu_hour)
        if cluster.groups:
            groups = [
                GroupDocument(
                    **_numbers(g), device=g.device, speed=None if g.speed is None else float(g.speed), zone=g.zone
                )
                for g in cluster.groups
            ]
            links = [*map(ZoneLinkDocument.from_link, cluster.zone_links)] or UNSET
            return cls(name=cluster.name, groups=groups, gpu_hour=gpu_hour, zone_links=links)
        return cls(
            name=cluster.name,
            gpu_hour=gpu_hour,
            **_numbers(cluster),
            device=cluster.device or UNSET,
            links=[list(row) for row in cluster.links] if cluster.links else UNSET,
        )

    def cluster(self, where: str, name: str = "cluster") -> Cluster:
        """The cluster, under the given name where the document has none.

        Raises:
            BadInput: a number out of range, naming its key; `where` says where the document comes from.
        """
        keys = (*SIZES, *RATES, "device", "links")
        given: dict[str, Any] = {key: getattr(self, key) for key in keys if getattr(self, key) is not UNSET}
        if "links" in given:
            given["links"] = tuple(map(tuple, given["links"]))
        name, gpu_hour = self.name or name, None if self.gpu_hour is UNSET else self.gpu_hour
        groups = () if self.groups is UNSET else self.groups
        if groups and given:
            do = f"leave out {next(iter(given))}, which each group gives, or leave out groups"
            raise BadInput(f"has groups and {', '.join(given)}", where=where, do=do)
        nodes = [group.group(f"{where}, $.groups[{j}]") for j, group in enumerate(groups)]
        between = () if self.zone_links is UNSET else self.zone_links
        with located(where):
            zone_links = tuple(ZoneLink((link.zones[0], link.zones[1]), link.inter, link.latency_s) for link in between)
            if nodes:
                return Cluster.of_groups(nodes, name, gpu_hour, zone_links)
            given |= {"zone_links": zone_links} if zone_links else {}
            return Cluster(**given, name=name, gpu_hour=gpu_hour)

    def require_same(self, cluster: Cluster, base: str) -> None:
        """The document describes this cluster, perhaps under another name.

        Speeds are compared where both give them: those of kinds are known once there is a profile. So are the kinds
        of uniform clusters, which need not say what they are made of.

        Args:
            cluster: to compare with.
            base: the path to the document in its file, for messages.

        Raises:
            BadInput: it describes another one; the message names the first key that differs.
        """
        parts, expected = self._parts(), ClusterDocument.from_cluster(cluster)._parts()
        if len(parts) != len(expected):
            raise BadInput(f"{base} has {len(parts)} group(s) of nodes, but cluster {cluster.name} has {len(expected)}")
        for (path, entry), (_, other) in zip(parts.items(), expected.items(), strict=True):
            for key in (*SIZES, *RATES, "device", "zone", "speed", "links"):
                value, wanted = getattr(entry, key, None), getattr(other, key, None)
                if value != wanted and not (key in ("device", "speed", "links") and {None, UNSET} & {value, wanted}):
                    raise BadInput(f"{base}{path}.{key} is {value}, but cluster {cluster.name} has {wanted}")

    def _parts(self) -> dict[str, ClusterDocument | GroupDocument]:
        """Path in the document → the group there; a uniform cluster is itself one."""
        if self.groups is UNSET:
            return {"": self}
        return {f".groups[{j}]": group for j, group in enumerate(self.groups)}


def known_clusters() -> list[str]:
    """Names of the shipped clusters, sorted."""
    return shipped_names("topo")


SIZED = re.compile(r"(?:(\d{1,9}) *[xX×] *)?(\d{1,9}) *[xX×] *([^ ].*)|([^ ].*?) *[xX×] *(\d{1,9})", re.ASCII)
"""Nodes, where they are said, devices of each or of all, and the kind; or the kind and the devices."""


def read_cluster(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, the one in that YAML file (`./A` is a file, `A` is the shipped one), or devices
    of a kind in its usual nodes: `32xh100`, `h100x32`, or nodes × devices, `8x4xh100`; or of several kinds in one job:
    `16xh100+16xa100`.

    Raises:
        BadInput: neither a known name nor a readable file nor devices of a kind that has usual nodes, or a key that is
            missing, unknown or has a wrong value.
    """
    named = _split(name_or_path, ",")
    if len(named) > 1:
        do = f"give one, such as {named[0]}; automap plan chooses among several for a transformer"
        raise BadInput(f"{' and '.join(named)} are several clusters", do=do)
    if len(_split(name_or_path, "+")) > 1:
        clusters = [read_cluster(part) for part in _split(name_or_path, "+")]
        groups = [group for part in clusters for group in part.groups or (_group_of(part),)]
        return Cluster.of_groups(groups, "+".join(part.name for part in clusters))
    sized = SIZED.fullmatch(str(name_or_path))
    if sized and not is_file(Path(name_or_path)) and (sized[3] or sized[4].lower() in known_devices()):
        return _sized_cluster(sized[3] or sized[4], int(sized[2] or sized[5]), int(sized[1]) if sized[1] else None)
    return _read_cluster(name_or_path)


def _group_of(cluster: Cluster) -> NodeGroup:
    """The nodes of a uniform cluster as a group of a mixed one."""
    rates = read_device(cluster.device).matrix_rates if cluster.device else ()
    return NodeGroup(**_numbers(cluster), device=cluster.device, rates=rates)


def clusters_named(names: str) -> list[Cluster]:
    """Clusters by `read_cluster`, of which several stand with commas between them: `32xh100,64xa100`.

    Raises:
        BadInput: as of that.
    """
    return [read_cluster(name) for name in _split(names, ",")]


def _split(name_or_path: str | Path, sign: str) -> list[str]:
    """A name at each of these signs, where what is between them are names of clusters; else as it is."""
    parts = [part.strip() for part in str(name_or_path).split(sign)]
    names = known_clusters()
    named = all(part in names or all(map(SIZED.fullmatch, part.split("+"))) or is_file(Path(part)) for part in parts)
    return parts if named and not is_file(Path(name_or_path)) else [str(name_or_path)]


def _read_cluster(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, or the one in that file."""
    path = find_yaml(name_or_path, "topo", "cluster", or_else=" or devices × kind, such as 32xh100")
    document = load_yaml(path, CLUSTER_KEYS)
    mixed = isinstance(document, dict) and "groups" in document
    kind = hardware(document, ClusterDocument, where=str(path), do=GROUP_KEYS if mixed else CLUSTER_KEYS)
    return kind.cluster(str(path), path.stem)


def _sized_cluster(kind: str, devices: int, nodes: int | None) -> Cluster:
    """Nodes of so many devices, or so many devices in all, as the cluster has them that the device's file names.

    A node that is not full has the links of its first devices, and of the network what is for so many.
    """
    name = kind.lower() if kind.lower() in known_devices() else kind
    device = read_device(name)
    if not device.cluster:
        do = "give a YAML file or a shipped cluster of it, or in the device's file `cluster: NAME`"
        raise BadInput("has no usual nodes", where=f"device {device.name}", do=do)
    usual = _read_cluster(device.cluster)
    usual.require_uniform("devices × kind", "name another one in the device's file")
    most = usual.devices_per_node
    called = "x".join(map(str, (devices, device.name) if nodes is None else (nodes, devices, device.name)))
    if nodes is None:
        nodes, devices = (devices // most, most) if devices >= most and devices % most == 0 else (1, devices)
    if nodes > usual.nodes and not device.alone and usual.inter >= usual.intra * most:  # as NVLink between trays
        what = f"links as between the devices of a node end with the {usual.nodes} nodes of {usual.name}"
        raise BadInput(what, where=f"cluster {called}", do="give fewer, or a YAML file with groups in zones")
    if not 1 <= devices <= most:
        what = f"nodes of {device.name} have up to {most} devices, each equally many"
        do = f"give {most}x{device.name}, {2 * most}x{device.name}, … or nodes × devices, as in 2x{most}x{device.name}"
        raise BadInput(what, where=f"cluster {called}", do=do)
    links = tuple(row[:devices] for row in usual.links[:devices])
    intra, inter = usual.intra, usual.inter * devices / most
    if devices > 1 and links:
        intra *= min(map(sum, links)) / max(map(sum, usual.links))
    return Cluster(nodes, devices, intra, inter, usual.memory, called, device=name, links=links)


DEFAULT_DEVICE = "v100"
"""What clusters that do not say are taken to be made of."""
DEVICE_KEYS = (
    "it needs matrix (the peak FLOP/s of each element type, such as `float32: 15.7 TFLOP/s`), vector and bandwidth, "
    "and may have name, winograd, multiprocessors, sustained, step, left_out, fitted_to, cluster, host, host_memory "
    "and alone"
)


OLDER_KEYS = {
    "compute_efficiency": "product_efficiency",
    "bandwidth_efficiency": "bandwidth_efficiency",
    "launch_s": "launch_s",
}
"""Key of an older device file → the constant of a training step that it stands for."""
StepConstantsDocument, HostMemoryDocument = map(document_of, (StepConstants, HostMemory))


class DeviceDocument(Document):
    """A device as YAML files write it; the keys are the attributes of `Device`.

    Files that were written before one clock priced all kernels have an efficiency and a launch beside `step`. Without
    `step` they stand for its constants of the same meaning; with it they say nothing.
    """

    matrix: dict[str, float]
    vector: float
    bandwidth: float
    winograd: bool = False
    multiprocessors: Integer | None = None
    sustained: float = 1.0
    step: StepConstantsDocument | None = None
    left_out: tuple[float, float] | None = None
    fitted_to: tuple[Text, ...] = ()
    cluster: Text | None = None
    host: float = 1.0
    host_memory: HostMemoryDocument | None = None
    alone: bool = False
    name: Text = ""
    compute_efficiency: float | UnsetType = UNSET
    bandwidth_efficiency: float | UnsetType = UNSET
    launch_s: float | UnsetType = UNSET

    def device(self, where: str, name: str = "device") -> Device:
        """The device, under the given name where the document has none.

        Raises:
            BadInput: a number out of range, naming its key; `where` says where the document comes from.
        """
        values = msgspec.structs.asdict(self)
        older = {new: values.pop(old) for old, new in OLDER_KEYS.items()}
        given = {key: value for key, value in older.items() if value is not UNSET}
        try:
            if self.step is not None:
                step: StepConstants | None = StepConstants(**msgspec.structs.asdict(self.step))
            else:
                step = replace(USUAL, **given) if given else None
        except BadInput as error:
            raise BadInput(error.what, where=f"{where}, {error.where}", do=error.do) from None
        with located(where):
            host = self.host_memory and HostMemory(**msgspec.structs.asdict(self.host_memory))
            values |= {"name": values["name"] or name, "step": step, "host_memory": host}
            return Device(**values)


def known_devices() -> list[str]:
    """Names of the shipped devices, sorted."""
    return shipped_names("device")


def read_device(name_or_path: str | Path) -> Device:
    """The shipped device of that name, or the one in that YAML file (`./a100` is a file, `a100` is the shipped one).

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "device", "device")
    return read_hardware(path, DeviceDocument, do=DEVICE_KEYS).device(str(path), path.stem)


def device_of(cluster: Cluster, name_or_path: str | Path | None = None) -> Device:
    """The device that is named, else the kind that the cluster is made of, else DEFAULT_DEVICE.

    Raises:
        BadInput: as of `read_device`.
    """
    return read_device(name_or_path or cluster.kind or DEFAULT_DEVICE)


def step_device(profile: Profile, cluster: Cluster) -> Device | None:
    """The device whose links and memory a step of a profile runs on: the cluster's kind, else the profile's.

    None where that is no shipped device and no file: drivers have other names for devices.

    Raises:
        BadInput: a file is not readable, or a key of it missing, unknown or wrong.
    """
    name = cluster.kind or profile.device
    return read_device(name) if name in known_devices() or Path(name).suffix in (".yaml", ".yml") else None


def write_device(path: str | os.PathLike[str], device: Device, comment: str = "") -> None:
    """Write a device as YAML, whole or not at all; reading it gives the same device.

    Args:
        path: the file.
        device: what it describes.
        comment: that stands at its beginning, of one line or more.

    Raises:
        BadInput: the file cannot be written.
    """
    import yaml

    values = {field: getattr(device, field) for field in DeviceDocument.__struct_fields__ if field not in OLDER_KEYS}
    records = {"step": device.step, "host_memory": device.host_memory}
    values |= {name: None if record is None else asdict(record) for name, record in records.items()}
    values["matrix"] = dict(device.matrix)
    values |= {key: list(getattr(device, key) or ()) or None for key in ("left_out", "fitted_to")}
    values = {field: value for field, value in values.items() if value is not None}
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    write_text(path, lines + yaml.safe_dump(values, sort_keys=False))


def read_kinds(cluster: Cluster) -> dict[str, Device]:
    """The devices that the groups of a mixed cluster name, by their names.

    Raises:
        BadInput: a name is neither a shipped device's nor a file.
    """
    kinds = {group.device: read_device(group.device) for group in cluster.groups if group.device}
    for name, kind in kinds.items():
        if kind.alone and len(kinds) > 1:
            what = f"{name} exchange over links of their own, with no other kind in a job"
            raise BadInput(what, where=f"cluster {cluster.name}", do="plan for each kind by itself")
    return kinds
