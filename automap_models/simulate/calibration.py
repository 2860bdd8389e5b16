"""The prices of measured steps, and the constants of a kind of device that are fitted to them.

    cost = Σ weight of a source · soft L1 of log(predicted / measured seconds) of each of its steps
         + PULL · Σ log(constant / usual constant)² of each constant, where steps say little

A source of many steps counts as one of 20, so that it does not outvote the others. A profile that was measured
has three residuals, of the forward pass, the backward pass and the update, each by its share of the step. Constants
are fitted as logarithms, within RANGES. How good they are for a source that nobody has seen is told by leaving each
source out in turn (`left_out_s`); each profile is a source.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from automap_models.core.cluster import Cluster
from automap_models.core.device import USUAL, Device, StepConstants
from automap_models.core.estimate import Estimate
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy
from automap_models.cost.measured_step import MeasuredPasses, MeasuredStep
from automap_models.cost.runtime import Runtime
from automap_models.cost.stage_costs import stage_costs
from automap_models.errors import BadInput
from automap_models.simulate.strategy import StrategyPricing

FloatArray = NDArray[np.float64]

RANGES: Mapping[str, tuple[float, float]] = {
    "product_efficiency": (0.05, 1.0),
    "half_size": (1.0, 2000.0),
    "attention_efficiency": (0.02, 1.0),
    "bandwidth_efficiency": (0.05, 1.0),
    "launch_s": (1e-7, 1e-3),
    "intra_efficiency": (0.02, 1.0),
    "inter_efficiency": (0.02, 1.0),
    "overlap": (0.02, 1.0),
}
"""Of each constant."""
PULL = 0.2
"""Weight of a constant's term, beside steps of weight 1."""
PRECISE = 1e-3
"""Relative change at which a fit ends."""


