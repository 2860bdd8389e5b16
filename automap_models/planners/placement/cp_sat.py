"""CP-SAT of OR-tools on a program whose coefficients and bounds are all whole numbers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping

import numpy as np

from automap_models.errors import BadInput
from automap_models.planners.placement.program import Answer, Program


def solve_cp_sat(program: Program, time_limit_s: float, hint: Mapping[int, int], seed: int = 0) -> Answer:
    """What CP-SAT finds and proves in that time, on one thread; after Ctrl-C what it has by then.

    Args:
        program: every column takes whole numbers, which only rounds where it need not.
        time_limit_s: when to stop.
        hint: column → value of a solution that is known, perhaps of some columns only.
        seed: of its random draws.

    Raises:
        BadInput: OR-tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise BadInput(f"CP-SAT needs OR-tools ({error})", do="pip install 'automap-models[place]'") from error
    model = cp_model.CpModel()
    bounds = zip(program.lower, program.upper, strict=True)
    columns = [model.new_int_var(int(lower), int(upper), "") for lower, upper in bounds]
    for row in program.rows:
        total = cp_model.LinearExpr.weighted_sum([columns[c] for c in row.columns], [int(k) for k in row.coefficients])
        model.add(total == int(row.upper) if row.lower == row.upper else total <= int(row.upper))
    for column, value in hint.items():
        model.add_hint(columns[column], value)
    model.minimize(columns[program.objective])
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    with _own_interrupt():
        status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Answer(None, np.inf)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, solver.best_objective_bound)
    return Answer(np.array([solver.value(column) for column in columns], dtype=np.float64), solver.best_objective_bound)


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """CP-SAT takes Ctrl-C for itself and afterwards leaves it to kill the process: Python's handler is put back."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
