"""Routes by a price for devices: roughly where stages belong among hundreds of devices, all of them at once.

A stage between two boundaries takes what it computes and moves, w, in w / r on r devices: the more the less. Of all r's
whose sum is D, the best are a Lagrangian relaxation's: with a price λ for a device each stage takes as many as make
w / r + λ·r least, √(w / λ), within its bounds. The cheapest cuts are then a shortest path, and λ the price at which all
stages together ask for the devices that there are:

    bound B     what M·u of the last stage may be; that of the first (M + S - 1) / M as much, as T counts what comes
                before a stage once: the least for which D devices suffice, times a factor
    bounds      of r between two boundaries: at least what computing, transfers and memory ask for; at most a node's
                devices, or one, where an all-reduce over more would take longer than a share of all this time
    path        S stages through the boundaries 0 … m, each wide, at w / r + λ·r, or a single device: neighbours of this
                kind pass on what they make by the links of their node

                node 0 …        5        6        7 …
                ├─ wide ──────────┤┬┬┬┬┬┬┬┬┬┬├── wide ───
                                   └ singles; which of them crosses to the next node is chosen with the cuts

    price       λ ← λ·(Σ r / D)² until Σ r is about D; then stages lie side by side in these proportions

A stage of w / r takes half of either transfer beside it. Left out are what hides all-reduces, narrow stages of several
devices that share a node, and copies of tied parameters: searches beside a route (planners.staged.far_search) count all
of these. One path takes m²·S / 2 such steps, half a millisecond for 32 stages and 128 boundaries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.profile import FloatArray
from automap_models.planners.staged.beam_kernel import reduced_s, route_length_s
from automap_models.planners.staged.pareto import IntArray
from automap_models.planners.staged.plain_stages import PlainStages

FACTORS = (1.03, 1.3, 2.0, np.inf)
"""Times the least bound."""
EXPOSED = (1.0, 0.1, 0.01)
"""Shares of a plan's time that an all-reduce may take, the largest first."""
PRECISION = 1.05
"""To this factor the least bound is looked for."""
BOUND_STEPS, PRICE_STEPS = 12, 6
"""Shortest paths to find the least bound and a price, at most."""
ENOUGH = (0.9, 1.05)
"""Of the devices, asked for in all: such a price is not looked for any more."""
WIDEST_SINGLE = 16
"""Points between two boundaries that a single may have."""
ANY_PRICE = 1e12
"""At which stages take as few devices as their bounds let them."""


class Terms(NamedTuple):
    """What stages are chosen by.

    Attributes:
        price: λ, seconds a device.
        bound_s: B; inf for none.
        exposed_s: what an all-reduce may take.
        most: devices of a stage at most: more of them split a micro-batch into no more parts.
    """

    price: float
    bound_s: float
    exposed_s: float
    most: float


@jit
def priced_routes(stages: PlainStages, shares: FloatArray, factors: FloatArray) -> IntArray:
    """[n, 2, S+1] the boundaries and devices where stages of different routes begin, and the end; none of them may fit.

    Args:
        stages: two or more.
        shares: see EXPOSED; factors: see FACTORS; there is a route for each of either at most.
    """
    routes, number = np.zeros((shares.size * factors.size, 2, stages.held.size + 1), dtype=np.int64), 0
    pairs, least_s = pairs_of(stages), 0.0
    price = stages.held.size * stages.C[-1] / (stages.parts.size - 1.0) ** 2  # of equal stages that only compute
    for share in shares:
        least_s = least_bound(stages, pairs, share, least_s)
        for factor in factors:
            own = at_price(stages, pairs, least_s, factor, share, price, routes[number]) if least_s < np.inf else 0.0
            if own > 0.0:
                price = own
                number += 0 if among(routes[:number], routes[number]) else 1
    return routes[:number]


@jit
def among(routes: IntArray, route: IntArray) -> bool:
    """Whether a route is one of some."""
    equal = 0
    for other in routes:
        equal += 1 if (other == route).all() else 0
    return equal > 0


