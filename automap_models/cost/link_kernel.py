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
def transfer(first: Number, boundary: Number, stop: Number, per_node: Number, ratio: Number) -> Number:
    """Time per byte of activations from devices first … boundary-1 to boundary … stop-1.

    Of either side the share on the node where they meet counts, and that on the fullest of its other nodes.
    """
    sender, start = max(boundary - first, ONE), np.floor(boundary / per_node) * per_node
    inside = boundary != start
    last = min(sender, boundary - (start if inside else start - per_node))
    receiver = max(stop - boundary, ONE)
    here = min(receiver, start + per_node - boundary)
    stays = ONE * inside * max(last / sender + here / receiver - ONE, NOTHING)
    out = max(last / sender - stays, min(sender - last, per_node) / sender)
    into = max(here / receiver - stays, min(receiver - here, per_node) / receiver)
    return max(out, into, stays * ratio)
