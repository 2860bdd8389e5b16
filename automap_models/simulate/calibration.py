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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np

from automap_models.core.device import USUAL, Device, StepConstants
from automap_models.errors import BadInput
from automap_models.simulate.observations import FloatArray, MeasuredKind, Observation, Values
from automap_models.simulate.runtime_numbers import NUMBERS, Range, with_pairs

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
    center = logarithms(usual)
    low, high = np.sort([logarithms({n: RANGES[n][end] for n in names}) for end in (0, 1)], axis=0)

    def residuals(parameters: FloatArray) -> FloatArray:
        prices = np.concatenate(_prices(kind, exponentials(names, parameters)))
        errors = _robust(np.log(prices) - logs)
        return np.concatenate([weights * errors, math.sqrt(pull) * (parameters - center)])

    best = least_squares(
        residuals,
        np.clip(logarithms({name: start[name] for name in names}), low + PRECISE, high - PRECISE),
        bounds=(low, high),
        diff_step=[PRECISE] * len(names),
        xtol=PRECISE,
        ftol=PRECISE,
        max_nfev=30,
    )
    of_steps = np.asarray(best.jac)[: logs.size]
    squares = of_steps.T @ of_steps
    resolution = np.diag(np.linalg.solve(squares + pull * np.eye(len(names)), squares))
    return Fitted(exponentials(names, best.x), dict(zip(names, resolution.tolist(), strict=True)))


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


def logarithms(values: Values) -> FloatArray:
    """[k] logarithms of numbers; see Range."""
    ranges = [RANGES[name] for name in values]
    clipped = [min(max(value, r.low), r.high) for r, value in zip(ranges, values.values(), strict=True)]
    return np.log([r.offset + r.sign * value for r, value in zip(ranges, clipped, strict=True)])


def exponentials(names: Sequence[str], parameters: FloatArray) -> dict[str, float]:
    """The numbers of these logarithms, within their ranges."""
    numbers = zip(names, np.exp(parameters).tolist(), strict=True)
    return {n: min(max(r.sign * (x - r.offset), r.low), r.high) for n, x in numbers for r in [RANGES[n]]}
