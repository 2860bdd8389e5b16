"""Clusters and devices by the names of shipped configs or from YAML files (formats.md, "cluster")."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device, StepConstants
from automap_models.core.units import BYTES, BYTES_PER_S, FLOP_PER_S, SECONDS, Unit
from automap_models.errors import BadInput
from automap_models.formats.schema import Document, Text, Whole, convert, find_yaml, load_yaml, shipped_names, wrong

DocumentT = TypeVar("DocumentT", bound=Document)
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(("intra", "inter", "bandwidth"), BYTES_PER_S),
    "memory": BYTES,
    **dict.fromkeys(("matrix", "vector"), FLOP_PER_S),
    "launch_s": SECONDS,
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
    document = load_yaml(path, do)
    return convert(_without_units(document, None, "$", str(path), do), kind, where=str(path), do=do)


def _without_units(value: object, unit: Unit | None, at: str, where: str, do: str) -> object:
    """The value with every text under a key of UNITS as the number that it stands for, in base units."""
    if isinstance(value, dict):
        return {
            key: _without_units(part, UNITS.get(key, unit) if isinstance(key, str) else None, f"{at}.{key}", where, do)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [_without_units(part, unit, f"{at}[{i}]", where, do) for i, part in enumerate(value)]
    if unit is None or not isinstance(value, str):
        return value
    try:
        return unit.parse(value)
    except ValueError:
        raise wrong(where, at, value, f"a {unit.what} such as {unit.examples} ({unit.base})", do) from None


RecordT = TypeVar("RecordT", Cluster, Device)

SIZES = ("nodes", "devices_per_node")
RATES = ("intra", "inter", "memory")
CLUSTER_KEYS = "it needs nodes, devices_per_node, intra, inter (130 GB/s) and memory (32 GB), and may have name"


def _record_of(record: type[RecordT], document: Document, where: str, name: str) -> RecordT:
    """The record that a document describes, under the given name where the document has none."""
    values = msgspec.structs.asdict(document)
    try:
        return record(**{**values, "name": values["name"] or name})
    except BadInput as error:
        raise BadInput(error.what, where=where, do=error.do) from None


class ClusterDocument(Document, kw_only=True):
    """A cluster as YAML files and plans write it; the keys are the attributes of `core.cluster.Cluster`."""

    name: Text = ""
    nodes: Whole
    devices_per_node: Whole
    intra: float
    inter: float
    memory: float

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterDocument:
        """The document that describes a cluster."""
        return cls(
            name=cluster.name,
            nodes=int(cluster.nodes),
            devices_per_node=int(cluster.devices_per_node),
            intra=float(cluster.intra),
            inter=float(cluster.inter),
            memory=float(cluster.memory),
        )

    def cluster(self, where: str, name: str = "cluster") -> Cluster:
        """The cluster, under the given name where the document has none.

        Raises:
            BadInput: a number out of range, naming its key; `where` says where the document comes from.
        """
        return _record_of(Cluster, self, where, name)

    def require_same(self, cluster: Cluster, where: str, at: str, do: str) -> None:
        """The document describes this cluster, perhaps under another name.

        Args:
            cluster: to compare with.
            where, at: the file, and the path to the document in it, for messages.
            do: what the user should do otherwise.

        Raises:
            BadInput: it describes another one; the message names the first key that differs.
        """
        expected = ClusterDocument.of(cluster)
        for key in (*SIZES, *RATES):
            written, value = getattr(self, key), getattr(expected, key)
            if written != value:
                raise BadInput(f"{at}.{key} is {written}, but cluster {cluster.name} has {value}", where=where, do=do)


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plans keep it: plain Python numbers and strings."""
    return msgspec.structs.asdict(ClusterDocument.of(cluster))


def known_clusters() -> list[str]:
    """Names of the shipped clusters, sorted."""
    return shipped_names("topo")


def read_cluster(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, or the one in that YAML file (`./A` is a file, `A` is the shipped one).

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "topo", "cluster")
    return read_hardware(path, ClusterDocument, do=CLUSTER_KEYS).cluster(str(path), path.stem)


DEVICE_KEYS = (
    "it needs matrix (the peak FLOP/s of each element type, such as `float32: 15.7 TFLOP/s`), vector, bandwidth, "
    "compute_efficiency and bandwidth_efficiency, and may have name, winograd, launch_s and step"
)


class StepConstantsDocument(Document):
    """Constants of the training step; the keys are the attributes of `StepConstants`."""

    product_efficiency: float
    half_size: float
    attention_efficiency: float
    bandwidth_efficiency: float
    launch_s: float
    intra_efficiency: float
    inter_efficiency: float
    overlap: float


class DeviceDocument(Document):
    """A device as YAML files write it; the keys are the attributes of `Device`."""

    matrix: dict[str, float]
    vector: float
    bandwidth: float
    compute_efficiency: float
    bandwidth_efficiency: float
    winograd: bool = False
    launch_s: float = 0.0
    step: StepConstantsDocument | None = None
    name: Text = ""

    def device(self, where: str, name: str = "device") -> Device:
        """The device, under the given name where the document has none.

        Raises:
            BadInput: a number out of range, naming its key; `where` says where the document comes from.
        """
        if self.step is None:
            return _record_of(Device, self, where, name)
        try:
            step = StepConstants(**msgspec.structs.asdict(self.step))
        except BadInput as error:
            raise BadInput(error.what, where=f"{where}, {error.where}", do=error.do) from None
        return replace(_record_of(Device, msgspec.structs.replace(self, step=None), where, name), step=step)


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
