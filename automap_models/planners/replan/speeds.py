"""What measured stage times say about the profile and about each device: a robust regression.

A device d of stage s needs for its part of a micro-batch, in pass p (forward or backward),

    log measured = log predicted + log known slowdown of d + a_{s,p} + b_d + noise

    a_{s,p}   how far the profile is off for the instructions of stage s in pass p
    b_d       how much slower device d is than was known

Samples enter by their median, which a stall in fewer than half of them does not move. a is Huber's M-estimate over the
devices of the stage, which stragglers among them hardly move (Huber, "Robust Estimation of a Location Parameter",
1964). One run cannot tell slow devices from long instructions where a whole stage deviates, so the caller says what
such a deviation is due to:

    "instructions"   for a profile that was never measured
    "devices"        for a profile that was measured under the same cuts before: its instructions cannot have changed
                     since, so that a is one number for the whole job
    "either"         for a profile that was measured under other cuts, which is nearly right: a stage that is off by
                     more than 5 % has slow devices, and less is put down to its instructions
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from automap_models.core.instruction_graph import IntArray
from automap_models.core.observed import Attribution, Observed
from automap_models.core.profile import FloatArray
from automap_models.errors import BadInput


@dataclass(frozen=True, eq=False)
class Speeds:
    """By how much the profile and the devices deviate from what was predicted.

    Attributes:
        forward_scale, backward_scale: [S] measured over predicted time of a stage's instructions on a healthy device.
        slowdown: [D] time of each device over that of a healthy one; 1 where no difference is certain, and as known
            before where it was not measured.
        error: [D] relative standard error of that; 0 for devices that were not measured.
    """

    forward_scale: FloatArray
    backward_scale: FloatArray
    slowdown: FloatArray
    error: FloatArray


def fit_speeds(
    observed: Observed,
    forward_s: FloatArray,
    backward_s: FloatArray,
    stage_of_device: IntArray,
    attribute: Attribution,
    prior: FloatArray | None = None,
    kinds: FloatArray | None = None,
) -> Speeds:
    """Scales of stages and slowdowns of devices from measured times.

    Args:
        observed: times of stages or devices; those of a stage count for all of its devices alike.
        forward_s, backward_s: [S] predicted time of a device's part of a micro-batch, by the profile's times.
        stage_of_device: [D] the stage that each device belongs to. One that stands idle may have been measured at a
            working one's part; if not, it is as slow as known.
        attribute: what a stage's common deviation is due to.
        prior: [D] slowdowns from earlier measurements; None where nothing is known.
        kinds: [D] time of a healthy device over that of the profile's, of which the largest counts for a stage; None
            where all are of its kind.

    Raises:
        BadInput: a stage or device that the plan does not have, or a stage nothing was measured of.
    """
    owner = _owners(observed, stage_of_device, forward_s.size)
    units = np.array(sorted(owner))
    stage = np.array([owner[unit] for unit in units.tolist()])
    prior = np.ones(stage_of_device.size) if prior is None else prior
    before = _of_units(observed, units, stage_of_device, prior)
    predicted = np.stack([forward_s, backward_s])[:, stage] * before
    if kinds is not None:
        predicted = predicted * _of_units(observed, units, stage_of_device, kinds)
    measured, error = _medians(observed, units)
    _require_comparable(observed, units, measured, predicted)
    group = np.zeros_like(stage) if attribute == "devices" else stage
    scale = _scales(measured, predicted, error, group, forward_s.size)
    if attribute == "devices":
        scale[:] = scale[0, 0]
    elif attribute == "either":
        scale = _within_profile_error(scale)
    both, expected = measured.sum(axis=0), (scale[:, stage] * predicted).sum(axis=0)
    timed = (both > 0) & (expected > 0)
    spread = np.sqrt(((error * measured) ** 2).sum(axis=0)) / np.where(timed, both, 1.0)
    slowdown = before * np.where(timed, both, 1.0) / np.where(timed, expected, 1.0)
    # With 32 devices, fewer standard errors would make one of them a straggler by chance now and then.
    certain = np.abs(np.log(slowdown)) > 4.0 * spread
    return _per_device(observed, units, stage_of_device, scale, np.where(certain, slowdown, 1.0), spread, prior)


def _scales(measured: FloatArray, predicted: FloatArray, error: FloatArray, group: IntArray, stages: int) -> FloatArray:
    """[2, S] location of measured over predicted times, both [2, u], in each group of units; forward and backward.

    A single group has one scale for both passes, in the first place.
    """
    both = np.stack([group, group + (stages if group.any() else 0)])
    timed = (predicted > 0) & (measured > 0)  # a pass that takes no time says nothing
    log_scale = huber_locations(np.log(measured[timed] / predicted[timed]), error[timed], both[timed])
    return np.exp([log_scale.get(g, 0.0) for g in range(2 * stages)]).reshape(2, -1)


def _within_profile_error(scale: FloatArray) -> FloatArray:
    """[2, S] the scales, with that of the whole job for stages that are off from it by more than 5 %.

    By so much a corrected profile may still be off for instructions that were never timed apart from others.
    """
    log_scale = np.log(scale)
    common = np.median(log_scale)
    off = np.abs(log_scale.mean(axis=0) - common) > np.log1p(0.05)
    within: FloatArray = np.exp(np.where(off, common, log_scale))
    return within


def _of_units(observed: Observed, units: IntArray, stage_of_device: IntArray, slowdown: FloatArray) -> FloatArray:
    """[u] slowdown of each measured device, or of a measured stage's slowest."""
    if observed.unit == "device":
        return slowdown[units]
    return np.array([slowdown[stage_of_device == stage].max() for stage in units.tolist()])


