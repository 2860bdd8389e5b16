"""Groups of instructions that a device runs forward, backward and updates: the first step to a placement graph.

1. The forward instructions, in execution order, are cut into groups of about equal time, where each counts with the
   backward and update instructions at home with it (attribution.py). Each cut moves by up to half a group to the place
   with the fewest bytes crossing.
2. A backward instruction that reads what one of an earlier group made belongs to that group, too, if not to one still
   earlier. So the backward pass goes through the groups from the last to the first, as the forward pass goes from the
   first to the last, and no group waits for one that waits for it.
3. A group has a forward part and a backward part, which also holds its updates. An update that reads what an earlier
   group's backward part made (a step counter, a global norm) goes to a further part of its group, for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.instruction_graph import FloatArray, IntArray, Phase
from automap_models.hlo.liveness import Liveness

MOVE = 0.5
"""Share of a group by which a cut may move: with a half, every place between two instructions is looked at."""


@dataclass(frozen=True, eq=False)
class Reads:
    """r times that an instruction reads an activation which another one made, in execution order of the readers."""

    values: IntArray
    producers: IntArray
    readers: IntArray

    @classmethod
    def of(cls, liveness: Liveness) -> Reads:
        """Those of a graph; of arguments and of what is made of constants alone every device has its own."""
        graph = liveness.graph
        values = liveness.storage[graph.operands]
        counts = liveness.is_activation[values] & (graph.producers[values] >= 0)
        return cls(values[counts], graph.producers[values[counts]], graph.consumers[counts])


@dataclass(frozen=True, eq=False)
class Parts:
    """[n] the group of each instruction and its part of it; parts are numbered in topological order."""

    groups: IntArray
    parts: IntArray


def parts_of(liveness: Liveness, reads: Reads, home: IntArray, times_s: FloatArray, groups: int) -> Parts:
    """The instructions in at most that many groups.

    Args:
        liveness: of n instructions, some of them forward.
        reads: of the same.
        home: [n] the forward instruction, by position, that each belongs to.
        times_s: [n] seconds of each.
        groups: how many to make; fewer come out where single instructions take longer than a group.
    """
    phases = liveness.graph.phases.astype(np.int64)
    grouped = _lowered(phases, reads, _forward_groups(liveness, home, times_s, groups)[home])
    return _numbered(phases, grouped, _levels(phases, reads, grouped))


def _forward_groups(liveness: Liveness, home: IntArray, times_s: FloatArray, groups: int) -> IntArray:
    """[m] group of each forward instruction."""
    done = np.cumsum(np.bincount(home, times_s, liveness.forward.size))
    share = done / done[-1] if done[-1] > 0 else np.arange(1, done.size + 1) / done.size
    crossing = liveness.crossing_bytes
    cuts = set()
    for k in range(1, groups):
        first, end = np.searchsorted(share, [(k - MOVE) / groups, (k + MOVE) / groups])
        window = crossing[first : max(first + 1, end)]
        cuts.add(int(first + np.argmin(window)))
    starts = np.array(sorted(cuts - {done.size - 1}), dtype=np.int64)
    return np.searchsorted(starts, np.arange(done.size))


def _lowered(phases: IntArray, reads: Reads, groups: IntArray) -> IntArray:
    """[n] the groups with each backward instruction in one no later than those of the backward ones that it reads."""
    lowered = groups.tolist()
    both = (phases[reads.producers] == Phase.BACKWARD) & (phases[reads.readers] == Phase.BACKWARD)
    for producer, reader in zip(reads.producers[both].tolist(), reads.readers[both].tolist(), strict=True):
        lowered[reader] = min(lowered[reader], lowered[producer])
    return np.array(lowered)


def _levels(phases: IntArray, reads: Reads, groups: IntArray) -> IntArray:
    """[n] how often the dataflow after the forward pass has gone up to a later group before each instruction.

    Ordered by level, and inside a level from the last group to the first, no node reads a later one.
    """
    levels = [0] * phases.size
    later = phases[reads.producers] != Phase.FORWARD
    up = groups[reads.producers] < groups[reads.readers]
    producers, readers = reads.producers[later].tolist(), reads.readers[later].tolist()
    for producer, reader, goes_up in zip(producers, readers, up[later].tolist(), strict=True):
        levels[reader] = max(levels[reader], levels[producer] + goes_up)
    return np.array(levels)


def _numbered(phases: IntArray, groups: IntArray, levels: IntArray) -> Parts:
    """The forward parts by group, then level by level the others, from the last group to the first."""
    groups = np.unique(groups, return_inverse=True)[1]
    total = int(groups.max()) + 1
    key = np.where(phases == Phase.FORWARD, groups, total * (levels + 2) - 1 - groups)
    return Parts(groups, np.unique(key, return_inverse=True)[1])
