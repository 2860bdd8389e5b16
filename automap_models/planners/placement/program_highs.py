"""HiGHS, through SciPy, on a mixed-integer linear program."""

from __future__ import annotations

import numpy as np

from automap_models.planners.placement.program import Answer, Program

TOLERANCE = 1e-6
"""HiGHS's absolute one for rows and whole numbers; its bound is lowered by as much."""


def solve_highs(program: Program, time_limit_s: float) -> Answer:
    """What HiGHS finds and proves in that time. It takes no hint, and Ctrl-C only when it is done."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows = program.rows
    starts = np.cumsum([0, *(len(row.columns) for row in rows)])
    columns = np.array([column for row in rows for column in row.columns], dtype=np.int64)
    coefficients = np.array([k for row in rows for k in row.coefficients], dtype=np.float64)
    matrix = csr_array((coefficients, columns, starts), shape=(len(rows), len(program.lower)))
    found = milp(
        np.arange(len(program.lower)) == program.objective,
        integrality=np.array(program.whole, dtype=np.int64),
        bounds=Bounds(program.lower, program.upper),
        constraints=LinearConstraint(matrix, [row.lower for row in rows], [row.upper for row in rows]),
        options={"time_limit": time_limit_s, "mip_rel_gap": 1e-7},
    )
    if found.status == 2 and "infeasible" in found.message.lower():
        return Answer(None, np.inf)
    bound = found.mip_dual_bound
    return Answer(found.x, -np.inf if bound is None else float(bound) - TOLERANCE)
