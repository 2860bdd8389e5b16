"""`automap profile --list`: the built-in models and the devices whose rooflines are known."""

from __future__ import annotations

from typing import Any

from automap_models import workloads
from automap_models.formats.device_yaml import known_devices, read_device

from .tables import columns, console, plain
from .units import percent, size


def print_known() -> None:
    """Print a table of models and one of devices."""
    screen = console()
    models = columns()
    models.add_column("model", no_wrap=True)
    models.add_column("what it is, parameters, defaults of a micro-batch")
    for name in workloads.names():
        models.add_row(name, plain(workloads.summary(name)))
    screen.print(models)
    screen.print()
    devices = columns()
    devices.add_column("--device", no_wrap=True)
    for heading in ("float32", "bfloat16", "memory", "attained of both"):
        devices.add_column(heading, justify="right", no_wrap=True)
    for name in known_devices():
        device = read_device(name)
        single = "tf32" if "tf32" in device.matrix else "float32"  # what float32 products run in there
        rates = [_tflops(device.matrix.get(dtype)) for dtype in (single, "bfloat16")]
        attained = f"{percent(device.compute_efficiency)}, {percent(device.bandwidth_efficiency)}"
        devices.add_row(name, *rates, f"{size(device.bandwidth)}/s", attained)
    screen.print(devices)


def known_document() -> dict[str, Any]:
    """The same names as plain JSON types."""
    return {
        "models": {name: workloads.summary(name) for name in workloads.names()},
        "devices": list(known_devices()),
    }


def _tflops(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:,.4g} TFLOP/s"
