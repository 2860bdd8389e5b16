"""The cost-to-go tables of a teacher: those of envs.pipeline.cost_to_go, one number after another, of any fineness.

    for every point k and unit u that the rest may begin at          ┐
      for every size r of its first stage, for every end e behind k  │ M·u grows with e: where it alone is longer than
        T + max(R, enough) of that stage and of what follows it      ┘ the best so far, no later end can be better

A policy's tables are made by tensor operators, because they are part of its file, and are as fine as its time allows. A
teacher has more time, but needs them for every problem it teaches: loops that stop early, compiled by numba, take a
tenth of the time. Every number is computed as there, in float32 and in the same order, so that equal tables are equal.
Without numba the same functions run as Python, a hundred times slower.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from automap_models.core.compiled import jit
from automap_models.envs.pipeline.cost_to_go import (
    IMPOSSIBLE,
    POINTS,
    STAGE_UNITS,
    UNITS,
    CostToGo,
    Scaled,
    choose_points,
    levels,
)

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
ONE, TWO, IMPOSSIBLE_SPAN = np.float32(1), np.float32(2), np.float32(IMPOSSIBLE)
HARDLY_ANY = np.float32(1e-9)


@dataclass(frozen=True)
class Fineness:
    """How fine tables are.

    Attributes:
        points: grid points at which the rest of a pipeline may be cut, at most.
        units: equal groups that devices are counted in.
        stage_units: units that a stage of the rest may have, ascending.
    """

    points: int = POINTS
    units: int = UNITS
    stage_units: tuple[int, ...] = STAGE_UNITS


def fine_cost_to_go(scaled: Scaled, cut_mask: Tensor, max_stages: int, fineness: Fineness) -> CostToGo:
    """The tables of a batch of problems, of which bool [B, P] says where a stage may end."""
    points = choose_points(scaled.arrays, cut_mask, fineness.points)
    at = scaled.at(points).numpy()
    legal = cut_mask.gather(1, points).numpy()
    scalars = (scaled.devices, scaled.per_node, scaled.ratio, scaled.state, scaled.stages, scaled.micro)
    none = torch.zeros_like(scaled.devices)
    columns = [c.flatten().numpy() for c in (*scalars, none if scaled.samples is None else scaled.samples)]
    total = scaled.total.squeeze(2).numpy()
    tables = np.zeros((5, len(at), levels(max_stages), points.shape[1], fineness.units), dtype=np.float32)
    sizes = np.array(fineness.stage_units, dtype=np.int64)
    given = np.stack(columns, 1)
    for i in range(len(at)):
        needed = min(levels(max_stages), levels(int(scaled.stages[i])))
        problem_tables(at[i], total[i], legal[i], given[i], sizes, needed, tables[:, i])
    return CostToGo(points, *torch.from_numpy(tables).unbind(0))


@jit
def parts_of(devices: np.float32, samples: np.float32) -> np.float32:
    """cost.staged_torch.equal_parts."""
    return np.float32(samples / np.ceil(samples / devices)) if samples > 0 else devices


@jit
def all_reduce(first: np.float32, stop: np.float32, per_node: np.float32, ratio: np.float32) -> np.float32:
    """cost.staged_torch.all_reduce_factor."""
    node_first, node_last = np.floor(first / per_node), np.floor((stop - ONE) / per_node)
    across = node_last - node_first + ONE
    inside = per_node
    if across == ONE:
        inside = stop - first
    elif across == TWO:
        inside = max((node_first + ONE) * per_node - first, stop - node_last * per_node)
    inside = max(inside, ONE)
    return np.float32(TWO * (inside - ONE) / inside * ratio + TWO * (across - ONE) / max(across, ONE))


@jit
def transfer(
    first: np.float32,
    boundary: np.float32,
    stop: np.float32,
    per_node: np.float32,
    ratio: np.float32,
    samples: np.float32,
) -> np.float32:
    """cost.staged_torch.transfer_factor."""
    sender, receiver = max(boundary - first, ONE), max(stop - boundary, ONE)
    start = np.floor(boundary / per_node) * per_node
    inside = boundary != start
    sender_last = min(sender, boundary - (start if inside else start - per_node))
    receiver_first = min(receiver, start + per_node - boundary)
    stays = np.float32(0)
    if inside:
        stays = max(sender_last / sender + receiver_first / receiver - ONE, np.float32(0))
    out = max(sender_last / sender - stays, min(sender - sender_last, per_node) / sender)
    into = max(receiver_first / receiver - stays, min(receiver - receiver_first, per_node) / receiver)
    crosses = max(out, into)
    if samples > 0:
        padding = max(sender / parts_of(sender, samples), receiver / parts_of(receiver, samples))
        crosses, stays = min(padding * crosses, ONE), min(padding * stays, ONE)
    return max(crosses, stays * ratio)


@jit
def problem_tables(
    at: Floats, total: Floats, legal: Flags, given: Floats, sizes: Integers, needed: int, tables: Floats
) -> None:
    """Fill in the tables [5, L, K, U] of one problem for 2 … needed + 1 stages left, in the order of CostToGo.

    Args:
        at: [5, K] channels at the tables' points; total: [5] at the end of the model.
        legal: [K] which of the points are cuts.
        given: [7] devices, per_node, ratio, state, stages, micro and samples as in Scaled; samples 0 where there are
            none.
        sizes: units that a stage may have.
    """
    rest = last_one(at, total, given, tables.shape[3])
    for left in range(2, 2 + needed):
        rest = one_more(at, legal, given, sizes, np.float32(left), rest, tables[:, left - 2])


@jit
def last_one(at: Floats, total: Floats, given: Floats, units: int) -> Floats:
    """[3, K, U] T, R and the last device of one stage, on all devices from each unit on (last_stage)."""
    devices, per_node, ratio, state, _, micro, _ = given
    unit = np.ceil(devices / np.float32(units))
    rest = np.empty((3, at.shape[1], units), dtype=np.float32)
    rest[0], rest[2] = IMPOSSIBLE_SPAN, devices
    for u in range(units):
        first = np.float32(u) * unit
        replicas = max(devices - first, ONE)
        factor = all_reduce(first, max(devices, first + ONE), per_node, ratio)
        for k in range(at.shape[1]):
            rest[1, k, u] = (total[2] - at[2, k]) * factor
            memory = state * (total[2] - at[2, k]) + (total[4] - at[4, k]) / replicas
            if memory <= ONE and first < devices:
                rest[0, k, u] = micro * (total[0] - at[0, k]) / replicas
    return rest


@jit
def one_more(
    at: Floats, legal: Flags, given: Floats, sizes: Integers, left: np.float32, rest: Floats, table: Floats
) -> Floats:
    """From the rest in left - 1 stages, [3, K, U], to that in `left`, whose plans fill a level, [5, K, U]."""
    devices, _, _, state, _, micro, samples = given
    count, units = rest.shape[1], rest.shape[2]
    unit, in_flight = np.ceil(devices / np.float32(units)), min(micro, left)
    new = np.zeros_like(rest)
    new[0], new[2] = IMPOSSIBLE_SPAN, devices
    ahead = np.empty((3, len(sizes), count), dtype=np.float32)
    for u in range(units):
        first = np.float32(u) * unit
        if first >= devices:
            break
        fitting = behind_a_cut(at, given, sizes, left, rest, u, ahead)
        for k in range(count):
            e, r = best_stage(at, legal, given, sizes[:fitting], left, u, k, ahead, unit)
            if e < 0 or ahead[0, r, e] >= IMPOSSIBLE_SPAN:
                continue
            stop = first + np.float32(sizes[r]) * unit
            table[0, k, u], table[1, k, u], table[2, k, u] = np.float32(e), stop, ahead[2, r, e]
            table[3, k, u], table[4, k, u] = ahead[0, r, e], ahead[1, r, e]
            # one_more_stage
            per_device = ONE / parts_of(stop - first, samples)
            compute, weights, stash = at[0, e] - at[0, k], at[2, e] - at[2, k], at[4, e] - at[4, k]
            time, backward = compute * per_device, (compute - (at[3, e] - at[3, k])) * per_device
            factor = all_reduce(first, stop, given[1], given[2])
            new[1, k, u], new[2, k, u] = max(weights * factor, ahead[1, r, e] - backward), stop
            if state * weights + in_flight * stash * per_device <= ONE:
                new[0, k, u] = max(micro * time, time + ahead[0, r, e])
    return new


@jit
def behind_a_cut(
    at: Floats, given: Floats, sizes: Integers, left: np.float32, rest: Floats, u: int, ahead: Floats
) -> int:
    """What follows a stage of each size and end that begins with a unit, wherever it begins, into [3, R, K].

    T from the transfer on, R less the transfer, and where the devices of the stage behind end (_behind_a_cut).

    Returns:
        How many of the sizes there is room for.
    """
    devices, per_node, ratio, _, _, micro, samples = given
    units = rest.shape[2]
    unit = np.ceil(devices / np.float32(units))
    for r in range(len(sizes)):
        behind = u + sizes[r]
        boundary = np.float32(behind) * unit
        if boundary > devices - (left - ONE) or behind >= units:
            return r
        for e in range(rest.shape[1]):
            after = max(rest[2, e, behind], boundary + ONE)
            sent = at[1, e] * transfer(np.float32(u) * unit, boundary, after, per_node, ratio, samples)
            ahead[0, r, e] = max(TWO * micro * sent, TWO * sent + rest[0, e, behind])
            ahead[1, r, e] = rest[1, e, behind] - sent
            ahead[2, r, e] = after
    return len(sizes)


@jit
def best_stage(
    at: Floats,
    legal: Flags,
    given: Floats,
    sizes: Integers,
    left: np.float32,
    u: int,
    k: int,
    ahead: Floats,
    unit: np.float32,
) -> tuple[int, int]:
    """End point and number of the size of the best stage from a point and a unit on; -1 where none fits.

    The sum T + max(R, enough) decides, T with the transfer into the stage, before which the stages share their work,
    parameters and devices evenly (_reduce_before, _transfer_into). Of equals the first end, then the smallest size.
    """
    _, per_node, ratio, state, stages, micro, samples = given
    first = np.float32(u) * unit
    begin, before, in_flight = max(first, ONE), max(stages - left, ONE), min(micro, left)
    sender = max(first - np.ceil(first / before), np.float32(0))
    even = all_reduce(np.float32(0), np.ceil(begin / before), per_node, ratio)
    enough = before * (at[0, k] - at[3, k]) / begin + at[2, k] / before * even
    best, best_end, best_size = np.float32(np.inf), -1, -1
    for r in range(len(sizes)):
        size = np.float32(sizes[r]) * unit
        into = TWO * (at[1, k] * transfer(sender, begin, begin + size, per_node, ratio, samples))
        factor, per_device = all_reduce(first, first + size, per_node, ratio), ONE / parts_of(size, samples)
        for e in range(k + 1, at.shape[1]):
            compute, weights = at[0, e] - at[0, k], at[2, e] - at[2, k]
            time = compute * per_device
            if micro * time + enough > best:
                break
            hold = (ONE - state * weights) / max((at[4, e] - at[4, k]) * per_device, HARDLY_ANY)
            if not (legal[e] and hold >= in_flight):
                continue
            whole = max(micro * into, into + max(micro * time, time + ahead[0, r, e]))
            backward = (compute - (at[3, e] - at[3, k])) * per_device
            score = whole + max(weights * factor, ahead[1, r, e] - backward, enough)
            if score < best or (score == best and e < best_end):
                best, best_end, best_size = score, e, r
    return best_end, best_size
