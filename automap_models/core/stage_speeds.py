"""How fast stages work on devices of equal or of unequal speed, and which of their devices stand idle.

A micro-batch is split evenly over a stage's replicas, so that a stage waits for its slowest replica. It works with its
fastest devices, so many of them that it is done first, and the others stand idle:

    rate = max over j of speeds[j] / (j-th smallest slowdown)

    slowdowns 1, 1, 1, 1.5    j = 3: 3      j = 4: 4/1.5 = 2.7    the slow device stands idle
    slowdowns 1, 1, 1, 1.2    j = 3: 3      j = 4: 4/1.2 = 3.3    it works

Transfers and all-reduces are those of all its devices, idle ones included; memory is that of the replicas that work
(`cost.staged.plan_cost`), of which the smallest one limits the stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray


@dataclass(frozen=True, eq=False)
class StageSpeeds:
    """How fast a stage on positions a … q-1 works, for every a < q; 1 everywhere else.

    Attributes:
        replicas: [D+1, D+1] how many of its devices work, or of its groups of devices.
        parts: [D+1, D+1] into how many equal parts these split a micro-batch.
        rate: [D+1, D+1] seconds of profile that it gets done in a second.
        memory: [D+1, D+1] bytes of the smallest device that works.
    """

    replicas: NDArray[np.int64]
    parts: FloatArray
    rate: FloatArray
    memory: FloatArray


class StageSpeed(NamedTuple):
    """The same of one stage, and the time of the slowest device that works over that of the profile's."""

    replicas: int
    rate: float
    memory: float
    slowest: float


def stage_speed(speeds: FloatArray, slowdown: FloatArray, memory: FloatArray) -> StageSpeed:
    """The pace of one stage on k devices of unequal speed.

    Args:
        speeds: [D+1] how many times as fast so many replicas are as one.
        slowdown, memory: [k] of each device; see `unequal_speeds`.
    """
    slowest = np.unique(slowdown)
    count = np.searchsorted(np.sort(slowdown), slowest, side="right")
    rate = speeds[count] / slowest
    best = int(rate.argmax())
    works = slowdown <= slowest[best]
    return StageSpeed(int(count[best]), float(rate[best]), float(memory[works].min()), float(slowest[best]))


def equal_speeds(shares: FloatArray, speeds: FloatArray, memory: FloatArray, degree: int = 1) -> StageSpeeds:
    """The paces of stages on devices of equal speed, all of which work.

    Args:
        shares: [D+1] into how many equal parts so many replicas split a micro-batch.
        speeds: [D+1] how many times as fast they are as one.
        memory: [D] bytes of each device.
        degree: how many devices share a replica.
    """
    cut = np.arange(shares.size)
    replicas = np.maximum((cut - cut[:, None]) // degree, 0)
    return StageSpeeds(np.maximum(replicas, 1), shares[replicas], speeds[replicas], most_between(memory, np.minimum))


def unequal_speeds(shares: FloatArray, speeds: FloatArray, slowdown: FloatArray, memory: FloatArray) -> StageSpeeds:
    """The paces of stages on devices of unequal speed.

    Args:
        shares, speeds: see `equal_speeds`.
        slowdown: [D] time of the device at each position over that of the one whose times the profile has.
        memory: [D] bytes of each device.
    """
    size = slowdown.size + 1
    rate, replicas = np.zeros((size, size)), np.ones((size, size), dtype=np.int64)
    smallest = np.ones((size, size))
    for slowest in np.unique(slowdown):
        works = slowdown <= slowest
        before = np.concatenate(([0], np.cumsum(works)))
        count = np.maximum(before[None, :] - before[:, None], 0)
        candidate = np.where(count > 0, speeds[count] / slowest, 0.0)
        better = candidate > rate
        rate[better], replicas[better] = candidate[better], count[better]
        smallest[better] = most_between(np.where(works, memory, np.inf), np.minimum)[better]
    return StageSpeeds(replicas, shares[replicas], np.where(rate > 0, rate, 1.0), smallest)


def most_between(values: FloatArray, extreme: np.ufunc = np.maximum) -> FloatArray:
    """[D+1, D+1] the largest of the values at positions a … q-1, for every a < q; 1 everywhere else.

    Args:
        values: [D].
        extreme: `np.minimum` for the smallest.
    """
    most = np.ones((values.size + 1, values.size + 1))
    if values.min() == values.max():
        return np.where(np.tri(values.size + 1, dtype=bool), most, values[0])
    for a in range(values.size):
        most[a, a + 1 :] = extreme.accumulate(values[a:])
    return most


def idle_positions(
    speeds: FloatArray, slowdown: FloatArray, stage_devices: tuple[tuple[int, int], ...]
) -> tuple[int, ...]:
    """Positions whose devices would hold up their stage more than they help it, ascending.

    Args:
        speeds, slowdown: see `unequal_speeds`.
        stage_devices: first and last position of each stage.
    """
    idle: list[int] = []
    for first, last in stage_devices:
        factors = slowdown[first : last + 1]
        slowest = stage_speed(speeds, factors, factors).slowest
        idle += (first + np.flatnonzero(factors > slowest)).tolist()
    return tuple(idle)
