"""The prices of measured steps, and the numbers of devices and runtimes that are fitted to them.

    cost = Σ weight of a source · soft L1 of log(predicted / measured seconds) of each of its steps
         + pull · Σ (change of the logarithm of a number)², where steps say little

Numbers are the constants of a kind of device, those of a runtime (runtime_numbers), or both. A source of many steps
counts as one of 20, so that it does not outvote the others. A profile that was measured has three residuals, of the
forward pass, the backward pass and the update, each by its share of the step. Numbers are fitted as logarithms, within
RANGES.

How much the steps tell of a number, and how much is the pull, is the diagonal of the resolution of a damped least
squares problem, (JᵀJ + pull)⁻¹ JᵀJ, where J are the derivatives of the steps' residuals (Menke, Geophysical Data
Analysis, section 4.3). How good a fit is for what nobody has seen is told by leaving out each source in turn, or parts
of the steps of a single source (`left_out_s`); each profile is a source.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
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
from automap_models.simulate.runtime_numbers import NUMBERS, Range, runtime_with, with_pairs
from automap_models.simulate.strategy import StrategyPricing

FloatArray = NDArray[np.float64]

Values = Mapping[str, float]
"""Name of a constant of a device, or of a number of a runtime → its value."""

CONSTANTS: Mapping[str, Range] = {
    "product_efficiency": Range(0.05, 1.0),
    "half_size": Range(1.0, 2000.0),
    "attention_efficiency": Range(0.02, 1.0),
    "bandwidth_efficiency": Range(0.05, 1.0),
    "launch_s": Range(1e-7, 1e-3),
    "intra_efficiency": Range(0.02, 1.0),
    "inter_efficiency": Range(0.02, 1.0),
    "overlap": Range(0.02, 1.0),
}
RANGES: Mapping[str, Range] = {**CONSTANTS, **{name: number.range for name, number in NUMBERS.items()}}
"""Of the constants of a device, and of the numbers of a runtime."""
PULL = 0.2
"""Weight of a constant's term, beside steps of weight 1."""
RUNTIME_PULL = 1.0
"""The same where numbers of a runtime are fitted: few steps tell of many (benchmarks/results/runtimes.md)."""
PRECISE = 1e-3
"""Relative change at which a fit ends."""
LEAST_RESOLUTION = 0.05
"""Share of a number that steps tell at least; below, it stays as it was."""
PARTS = 10
"""In which the steps of a single source are left out."""


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

    def parted(self, source: str) -> tuple[MeasuredKind, MeasuredKind]:
        """The steps of a source, and those of all others."""
        parts, others = ([o for o in self.observations if (o.source == source) == same] for same in (True, False))
        return self._replace(observations=parts), self._replace(observations=others)

    @property
    def folds(self) -> list[list[int]]:
        """Places of observations that are left out together: of a source, or of a part of the steps of a single one."""
        steps, sources = range(len(self.observations)), self.sources
        if len(sources) > 1:
            return [[i for i in steps if self.observations[i].source == source] for source in sources]
        return [[*steps[k::PARTS]] for k in range(min(PARTS, len(steps)))] if len(steps) > 1 else []


class Fitted(NamedTuple):
    """What a fit came to.

    Attributes:
        values: of the numbers that were fitted.
        resolution: share of each that the steps tell; the rest is the pull.
    """

    values: dict[str, float]
    resolution: dict[str, float]


def fit(kind: MeasuredKind, usual: Values, start: Values, pull: float = PULL) -> Fitted:
    """The numbers with which the observations are priced best.

    Args:
        kind: what was measured.
        usual: what numbers are pulled to.
        start: where the fit begins, of the same names.
        pull: how much, the weight of the square of the change of each number's logarithm beside steps of weight 1.

    Raises:
        BadInput: there are no observations, or one cannot be priced on the device.
    """
    from scipy.optimize import least_squares  # here, because the layers below the planners are to be imported fast

    if not kind.observations:
        where = f"device {', '.join(device.name for device in kind.devices)}"
        raise BadInput("no measured step is of this kind", where=where, do="give rows that have it")
    logs = np.log(np.concatenate([observation.parts_s for observation in kind.observations]))
    names, weights = tuple(usual), _weights(kind.observations)
    center = _parameters(usual)
    low, high = np.sort([_parameters({n: RANGES[n][end] for n in names}) for end in (0, 1)], axis=0)

    def residuals(parameters: FloatArray) -> FloatArray:
        prices = np.concatenate(_prices(kind, _values(names, parameters)))
        errors = _robust(np.log(prices) - logs)
        return np.concatenate([weights * errors, math.sqrt(pull) * (parameters - center)])

    best = least_squares(
        residuals,
        np.clip(_parameters({name: start[name] for name in names}), low + PRECISE, high - PRECISE),
        bounds=(low, high),
        diff_step=[PRECISE] * len(names),
        xtol=PRECISE,
        ftol=PRECISE,
        max_nfev=30,
    )
    of_steps = np.asarray(best.jac)[: logs.size]
    squares = of_steps.T @ of_steps
    resolution = np.diag(np.linalg.solve(squares + pull * np.eye(len(names)), squares))
    return Fitted(_values(names, best.x), dict(zip(names, resolution.tolist(), strict=True)))


