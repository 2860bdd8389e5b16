"""A device by the name of a shipped config or from a YAML file."""

from __future__ import annotations

from pathlib import Path

from automap_models.cost.roofline import Device
from automap_models.errors import BadInput
from automap_models.formats.yaml_fields import YamlFields, find_yaml, load_yaml, shipped_names

REQUIRED = ("matrix", "vector", "bandwidth", "compute_efficiency", "bandwidth_efficiency")
OPTIONAL = ("name", "winograd", "launch_s")
_KEYS = f"it needs {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)}"
_MATRIX = "give the peak FLOP/s of each element type, such as `float32: 15.7e12`"


def known_devices() -> list[str]:
    """Names of the shipped devices, sorted."""
    return shipped_names("device")


def read_device(name_or_path: str | Path) -> Device:
    """The shipped device of that name, or the one in that YAML file (`./a100` is a file, `a100` is the shipped one).

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "device", "device")
    return device_from_mapping(load_yaml(path, _KEYS), source=str(path), name=path.stem)


def device_from_mapping(document: object, *, source: str, name: str = "device") -> Device:
    """The device that a parsed YAML document describes; its keys are Device's attributes.

    Args:
        document: a mapping; numbers may be written as text (YAML reads `900e9` as one).
        source: where it comes from, for messages.
        name: the device's name where the document has none.

    Raises:
        BadInput: naming the key at fault.
    """
    fields = YamlFields(document, source, required=REQUIRED, optional=OPTIONAL, do=_KEYS)
    label = fields.text("name", name)
    try:
        return Device(
            name=label,
            matrix=fields.numbers("matrix", _MATRIX),
            vector=fields.number("vector"),
            bandwidth=fields.number("bandwidth"),
            compute_efficiency=fields.number("compute_efficiency"),
            bandwidth_efficiency=fields.number("bandwidth_efficiency"),
            winograd=fields.flag("winograd", False),
            launch_s=fields.number("launch_s", 0.0),
        )
    except BadInput as error:
        where = source if error.where == f"device {label}" else error.where
        raise BadInput(error.what, where=where, do=error.do) from None
