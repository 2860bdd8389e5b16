"""What devices in equal nodes take to send activations on and to sum gradients, as factors; compiled by numba.

Devices first … stop-1 are a stage's. Times are per byte over `inter`, so that 1 / ratio is the bandwidth inside a node,
ratio = inter / intra. Equal nodes and neighbouring devices make short formulas of cost.collectives' maxima.

    node 0      node 1      node 2        s: senders, devices first … boundary-1      per_node = 4
    · · s s  │  s s r r  │  r r r ·       r: receivers, devices boundary … stop-1     they meet on node 1

    all_reduce  2 (w-1)/w · ratio + 2 (a-1)/a       w devices on the fullest of a nodes: a ring inside, then one across
    transfer    max(out, into, stays · ratio)       shares of the bytes: the most that leaves a node, the most that goes
                                                    into one, and what stays where the two sides meet
"""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit


@jit
def all_reduce(first: float, stop: float, per_node: float, ratio: float) -> float:
    """Time per byte of gradients."""
    node_first, node_last = np.floor(first / per_node), np.floor((stop - 1.0) / per_node)
    across = node_last - node_first + 1.0
    inside = per_node  # of three neighbouring nodes the middle one is full
    if across == 1.0:
        inside = stop - first
    elif across == 2.0:
        inside = max((node_first + 1.0) * per_node - first, stop - node_last * per_node)
    inside = max(inside, 1.0)
    return float(2.0 * (inside - 1.0) / inside * ratio + 2.0 * (across - 1.0) / max(across, 1.0))


@jit
def transfer(first: float, boundary: float, stop: float, per_node: float, ratio: float) -> float:
    """Time per byte of activations from devices first … boundary-1 to boundary … stop-1.

    Of either side the share on the node where they meet counts, and that on the fullest of its other nodes.
    """
    # senders last/sender and receivers here/receiver are on the node where they meet: last ones and first ones
    sender, start = max(boundary - first, 1.0), np.floor(boundary / per_node) * per_node
    inside = boundary != start
    last = min(sender, boundary - (start if inside else start - per_node))
    receiver = max(stop - boundary, 1.0)
    here = min(receiver, start + per_node - boundary)
    # senders there hold the end of the bytes, receivers there want their beginning: what both have stays on the node
    stays = inside * max(last / sender + here / receiver - 1.0, 0.0)
    out = max(last / sender - stays, min(sender - last, per_node) / sender)
    into = max(here / receiver - stays, min(receiver - here, per_node) / receiver)
    return float(max(out, into, stays * ratio))
