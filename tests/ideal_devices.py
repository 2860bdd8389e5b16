"""Devices whose kernels reach their peaks: times are those of a data sheet, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

from automap_models.core.device import Device, StepConstants


def ideal(launch_s: float = 0.0, product: float = 1.0, bandwidth: float = 1.0) -> StepConstants:
    """Constants without saturation: products of any size reach the same share of the peak."""
    return StepConstants(product, 0.0, product, bandwidth, launch_s, 1.0, 1.0, 0.0)


def ideal_device(
    name: str, matrix: Mapping[str, float], vector: float, bandwidth: float, launch_s: float = 0.0
) -> Device:
    """A device of these peaks, which computes no tiles."""
    return Device(name, dict(matrix), vector, bandwidth, step=ideal(launch_s))
