"""Estimates in closed form against the linear programs that they solve."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from automap_models.planners.strategies.closed_forms import least_work


@pytest.mark.parametrize("seed", range(5))
def test_blocks_share_the_room_as_a_linear_program_has_it(seed: int) -> None:
    """Shares of blocks that recompute each way, at least 0 and 1 together, in so many bytes, for the least seconds."""
    draw = np.random.default_rng(seed)
    seconds, memory, room = draw.uniform(1.0, 2.0, 4), draw.uniform(1.0, 9.0, 4), draw.uniform(0.0, 10.0, 20)
    every = np.tile(seconds, (room.size, 1)), np.tile(memory, (room.size, 1)), room
    least = least_work(*every, alike=False)
    for most, work in zip(room, least, strict=True):
        program = linprog(seconds, A_ub=memory[None], b_ub=[most], A_eq=np.ones((1, 4)), b_eq=[1.0])
        assert work == pytest.approx(program.fun) if program.success else work == np.inf
    whole = [min((s for s, m in zip(seconds, memory, strict=True) if m <= most), default=np.inf) for most in room]
    assert least_work(*every, alike=True).tolist() == whole
