"""The loops of planners.strategies.completion, compiled by numba."""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray

ALL = 400
"""Ways in which the virtual stages of a rank recompute up to which all of them are looked at."""


@jit
def _bytes_at(chosen: IntArray, moment: int, tables: FloatArray, moments: FloatArray) -> float:
    """Bytes of activations at a moment."""
    total = 0.0
    for v in range(chosen.size):
        total += moments[moment, 0, v] * tables[v, 1, chosen[v]] + moments[moment, 1, v] * tables[v, 2, chosen[v]]
    return total


@jit
def _fits(chosen: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> bool:
    """Whether a rank's memory holds what its virtual stages save so; arguments as of `shortest_choices`."""
    temporary = needed
    for v in range(chosen.size):
        temporary = max(temporary, tables[v, 3, chosen[v]])
    most = 0.0
    for moment in range(moments.shape[0]):
        most = max(most, _bytes_at(chosen, moment, tables, moments))
    return most + temporary <= room


@jit
def _of_all(counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> IntArray:
    """The shortest of all that fit."""
    chosen, best = np.zeros_like(counts), np.full_like(counts, -1)
    least = np.inf
    while True:
        seconds = 0.0
        for v in range(counts.size):
            seconds += tables[v, 0, chosen[v]]
        if seconds < least and _fits(chosen, tables, moments, room, needed):
            least = seconds
            best[:] = chosen
        v = 0
        while v < counts.size:
            chosen[v] += 1
            if chosen[v] < counts[v]:
                break
            chosen[v] = 0
            v += 1
        if v == counts.size:
            return best


@jit
def _freed_most(counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> IntArray:
    """From nothing recomputed on, the virtual stage is given one step more that frees most bytes at the fullest moment
    for its seconds, until all fits or there were more steps than choices."""
    chosen, steps = np.zeros_like(counts), counts.sum()
    while not _fits(chosen, tables, moments, room, needed):
        fullest, most = 0, -np.inf
        for moment in range(moments.shape[0]):
            now = _bytes_at(chosen, moment, tables, moments)
            if now > most:
                fullest, most = moment, now
        best, stage, choice = -1.0, -1, -1
        for v in range(counts.size):
            current = chosen[v]
            for j in range(counts[v]):
                freed = moments[fullest, 0, v] * (tables[v, 1, current] - tables[v, 1, j])
                freed += moments[fullest, 1, v] * (tables[v, 2, current] - tables[v, 2, j])
                rate = freed / max(tables[v, 0, j] - tables[v, 0, current], 1e-12)
                if freed > 0.0 and rate > best:
                    best, stage, choice = rate, v, j
        steps -= 1
        if stage < 0 or steps < 0:
            chosen[:] = -1
            return chosen
        chosen[stage] = choice
    return chosen


@jit
def _shortened(
    chosen: IntArray, counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float
) -> None:
    """Let one virtual stage after the other have the shortest choice that still fits, as long as that is shorter."""
    shorter = True
    while shorter:
        shorter = False
        for v in range(counts.size):
            best = chosen[v]
            for j in range(counts[v]):
                if tables[v, 0, j] < tables[v, 0, best]:
                    before, chosen[v] = chosen[v], j
                    if _fits(chosen, tables, moments, room, needed):
                        best = j
                    chosen[v] = before
            shorter = shorter or best != chosen[v]
            chosen[v] = best


@jit
def shortest_choices(counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> IntArray:
    """[v] the choices of a rank's virtual stages that take least and fit, or nearly where there are many; -1 where none
    fits.

    Args:
        counts: [v] how many choices there are; the first one recomputes nothing.
        tables: [v, 4, choices] seconds, bytes saved, kept and temporary of each.
        moments: [m, 2, v] micro-batches that wait for I and for W.
        room: bytes for activations and what is temporary.
        needed: bytes of what is temporary in any case.
    """
    ways = 1.0
    for v in range(counts.size):
        ways *= counts[v]
    if ways <= ALL:
        return _of_all(counts, tables, moments, room, needed)
    chosen = _freed_most(counts, tables, moments, room, needed)
    if chosen[0] >= 0:
        _shortened(chosen, counts, tables, moments, room, needed)
    return chosen
