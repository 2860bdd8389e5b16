"""The loops of planners.strategies.completion, compiled by numba."""

from __future__ import annotations

import numpy as np

from automap_models.core.compiled import jit
from automap_models.core.instruction_graph import FloatArray, IntArray


@jit
def _fullest(chosen: IntArray, tables: FloatArray, moments: FloatArray, needed: float) -> tuple[int, float]:
    """The moment at which a rank's virtual stages hold most, and what memory they need with it, bytes."""
    temporary, fullest, most = needed, 0, 0.0
    for v in range(chosen.size):
        temporary = max(temporary, tables[v, 3, chosen[v]])
    for moment in range(moments.shape[0]):
        nbytes = 0.0
        for v in range(chosen.size):
            j = chosen[v]
            nbytes += moments[moment, 0, v] * tables[v, 1, j] + moments[moment, 1, v] * tables[v, 2, j]
        if nbytes > most:
            fullest, most = moment, nbytes
    return fullest, most + temporary


@jit
def _exhaustive(counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> IntArray:
    """The shortest of all that fit; -1 where none fits."""
    chosen, best = np.zeros_like(counts), np.full_like(counts, -1)
    least = np.inf
    while True:
        seconds = 0.0
        for v in range(counts.size):
            seconds += tables[v, 0, chosen[v]]
        if seconds < least and _fullest(chosen, tables, moments, needed)[1] <= room:
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
def _step_by_step(counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float) -> IntArray:
    """Some that fit, of which no virtual stage alone can have a shorter choice; -1 where none was met.

    From nothing recomputed on, the virtual stage is given one step more that frees most bytes at the fullest moment
    for its seconds, until all fits or there were more steps than choices. Then one after the other has the shortest
    choice that still fits, as long as that is shorter.
    """
    chosen, steps = np.zeros_like(counts), 0
    for v in range(counts.size):  # a reduction of numpy's would have numba import scipy, which takes 0.2 s
        steps += counts[v]
    while True:
        fullest, nbytes = _fullest(chosen, tables, moments, needed)
        if nbytes <= room:
            break
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
            return np.full_like(counts, -1)
        chosen[stage] = choice
    shorter = True
    while shorter:
        shorter = False
        for v in range(counts.size):
            shortest = chosen[v]
            for j in range(counts[v]):
                if tables[v, 0, j] < tables[v, 0, shortest]:
                    before, chosen[v] = chosen[v], j
                    if _fullest(chosen, tables, moments, needed)[1] <= room:
                        shortest = j
                    chosen[v] = before
            shorter = shorter or shortest != chosen[v]
            chosen[v] = shortest
    return chosen


def shortest_choices(
    counts: IntArray, tables: FloatArray, moments: FloatArray, room: float, needed: float, few: float = 400
) -> IntArray:
    """[v] the choices of a rank's virtual stages that take least and fit, or nearly where there are many; -1 where none
    fits.

    Args:
        counts: [v] how many choices there are; the first one recomputes nothing.
        tables: [v, 4, choices] seconds, bytes saved, kept and temporary of each.
        moments: [m, 2, v] micro-batches that wait for I and for W.
        room: bytes for activations and what is temporary.
        needed: bytes of what is temporary in any case.
        few: combinations of choices up to which all of them are looked at.
    """
    search = _exhaustive if counts.prod(dtype=np.float64) <= few else _step_by_step
    return search(counts, tables, moments, room, needed)
