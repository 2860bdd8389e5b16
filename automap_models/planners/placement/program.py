"""An integer program as plain lists, and its solver: CP-SAT, through OR-Tools MathOpt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np

from automap_models.core.placement import ROUNDING, FloatArray, IntArray
from automap_models.errors import BadInput
from automap_models.planners.base import NEVER, Deadline

NO_HINT: Mapping[int, float] = MappingProxyType({})
TICKS = 1e9
"""The best known value in the program's unit of time: rounding n times down costs the bound n · 1e-9 of the value."""
LARGEST = 1e13
"""Of the numbers that MathOpt hands on; by default it cuts bounds at 1e7 and refuses sums above 2^53."""
LARGEST_EXPONENT = 62
"""Of two, the same for sums."""

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
    """Minimise the column `objective` subject to rows; all columns are whole numbers with a lower and an upper bound.

    Attributes:
        lower, upper: bounds of the columns.
        rows: the constraints.
        objective: the column to minimise.
        deadline: when to stop writing rows.
    """

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: int = -1
    deadline: Deadline = NEVER

    def add(self, *shape: int, lower: float = 0.0, upper: float = 1.0) -> IntArray:
        """New columns, as an array of their numbers."""
        first, count = len(self.lower), int(np.prod(shape))
        self.lower += [lower] * count
        self.upper += [upper] * count
        return np.arange(first, first + count).reshape(shape)

    def fix(self, columns: Iterable[int], value: float) -> None:
        """Columns that can have one value only."""
        for column in columns:
            self.lower[column] = self.upper[column] = value

    def at_most(self, terms: Iterable[Term], upper: float) -> None:
        """`Σ coefficient · column ≤ upper`; terms of coefficient 0 are left out.

        Raises:
            OutOfTime: the deadline has passed.
        """
        self._row(terms, -np.inf, upper)

    def equal(self, terms: Iterable[Term], value: float) -> None:
        """`Σ coefficient · column = value`.

        Raises:
            OutOfTime: the deadline has passed.
        """
        self._row(terms, value, value)

    def _row(self, terms: Iterable[Term], lower: float, upper: float) -> None:
        self.deadline.check()
        total: dict[int, float] = defaultdict(float)
        for column, coefficient in terms:
            total[column] += coefficient
        kept = {column: coefficient for column, coefficient in total.items() if coefficient}
        self.rows.append(Row(tuple(kept), tuple(kept.values()), lower, upper))


@dataclass(frozen=True, eq=False)
class Answer:
    """What the solver knows when it stops.

    Attributes:
        columns: values of the columns of its best solution; None if it has none.
        bound: no solution has a smaller objective; infinite if there is none at all.
        interrupted: whether Ctrl-C ended the search.
    """

    columns: FloatArray | None
    bound: float
    interrupted: bool = False


def solve_program(
    program: Program,
    deadline: Deadline,
    hint: Mapping[int, float] = NO_HINT,
    *,
    work_s: float = np.inf,
    seed: int = 0,
) -> Answer:
    """What CP-SAT knows about a program by the deadline, on one thread; after Ctrl-C what it knows by then.

    Args:
        program: to be solved; its coefficients and bounds are whole.
        deadline: when to stop.
        hint: column → value of a solution that is known, perhaps of some columns only.
        work_s: when to stop, too, in CP-SAT's deterministic seconds, some two to seven of a clock's: it counts them
            itself, so that it answers the same whatever else the machine does.
        seed: of the solver's random draws.

    Raises:
        BadInput: OR-tools is not installed.
    """
    try:
        from ortools.math_opt.python import mathopt
        from ortools.sat import sat_parameters_pb2
        from ortools.util.python.solve_interrupter import SolveInterrupter
    except ImportError as error:
        raise BadInput(f"integer programs need OR-tools ({error})", do="pip install 'automap-models[place]'") from error
    model = mathopt.Model.from_model_proto(_model_proto(program))
    columns = list(model.variables())
    known = mathopt.SolutionHint(variable_values={columns[column]: value for column, value in hint.items()})
    interrupter, limit_s = SolveInterrupter(), deadline.left_s
    answer, interrupted = _until_interrupted(
        lambda: mathopt.solve(
            model,
            mathopt.SolverType.CP_SAT,
            params=mathopt.SolveParameters(
                time_limit=None if np.isinf(limit_s) else timedelta(seconds=limit_s),
                threads=1,
                random_seed=seed % 2**31,
                cp_sat=sat_parameters_pb2.SatParameters(
                    mip_max_bound=LARGEST,
                    mip_max_activity_exponent=LARGEST_EXPONENT,
                    catch_sigint_signal=False,
                    max_deterministic_time=work_s,
                ),
            ),
            model_params=mathopt.ModelSolveParameters(solution_hints=[known] if hint else []),
            interrupter=interrupter,
        ),
        interrupter.interrupt,
    )
    if answer.termination.reason in (
        mathopt.TerminationReason.INFEASIBLE,
        mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,  # every column is bounded
    ):
        return Answer(None, np.inf)
    values = np.array(answer.variable_values(columns)) if answer.has_primal_feasible_solution() else None
    return Answer(values, answer.best_objective_bound(), interrupted)


def _until_interrupted(solve: Callable[[], Any], interrupt: Callable[[], None]) -> tuple[Any, bool]:
    """What `solve` returns, and whether Ctrl-C was pressed; it runs beside the main thread, which hears Ctrl-C."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        task, interrupted = thread.submit(solve), False
        while True:
            try:
                return task.result(), interrupted
            except KeyboardInterrupt:
                interrupted = True
                interrupt()


def _model_proto(program: Program) -> Any:
    """The program as MathOpt's message."""
    from ortools.math_opt import model_pb2

    rows, proto = program.rows, model_pb2.ModelProto()
    proto.variables.ids.extend(range(len(program.lower)))
    proto.variables.lower_bounds.extend(program.lower)
    proto.variables.upper_bounds.extend(program.upper)
    proto.variables.integers.extend([True] * len(program.lower))
    proto.linear_constraints.ids.extend(range(len(rows)))
    proto.linear_constraints.lower_bounds.extend([row.lower for row in rows])
    proto.linear_constraints.upper_bounds.extend([row.upper for row in rows])
    for number, row in enumerate(rows):
        terms = sorted(zip(row.columns, row.coefficients, strict=True))
        proto.linear_constraint_matrix.row_ids.extend([number] * len(terms))
        proto.linear_constraint_matrix.column_ids.extend([column for column, _ in terms])
        proto.linear_constraint_matrix.coefficients.extend([coefficient for _, coefficient in terms])
    proto.objective.linear_coefficients.ids.append(program.objective)
    proto.objective.linear_coefficients.values.append(1.0)
    return proto


def in_ticks(times_s: FloatArray, tick_s: float) -> FloatArray:
    """Times in the program's unit, rounded down to whole ones."""
    return np.asarray(np.floor(times_s / tick_s))


MEMORY_STEPS = 2.0**40
"""An accelerator's memory is counted in bytes, or in steps of this part of it when it has more."""


def memory_steps(node_bytes: FloatArray, limit_bytes: float) -> tuple[FloatArray, float]:
    """What nodes take and what an accelerator has, in whole steps, so that nothing that fits is lost.

    Σ ⌊m⌋ ≤ ⌊Σ m⌋ ≤ ⌊limit⌋. What fits in steps only, where bytes are no whole numbers, the plan's own check refuses.
    """
    step_bytes = max(1.0, limit_bytes / MEMORY_STEPS)
    return np.floor(node_bytes / step_bytes), float(np.floor(limit_bytes * (1.0 + ROUNDING) / step_bytes))
