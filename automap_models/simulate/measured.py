"""The price of a measured step, to be compared with what was measured."""

from __future__ import annotations

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.cost.layer_times import Runtime
from automap_models.cost.measured import MeasuredPasses, MeasuredStep
from automap_models.cost.stage_costs import stage_costs
from automap_models.simulate.strategy import StrategyPricing


def measured_estimate(step: MeasuredStep, work: ModelWork, device: Device) -> Estimate:
    """What the step of that model costs on the device.

    Raises:
        BadInput: see `StrategyPricing.estimate`.
    """
    return StrategyPricing(work, step.cluster, device, step.runtime).estimate(step.strategy)


def measured_bytes(step: MeasuredStep, estimate: Estimate) -> float:
    """Bytes of the fullest device by the estimate, of what the step's memory was measured of."""
    of_runtime = estimate.memory[0].runtime if step.only_tensors else 0.0  # all ranks have as much
    return estimate.peak_memory - of_runtime


_ALONE = Cluster(nodes=1, devices_per_node=1, intra=1e12, inter=1e12, memory=1e15, name="one device")
"""Nothing is sent, and what does not fit was not measured."""


def passes_estimate(passes: MeasuredPasses, work: ModelWork, device: Device) -> tuple[float, float, float]:
    """Seconds of the forward pass, of the backward pass and of the update of one micro-batch on one device.

    Raises:
        BadInput: see `stage_costs`.
    """
    strategy = Strategy(
        micro_batch=passes.micro_batch, global_batch=passes.micro_batch, precision=passes.precision, recompute="none"
    )
    costs = stage_costs(work, strategy, _ALONE, device, Runtime(flash=passes.flash))
    forward, inputs, weights = (float(of_pass.sum()) for of_pass in costs.times.passes)
    return forward, inputs + weights, costs.optimizer_s
