"""How fast stages work on devices of equal or of unequal speed, and which of their devices stand idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from automap_models.core.profile import FloatArray


@dataclass(frozen=True, eq=False)
class StagePaces:
    """How fast a stage on positions a … q-1 works, for every a < q; 1 everywhere else.

    Attributes:
        replicas: [D+1, D+1] how many of its devices work, or of its groups of devices.
        parts: [D+1, D+1] into how many equal parts these split a micro-batch.
        rate: [D+1, D+1] seconds of profile that it gets done in a second.
    """

    replicas: NDArray[np.int64]
    parts: FloatArray
    rate: FloatArray


def equal_paces(shares: FloatArray, degree: int = 1) -> StagePaces:
    """The paces of stages on devices of equal speed, all of which work.

    Args:
        shares: [D+1] into how many equal parts so many replicas split a micro-batch.
        degree: how many devices share a replica.
    """
    cut = np.arange(shares.size)
    replicas = np.maximum((cut - cut[:, None]) // degree, 0)
    parts = shares[replicas]
    return StagePaces(np.maximum(replicas, 1), parts, parts)


def unequal_paces(shares: FloatArray, slowdown: FloatArray) -> StagePaces:
    """The paces of stages on devices of unequal speed.

    A micro-batch is split evenly over a stage's replicas, so that a stage waits for its slowest replica. It works with
    its fastest devices, so many of them that it is done first, and the others stand idle:

        rate = max over j of shares[j] / (j-th smallest slowdown)

        slowdowns 1, 1, 1, 1.5    j = 3: 3      j = 4: 4/1.5 = 2.7    the slow device stands idle
        slowdowns 1, 1, 1, 1.2    j = 3: 3      j = 4: 4/1.2 = 3.3    it works

    Transfers and all-reduces are those of all its devices, idle ones included; memory is that of the replicas that
    work (`cost.staged.plan_cost`).

    Args:
        shares: [D+1] into how many equal parts so many replicas split a micro-batch.
        slowdown: [D] time of the device at each position over that of a healthy one.
    """
    size = slowdown.size + 1
    rate, replicas = np.zeros((size, size)), np.ones((size, size), dtype=np.int64)
    for slowest in np.unique(slowdown):
        before = np.concatenate(([0], np.cumsum(slowdown <= slowest)))
        count = np.maximum(before[None, :] - before[:, None], 0)
        candidate = np.where(count > 0, shares[count] / slowest, 0.0)
        better = candidate > rate
        rate[better], replicas[better] = candidate[better], count[better]
    return StagePaces(replicas, shares[replicas], np.where(rate > 0, rate, 1.0))


def idle_positions(
    paces: StagePaces, slowdown: FloatArray, stage_devices: tuple[tuple[int, int], ...]
) -> tuple[int, ...]:
    """Positions whose devices would hold up their stage more than they help it, ascending.

    Args:
        paces: of devices of these speeds.
        slowdown: [D].
        stage_devices: first and last position of each stage.
    """
    idle: list[int] = []
    for first, last in stage_devices:
        fastest_first = np.argsort(slowdown[first : last + 1], kind="stable")
        idle += (first + fastest_first[paces.replicas[first, last + 1] :]).tolist()
    return tuple(sorted(idle))
