"""The inner loop of the dynamic program over ideals, compiled, and its arrays; `ideal_search` says what it computes.

m units, h nets, N ideals; entry (c, k): c CPUs and k accelerators in use

{} ─a→ {a} ─b→ {ab} ─c→ {abc}        from {a} the sets {b}, {b, c} and {c} grow, step by step of the lattice;
         └──c→ {ac} ─b→ {abc}        {abc} is met once: b is closed at depth 0 by the time that c is taken there

best_s[J, entry + 1 device] = min over ideals I ⊂ J of max(best_s[I, entry], load of J - I)      (`advance`)
load of a set               = max(compute, net_s) with overlap, else compute + net_s; the same for each part
net_s                       = of nets with some, not all, of their units in the set: the first unit adds a net, the
                              last one takes it off again
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.core.contraction import Contraction
from automap_models.core.placement import BoolArray, FloatArray, IntArray

SmallArray = NDArray[np.int32]


class UnitLoads(NamedTuple):
    """m units and h nets (see core.contraction), each time in part 0 or 1 of a device's load.

    Attributes:
        accelerator_s: [2, m] time of each part on an accelerator.
        cpu_s: [2, m] the same on a CPU.
        memory_bytes: [m] on an accelerator.
        supported: [m] whether the unit can run on an accelerator.
        net_s: [h] what a net loads an accelerator with that holds some but not all of its units.
        net_part: [h] part to which that belongs.
        net_size: [h] number of its units.
        first_net: [m + 1] where each unit's nets begin in `net`.
        net: nets of the units, one unit after the other.
    """

    accelerator_s: FloatArray
    cpu_s: FloatArray
    memory_bytes: FloatArray
    supported: BoolArray
    net_s: FloatArray
    net_part: IntArray
    net_size: IntArray
    first_net: IntArray
    net: IntArray


def unit_loads(contraction: Contraction, first_pass: int | None = None) -> UnitLoads:
    """Loads of the units.

    Args:
        first_pass: pass that is part 0, the other being part 1; None puts both into part 0.
    """
    m = len(contraction)
    size = np.diff(contraction.net_start)
    by_unit = np.argsort(contraction.net_units, kind="stable")
    part_of_pass = np.array([0, 0] if first_pass is None else [first_pass, 1 - first_pass])
    accelerator_s, cpu_s = np.zeros((2, 2, m))
    np.add.at(accelerator_s, part_of_pass, contraction.accelerator_s)
    np.add.at(cpu_s, part_of_pass, contraction.cpu_s)
    return UnitLoads(
        accelerator_s=accelerator_s,
        cpu_s=cpu_s,
        memory_bytes=contraction.memory_bytes,
        supported=contraction.supported,
        net_s=contraction.net_s,
        net_part=part_of_pass[contraction.net_pass],
        net_size=size,
        first_net=np.searchsorted(contraction.net_units[by_unit], np.arange(m + 1)).astype(np.int64),
        net=np.repeat(np.arange(size.size), size)[by_unit],
    )


class Steps(NamedTuple):
    """The arrays of a `Lattice`: [N + 1] where the steps out of each ideal begin, and of each step unit and ideal."""

    first: IntArray
    node: SmallArray
    larger: SmallArray


class Rules(NamedTuple):
    """What a device may hold.

    Attributes:
        accelerators, cpus: how many there are.
        memory_bytes: of one accelerator.
        overlap: whether transfers overlap with compute.
        ceiling_s: [2] most of each part of a load.
    """

    accelerators: int
    cpus: int
    memory_bytes: float
    overlap: bool
    ceiling_s: FloatArray


class Table(NamedTuple):
    """Entries for N ideals; entry c · (accelerators + 1) + k is for c CPUs and k accelerators, all of them in use.

    Attributes:
        best_s: [N, entries] least largest part 0 of a load, when these devices hold the ideal.
        before: [N, entries] ideal that all but the last of them hold, twice, plus 1 if the last one is a CPU.
        rest_s: [2, N] accelerator time of the units outside each ideal, by part.
        most_s: [2, entries] how much of that the devices not in use can take off.
    """

    best_s: FloatArray
    before: SmallArray
    rest_s: FloatArray
    most_s: FloatArray


@jit
def advance(begin: int, end: int, steps: Steps, loads: UnitLoads, rules: Rules, table: Table) -> None:  # noqa: PLR0912, PLR0915
    """Relax the entries of every larger ideal whose difference to one of `begin` … `end` - 1 fits a device.

    The difference grows unit by unit, depth first, each larger ideal met once: a unit added at some depth is left out
    (`closed`) in what comes later at that depth. One that does not fit would not fit into a larger set either, and is
    left out likewise.

    One long function with arrays of its own, for speed: functions that share these arrays would count references to
    each of them in every compiled call.
    """
    # At each depth: the ideal reached (at), its step to try next, and the unit that led there (added).
    m, width = loads.memory_bytes.size, rules.accelerators + 1
    position, next_step, added = np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64)
    on_accelerator, on_cpu = np.zeros(m + 1, np.bool_), np.zeros(m + 1, np.bool_)
    # Of the set at each depth: its bytes, and the two parts of its times and transfers.
    nbytes, accelerator_s, cpu_s, net_s = (
        np.zeros(m + 1),
        np.zeros((m + 1, 2)),
        np.zeros((m + 1, 2)),
        np.zeros((m + 1, 2)),
    )
    closed = np.full(m, -1)  # depth at which a unit was dealt with, until that depth is left
    inside = np.zeros(loads.net_s.size, np.int64)  # units of each net in the set
    entries = np.zeros(table.best_s.shape[1], np.int64)
    for ideal in range(begin, end):
        # Entries from which to go on: not those for which one device less is no worse.
        count = 0
        on_accelerator[0] = on_cpu[0] = False
        for entry in range(entries.size):
            best_s = table.best_s[ideal, entry]
            if (
                best_s == np.inf
                or (entry % width and table.best_s[ideal, entry - 1] <= best_s)
                or (entry >= width and table.best_s[ideal, entry - width] <= best_s)
            ):
                continue
            entries[count] = entry
            count += 1
            on_accelerator[0] |= entry % width < rules.accelerators
            on_cpu[0] |= entry // width < rules.cpus
        if not count:
            continue
        depth = 0
        position[0], next_step[0] = ideal, steps.first[ideal]
        while depth >= 0:
            here, step = position[depth], next_step[depth]
            if step == steps.first[here + 1]:
                # All steps out of this set are done: take back what was done at this depth.
                for done in range(steps.first[here], step):
                    if closed[steps.node[done]] == depth:
                        closed[steps.node[done]] = -1
                if depth:
                    for i in range(loads.first_net[added[depth]], loads.first_net[added[depth] + 1]):
                        inside[loads.net[i]] -= 1
                depth -= 1
                continue
            next_step[depth] += 1
            unit = steps.node[step]
            if closed[unit] >= 0:
                continue
            closed[unit] = depth
            # The set with the unit, if a device can hold that.
            nbytes[depth + 1] = nbytes[depth] + loads.memory_bytes[unit]
            accelerated = on_accelerator[depth] and loads.supported[unit] and nbytes[depth + 1] <= rules.memory_bytes
            processed = on_cpu[depth]
            for part in range(2):
                accelerator_s[depth + 1, part] = accelerator_s[depth, part] + loads.accelerator_s[part, unit]
                cpu_s[depth + 1, part] = cpu_s[depth, part] + loads.cpu_s[part, unit]
                net_s[depth + 1, part] = net_s[depth, part]
                accelerated = accelerated and accelerator_s[depth + 1, part] <= rules.ceiling_s[part]
                processed = processed and cpu_s[depth + 1, part] <= rules.ceiling_s[part]
            if not (accelerated or processed):
                continue
            for i in range(loads.first_net[unit], loads.first_net[unit + 1]):
                net = loads.net[i]
                inside[net] += 1
                if inside[net] == 1:  # its values have to be moved, until the set has all that make and read them
                    net_s[depth + 1, loads.net_part[net]] += loads.net_s[net]
                elif inside[net] == loads.net_size[net]:
                    net_s[depth + 1, loads.net_part[net]] -= loads.net_s[net]
            depth += 1
            larger = steps.larger[step]
            position[depth], next_step[depth], added[depth] = larger, steps.first[larger], unit
            on_accelerator[depth], on_cpu[depth] = accelerated, processed
            # That set on one more device, after each of the entries.
            if rules.overlap:
                busy_s = max(accelerator_s[depth, 0], net_s[depth, 0])
                other_s = max(accelerator_s[depth, 1], net_s[depth, 1])
            else:
                busy_s, other_s = accelerator_s[depth, 0] + net_s[depth, 0], accelerator_s[depth, 1] + net_s[depth, 1]
            accelerated = accelerated and busy_s <= rules.ceiling_s[0] and other_s <= rules.ceiling_s[1]
            for i in range(count):
                for kind in range(2):
                    if kind == 0 and accelerated and entries[i] % width < rules.accelerators:
                        entry, value_s = entries[i] + 1, max(table.best_s[ideal, entries[i]], busy_s)
                    elif kind == 1 and processed and entries[i] // width < rules.cpus:
                        entry, value_s = entries[i] + width, max(table.best_s[ideal, entries[i]], cpu_s[depth, 0])
                    else:
                        continue
                    # … unless the devices that are left cannot take what is left: the entry leads nowhere.
                    if (
                        value_s < table.best_s[larger, entry]
                        and table.rest_s[0, larger] <= table.most_s[0, entry]
                        and table.rest_s[1, larger] <= table.most_s[1, entry]
                    ):
                        table.best_s[larger, entry] = value_s
                        table.before[larger, entry] = 2 * ideal + kind