@jit
def pairs_of(stages: PlainStages) -> FloatArray:
    """[3, m+1, m+1] for a stage's end k and begin i: √w, its all-reduce across nodes, and the devices without which the
    stash of a micro-batch does not fit; inf where its parameters do not, and where i is not before k."""
    C, A, W, H, per_node, inter = stages.C, stages.A, stages.W, stages.H, stages.per_node, stages.inter
    pairs = np.full((3, C.size, C.size), np.inf)
    for k in range(C.size):
        for i in range(k):
            state = stages.state_factor * (W[k] - W[i]) + (stages.frozen[k] - stages.frozen[i])
            free = stages.memory - state
            pairs[0, k, i] = np.sqrt(C[k] - C[i] + per_node * (A[i] + A[k]) / inter)
            pairs[1, k, i] = 2.0 * (W[k] - W[i]) / inter
            if free > 0.0:
                pairs[2, k, i] = (H[k] - H[i]) / free
    return pairs


@jit
def lead(stages: PlainStages) -> float:
    """How many times M·u equal stages' T is: (M + S - 1) / M."""
    return (stages.micro_batches + stages.held.size - 1.0) / stages.micro_batches


@jit
def least_bound(stages: PlainStages, pairs: FloatArray, share: float, low_s: float) -> float:
    """About the least bound for which the devices suffice; inf where none was found.

    Args:
        low_s: it is no less; 0 where nothing is known of it.
    """
    devices, per_device, most = stages.parts.size - 1.0, stages.C[-1] / (stages.parts.size - 1.0), most_devices(stages)
    ideal_s = per_device * stages.micro_batches
    low, high = max(low_s, ideal_s / lead(stages)), np.inf
    bound_s = low_s if low_s > 0.0 else 1.5 * ideal_s
    for _ in range(BOUND_STEPS):
        terms = Terms(ANY_PRICE * per_device / devices, bound_s, share * bound_s * lead(stages), most)
        demand = cheapest(stages, pairs, terms)[1].sum()
        if 0.0 < demand <= devices:
            high = bound_s
        else:
            low = bound_s
        if high < low * PRECISION:
            break
        if np.isinf(high):
            bound_s *= min(max(demand / devices, 1.5), 4.0) if demand > 0.0 else 4.0
        else:
            bound_s = np.sqrt(low * high)
    return high


@jit
def most_devices(stages: PlainStages) -> float:
    """The fewest devices that split a micro-batch into as many parts as any."""
    return float(np.argmax(stages.parts))


@jit
def at_price(
    stages: PlainStages,
    pairs: FloatArray,
    least_s: float,
    factor: float,
    share: float,
    price: float,
    route: IntArray,
) -> float:
    """The price that is right under a bound; 0 where there is no route.

    Args:
        least_s: the least bound; factor: times this.
        price: to begin with.
        route: [2, S+1] becomes the shortest of those at the prices that are looked at, or where none of them fits the
            one that asks for about as many devices as there are.
    """
    devices, exposed_s = stages.parts.size - 1.0, share * least_s * min(factor, 2.0) * lead(stages)
    low, high, length_s, off, most = 0.0, np.inf, np.inf, np.inf, most_devices(stages)
    for _ in range(PRICE_STEPS):
        cut, replicas, place = cheapest(stages, pairs, Terms(price, least_s * factor, exposed_s, most))
        demand = replicas.sum() / devices
        if demand == 0.0:
            break
        own = side_by_side(stages, cut, replicas, place)
        own_s, own_off = route_length_s(stages, own), abs(np.log(demand))
        if own_s < length_s or (np.isinf(length_s) and own_off < off):
            length_s, off, route[:] = own_s, own_off, own
        if ENOUGH[0] <= demand <= ENOUGH[1]:
            break
        if demand < 1.0:
            high = price
        else:
            low = price
        price *= demand**2 if demand < 1.0 else max(demand**2, 2.0)
        if low > 0.0 and not low * 1.05 < price < high / 1.05:
            price = np.sqrt(low * high)
        if high < low * 1.1:
            break
    return price if np.isfinite(off) else 0.0


