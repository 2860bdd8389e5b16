"""An integer program and its solver: CP-SAT, through OR-Tools MathOpt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np

from automap_models.core.placement import ROUNDING, FloatArray, IntArray
from automap_models.errors import BadInput
from automap_models.planners.base import NEVER, Deadline

NO_HINT: Mapping[int, float] = MappingProxyType({})

Term = tuple[int, float]
"""Column and coefficient."""


class Program:
    """Minimise the column `objective` subject to rows; all columns are whole numbers with a lower and an upper bound.

    Attributes:
        objective: the column to minimise.
        proto: columns and rows as MathOpt's message.

    Raises:
        BadInput: OR-tools is not installed.
    """

    def __init__(self, deadline: Deadline = NEVER) -> None:
        try:
            from ortools.math_opt import model_pb2
        except ImportError as error:
            do = "pip install 'automap-models[place]'"
            raise BadInput(f"integer programs need OR-tools ({error})", do=do) from error
        self.objective, self._deadline = -1, deadline
        self.proto: Any = model_pb2.ModelProto()

    def add(self, *shape: int, lower: float = 0.0, upper: float = 1.0) -> IntArray:
        """New columns, as an array of their numbers."""
        columns = self.proto.variables
        first, count = len(columns.ids), int(np.prod(shape))
        columns.ids.extend(range(first, first + count))
        columns.lower_bounds.extend([lower] * count)
        columns.upper_bounds.extend([upper] * count)
        columns.integers.extend([True] * count)
        return np.arange(first, first + count).reshape(shape)

    def fix(self, columns: Iterable[int], value: float) -> None:
        """Columns that can have one value only."""
        for column in columns:
            self.proto.variables.lower_bounds[column] = self.proto.variables.upper_bounds[column] = value

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
        """`lower ≤ Σ coefficient · column ≤ upper`."""
        self._deadline.check()
        total: dict[int, float] = defaultdict(float)
        for column, coefficient in terms:
            total[column] += coefficient
        entries = sorted((column, coefficient) for column, coefficient in total.items() if coefficient)
        rows, matrix = self.proto.linear_constraints, self.proto.linear_constraint_matrix
        matrix.row_ids.extend([len(rows.ids)] * len(entries))
        matrix.column_ids.extend([column for column, _ in entries])
        matrix.coefficients.extend([coefficient for _, coefficient in entries])
        rows.ids.append(len(rows.ids))
        rows.lower_bounds.append(lower)
        rows.upper_bounds.append(upper)


@dataclass(frozen=True, eq=False)
class Answer:
    """What the solver knows when it stops.

    Attributes:
        columns: values of the columns of its best solution; None if it has none.
        bound: no solution has a smaller objective; infinite if there is none at all.
    """

    columns: FloatArray | None
    bound: float


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
        hint: column → value of a solution that is known, perhaps of some columns only.
        work_s: when to stop, too, in CP-SAT's deterministic seconds, some two to seven of a clock's: it counts them
            itself, so that it answers the same whatever else the machine does.
    """
    from ortools.math_opt.python import mathopt
    from ortools.sat import sat_parameters_pb2
    from ortools.util.python.solve_interrupter import SolveInterrupter

    program.proto.objective.linear_coefficients.ids[:] = [program.objective]
    program.proto.objective.linear_coefficients.values[:] = [1.0]
    model = mathopt.Model.from_model_proto(program.proto)
    columns = list(model.variables())
    solution_hint = mathopt.SolutionHint(variable_values={columns[column]: value for column, value in hint.items()})
    interrupter, limit_s = SolveInterrupter(), deadline.remaining_s
    answer = _until_interrupted(
        lambda: mathopt.solve(
            model,
            mathopt.SolverType.CP_SAT,
            params=mathopt.SolveParameters(
                time_limit=None if np.isinf(limit_s) else timedelta(seconds=limit_s),
                threads=1,
                random_seed=seed % 2**31,
                cp_sat=sat_parameters_pb2.SatParameters(
                    mip_max_bound=1e13,  # by default MathOpt cuts bounds at 1e7 and refuses sums above 2^53
                    mip_max_activity_exponent=62,
                    catch_sigint_signal=False,
                    max_deterministic_time=work_s,
                ),
            ),
            model_params=mathopt.ModelSolveParameters(solution_hints=[solution_hint] if hint else []),
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
    return Answer(values, answer.best_objective_bound())


def _until_interrupted(solve: Callable[[], Any], interrupt: Callable[[], None]) -> Any:
    """What `solve` returns, sooner after Ctrl-C; it runs beside the main thread, which hears Ctrl-C."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        task = thread.submit(solve)
        while True:
            try:
                return task.result()
            except KeyboardInterrupt:
                interrupt()


def in_ticks(times_s: FloatArray, tick_s: float) -> FloatArray:
    """Times in the program's unit, rounded down to whole ones."""
    return np.asarray(np.floor(times_s / tick_s))


def memory_steps(node_bytes: FloatArray, limit_bytes: float) -> tuple[FloatArray, float]:
    """What nodes take and what an accelerator has, in whole steps, so that nothing that fits is lost.

    A step is a byte, or a part of 2^40 of the limit where that has more bytes.

    Σ ⌊m⌋ ≤ ⌊Σ m⌋ ≤ ⌊limit⌋. What fits in steps only, where bytes are no whole numbers, the plan's own check refuses.
    """
    step_bytes = max(1.0, limit_bytes / 2.0**40)
    return np.floor(node_bytes / step_bytes), float(np.floor(limit_bytes * (1.0 + ROUNDING) / step_bytes))
