"""What was measured of training steps, what the clock says of them, and how far that is off, by source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.cost.measured_step import MeasuredPasses, MeasuredStep
from automap_models.cost.runtime import Runtime
from automap_models.cost.stage_costs import stage_costs
from automap_models.errors import BadInput
from automap_models.simulate.runtime_numbers import runtime_with
from automap_models.simulate.strategy import StrategyPricing

FloatArray = NDArray[np.float64]

Values = Mapping[str, float]
"""Name of a constant of a device, or of a number of a runtime → its value."""

PARTS = 10
"""In which the steps of a single source are left out."""


def measured_estimate(step: MeasuredStep, work: ModelWork, device: Device) -> Estimate:
    """What the step of that model costs on the device.

    Raises:
        BadInput: see `StrategyPricing.estimate`.
    """
    work = work.with_modules(step.strategy.recompute_kinds)
    return StrategyPricing(work, step.cluster, device, step.runtime).estimate(step.strategy)


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


@dataclass(frozen=True, eq=False)
class Observation:
    """What was measured of a step, and its price.

    Attributes:
        name: unique among the observations.
        source: who measured it.
        device: name of the kind of device; None is the one that constants are fitted for.
        parts_s: [k] what was measured of each part of the step; its sum is the step's.
        weights: [k] of the residuals of the parts.
        price_s: function of a device and of numbers of the runtime → [k] seconds of the parts by the clock.
    """

    name: str
    source: str
    device: str | None
    parts_s: FloatArray
    weights: FloatArray
    price_s: Callable[[Device, Values], FloatArray]


def step_observation(step: MeasuredStep, work: ModelWork, usual: Values = MappingProxyType({})) -> Observation:
    """A measured step of a model whose work this is.

    Args:
        usual: numbers of its runtime, where these are fitted.

    Raises:
        BadInput: its seconds are not known.
    """
    if step.step_s is None:
        raise BadInput("has no seconds", where=step.name, do="leave it out of the fit")

    def price_s(device: Device, numbers: Values) -> FloatArray:
        runtime = runtime_with(step.runtime, numbers, usual)
        return np.array([measured_estimate(replace(step, runtime=runtime), work, device).step_s])

    return Observation(step.name, step.source, step.device, np.array([step.step_s]), np.ones(1), price_s)


def pass_observation(passes: MeasuredPasses, work: ModelWork) -> Observation:
    """The passes of a profile that was measured of a model whose work this is."""
    parts_s = np.array(passes.parts_s)
    weights = np.asarray(3.0 * np.sqrt(parts_s / parts_s.sum()))  # medians of repeats on one device, of one framework

    def price_s(device: Device, _: Values) -> FloatArray:
        return np.array(passes_estimate(passes, work, device)[: parts_s.size])

    return Observation(passes.name, passes.name, None, parts_s, weights, price_s)


class MeasuredKind(NamedTuple):
    """Measured steps of devices that have their constants in common, where these are fitted.

    Attributes:
        observations: on these devices.
        devices: that they ran on, such as an A100 with 40 and one with 80 GB; profiles were measured on the first.
    """

    observations: Sequence[Observation]
    devices: Sequence[Device]

    @property
    def sources(self) -> list[str]:
        """Who measured the steps, by name."""
        return sorted({observation.source for observation in self.observations})

    @property
    def folds(self) -> list[list[int]]:
        """Places of observations that are left out together: of a source, or of a part of the steps of a single one."""
        steps, sources = range(len(self.observations)), self.sources
        if len(sources) > 1:
            return [[i for i in steps if self.observations[i].source == source] for source in sources]
        return [[*steps[k::PARTS]] for k in range(min(PARTS, len(steps)))] if len(steps) > 1 else []


class SourceErrors(NamedTuple):
    """Errors of the predicted steps of a source.

    Attributes:
        source: who published them.
        steps: how many.
        median, p90: median and 90th percentile of |predicted / measured - 1|.
        ratio: median of predicted / measured.
    """

    source: str
    steps: int
    median: float
    p90: float
    ratio: float


def errors_of(source: str, ratios: ArrayLike) -> SourceErrors:
    """The errors of predictions whose ratios to what was measured are given; NaN where there are none."""
    values = np.asarray(ratios, np.float64)
    if not values.size:
        return SourceErrors(source, 0, np.nan, np.nan, np.nan)
    median, p90 = np.percentile(np.abs(values - 1), [50, 90])
    return SourceErrors(source, values.size, float(median), float(p90), float(np.median(values)))


def errors_by_source(observations: Sequence[Observation], predicted: FloatArray) -> list[SourceErrors]:
    """The errors of each source, by name.

    Args:
        observations: n measured steps.
        predicted: [n] their predicted seconds; none where there is a single source.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for observation, seconds in zip(observations if predicted.size else (), predicted.tolist(), strict=True):
        ratios[observation.source].append(seconds / float(observation.parts_s.sum()))
    return [errors_of(source, values) for source, values in sorted(ratios.items())]


def errors_of_all(observations: Sequence[Observation], predicted: FloatArray) -> SourceErrors:
    """The errors of all observations together; see `errors_by_source`."""
    return errors_of("all", predicted / np.array([float(o.parts_s.sum()) for o in observations]))