def measured_estimate(step: MeasuredStep, work: ModelWork, device: Device) -> Estimate:
    """What the step of that model costs on the device.

    Raises:
        BadInput: see `StrategyPricing.estimate`.
    """
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
        price_s: function of a device → [k] seconds of the parts by the clock.
    """

    name: str
    source: str
    device: str | None
    parts_s: FloatArray
    weights: FloatArray
    price_s: Callable[[Device], FloatArray]


def step_observation(step: MeasuredStep, work: ModelWork) -> Observation:
    """A measured step of a model whose work this is.

    Raises:
        BadInput: its seconds are not known.
    """
    if step.step_s is None:
        raise BadInput("has no seconds", where=step.name, do="leave it out of the fit")

    def price_s(device: Device) -> FloatArray:
        return np.array([measured_estimate(step, work, device).step_s])

    return Observation(step.name, step.source, step.device, np.array([step.step_s]), np.ones(1), price_s)


def pass_observation(passes: MeasuredPasses, work: ModelWork) -> Observation:
    """The passes of a profile that was measured of a model whose work this is."""
    parts_s = np.array(passes.parts_s)
    weights = np.asarray(3.0 * np.sqrt(parts_s / parts_s.sum()))  # medians of repeats on one device, of one framework

    def price_s(device: Device) -> FloatArray:
        return np.array(passes_estimate(passes, work, device)[: parts_s.size])

    return Observation(passes.name, passes.name, None, parts_s, weights, price_s)


class MeasuredKind(NamedTuple):
    """Measured steps of devices that have their constants in common.

    Attributes:
        observations: on these devices.
        devices: peaks of those that have the constants in common, such as an A100 with 40 and one with 80 GB; profiles
            were measured on the first.
    """

    observations: Sequence[Observation]
    devices: Sequence[Device]

    @property
    def sources(self) -> list[str]:
        """Who measured the steps, by name."""
        return sorted({observation.source for observation in self.observations})

    def parted(self, source: str) -> tuple[MeasuredKind, MeasuredKind]:
        """The steps of a source, and those of all others."""
        parts, others = ([o for o in self.observations if (o.source == source) == same] for same in (True, False))
        return self._replace(observations=parts), self._replace(observations=others)


def fit_constants(
    kind: MeasuredKind, start: StepConstants = USUAL, usual: StepConstants = USUAL, pull: float = PULL
) -> StepConstants:
    """The constants with which the observations are priced best.

    Args:
        kind: what was measured.
        start: where the fit begins.
        usual: what constants are pulled to.
        pull: how much, the weight of the square of each constant's logarithm beside steps of weight 1.

    Raises:
        BadInput: there are no observations, or one cannot be priced on the device.
    """
    from scipy.optimize import least_squares  # here, because the layers below the planners are to be imported fast

    if not kind.observations:
        where = f"device {', '.join(device.name for device in kind.devices)}"
        raise BadInput("no measured step is of this kind", where=where, do="give rows that have it")
    logs = np.log(np.concatenate([observation.parts_s for observation in kind.observations]))
    weights = _weights(kind.observations)
    center = _parameters(usual)
    low, high = np.log(np.array(list(RANGES.values()))).T

    def residuals(parameters: FloatArray) -> FloatArray:
        prices = np.concatenate(_prices(kind, _constants(parameters)))
        errors = _robust(np.log(prices) - logs)
        return np.concatenate([weights * errors, math.sqrt(pull) * (parameters - center)])

    begin = np.clip(_parameters(start), low + PRECISE, high - PRECISE)
    fit = least_squares(
        residuals,
        begin,
        bounds=(low, high),
        diff_step=[PRECISE] * len(RANGES),
        xtol=PRECISE,
        ftol=PRECISE,
        max_nfev=30,
    )
    return _constants(fit.x)


def _robust(errors: FloatArray) -> FloatArray:
    """Errors whose squares are a soft L1 of these: 2 L² (√(1 + (e/L)²) - 1), linear behind L."""
    large = 0.1  # of a logarithm
    squares = 2.0 * large**2 * (np.sqrt(1.0 + (errors / large) ** 2) - 1.0)
    return np.asarray(np.copysign(np.sqrt(squares), errors))


def _prices(kind: MeasuredKind, constants: StepConstants) -> list[FloatArray]:
    """The priced parts of each observation on its device with these constants."""
    fitted: dict[str | None, Device] = {device.name: replace(device, step=constants) for device in kind.devices}
    fitted[None] = fitted[kind.devices[0].name]
    return [observation.price_s(fitted[observation.device]) for observation in kind.observations]


def predicted_s(kind: MeasuredKind, constants: StepConstants) -> FloatArray:
    """[n] seconds of each observation on its device with these constants."""
    return np.array([float(parts_s.sum()) for parts_s in _prices(kind, constants)])


def left_out_s(
    kind: MeasuredKind, start: StepConstants = USUAL, usual: StepConstants = USUAL, pull: float = PULL
) -> FloatArray:
    """[n] seconds of each observation with the constants that are fitted to all other sources; none of one source.

    Args: see `fit_constants`.

    Raises:
        BadInput: see `fit_constants`.
    """
    if len(kind.sources) < 2:
        return np.zeros(0)
    seconds = np.zeros(len(kind.observations))
    for source in kind.sources:
        of_source, others = kind.parted(source)
        places = [i for i, observation in enumerate(kind.observations) if observation.source == source]
        seconds[places] = predicted_s(of_source, fit_constants(others, start, usual, pull))
    return seconds


def shared_constants(others: Iterable[StepConstants]) -> StepConstants:
    """What a kind of device has in common with others: the geometric mean of their constants and, half, of USUAL."""
    logs = [_parameters(constants) for constants in others]
    return _constants((sum(logs) + 0.5 * _parameters(USUAL)) / (len(logs) + 0.5))


def fit_kinds(
    kinds: Mapping[str, MeasuredKind],
    start: Mapping[str, StepConstants],
    again: Collection[str] | None = None,
    pull: float = 5.0,
) -> dict[str, StepConstants]:
    """The constants of several kinds of devices, each pulled to what those of the others have in common.

    Peaks differ between kinds, and shares of them that kernels of a size reach differ less. So a kind that few have
    measured borrows from the others. Kinds of a single source lend nothing: what they say may be the source's.

    Args:
        kinds: name → its steps; none of a kind are as good as a fit to nothing.
        start: name → where its fit begins.
        again: names of the kinds that are fitted; the others stay as in `start`. None is all.
        pull: to what others have in common, see `fit_constants`; benchmarks/results/measured_steps.md compares weights.

    Returns:
        name → constants.

    Raises:
        BadInput: see `fit_constants`.
    """
    constants = dict(start)
    lending = [name for name, kind in kinds.items() if len(kind.sources) > 1]
    for _ in range(3):  # in turn, each to what the others came to
        before = dict(constants)
        for name in kinds if again is None else again:
            shared = shared_constants(constants[other] for other in lending if other != name)
            kind = kinds[name]
            has_steps = bool(kind.observations)
            constants[name] = fit_constants(kind, constants[name], shared, pull) if has_steps else shared
        changes = [np.abs(_parameters(constants[name]) - _parameters(before[name])).max() for name in kinds]
        if max(changes) < 0.02:  # of logarithms
            break
    return constants


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


def ends_of_ranges(constants: StepConstants) -> list[tuple[str, float]]:
    """Constants that stand at an end of their RANGES, with that end."""
    result = []
    for name, ends in RANGES.items():
        value = getattr(constants, name)
        result += [(name, end) for end in ends if abs(math.log(value / end)) < 10 * PRECISE]
    return result


def _weights(observations: Sequence[Observation]) -> FloatArray:
    """Of all residuals; the squares of a source's steps add up to 20 at most."""
    counts = Counter(observation.source for observation in observations)
    scales = [math.sqrt(min(1.0, 20 / counts[o.source])) for o in observations]
    return np.concatenate([scale * o.weights for scale, o in zip(scales, observations, strict=True)])


def _parameters(constants: StepConstants) -> FloatArray:
    values = asdict(constants)
    return np.array([math.log(max(values[name], low)) for name, (low, _) in RANGES.items()])


def _constants(parameters: FloatArray) -> StepConstants:
    values = np.exp(parameters).tolist()
    return StepConstants(**{name: min(value, RANGES[name][1]) for name, value in zip(RANGES, values, strict=True)})
