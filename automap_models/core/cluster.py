"""A cluster of equal nodes with equal devices and two interconnect speeds."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

from automap_models.core.profile import LARGEST_BYTES, SMALLEST_RATE
from automap_models.errors import BadInput

_SHORT = reprlib.Repr()

MAX_DEVICES = 65_536
"""Devices of the largest cluster; more is a slip of the pen, and arrays as long as that must not be laid out."""


@dataclass(frozen=True)
class Cluster:
    """`nodes` nodes of `devices_per_node` devices each; device u lives in node u // devices_per_node.

    Attributes:
        nodes: number of nodes, N.
        devices_per_node: devices in each node, G.
        intra: bandwidth inside a node, bytes/s per device.
        inter: bandwidth between nodes, bytes/s per node.
        memory: bytes per device.
        name: what people call it.

    Raises:
        BadInput: a size or a speed that is not positive or cannot be meant (core.profile), or more than MAX_DEVICES
            devices.
    """

    nodes: int
    devices_per_node: int
    intra: float
    inter: float
    memory: float
    name: str = "cluster"

    def __post_init__(self) -> None:
        for key in ("nodes", "devices_per_node"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"{key} is {_SHORT.repr(value)}", where=f"cluster {self.name}", do="give a whole number ≥ 1"
                )
        if self.nodes * self.devices_per_node > MAX_DEVICES:
            raise BadInput(
                f"{_SHORT.repr(self.nodes)} nodes of {_SHORT.repr(self.devices_per_node)} device(s)",
                where=f"cluster {self.name}",
                do=f"give at most {MAX_DEVICES} devices in all",
            )
        for key in ("intra", "inter", "memory"):
            value = getattr(self, key)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not SMALLEST_RATE <= value <= LARGEST_BYTES:
                raise BadInput(
                    f"{key} is {_SHORT.repr(value)}",
                    where=f"cluster {self.name}",
                    do=f"give a positive number of bytes{'' if key == 'memory' else ' per second'}, "
                    f"{SMALLEST_RATE:g} to {LARGEST_BYTES:g}",
                )

    @property
    def devices(self) -> int:
        """Number of devices, D = N·G."""
        return self.nodes * self.devices_per_node