@jit
def cheapest(stages: PlainStages, pairs: FloatArray, terms: Terms) -> tuple[IntArray, FloatArray, IntArray]:
    """The cheapest stages at a price.

    Args:
        pairs: see `pairs_of`.

    Returns:
        [S+1] the boundaries where they begin, and the end, [S] their devices, and [S] the place in its node of each
        single, -1 of others; all 0 where there are none.
    """
    count, points, per_node = stages.held.size, stages.C.size, int(stages.per_node)
    cost = np.full((points, per_node + 1), np.inf)  # at a stage's end, by its place: 0 of a wide one, else a single's
    came = np.empty((2, count, points, per_node + 1), dtype=np.int64)  # where such a stage begins; the place before it
    wide = np.empty((count, points))
    cost[0, 0] = 0.0
    for s in range(count):
        entered, required = before(stages, s, terms.bound_s, cost, came[1, s])
        cost[:] = np.inf
        put_wide(stages, pairs, terms, s, entered, required, cost, came[0, s], wide[s])
        put_singles(stages, pairs, terms, s, entered, cost, came[0, s])
    return followed(cost[-1], came, wide)


@jit
def step_bound(stages: PlainStages, bound_s: float, s: int) -> float:
    """What M·u of stage s, or of the transfer into it, may be."""
    return bound_s * (1.0 + max(stages.held.size - 1.0 - s, 0.0) / stages.micro_batches)


@jit
def before(
    stages: PlainStages, s: int, bound_s: float, cost: FloatArray, came: IntArray
) -> tuple[FloatArray, FloatArray]:
    """What leads to stage s, the transfer into it counted where a single sends or receives.

    Args:
        cost: [m+1, P+1] of all stages before, by the boundary where the last one ends and its place.
        came: [m+1, P+1] becomes that place, by the boundary and the place of stage s.

    Returns:
        [m+1, P+1] the least cost so far by them, and [2, m+1] the devices that the transfers into a stage and out of it
        ask for, by the boundary that they cross.
    """
    rounds, per_node, A = stages.micro_batches, cost.shape[1] - 1, stages.A
    most_s, next_s = step_bound(stages, bound_s, s), step_bound(stages, bound_s, s + 1)
    entered, required = np.empty(cost.shape), np.ones((2, A.size))
    for i in range(s, A.size - (stages.held.size - s - 1)):
        across, inside = 2.0 * A[i] / stages.inter, 2.0 * A[i] / stages.intra
        if rounds * across > next_s:
            required[1, i] = per_node * rounds * across / next_s
        if rounds * across > most_s:
            required[0, i], across = per_node * rounds * across / most_s, np.inf
        if rounds * inside > most_s:
            inside = np.inf
        own, last = cost[i, 0], 1
        for place in range(1, per_node + 1):
            beside_s = cost[i, place - 1] + inside if place > 1 else cost[i, per_node] + across
            moved = beside_s < own + across
            came[i, place] = (place - 1 if place > 1 else per_node) if moved else 0
            entered[i, place] = beside_s if moved else own + across
            if cost[i, place] < cost[i, last]:
                last = place
        came[i, 0] = last if cost[i, last] + across < own else 0
        entered[i, 0] = min(cost[i, last] + across, own)
    return entered, required


@jit
def put_wide(
    stages: PlainStages,
    pairs: FloatArray,
    terms: Terms,
    s: int,
    entered: FloatArray,
    required: FloatArray,
    cost: FloatArray,
    came: IntArray,
    wide: FloatArray,
) -> None:
    """Stage s as a wide one, at each boundary where it may end.

    Args:
        pairs, terms: see `cheapest`.
        entered, required: see `before`.
        cost, came: [m+1, P+1] become the cost of all stages up to it and where it begins, at place 0.
        wide: [m+1] becomes its devices.
    """
    per_node, per_byte, held = stages.per_node, stages.per_node / stages.inter, float(stages.held[s])
    inside = reduced_s(stages, 0, int(per_node)) * stages.inter / 2.0  # an all-reduce in a node over one across nodes
    root = 1.0 / np.sqrt(terms.price)
    computing = stages.micro_batches / step_bound(stages, terms.bound_s, s)
    cost_s, replicas, from_s = np.empty(cost.shape[0]), np.empty(cost.shape[0]), entered[s:, 0].copy()
    C, A, into = stages.C[s:], stages.A[s:], required[0, s:]
    for k in range(s + 1, cost.shape[0] - (stages.held.size - s - 1)):
        out, ending, end = required[1, k], stages.A[k], stages.C[k]
        roots, reduces, stash = pairs[0, k, s:], pairs[1, k, s:], pairs[2, k, s:]
        for i in range(k - s):  # without branches, so that several are done at a time
            u, computed, kept = end - C[i], (end - C[i]) * computing, held * stash[i]
            most = per_node if reduces[i] * inside <= terms.exposed_s else 1.0
            most = terms.most if reduces[i] <= terms.exposed_s else most
            least, least_inside = into[i] if into[i] > out else out, computed if computed > kept else kept
            least = least if least > least_inside else least_inside
            r = roots[i] * root if roots[i] * root > least else least
            r = r if r < most else most
            sum_s = from_s[i] + u / r + per_byte * (A[i] + ending) / (r if r > per_node else per_node) + terms.price * r
            cost_s[i] = sum_s if least <= most else np.inf
            replicas[i] = r
        begin = 0
        for i in range(k - s):
            if cost_s[i] < cost_s[begin]:
                begin = i
        cost[k, 0], came[k, 0], wide[k] = cost_s[begin], begin + s, max(replicas[begin], 1.0)


