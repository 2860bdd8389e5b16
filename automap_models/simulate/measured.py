"""The price of a measured step, to be compared with what was measured."""

from __future__ import annotations

from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.measured import MeasuredStep
from automap_models.core.model_work import ModelWork
from automap_models.cost.layer_times import Runtime
from automap_models.simulate.strategy import strategy_estimate

ASYNC_TENSOR = 0.7
"""Share of the sums of tensor parallelism that user buffers and async tensor parallelism hide, of all devices."""


def measured_estimate(step: MeasuredStep, work: ModelWork, device: Device) -> Estimate:
    """What the step of that model costs on the device.

    Raises:
        BadInput: see `strategy_estimate`.
    """
    tensor_overlap = ASYNC_TENSOR if step.async_tensor else 0.0
    runtime = Runtime(
        flash=step.flash,
        tensor_overlap=tensor_overlap,
        gradient_bytes=step.gradient_bytes,
        gathers_a_layer=step.gathers_a_layer,
        buffer_bytes=step.buffer_bytes,
    )
    return strategy_estimate(work, step.strategy, step.cluster, device, runtime)
