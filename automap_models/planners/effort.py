"""Effort: what searches have computed, in seconds that are counted instead of measured.

A search that stops after so many seconds by a clock finds one plan on an idle machine and another one on a busy one. A
search that stops after so much effort finds the same plan on both. So each of the loops in which searches spend their
time says how much it is about to do, and a `Deadline` by this clock looks at the sum, as the deterministic time limits
of solvers do (CPLEX's ticks, Gurobi's work units).

    effort.count(effort.MOVES, 4096)               # about to make moves that take 4,096 passes of the simulator
    part = deadline.part(0.3, effort.counted_s)    # 0.3 counted seconds from now on

A counted second takes about a second of one core: the rates below are least squares over a million calls of these
loops (of November 2026). What is kept from one search to the next, such as the arrays of a problem, is not counted, or
the order of searches would matter.
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class Work(NamedTuple):
    """A kind of work that searches do.

    Attributes:
        call_s: what it takes however small it is, in seconds.
        unit_s: what each unit of it takes.
    """

    call_s: float
    unit_s: float


PLAN = Work(5.4e-4, 8.0e-6)
"""One plan costed, with its timeline, by passes: stages times micro-batches."""
MOVES = Work(5.0e-5, 3.0e-8)
"""Moves under a schedule, by passes of the simulator that take as long (move_kernel)."""
RESTS = Work(0.0, 5e-9)
"""The least of what is left of a pipeline (step_bounds), by stages, pairs of their boundaries and lanes."""

BRANCHES = Work(0.0, 4.0e-7)
"""Ends of stages looked at (branch_and_bound), a plan that is simulated as one for each of its stages."""

# ---- searches of strategies

RANKS = Work(2.8e-4, 0.0)
"""What layers cost on the ranks of a division."""
SUBSPACE = Work(1.5e-4, 0.0)
"""What is added to that of the virtual stages of a family."""
CLOSED = Work(8.0e-5, 3.0e-8)
"""A lower bound in closed form, by ranks times kinds of layers and recomputation."""
ESTIMATES = Work(5.0e-5, 1.5e-7)
"""Guesses of a division, by schedules."""
PRICE = Work(6.5e-4, 4.5e-7)
"""A strategy priced, or its chains of passes looked for, by passes laid out."""
FITTING = Work(1.0e-4, 0.0)
"""What a rank recomputes, but for trying it."""
TRIALS = Work(0.0, 3.0e-9)
"""What a rank recomputes, tried: choices of its virtual stages at the moments of its order."""
PROGRAM = Work(2.5e-3, 7.0e-8)
"""A linear program, by its rows times its columns."""
INTEGER = Work(5.0e-3, 9.0e-5)
"""A node of an integer program, by columns times those that are whole."""

_done = threading.local()


def count(work: Work, units: float = 0.0) -> None:
    """Add what this thread is about to do.

    Args:
        work: what it is.
        units: how many of its units.
    """
    _done.counted_s = counted_s() + work.call_s + units * work.unit_s


def counted_s() -> float:
    """What this thread has counted since it began, in seconds: a clock for `planners.base.Deadline`."""
    so_far_s: float = getattr(_done, "counted_s", 0.0)
    return so_far_s
