"""The constants of a kind of device, fitted to measured steps.

    residuals   weight of a source · log(predicted / measured seconds) of each of its steps      robust (soft L1)
                pull · log(constant / usual constant) of each constant                           where steps say little

A source of many steps counts as one of FULL_WEIGHT, so that it does not outvote the others. Constants are fitted as
logarithms, within RANGES. How good they are for a source that nobody has seen is told by leaving each source out in
turn (`cross_validated`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.device import Device, StepConstants
from automap_models.core.measured import MeasuredStep
from automap_models.core.model_work import ModelWork
from automap_models.errors import BadInput
from automap_models.simulate.measured import measured_estimate

FloatArray = NDArray[np.float64]

USUAL = StepConstants(
    product_efficiency=0.7,
    half_size=60.0,
    attention_efficiency=0.3,
    bandwidth_efficiency=0.65,
    launch_s=6e-6,
    intra_efficiency=0.55,
    inter_efficiency=0.4,
    overlap=0.3,
)
"""What constants are pulled to: about the mean of those of V100, A100 and H100."""
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
PULL = 0.6
"""Weight of a constant's residual, beside steps of weight 1."""
FULL_WEIGHT = 20
"""Steps of a source that count in full; those of a larger one weigh together as many."""
LARGE_ERROR = 0.1
"""Of a logarithm, from which on an error counts by its size and no longer by its square."""
PRECISE = 1e-3
"""Relative change at which a fit ends."""


@dataclass(frozen=True, eq=False)
class Observation:
    """A measured step, whose seconds are known, and its model's work."""

    step: MeasuredStep
    work: ModelWork

    @property
    def step_s(self) -> float:
        """What was measured.

        Raises:
            BadInput: nothing was.
        """
        if self.step.step_s is None:
            raise BadInput("has no seconds", where=self.step.name, do="leave it out of the fit")
        return self.step.step_s


@dataclass(frozen=True, eq=False)
class Calibration:
    """A fit.

    Attributes:
        constants: of the kind of device.
        predicted_s: [n] of each observation.
    """

    constants: StepConstants
    predicted_s: FloatArray


def fit_constants(
    observations: Sequence[Observation], devices: Sequence[Device], start: StepConstants = USUAL
) -> Calibration:
    """The constants with which the observations are priced best.

    Args:
        observations: on these devices.
        devices: peaks of those that have the constants in common, such as an A100 with 40 and one with 80 GB.
        start: where the fit begins.

    Raises:
        BadInput: there are no observations, or one cannot be priced on the device.
    """
    from scipy.optimize import least_squares  # here, because the layers below the planners are to be imported fast

    if not observations:
        where = f"device {', '.join(device.name for device in devices)}"
        raise BadInput("no measured step is of this kind", where=where, do="give rows that have it")
    logs = np.log([observation.step_s for observation in observations])
    weights = _weights(observations)
    usual = _parameters(USUAL)
    low, high = np.log(np.array(list(RANGES.values()))).T

    def residuals(parameters: FloatArray) -> FloatArray:
        predicted = predicted_s(observations, devices, _constants(parameters))
        return np.concatenate([weights * (np.log(predicted) - logs), PULL * (parameters - usual)])

    begin = np.clip(_parameters(start), low + PRECISE, high - PRECISE)
    fit = least_squares(
        residuals,
        begin,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=LARGE_ERROR,
        diff_step=[PRECISE] * len(RANGES),
        xtol=PRECISE,
        ftol=PRECISE,
        max_nfev=30,
    )
    constants = _constants(fit.x)
    return Calibration(constants, predicted_s(observations, devices, constants))


def predicted_s(observations: Sequence[Observation], devices: Sequence[Device], constants: StepConstants) -> FloatArray:
    """[n] seconds of each observation on its device with these constants."""
    fitted = {device.name: replace(device, step=constants) for device in devices}
    return np.array([measured_estimate(o.step, o.work, fitted[o.step.device]).step_s for o in observations])


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


def errors_by_source(observations: Sequence[Observation], predicted: FloatArray) -> list[SourceErrors]:
    """The errors of each source, by name.

    Args:
        observations: n measured steps.
        predicted: [n] their predicted seconds.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for observation, seconds in zip(observations, predicted.tolist(), strict=True):
        ratios[observation.step.source].append(seconds / observation.step_s)
    result = []
    for source, values in sorted(ratios.items()):
        median, p90 = np.percentile(np.abs(np.array(values) - 1), [50, 90])
        result.append(SourceErrors(source, len(values), float(median), float(p90), float(np.median(values))))
    return result


def cross_validated(
    observations: Sequence[Observation], devices: Sequence[Device], start: StepConstants = USUAL
) -> list[SourceErrors]:
    """The errors of each source under the constants that are fitted to all others; none where there is only one.

    Raises:
        BadInput: see `fit_constants`.
    """
    sources = sorted({observation.step.source for observation in observations})
    result = []
    for source in sources if len(sources) > 1 else ():
        own = [observation for observation in observations if observation.step.source == source]
        others = [observation for observation in observations if observation.step.source != source]
        constants = fit_constants(others, devices, start).constants
        result += errors_by_source(own, predicted_s(own, devices, constants))
    return result


def _weights(observations: Sequence[Observation]) -> FloatArray:
    """[n] such that the squares of a source add up to FULL_WEIGHT at most."""
    counts = Counter(observation.step.source for observation in observations)
    return np.array([math.sqrt(min(1.0, FULL_WEIGHT / counts[o.step.source])) for o in observations])


def _parameters(constants: StepConstants) -> FloatArray:
    values = asdict(constants)
    return np.array([math.log(max(values[name], low)) for name, (low, _) in RANGES.items()])


def _constants(parameters: FloatArray) -> StepConstants:
    values = np.exp(parameters).tolist()
    return StepConstants(**{name: min(value, RANGES[name][1]) for name, value in zip(RANGES, values, strict=True)})