@jit
def put_singles(
    stages: PlainStages,
    pairs: FloatArray,
    terms: Terms,
    s: int,
    entered: FloatArray,
    cost: FloatArray,
    came: IntArray,
) -> None:
    """Stage s as a single, at each boundary where it may end and each place of a node; see `put_wide`."""
    C, held = stages.C, float(stages.held[s])
    computing = stages.micro_batches / step_bound(stages, terms.bound_s, s)
    for k in range(s + 1, cost.shape[0] - (stages.held.size - s - 1)):
        for i in range(max(s, k - WIDEST_SINGLE), k):
            u = C[k] - C[i]
            if held * pairs[2, k, i] <= 1.0 and u * computing <= 1.0:
                for place in range(1, cost.shape[1]):
                    if entered[i, place] + u + terms.price < cost[k, place]:
                        cost[k, place], came[k, place] = entered[i, place] + u + terms.price, i


@jit
def followed(cost: FloatArray, came: IntArray, wide: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """What `cheapest` returns, from the costs of all stages by the place of the last one.

    Args:
        cost: [P+1].
        came: [2, S, m+1, P+1] the boundary where a stage begins and the place of the one before, by its end and place.
        wide: [S, m+1] devices of a wide one.
    """
    count, k, place = wide.shape[0], wide.shape[1] - 1, int(np.argmin(cost))
    cut, replicas = np.zeros(count + 1, dtype=np.int64), np.zeros(count)
    places = np.zeros(count, dtype=np.int64)
    if np.isfinite(cost[place]):
        for s in range(count - 1, -1, -1):
            cut[s + 1], places[s] = k, place - 1
            replicas[s] = 1.0 if place else wide[s, k]
            i = came[0, s, k, place]
            k, place = i, came[1, s, i, place]
    return cut, replicas, places


@jit
def side_by_side(stages: PlainStages, cut: IntArray, replicas: FloatArray, place: IntArray) -> IntArray:
    """[2, S+1] the stages on all devices: wide ones in proportion, singles where they want to be in a node.

    Args:
        cut, replicas, place: see `cheapest`.
    """
    count, devices, per_node = replicas.size, stages.parts.size - 1, int(stages.per_node)
    singles = (place >= 0).sum()
    scale = (devices - singles) / max(replicas.sum() - singles, 1.0)
    begin, ideal = np.zeros(count + 1, dtype=np.int64), 0.0
    for s in range(count):
        if place[s] >= 0 and s and place[s - 1] < 0:
            begin[s] += (place[s] - begin[s] + per_node // 2) % per_node - per_node // 2
            if begin[s] <= begin[s - 1]:
                begin[s] += per_node
        ideal += 1.0 if place[s] >= 0 else replicas[s] * scale
        begin[s + 1] = begin[s] + 1 if place[s] >= 0 else max(int(np.rint(ideal)), begin[s] + 1)
    begin[count] = devices
    for s in range(count - 1, 0, -1):
        begin[s] = min(begin[s], begin[s + 1] - 1)
    return np.stack((cut, begin))
