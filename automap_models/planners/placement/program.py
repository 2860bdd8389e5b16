"""A mixed-integer linear program as plain lists, for whichever solver is to have it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from automap_models.core.placement import ROUNDING
from automap_models.core.placement_graph import FloatArray, IntArray

Term = tuple[int, float]
"""Column and coefficient."""


@dataclass(frozen=True)
class Row:
    """`lower ≤ Σ coefficient · column ≤ upper`."""

    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    lower: float
    upper: float


@dataclass
class Program:
    """Minimise the column `objective` subject to rows; every column has a lower and an upper bound.

    Attributes:
        lower, upper: bounds of the columns.
        whole: whether a column must be a whole number for a solution to mean something.
        rows: the constraints.
        objective: the column to minimise.
    """

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: int = -1

    def add(self, *shape: int, lower: float = 0.0, upper: float = 1.0, whole: bool = True) -> IntArray:
        """New columns, as an array of their numbers."""
        first, count = len(self.lower), int(np.prod(shape))
        self.lower += [lower] * count
        self.upper += [upper] * count
        self.whole += [whole] * count
        return np.arange(first, first + count).reshape(shape)

    def fix(self, columns: Iterable[int], value: float) -> None:
        """Columns that can have one value only."""
        for column in columns:
            self.lower[column] = self.upper[column] = value

    def at_most(self, terms: Iterable[Term], upper: float) -> None:
        """`Σ coefficient · column ≤ upper`; terms of coefficient 0 are left out."""
        self._row(terms, -np.inf, upper)

    def equal(self, terms: Iterable[Term], value: float) -> None:
        """`Σ coefficient · column = value`."""
        self._row(terms, value, value)

    def _row(self, terms: Iterable[Term], lower: float, upper: float) -> None:
        total: dict[int, float] = defaultdict(float)
        for column, coefficient in terms:
            total[column] += coefficient
        kept = {column: coefficient for column, coefficient in total.items() if coefficient}
        self.rows.append(Row(tuple(kept), tuple(kept.values()), lower, upper))


@dataclass(frozen=True, eq=False)
class Answer:
    """What a solver knows when it stops.

    Attributes:
        columns: values of the columns of its best solution; None if it has none.
        bound: no solution has a smaller objective; infinite if there is none at all.
    """

    columns: FloatArray | None
    bound: float


def in_ticks(times_s: FloatArray, tick_s: float, *, whole: bool) -> FloatArray:
    """Times in a solver's unit, rounded down to whole ones when asked."""
    ticks: FloatArray = np.floor(times_s / tick_s) if whole else times_s / tick_s
    return ticks


MEMORY_STEPS = 2.0**40
"""An accelerator's memory is counted in bytes, or in steps of this part of it when it has more."""


def memory_steps(node_bytes: FloatArray, limit_bytes: float) -> tuple[FloatArray, float]:
    """What nodes take and what an accelerator has, in whole steps, so that nothing that fits is lost.

    Σ ⌊m⌋ ≤ ⌊Σ m⌋ ≤ ⌊limit⌋. What fits in steps only, where bytes are no whole numbers, the plan's own check refuses.
    """
    step_bytes = max(1.0, limit_bytes / MEMORY_STEPS)
    return np.floor(node_bytes / step_bytes), float(np.floor(limit_bytes * (1.0 + ROUNDING) / step_bytes))
