"""The paper's state: everything flattened, scaled to [0, 1] and concatenated (Auto-MAP §3.5).

Both kinds of decisions choose from one space of P + D_max - 1 actions: 0 … P-1 end the stage at that point, P + d - 1
lets the next one begin with device d.
"""

from __future__ import annotations

import numpy as np

from automap_models.envs.pipeline.env import (
    DEVICES,
    IDEAL,
    MICRO,
    PER_NODE,
    RATIO,
    STATE,
    Choices,
    Floats,
    Integers,
    Problems,
    States,
)


def width(points: int, max_stages: int, max_devices: int) -> int:
    """Numbers of a state: C, A, W, the device-to-device interconnect, the plan under way, S, M, the step and memory."""
    return 3 * points + max_devices**2 + 2 * (max_stages - 1) + 4


def describe(problems: Problems, states: States, max_devices: int) -> Choices:
    """The legal choices of states in the shared space, and [B, width] what a network reads."""
    points, max_stages = problems.arrays.shape[2], states.cuts.shape[1] + 1
    numbers = problems.numbers
    arrays = problems.arrays[:, :3] * numbers[:, IDEAL, None, None]
    plan = np.concatenate([(states.cuts + 1) / points, np.maximum(states.firsts, 0) / max_devices], axis=1)
    state = numbers[:, STATE] / numbers[:, IDEAL]  # per unit of MAX, as the arrays
    scalars = (
        problems.stages / max_stages,
        1.0 / numbers[:, MICRO],
        states.step / (2.0 * max_stages),
        state / (1.0 + state),
    )
    parts = (arrays, interconnect(problems, max_devices), plan, np.stack(scalars, axis=1))
    flat = np.concatenate([part.reshape(len(numbers), -1) for part in parts], axis=1)
    choice = legal_choices(problems, states, max_devices)
    none = np.zeros(len(choice), dtype=bool), np.zeros(choice.shape, dtype=np.float32)
    return Choices(choice, *none, (flat.astype(np.float32),))


def legal_choices(problems: Problems, states: States, max_devices: int) -> Integers:
    """[B, P + max_devices - 1] the point or the device of each action; -1 where it is illegal."""
    points, first = problems.arrays.shape[2], np.arange(1, max_devices)
    even, point = (states.step % 2 == 0)[:, None], np.arange(points)
    still = (problems.stages - 1 - states.step // 2)[:, None]
    behind = problems.legal[:, ::-1].cumsum(axis=1)[:, ::-1]
    cut = problems.legal & (point > states.cuts.max(axis=1)[:, None]) & (behind >= still)
    room = problems.numbers[:, DEVICES, None] - still
    device = (first > np.maximum(states.firsts.max(axis=1), 0)[:, None]) & (first <= room)
    return np.concatenate([np.where(cut & even, point, -1), np.where(device & ~even, first, -1)], axis=1)


def interconnect(problems: Problems, max_devices: int) -> Floats:
    """[B, D_max, D_max] bandwidth between devices over the larger one; 0 where a cluster has no such device."""
    device = np.arange(max_devices)
    node = device // problems.numbers[:, PER_NODE, None]
    exists = device < problems.numbers[:, DEVICES, None]
    faster = 1.0 / problems.numbers[:, RATIO, None, None]
    matrix = np.where(node[:, :, None] == node[:, None], faster, 1.0) / np.maximum(faster, 1.0)
    return np.where(exists[:, :, None] & exists[:, None], matrix, 0.0)
