"""Effort: what searches have computed, in seconds that are counted instead of measured.

A search that stops after so many seconds by a clock finds one plan on an idle machine and another one on a busy one. A
search that stops after so much effort finds the same plan on both. So each of the loops in which searches spend their
time says how much it is about to do, and a `Deadline` by this clock looks at the sum, as the deterministic time limits
of solvers do (CPLEX's ticks, Gurobi's work units).

    effort.count(effort.PAIRS, 4096)               # about to put 4,096 stages before what follows them
    part = deadline.part(0.3, effort.counted_s)    # 0.3 counted seconds from now on

A counted second takes about a second of one core: the rates below are least squares over some 120,000 calls of these
loops (benchmarks/counted_effort.py, which prints how well they agree). What is kept from one search to the next, such
as the tables of a problem, is not counted, or the order of searches would matter.
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class Kind(NamedTuple):
    """Something that searches do.

    Attributes:
        call_s: what it takes however small it is, in seconds.
        unit_s: what each unit of it takes.
    """

    call_s: float
    unit_s: float


PREFIXES = Kind(1.3e-4, 0.0)
"""The least prefixes that end at one device (relaxation.prefix_bounds), but for what stages there take."""
THROUGH = Kind(4.1e-5, 9.1e-8)
"""Prefixes through a stage in each sharding, by pairs of a first device and a boundary where it ends."""
ROUND = Kind(1.6e-4, 4.5e-6)
"""A round of label setting, by first devices of the stage."""
CROSSINGS = Kind(5.5e-5, 2.9e-8)
"""Labels whose suffix receives from a stage, by pairs of a first device and a suffix."""
PAIRS = Kind(1.4e-4, 8.4e-8)
"""Stages put before suffixes, by pairs of the two."""
FRONT = Kind(6.2e-5, 4.1e-7)
"""Labels compared with one another."""
PLANS = Kind(3.2e-4, 1.4e-7)
"""Stages of plans in a batch costed, by stages in all."""
BOUNDS = Kind(0.0, 4.7e-9)
"""Lower bounds on the steps of a batch of plans, by passes (stages times micro-batches) times plans and BOUNDS_MORE."""
BOUNDS_MORE = 1450
"""A pass of one plan takes as long as one of this many more: numpy's calls."""
STEPS = Kind(6.7e-5, 5.6e-8)
"""The steps of a batch of plans simulated, by passes times plans and STEPS_MORE."""
STEPS_MORE = 200
"""As BOUNDS_MORE."""
BUCKETS = Kind(2.8e-5, 2.0e-8)
"""The gradients of a stage sorted into buckets, by instructions."""
NEIGHBOURS = Kind(2.4e-4, 1.3e-5)
"""Plans listed around one, by stages times offsets."""
PLAN = Kind(5.3e-4, 5.2e-6)
"""One plan costed, with its timeline, by passes: stages times micro-batches."""
BEAM = Kind(1.0e-4, 3.9e-8)
"""Places of a stage before ways to go on, by pairs of the two."""
TRIPS = Kind(0.0, 3.6e-9)
"""The least round trip of a stage, by pairs of devices and boundaries."""
SUFFIXES = Kind(9.0e-6, 4.0e-9)
"""A stage before the least of all suffixes (suffix_bound), by pairs of a beginning and an end."""
BEHIND = Kind(0.0, 3.0e-9)
"""The least of what follows such a stage, by pairs of the next one's devices and beginnings."""

_done = threading.local()


def count(kind: Kind, units: float = 0.0) -> None:
    """Add what this thread is about to do.

    Args:
        kind: what it is.
        units: how many of the units of its kind.
    """
    _done.counted_s = counted_s() + kind.call_s + units * kind.unit_s


def counted_s() -> float:
    """What this thread has counted since it began, in seconds: a clock for `planners.base.Deadline`."""
    so_far_s: float = getattr(_done, "counted_s", 0.0)
    return so_far_s
