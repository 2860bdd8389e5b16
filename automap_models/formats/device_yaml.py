"""A device by the name of a shipped config or from a YAML file."""

from __future__ import annotations

from pathlib import Path

from automap_models.core.device import Device
from automap_models.errors import BadInput
from automap_models.formats.schema import Document, Text, find_yaml, read_yaml, shipped_names

DEVICE_KEYS = (
    "it needs matrix (the peak FLOP/s of each element type, such as `float32: 15.7e12`), vector, bandwidth, "
    "compute_efficiency and bandwidth_efficiency, and may have name, winograd and launch_s"
)


class DeviceDocument(Document):
    """A device as YAML files write it; the keys are the attributes of `Device`."""

    matrix: dict[str, float]
    vector: float
    bandwidth: float
    compute_efficiency: float
    bandwidth_efficiency: float
    winograd: bool = False
    launch_s: float = 0.0
    name: Text = ""

    def device(self, where: str, name: str = "device") -> Device:
        """The device, under the given name where the document has none.

        Raises:
            BadInput: a number out of range, naming its key; `where` says where the document comes from.
        """
        try:
            return Device(
                name=self.name or name,
                matrix=self.matrix,
                vector=self.vector,
                bandwidth=self.bandwidth,
                compute_efficiency=self.compute_efficiency,
                bandwidth_efficiency=self.bandwidth_efficiency,
                winograd=self.winograd,
                launch_s=self.launch_s,
            )
        except BadInput as error:
            raise BadInput(error.what, where=where, do=error.do) from None


def known_devices() -> list[str]:
    """Names of the shipped devices, sorted."""
    return shipped_names("device")


def read_device(name_or_path: str | Path) -> Device:
    """The shipped device of that name, or the one in that YAML file (`./a100` is a file, `a100` is the shipped one).

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "device", "device")
    return read_yaml(path, DeviceDocument, do=DEVICE_KEYS).device(str(path), path.stem)
