"""Which strategies are searched: of which model, on which cluster, with which fields given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Precision, Strategy
from automap_models.cost.layer_times import DEFAULT_RUNTIME, Runtime
from automap_models.errors import BadInput


def usual_precision(devices: Sequence[Device]) -> Precision:
    """The one of 16 bits in which products are faster on the slowest device, bf16 where they are alike; or fp32."""
    rates = {
        name: min(device.matrix.get(dtype, 0.0) for device in devices)
        for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16"))
    }
    if not any(rates.values()):
        return "fp32"
    return "bf16" if rates["bf16"] >= rates["fp16"] else "fp16"


FREE = tuple(f.name for f in fields(Strategy) if f.name != "global_batch")
"""Fields of a strategy that may be given or searched; precision is the usual one of the devices unless it is given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StrategyProblem:
    """The search for the fastest strategy of one global batch.

    Attributes:
        work: of the model.
        cluster: on what.
        device: of the cluster, with constants of training steps.
        global_batch: samples of a step.
        fixed: fields of the strategy (FREE) by name with the values that they are to have.
        reserve_bytes: of each device that no strategy may use.
        equal_layers: whether all virtual stages have as many layers.
        runtime: how the framework runs strategies.
        kinds: devices by the names that the groups of a mixed cluster have for them.

    Raises:
        BadInput: a field that no strategy has, or a global batch or a reserve that is no positive number.
    """

    work: ModelWork
    cluster: Cluster
    device: Device
    global_batch: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reserve_bytes: float = 0.0
    equal_layers: bool = False
    runtime: Runtime = DEFAULT_RUNTIME
    kinds: Mapping[str, Device] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.fixed:
            if name not in FREE:
                raise BadInput("no strategy has such a field", where=f"`{name}`", do=f"they have {', '.join(FREE)}")
        if self.global_batch < 1:
            raise BadInput(f"{self.global_batch} samples", where="`global_batch`", do="give 1 or more")
        if not 0 <= self.reserve_bytes < self.cluster.memory:
            what = f"{self.reserve_bytes:g} of the {self.cluster.memory:g} bytes of a device"
            raise BadInput(what, where="`reserve_bytes`", do="give less than the memory")

    @property
    def precision(self) -> Precision:
        """The one that is given, or the usual one of the devices."""
        return self.fixed.get("precision") or usual_precision([*self.kinds.values()] or [self.device])

    def fits(self, estimate: Estimate) -> bool:
        """Whether a strategy leaves the reserve of every device."""
        held, own, _ = estimate.fullest
        return held + self.reserve_bytes <= own