def fit_resolved(kind: MeasuredKind, usual: Values, pull: float = PULL) -> Fitted:
    """The numbers that the observations tell of, where the others stay as usual; `resolution` has all of them.

    Args, raises: see `fit`. Seconds of the host begin where they take time, so that a fit sees what they do.
    """
    start = {
        name: max(value, 2 * RANGES[name].offset) if RANGES[name].sign > 0 else value for name, value in usual.items()
    }
    first = fit(kind, usual, start, pull)
    heard = {name for name, share in first.resolution.items() if share >= LEAST_RESOLUTION}
    names = [name for name in usual if name in heard & CONSTANTS.keys() | with_pairs(heard & NUMBERS.keys())]
    if not names:
        return Fitted({}, first.resolution)
    again = fit(kind, {name: usual[name] for name in names}, first.values, pull)
    return Fitted(again.values, {**first.resolution, **again.resolution})


def fit_constants(
    kind: MeasuredKind, start: StepConstants = USUAL, usual: StepConstants = USUAL, pull: float = PULL
) -> StepConstants:
    """The constants of devices with which the observations are priced best; see `fit`."""
    return StepConstants(**fit(kind, asdict(usual), asdict(start), pull).values)


def _robust(errors: FloatArray) -> FloatArray:
    """Errors whose squares are a soft L1 of these: 2 L² (√(1 + (e/L)²) - 1), linear behind L."""
    large = 0.1  # of a logarithm
    squares = 2.0 * large**2 * (np.sqrt(1.0 + (errors / large) ** 2) - 1.0)
    return np.asarray(np.copysign(np.sqrt(squares), errors))


def _prices(kind: MeasuredKind, values: Values) -> list[FloatArray]:
    """The priced parts of each observation with these constants of its device and numbers of its runtime."""
    constants = {name: value for name, value in values.items() if name in CONSTANTS}
    numbers = {name: value for name, value in values.items() if name in NUMBERS}
    fitted: dict[str | None, Device] = {
        device.name: replace(device, step=replace(device.constants, **constants)) if constants else device
        for device in kind.devices
    }
    fitted[None] = fitted[kind.devices[0].name]
    return [observation.price_s(fitted[observation.device], numbers) for observation in kind.observations]


def predicted_s(kind: MeasuredKind, values: Values) -> FloatArray:
    """[n] seconds of each observation with these constants of its device and numbers of its runtime."""
    return np.array([float(parts_s.sum()) for parts_s in _prices(kind, values)])


def left_out_s(kind: MeasuredKind, start: Values, usual: Values, pull: float = PULL) -> FloatArray:
    """[n] seconds of each observation with the numbers that are fitted to those outside of its fold; none of one step.

    Args: see `fit`.

    Raises:
        BadInput: see `fit`.
    """
    seconds = np.zeros(len(kind.observations) if kind.folds else 0)
    for fold in kind.folds:
        part, others = (
            kind._replace(observations=[o for i, o in enumerate(kind.observations) if (i in fold) == inside])
            for inside in (True, False)
        )
        seconds[fold] = predicted_s(part, fit(others, usual, start, pull).values if usual else {})
    return seconds


def shared_constants(others: Iterable[StepConstants]) -> StepConstants:
    """What a kind of device has in common with others: the geometric mean of their constants and, half, of USUAL."""
    logs = [_parameters(asdict(constants)) for constants in others]
    shared = (sum(logs) + 0.5 * _parameters(asdict(USUAL))) / (len(logs) + 0.5)
    return StepConstants(**_values(tuple(CONSTANTS), shared))


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

    def logs(name: str, of_kinds: Mapping[str, StepConstants]) -> FloatArray:
        return _parameters(asdict(of_kinds[name]))

    lending = [name for name, kind in kinds.items() if len(kind.sources) > 1]
    for _ in range(3):  # in turn, each to what the others came to
        before = dict(constants)
        for name in kinds if again is None else again:
            shared = shared_constants(constants[other] for other in lending if other != name)
            kind = kinds[name]
            has_steps = bool(kind.observations)
            constants[name] = fit_constants(kind, constants[name], shared, pull) if has_steps else shared
        changes = [
            np.abs(_parameters(asdict(constants[name])) - _parameters(asdict(before[name]))).max() for name in kinds
        ]
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
    for name, ends in CONSTANTS.items():
        value = getattr(constants, name)
        result += [(name, end) for end in ends[:2] if abs(math.log(value / end)) < 10 * PRECISE]
    return result


def _weights(observations: Sequence[Observation]) -> FloatArray:
    """Of all residuals; the squares of a source's steps add up to 20 at most."""
    counts = Counter(observation.source for observation in observations)
    scales = [math.sqrt(min(1.0, 20 / counts[o.source])) for o in observations]
    return np.concatenate([scale * o.weights for scale, o in zip(scales, observations, strict=True)])


def _parameters(values: Values) -> FloatArray:
    """[k] logarithms of numbers; see Range."""
    ranges = [RANGES[name] for name in values]
    clipped = [min(max(value, r.low), r.high) for r, value in zip(ranges, values.values(), strict=True)]
    return np.log([r.offset + r.sign * value for r, value in zip(ranges, clipped, strict=True)])


def _values(names: Sequence[str], parameters: FloatArray) -> dict[str, float]:
    """The numbers of these logarithms, within their ranges."""
    numbers = zip(names, np.exp(parameters).tolist(), strict=True)
    return {n: min(max(r.sign * (x - r.offset), r.low), r.high) for n, x in numbers for r in [RANGES[n]]}