def huber_locations(
    values: FloatArray, error: FloatArray, group: IntArray, linear_from: float = 1.345
) -> dict[int, float]:
    """Huber's M-estimate of every group's location; all groups at once, starting from their medians.

    Args:
        values, error: [n] and their standard errors.
        group: [n] number of the group of each.
        linear_from: standard errors from which on an error counts linearly: 95 % efficient where all are normal.
    """
    from scipy.optimize import least_squares

    groups, member = np.unique(group, return_inverse=True)
    start = np.array([np.median(values[member == g]) for g in range(groups.size)])
    design: FloatArray = (member[:, None] == np.arange(groups.size)) / -error[:, None]

    def residuals(shift: FloatArray) -> FloatArray:
        standardised: FloatArray = (values - (start + shift)[member]) / error
        return standardised

    def derivative(_: FloatArray) -> FloatArray:
        return design

    # From shifts of zero: scipy's first step is as long as the start is far from the origin, and a tiny one ends it.
    fit = least_squares(residuals, np.zeros(groups.size), derivative, loss="huber", f_scale=linear_from)
    return dict(zip(groups.tolist(), (start + fit.x).tolist(), strict=True))


def _owners(observed: Observed, stage_of_device: IntArray, stages: int) -> dict[int, int]:
    """Measured unit → its stage.

    Raises:
        BadInput: a unit is none of the plan's, or a stage has none.
    """
    stage_of_unit = dict(enumerate(range(stages) if observed.unit == "stage" else stage_of_device.tolist()))
    for unit in sorted(observed.forward_s):
        if unit not in stage_of_unit:
            raise BadInput(
                f"{observed.unit} {unit} is measured, but the plan has {observed.unit}s 0 to {len(stage_of_unit) - 1}",
                where=observed.where,
                do="give the plan that was running with `plan`",
            )
    owner = {unit: stage_of_unit[unit] for unit in observed.forward_s}
    for stage in range(stages):
        if stage not in owner.values():
            raise BadInput(
                f"nothing is measured of stage {stage}",
                where=observed.where,
                do="measure every stage of the plan; of traces with one rank each, give their folder",
            )
    return owner


def _medians(observed: Observed, units: IntArray) -> tuple[FloatArray, FloatArray]:
    """[2, u] median of each unit's forward and backward samples, and its relative standard error, 0.5 % at least."""
    both = [[times[unit] for unit in units.tolist()] for times in (observed.forward_s, observed.backward_s)]
    median = np.array([[np.median(samples) for samples in row] for row in both])
    error = [[_relative_error(samples) for samples in row] for row in both]
    return median, np.maximum(np.array(error), 0.005)


def _require_comparable(observed: Observed, units: IntArray, measured: FloatArray, predicted: FloatArray) -> None:
    """No time is so far from what was predicted that it can only be a mistake.

    Raises:
        BadInput: naming the first unit whose time is.
    """
    expected, factor = predicted.sum(axis=0), 1e5  # which no profile is off by
    wrong = (measured.max(axis=0) > factor * expected.max()) | (measured.max(axis=0) < expected / factor)
    if wrong.any():
        unit = int(np.argmax(wrong))
        raise BadInput(
            f"{observed.unit} {units[unit]} took {measured[:, unit].max():.3g} s where {expected[unit]:.3g} s were "
            "predicted",
            where=observed.where,
            do="check that the times are seconds, and the plan the one that was running",
        )


def _relative_error(samples: FloatArray) -> float:
    """Relative standard error of a median, by the median absolute deviation of normal samples."""
    median = float(np.median(samples))
    if not median:
        return 0.0
    deviation = 1.4826 * float(np.median(np.abs(samples - median)))
    return 1.2533 * deviation / math.sqrt(samples.size) / median


def _per_device(
    observed: Observed,
    units: IntArray,
    stage_of_device: IntArray,
    scale: FloatArray,
    slowdown: FloatArray,
    error: FloatArray,
    prior: FloatArray,
) -> Speeds:
    """The result, with a stage's slowdown passed on to all its devices where only stages were measured."""
    by_device, its_error = prior.copy(), np.zeros(stage_of_device.size)
    for unit, slow, spread in zip(units.tolist(), slowdown, error, strict=True):
        devices = stage_of_device == unit if observed.unit == "stage" else unit
        by_device[devices], its_error[devices] = slow, spread
    return Speeds(scale[0], scale[1], by_device, its_error)
