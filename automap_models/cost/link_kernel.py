"""What devices in equal nodes take to send activations on and to sum gradients, as factors; compiled by numba.

Devices first … stop-1 are a stage's. Times are per byte over `inter`, so that 1 / ratio is the bandwidth inside a node,
ratio = inter / intra. Equal nodes and neighbouring devices make short formulas of cost.collectives' maxima.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from automap_models.core.compiled import jit

Number = Any
"""A floating-point number of either size: what is computed has the size of what is given."""
NOTHING, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)


@jit
def parts_of(devices: Number, samples: Number) -> Number:
    """Into how many parts so many replicas split a micro-batch: StagedProblem.shares; samples is 0 where it is even."""
    return samples / np.ceil(samples / devices) if samples > 0 else devices


@jit
def all_reduce(first: Number, stop: Number, per_node: Number, ratio: Number) -> Number:
    """Time per byte of gradients."""
    node_first, node_last = np.floor(first / per_node), np.floor((stop - ONE) / per_node)
    across = node_last - node_first + ONE
    inside = per_node
    if across == ONE:
        inside = stop - first
    elif across == TWO:
        inside = max((node_first + ONE) * per_node - first, stop - node_last * per_node)
    inside = max(inside, ONE)
    return TWO * (inside - ONE) / inside * ratio + TWO * (across - ONE) / max(across, ONE)


@jit
def transfer(
    first: Number,
    boundary: Number,
    stop: Number,
    per_node: Number,
    ratio: Number,
    samples: Number,
) -> Number:
    """Time per byte of activations from devices first … boundary-1 to boundary … stop-1."""
    return received(sent(first, boundary, per_node, samples), boundary, stop, per_node, ratio, samples)


@jit
def sent(first: Number, boundary: Number, per_node: Number, samples: Number) -> tuple[Number, ...]:
    """The sender's half of a transfer.

    Returns:
        Its share on the node where it ends, and on the fullest one before; how many devices of that node are left to
        the receiver; 1 where they share it, else 0; how many times its even share a device has.
    """
    sender, start = max(boundary - first, ONE), np.floor(boundary / per_node) * per_node
    inside = boundary != start
    last = min(sender, boundary - (start if inside else start - per_node))
    padding = sender / parts_of(sender, samples)
    return last / sender, min(sender - last, per_node) / sender, start + per_node - boundary, ONE * inside, padding


@jit
def received(
    begun: tuple[Number, ...], boundary: Number, stop: Number, per_node: Number, ratio: Number, samples: Number
) -> Number:
    """The factor of a transfer from the sender's half (`sent`) and where the receiver ends."""
    last, before, room, inside, padding = begun
    receiver = max(stop - boundary, ONE)
    first = min(receiver, room)
    stays = inside * max(last + first / receiver - ONE, NOTHING)
    out = max(last - stays, before)
    into = max(first / receiver - stays, min(receiver - first, per_node) / receiver)
    crosses = max(out, into)
    if samples > 0:
        padding = max(padding, receiver / parts_of(receiver, samples))
        crosses, stays = min(padding * crosses, ONE), min(padding * stays, ONE)
    return max(crosses, stays * ratio)
