"""What the compiled loops of the exact search work on (search_kernel)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, IntArray


class ShardingArrays(NamedTuple):
    """The arrays of `stage_tables.ShardingTables`, all of them; zeros where devices share nothing.

    Attributes:
        C, F, gather_s, gradient_s: [E, m+1].
        least_C, W, H, frozen, start_s, start_forward_s: [m+1].
        copies_end, frozen_end: [P, m+1].
        copies_nbytes, frozen_nbytes: [P].
        place, rate, ring, parts, memory, allowed: [D+1, D+1].
    """

    C: FloatArray
    F: FloatArray
    least_C: FloatArray
    W: FloatArray
    H: FloatArray
    frozen: FloatArray
    gather_s: FloatArray
    start_s: FloatArray
    start_forward_s: FloatArray
    gradient_s: FloatArray
    copies_end: IntArray
    copies_nbytes: FloatArray
    frozen_end: IntArray
    frozen_nbytes: FloatArray
    place: IntArray
    rate: FloatArray
    ring: FloatArray
    parts: FloatArray
    memory: FloatArray
    allowed: NDArray[np.bool_]


class StageLimits(NamedTuple):
    """What a stage is bounded by.

    Attributes:
        micro_batches: M.
        in_flight: micro-batches whose activations it holds at once.
        state_factor: σ.
        hidden, update_s: share of all-reduces that goes on beside the last backward pass, and seconds of updating a
            byte of parameters (StagedProblem).
        length_s: of a plan at most.
    """

    micro_batches: int
    in_flight: int
    state_factor: float
    hidden: float
    update_s: float
    length_s: float
